//! `ListVolumes`, `ListSnapshots` and `ControllerListVolumeHealth`: the pages of all nodes, in the order of the nodes.
//!
//! A node that is offline, late or sends an invalid page fails no list of volumes: its recorded volumes are listed
//! instead. Its unhealthy volumes are not known, so they are omitted. A list of snapshots fails: a snapshot has
//! required fields that are not recorded. A list of one snapshot fails only if no other node has the snapshot.
//!
//! A list of all nodes is sent without its secrets: one node could read the secrets that another node's storage needs.

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use tokio::time::Instant;

use super::limits::{
    MAX_ENTRY, MAX_LIST_TIME, MAX_LISTED, MAX_NODE_PAGE, MAX_TOKEN, MIN_PAGE_TIME, NODE_TIMEOUT,
};
use super::own::{OwnPlace, STATUS, is_usable};
use super::token::{Position, Token};
use super::{Answer, InboundCall, MAX_CONCURRENT_ROUNDS, RoutedCall, TopologyRouter};
use crate::call::protobuf;
use crate::call::{BadRequest, Subject};
use crate::call::{Fault, NodeId, Origin, Outcome};
use crate::routing::Refusal;

// Field numbers, the same in all three requests and responses.
const STARTING_TOKEN: u32 = 2;
pub(super) const ENTRIES: u32 = 1;
pub(super) const NEXT_TOKEN: u32 = 2;

// Field numbers of ListSnapshotsRequest.
const SOURCE_VOLUME_ID: u32 = 3;
const SNAPSHOT_ID: u32 = 4;

// Field numbers of an entry of ListVolumes and ListSnapshots, of a volume and a snapshot, and of a VolumeHealth.
pub(super) const RESOURCE: u32 = 1;
pub(super) const ID: u32 = 2;
const HEALTH_VOLUME_ID: u32 = 1;
const CONDITION: u32 = 2;
const CONDITION_MESSAGE: u32 = 2;

/// After how many bytes of a page other tasks have their turn. A page of many small fields takes a quarter of a second.
const TURN: usize = 64 << 10;

/// The size in bytes above which a page gets no entries of another node. With the page of that node and a token it has about
/// 3 MiB at most: gRPC clients accept 4 MiB by default.
const PAGE_SIZE: usize = 1 << 20;

/// Whether clients can read an entry, with all that is in it. If they cannot read one, they refuse the whole list.
fn is_readable(method: Method, entry: &[u8]) -> bool {
    match method {
        Method::ControllerListVolumeHealth => csi::VolumeHealth::decode(entry).is_ok(),
        Method::ListSnapshots => csi::list_snapshots_response::Entry::decode(entry).is_ok(),
        _ => csi::list_volumes_response::Entry::decode(entry).is_ok() && has_readable_conditions(entry),
    }
}

/// Whether clients of CSI 1.12 and before can read the condition in the status of a volume, which later versions do not have.
fn has_readable_conditions(entry: &[u8]) -> bool {
    let of = |message: &[u8], number: u32, check: &dyn Fn(&[u8]) -> bool| {
        let Some(fields) = protobuf::fields(message) else { return false };
        fields.of(number).all(|value| value.bytes().is_some_and(check))
    };
    let is_text = |text: &[u8]| std::str::from_utf8(text).is_ok();
    let is_condition = |condition: &[u8]| of(condition, CONDITION_MESSAGE, &is_text);
    of(entry, STATUS, &|status| of(status, CONDITION, &is_condition))
}

/// A page of one node without its token, and the position after it; `None` at the end.
struct NodePage {
    entries: Vec<u8>,
    outcome: Outcome,
    next: Option<Position>,
}

