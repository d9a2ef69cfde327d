//! What a node's driver has: listed when the node comes, so that it is known where everything is that has an id.
//!
//! A node's agent knows what its driver is at, and not what it has; only the driver does. What has been listed once is complete
//! from then on, as long as nothing is made past this route.

use std::collections::BTreeMap;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use tokio::time::Instant;

use super::known::Facts;
use super::way::Way;
use super::{TopologyRouter, path};
use crate::call::NodeId;
use crate::operation::{MAX_SUBJECT, Subject};
use crate::route::{Event, Refusal};

/// Entries in one page.
const PAGE: i32 = 500;

/// Most pages of a list; a driver that repeats itself for ever is given up.
const MAX_PAGES: usize = 2000;

/// Rows on their way to the disk at once.
const ROWS_AT_ONCE: usize = 256;

/// Most ids that two nodes gave and that are remembered.
pub(super) const MAX_CONFLICTS: usize = 1000;

/// Ids that two nodes gave: the node where it is known to be, and the other one.
pub(super) type Conflicts = BTreeMap<Subject, (NodeId, NodeId)>;

impl TopologyRouter {
    /// Lists what a node has, unless that was done a short time ago.
    pub(super) async fn take_stock(&self, way: &Way<'_>, node: &NodeId) {
        let Some(facts) = self.nodes.facts(node).filter(|_| self.nodes.is_to_be_listed(node, Instant::now()))
        else {
            return;
        };
        let can = |rpc| facts.controller.as_ref().is_some_and(|controller| controller.has(rpc));
        let (mut volumes, mut snapshots) = (facts.volumes_listed, facts.snapshots_listed);
        if can(Rpc::ListVolumes) {
            volumes |= self.list_all(way, node, Method::ListVolumes).await;
        }
        if can(Rpc::ListSnapshots) {
            snapshots |= self.list_all(way, node, Method::ListSnapshots).await;
        }
        self.nodes.listed(node, Instant::now());
        if (volumes, snapshots) != (facts.volumes_listed, facts.snapshots_listed) {
            let facts =
                Facts { volumes_listed: volumes, snapshots_listed: snapshots, ..Facts::clone(&facts) };
            self.describe(node, facts).await;
        }
    }

    /// Whether all that a node has of one kind is in the table now.
    async fn list_all(&self, way: &Way<'_>, node: &NodeId, method: Method) -> bool {
        let Ok(path) = path(method) else { return false };
        // A page may name what is deleted before it is here.
        let _listing = self.keeper.listing();
        let mut starting_token = String::new();
        for _ in 0..MAX_PAGES {
            // As far as it is read here, both requests have this form.
            let request =
                csi::ListVolumesRequest { max_entries: PAGE, starting_token: starting_token.clone() };
            let (message, outcome) = way.ask(node, &path, request.encode_to_vec().into()).await;
            let Some((subjects, next)) = message.and_then(|message| entries(method, message)) else {
                tracing::debug!(%node, %path, code = %outcome.code, message = %outcome.loggable(), "a node did not list what it has");
                return false;
            };
            let found = |subject: Subject| async move { self.found(subject, node).await };
            let kept = stream::iter(subjects).map(found).buffer_unordered(ROWS_AT_ONCE);
            if !kept.all(std::future::ready).await {
                return false;
            }
            if next.is_empty() {
                return true;
            }
            if next == starting_token {
                break;
            }
            starting_token = next;
        }
        tracing::warn!(%node, %path, "a node's list has no end; what it has is looked for when it is asked for");
        false
    }

    /// Whether it is known where this is, and on the disk, or that it is gone.
    async fn found(&self, subject: Subject, node: &NodeId) -> bool {
        match self.keeper.handle(Event::Listed { subject: subject.clone(), node }).await {
            Ok(()) => self.keeper.knows(&subject),
            Err(Refusal::SameId { known, other, .. }) => {
                self.conflict(subject, known, other);
                true
            }
            Err(_) => false,
        }
    }

    /// Tells of an id that two nodes gave, once.
    pub(super) fn conflict(&self, subject: Subject, known: NodeId, other: NodeId) {
        let mut conflicts = self.conflicts();
        if conflicts.contains_key(&subject) || conflicts.len() >= MAX_CONFLICTS {
            return;
        }
        tracing::error!(
            %subject, %known, %other,
            "two nodes have the same id; calls go to the first of them: give each node's driver ids of its own, and delete one by hand"
        );
        conflicts.insert(subject, (known, other));
    }
}

/// What a page names, and the token of the next one. `None` if it cannot be read.
fn entries(method: Method, message: Bytes) -> Option<(Vec<Subject>, String)> {
    let usable = |id: &String| !id.is_empty() && id.len() <= MAX_SUBJECT;
    Some(if method == Method::ListVolumes {
        let page = csi::ListVolumesResponse::decode(message).ok()?;
        let ids = page.entries.into_iter().filter_map(|entry| entry.volume).map(|volume| volume.volume_id);
        (ids.filter(usable).map(|id| Subject::Volume(id.into())).collect(), page.next_token)
    } else {
        let page = csi::ListSnapshotsResponse::decode(message).ok()?;
        let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
        let mut subjects = Vec::new();
        for snapshot in snapshots {
            for (id, subject) in [
                (snapshot.snapshot_id, Subject::Snapshot as fn(Box<str>) -> Subject),
                (snapshot.group_snapshot_id, Subject::GroupSnapshot),
            ] {
                subjects.extend(Some(id).filter(usable).map(|id| subject(id.into())));
            }
        }
        (subjects, page.next_token)
    })
}
