//! Searches the node of an unknown id, with questions that change nothing and contain no secret.
//!
//! A node that reports the id is believed only if every other node reports that it does not have it. Otherwise a node
//! could get the requests, the secrets and the ids of an offline node.

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use csi_proto::{Code, Method};
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use tokio::time::Instant;

use super::limits::{MAX_SEARCHED, MAX_SEARCHED_PAGES, NODE_TIMEOUT};
use super::list::{ENTRIES, ID, NEXT_TOKEN, RESOURCE};
use super::{InboundCall, MAX_CONCURRENT_ROUNDS, RoutedCall, TopologyRouter};
use crate::call::{BadRequest, MethodPath, NodeId, Origin, Outcome, Reply, Subject, protobuf};
use crate::routing::Refusal;

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Search {
    /// The node has the subject, and no other node has it. Recorded.
    Found(NodeId),
    /// The node reports the subject, and some nodes did not answer. Not recorded.
    Reported(NodeId),
    /// No node has the subject.
    Absent,
    /// The driver on this node has no question for such a subject.
    Unanswerable(NodeId),
}

/// What a node reports about a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Present,
    Absent,
    Unknown,
    /// The driver has no question for it.
    Unanswerable,
}

impl TopologyRouter {
    /// Searches the node of a subject. `strict` is for calls that change something or have secrets: they need
    /// [`Search::Found`].
    ///
    /// # Errors
    /// If several nodes report the subject, or a node that may have it does not answer.
    pub(super) async fn search(
        &self,
        call: RoutedCall<'_>,
        subject: &Subject,
        strict: bool,
    ) -> Result<Search, Refusal> {
        self.check_complete()?;
        let nodes = self.names();
        if nodes.is_empty() {
            let what = "no node with the driver is known; start the agent on a node".to_owned();
            return Err(Refusal::Undetermined { what });
        }
        self.doubts().sent(subject);
        let reports = self.reports(call, subject, nodes).await;
        let first = |wanted: Report| {
            reports.iter().filter(|(report, _)| *report == wanted).map(|(_, node)| node).min()
        };
        let mut present = reports.iter().filter(|(report, _)| *report == Report::Present);
        let (found, other) = (present.next(), present.next());
        if let (Some((_, one)), Some((_, other))) = (found, other) {
            tracing::warn!(%subject, node = %one, %other, "two nodes report the same id, the call is not sent");
            let (subject, known, other) = (subject.clone(), one.clone(), other.clone());
            return Err(Refusal::DuplicateId { subject, known, other });
        }
        match (found, first(Report::Unanswerable), first(Report::Unknown)) {
            (Some((_, node)), None, None) => {
                self.placements.found(subject, node).await?;
                Ok(Search::Found(node.clone()))
            }
            (Some((_, node)), ..) if !strict => Ok(Search::Reported(node.clone())),
            (_, _, Some(node)) => Err(Refusal::MayBeOn { subject: subject.clone(), node: node.clone() }),
            (_, Some(node), None) => Ok(Search::Unanswerable(node.clone())),
            (None, None, None) => Ok(Search::Absent),
        }
    }

    /// The node that gets a removal with its secrets; `None` if no node gets them.
    pub(super) async fn node_of_removal(
        &self,
        call: RoutedCall<'_>,
        subject: &Subject,
    ) -> Result<Option<NodeId>, Refusal> {
        if !call.has_secrets() {
            return Ok(None);
        }
        Ok(match self.search(call, subject, true).await? {
            Search::Found(node) => Some(node),
            Search::Reported(_) | Search::Absent | Search::Unanswerable(_) => None,
        })
    }

    /// What each of these nodes reports about a subject.
    pub(super) async fn reports(
        &self,
        call: RoutedCall<'_>,
        subject: &Subject,
        nodes: Vec<NodeId>,
    ) -> Vec<(Report, NodeId)> {
        let one = |node: NodeId| async move {
            let asked = self.report(call, subject, &node);
            (tokio::time::timeout(NODE_TIMEOUT, asked).await.unwrap_or(Report::Unknown), node)
        };
        stream::iter(nodes).map(one).buffer_unordered(MAX_CONCURRENT_ROUNDS).collect().await
    }