impl TopologyRouter {
    pub(super) async fn list(&self, call: RoutedCall<'_>) -> Result<Answer, Refusal> {
        // The fields used here are the same in all three requests.
        let request = csi::ListVolumesRequest::decode(call.inbound.body.clone());
        let request = request.map_err(|_| BadRequest::NotAMessage)?;
        let max = usize::try_from(request.max_entries).unwrap_or_default();
        let holder = self.only().or_else(|| self.holder_of_list(call));
        // Only the known node of the listed id gets the secrets.
        let stripped = holder.is_none().then(|| call.without_secrets()).transpose()?;
        let call = call.with(stripped.as_ref().unwrap_or(call.inbound));
        let nodes = holder.map_or_else(|| self.names(), |node| vec![node]);
        let (first, position) = start(&nodes, &request.starting_token)?;
        let (is_only, position) = (nodes.len() == 1, &position);
        let fetch = |(at, node): (usize, NodeId)| async move {
            let start = Position::default();
            let position = if at == first { position } else { &start };
            let page = self.page_of(call, &node, position, max, is_only).await;
            (at, page)
        };
        let mut rest: Vec<_> = nodes.iter().cloned().enumerate().skip(first).collect();
        // A page that continues a list may have a next one: the other nodes are called once it has none.
        let others = rest.split_off(usize::from(*position != Position::default()));
        let others = stream::iter(others).map(&fetch).buffered(MAX_CONCURRENT_ROUNDS);
        let mut pages = stream::iter(rest).map(&fetch).buffered(1).chain(others);
        let (mut page, mut failed) = (Vec::new(), None);
        let is_of_snapshot =
            call.method == Method::ListSnapshots && protobuf::text(&call.inbound.body, SNAPSHOT_ID).is_some();
        while let Some((at, fetched)) = pages.next().await {
            let NodePage { entries, outcome, next } = match fetched {
                Ok(fetched) => fetched,
                Err(answer) if is_of_snapshot && !is_only => {
                    failed.get_or_insert(answer);
                    NodePage {
                        entries: Vec::new(),
                        outcome: Outcome::from_endpoint(crate::Code::OK, ""),
                        next: None,
                    }
                }
                Err(answer) => return Ok(answer),
            };
            // The list of one snapshot has one page: a token would hide the snapshot of a later node.
            let next = next.filter(|_| is_only || !is_of_snapshot);
            // In protobuf, repeated fields concatenate.
            page.extend_from_slice(&entries);
            let token = match (next, nodes.get(at), nodes.get(at + 1)) {
                (Some(position), Some(node), _) => Token { node: node.clone(), position },
                (_, _, Some(next)) => {
                    let empty = protobuf::count(&page, ENTRIES) == 0;
                    if empty || (max == 0 && page.len() < PAGE_SIZE) {
                        // What later versions of the spec have beside entries leaves room for the next node.
                        if page.len() >= PAGE_SIZE {
                            page.clear();
                        }
                        continue;
                    }
                    Token { node: next.clone(), position: Position::default() }
                }
                _ => {
                    let failed = failed.filter(|_| protobuf::count(&page, ENTRIES) == 0);
                    return Ok(failed.unwrap_or_else(|| (Some(page.into()), outcome)));
                }
            };
            let page = protobuf::append_field(&page, NEXT_TOKEN, token.encode().as_bytes());
            return Ok((Some(page), outcome));
        }
        Err(Refusal::BadToken)
    }

    /// A page of a node, or of its record. The error is the answer to the whole list.
    async fn page_of(
        &self,
        call: RoutedCall<'_>,
        node: &NodeId,
        position: &Position,
        max: usize,
        is_only: bool,
    ) -> Result<NodePage, Answer> {
        let method = call.method;
        let Position::Driver { listed, spent, token } = position else {
            return Ok(self.recorded_page(method, node, position, max));
        };
        let body = protobuf::append_field(&call.inbound.body, STARTING_TOKEN, token.as_bytes());
        let began = Instant::now();
        let end = call.inbound.end.min(began + NODE_TIMEOUT);
        let question = InboundCall { body, end, ..call.inbound.clone() };
        let late = |_| (None, Fault::Deadline { waited: NODE_TIMEOUT }.into());
        let asked = self.ask(call.with(&question), node);
        let answer = match is_only {
            true => asked.await,
            false => tokio::time::timeout(NODE_TIMEOUT, asked).await.unwrap_or_else(late),
        };
        let (message, outcome) = match answer {
            (Some(message), outcome) => (message, outcome),
            answer if is_only || method == Method::ListSnapshots || is_about_the_hub(&answer.1) => {
                return Err(answer);
            }
            (None, outcome) => {
                tracing::debug!(%node, code = %outcome.code, "the list of a node failed, its recorded volumes are listed");
                return Ok(self.recorded_page(method, node, position, max));
            }
        };
        let rest = MAX_LISTED.saturating_sub(*listed);
        let entries = self.own_entries(method, node, &message, max, rest).await;
        let Some((entries, count)) = entries else {
            tracing::warn!(%node, bytes = message.len(), "a node sent an invalid page of a list; expected at most max_entries entries, 2 MiB with its topologies, and a token of 4 KiB");
            let reason = format!("node {node} sent an invalid page of a list");
            return match method {
                Method::ListSnapshots => Err((None, Fault::Protocol { reason }.into())),
                _ => Ok(self.recorded_page(method, node, position, max)),
            };
        };
        let listed = listed.saturating_add(u32::try_from(count.max(1)).unwrap_or(u32::MAX));
        let next = protobuf::text(&message, NEXT_TOKEN).map(str::to_owned);
        if listed > MAX_LISTED || (next.is_some() && listed == MAX_LISTED) {
            tracing::warn!(%node, max = MAX_LISTED, "the list of a node is too long, the rest of it is omitted");
            return Ok(NodePage { entries, outcome, next: None });
        }
        let spent = *spent + began.elapsed().max(MIN_PAGE_TIME);
        let next = match next {
            Some(_) if spent >= MAX_LIST_TIME && !is_only => {
                tracing::warn!(%node, listed, max = ?MAX_LIST_TIME, "the list of a node takes too long, the rest of it is omitted");
                if method == Method::ListSnapshots {
                    return Err((None, Fault::Deadline { waited: MAX_LIST_TIME }.into()));
                }
                Some(Position::Recorded { after: String::new() })
            }
            next => next.map(|token| Position::Driver { listed, spent, token }),
        };
        Ok(NodePage { entries, outcome, next })
    }

    /// The first entries of a page but for those of other nodes, and the number of entries on the page. `None` if the
    /// page is invalid.
    async fn own_entries(
        &self,
        method: Method,
        node: &NodeId,
        mut message: &[u8],
        max: usize,
        rest: u32,
    ) -> Option<(Vec<u8>, usize)> {
        let count = protobuf::count(message, ENTRIES);
        let has_long_token = protobuf::text(message, NEXT_TOKEN).is_some_and(|token| token.len() > MAX_TOKEN);
        if message.len() > MAX_NODE_PAGE || (max > 0 && count > max) || has_long_token {
            return None;
        }
        let (place, mut entries, mut seen, mut dropped) = (self.own_place(node), Vec::new(), 0, 0);
        let mut turn = message.len();
        while !message.is_empty() && seen < rest {
            if turn - message.len() >= TURN {
                turn = message.len();
                tokio::task::yield_now().await;
            }
            let field = protobuf::next_field(&mut message)?;
            match field.number {
                ENTRIES => {
                    seen += 1;
                    match field.value.bytes().and_then(|entry| self.own_entry(method, node, &place, entry)) {
                        Some(entry) => protobuf::encode_field(ENTRIES, &entry, &mut entries),
                        None => dropped += 1,
                    }
                }
                NEXT_TOKEN => {}
                _ => entries.extend_from_slice(field.whole),
            }
            // The topology of a node may be longer than the one that it lists. Unknown fields count, too.
            if entries.len() > MAX_NODE_PAGE {
                return None;
            }
        }
        // Once in a list, so that a node with many pages does not fill the log.
        if dropped > 0 && rest == MAX_LISTED {
            tracing::warn!(%node, dropped, "a node lists entries without a usable id of its own; they are omitted");
        }
        Some((entries, count))
    }