    async fn report(&self, call: RoutedCall<'_>, subject: &Subject, node: &NodeId) -> Report {
        let Ok(Some((asked, body))) = self.question(call, subject, node) else {
            return Report::Unanswerable;
        };
        let Ok(path) = MethodPath::new(asked.path()) else { return Report::Unanswerable };
        let mut question = InboundCall { method: path, body: body.into(), ..call.inbound.clone() };
        question.end = question.end.min(Instant::now() + NODE_TIMEOUT);
        let mut searched = 0;
        for _ in 0..MAX_SEARCHED_PAGES {
            let (message, outcome) = if asked.is_server_streaming() {
                // The first part shows whether the node has the subject.
                match self.call_node(call.relay, node, &question).await.next().await {
                    Some(Reply::Message(first)) => (Some(first), Outcome::ok()),
                    Some(Reply::End(outcome)) => (None, outcome),
                    None => return Report::Unknown,
                }
            } else {
                self.ask(RoutedCall { inbound: &question, method: asked, ..call }, node).await
            };
            match (&outcome.origin, outcome.code) {
                (Origin::Driver, Code::OK) => {}
                (Origin::Driver, Code::NOT_FOUND) => return Report::Absent,
                (Origin::Driver, Code::UNIMPLEMENTED) => return Report::Unanswerable,
                _ => return Report::Unknown,
            }
            let message = message.unwrap_or_default();
            searched += message.len();
            if searched > MAX_SEARCHED {
                return Report::Unknown;
            }
            let listed = match asked {
                Method::ControllerGetVolume | Method::GetSnapshot | Method::GetVolumeGroupSnapshot => {
                    self.is_about(node, asked, subject, &message).then_some(Listed::Present)
                }
                _ => listed(asked, &message, subject.id()),
            };
            let Some(listed) = listed else { return Report::Unknown };
            match listed {
                Listed::Present => return Report::Present,
                Listed::Next(token) if token.is_empty() => return Report::Absent,
                Listed::Next(token) => {
                    let starting_token = token;
                    let request = csi::ListVolumesRequest { starting_token, ..Default::default() };
                    question.body = request.encode_to_vec().into();
                }
            }
        }
        Report::Unknown
    }

    /// The question whether a node has a subject; `None` if its driver has none.
    fn question(
        &self,
        call: RoutedCall<'_>,
        subject: &Subject,
        node: &NodeId,
    ) -> Result<Option<(Method, Vec<u8>)>, BadRequest> {
        let has = |rpc: Rpc| {
            self.driver_info
                .read(|cache| cache.entry(node).is_some_and(|entry| entry.has_controller_rpc(rpc)))
        };
        Ok(Some(match subject {
            Subject::Volume(id) if has(Rpc::GetVolume) => {
                let request = csi::ControllerGetVolumeRequest { volume_id: id.to_string() };
                (Method::ControllerGetVolume, request.encode_to_vec())
            }
            Subject::Volume(_) if has(Rpc::ListVolumes) => (Method::ListVolumes, Vec::new()),
            Subject::Volume(id) => {
                // Every controller has this method, and the spec demands NOT_FOUND for an unknown volume.
                let request = csi::ValidateVolumeCapabilitiesRequest {
                    volume_id: id.to_string(),
                    volume_capabilities: vec![any_capability()],
                    ..Default::default()
                };
                (Method::ValidateVolumeCapabilities, request.encode_to_vec())
            }
            Subject::Snapshot(id) if has(Rpc::GetSnapshot) => {
                let request = csi::GetSnapshotRequest { snapshot_id: id.to_string(), ..Default::default() };
                (Method::GetSnapshot, request.encode_to_vec())
            }
            Subject::Snapshot(id) if has(Rpc::ListSnapshots) => {
                let request = csi::ListSnapshotsRequest { snapshot_id: id.to_string(), ..Default::default() };
                (Method::ListSnapshots, request.encode_to_vec())
            }
            Subject::GroupSnapshot(id) if call.method == Method::CreateVolumeGroupSnapshot => {
                let group_snapshot_id = id.to_string();
                let request = csi::GetVolumeGroupSnapshotRequest { group_snapshot_id, ..Default::default() };
                (Method::GetVolumeGroupSnapshot, request.encode_to_vec())
            }
            // The requests to get and to delete a group have the same fields.
            Subject::GroupSnapshot(_) => {
                (Method::GetVolumeGroupSnapshot, call.without_secrets()?.body.to_vec())
            }
            _ if !call.method.is_mutating() => (call.method, call.without_secrets()?.body.to_vec()),
            _ => return Ok(None),
        }))
    }
}

/// What an answer shows.
enum Listed {
    Present,
    /// The token of the next page; empty if the list has ended.
    Next(String),
}

/// What the answer to a question shows about an id; `None` if it cannot be decoded. A page is walked: its entries take two
/// bytes or more, and much more if decoded.
fn listed(asked: Method, message: &[u8], id: &str) -> Option<Listed> {
    if !matches!(asked, Method::ListVolumes | Method::ListSnapshots) {
        return Some(Listed::Present);
    }
    for entry in protobuf::fields(message)?.of(ENTRIES) {
        for resource in protobuf::fields(entry.bytes()?)?.of(RESOURCE) {
            if protobuf::fields(resource.bytes()?)?.of(ID).any(|found| found.text() == Some(id)) {
                return Some(Listed::Present);
            }
        }
    }
    // The list of one snapshot has one page.
    let next = protobuf::text(message, NEXT_TOKEN).filter(|_| asked == Method::ListVolumes);
    Some(Listed::Next(next.unwrap_or_default().to_owned()))
}

/// A capability that most volumes have. The answer to it does not matter, only whether the volume exists.
fn any_capability() -> csi::VolumeCapability {
    let mode = access_mode::Mode::SingleNodeWriter.into();
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}