    /// An entry with the place of its node; `None` if it is unusable, or its id is that of another node. A list of
    /// volumes or snapshots has the resource once in each entry: protobuf merges several.
    fn own_entry(&self, method: Method, node: &NodeId, place: &OwnPlace, entry: &[u8]) -> Option<Vec<u8>> {
        if entry.len() > MAX_ENTRY || !is_readable(method, entry) {
            return None;
        }
        let resource = || {
            let once = protobuf::count(entry, RESOURCE) == 1;
            protobuf::last_field(entry, RESOURCE).filter(|_| once)?.bytes()
        };
        let id = match method {
            Method::ControllerListVolumeHealth => protobuf::text(entry, HEALTH_VOLUME_ID),
            _ => protobuf::text(resource()?, ID),
        };
        let id = id.filter(|id| is_usable(id))?;
        let (subject, entry) = match method {
            Method::ListSnapshots => (Subject::Snapshot(id.into()), place.listed_snapshot(entry)?),
            Method::ListVolumes => (Subject::Volume(id.into()), place.listed_volume(entry)?),
            _ => (Subject::Volume(id.into()), entry.to_vec()),
        };
        // Only the node that has a volume reports its attachments.
        (!self.is_foreign(node, &subject)).then_some(entry)
    }

    /// A page of the volumes that are recorded for a node. A node with a topology is the only one that its volumes can
    /// be attached to. It is reported as the node that they are attached to, which the spec allows if unknown:
    /// external-attacher would attach them again otherwise.
    fn recorded_page(&self, method: Method, node: &NodeId, position: &Position, max: usize) -> NodePage {
        let after = match position {
            Position::Recorded { after } => after.as_str(),
            Position::Driver { .. } => "",
        };
        let outcome = Outcome::from_endpoint(crate::Code::OK, "");
        let mut page = NodePage { entries: Vec::new(), outcome, next: None };
        if method != Method::ListVolumes {
            return page;
        }
        let topology = self.topology(node);
        let (node_id, reports_nodes) = self.driver_info.read(|cache| {
            let entry = cache.entry(node);
            let reports = entry.is_some_and(|entry| entry.has_controller_rpc(Rpc::ListVolumesPublishedNodes));
            (entry.map(|entry| entry.node_id().to_owned()).unwrap_or_default(), reports)
        });
        let is_bound = reports_nodes && !topology.segments.is_empty() && !node_id.is_empty();
        let mut count = 0;
        let ids = self.placements.read(|placements| placements.volumes_of(node));
        let mut ids = ids.into_iter().skip_while(|id| &**id <= after).peekable();
        while let Some(id) = ids.next() {
            let accessible_topology =
                Some(topology.clone()).filter(|topology| !topology.segments.is_empty()).into_iter().collect();
            let published_node_ids = is_bound.then(|| node_id.clone()).into_iter().collect();
            let entry = csi::list_volumes_response::Entry {
                volume: Some(csi::Volume {
                    volume_id: id.to_string(),
                    accessible_topology,
                    ..Default::default()
                }),
                status: Some(csi::list_volumes_response::VolumeStatus { published_node_ids }),
            };
            let entries = vec![entry];
            csi::ListVolumesResponse { entries, ..Default::default() }.encode_raw(&mut page.entries);
            count += 1;
            if ids.peek().is_some() && (count == max || page.entries.len() >= PAGE_SIZE) {
                page.next = Some(Position::Recorded { after: id.into() });
                break;
            }
        }
        page
    }

    /// The node of the one id that a list is about; `None` for a list of all nodes.
    fn holder_of_list(&self, call: RoutedCall<'_>) -> Option<NodeId> {
        if call.method != Method::ListSnapshots {
            return None;
        }
        let known = |number: u32, make: fn(Box<str>) -> Subject| {
            protobuf::text(&call.inbound.body, number)
                .and_then(|id| self.placements.node_of(&make(id.into())))
        };
        known(SNAPSHOT_ID, Subject::Snapshot).or_else(|| known(SOURCE_VOLUME_ID, Subject::Volume))
    }
}

/// Whether a failure is not that of one node.
fn is_about_the_hub(outcome: &Outcome) -> bool {
    match &outcome.origin {
        Origin::Relay(fault) => matches!(**fault, Fault::HubUnreachable { .. } | Fault::Cancelled),
        Origin::Driver | Origin::Endpoint => false,
    }
}

fn start(nodes: &[NodeId], token: &str) -> Result<(usize, Position), Refusal> {
    if token.is_empty() {
        return Ok((0, Position::default()));
    }
    let Token { node, position } = Token::decode(token).ok_or(Refusal::BadToken)?;
    let at = nodes.iter().position(|other| *other == node).ok_or(Refusal::BadToken)?;
    Ok((at, position))
}
