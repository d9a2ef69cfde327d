//! The cache of a driver's answers on each of its nodes: when to refresh, and what to answer. A pure state
//! machine: events and the time are its inputs, calls and notices its outputs.

mod answers;
mod entry;
mod notice;
mod rounds;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;

pub use self::answers::StartupStatus;
use self::entry::Admission;
pub(crate) use self::entry::{Entry, Presence};
pub(crate) use self::notice::Notice;
use self::notice::Reported;
use super::info::Info;
use crate::call::{Fault, NodeId, Origin, Outcome};
use crate::routing::ClaimConflict;

/// The maximum number of discovered nodes.
pub(crate) const MAX_NODES: usize = 10_000;

/// How the answers of nodes are combined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Each node answers for itself.
    Each {
        /// Whether `NodeGetInfo` is one of the calls.
        node_info: bool,
    },
    /// All nodes answer together with what most of them have.
    Together {
        /// The topology key of nodes whose driver reports no topology; its value is the name of the node.
        topology_key: Option<String>,
        /// Whether connecting nodes are added, and not only the configured ones.
        discovers: bool,
    },
}

impl Mode {
    pub(super) fn is_together(&self) -> bool {
        matches!(self, Self::Together { .. })
    }

    pub(super) fn asks_node_info(&self) -> bool {
        matches!(self, Self::Together { .. } | Self::Each { node_info: true })
    }

    fn discovers(&self) -> bool {
        matches!(self, Self::Together { discovers: true, .. })
    }
}

/// The cache of driver info.
///
/// A round is `GetPluginInfo`, then, if anything is missing, the vendor version has changed or the node was offline,
/// the capabilities and `NodeGetInfo`, then `Probe`. A failed round is retried after 1 s, 2 s and so on. While a
/// driver is not ready, a round begins as soon as its node comes online, at most one a second. While it is ready, a round
/// begins 10 s after the last one if a caller asks for `Probe`, and otherwise once an hour.
///
/// Meanwhile `GetPluginInfo` is always answered (version `unknown` until the driver was reached), `Probe` always with
/// success, and with `ready` only if the last round reached a ready driver, capabilities as last known. Until
/// capabilities are known the caller must wait: an empty list would make a sidecar skip work permanently.
#[derive(Debug)]
pub(crate) struct Cache {
    driver: DriverName,
    mode: Mode,
    entries: BTreeMap<NodeId, Entry>,
    /// Stored info of nodes that were not added yet.
    kept: BTreeMap<NodeId, (Info, SystemTime)>,
    /// Whether the list of connected nodes is complete.
    synced: bool,
    /// Whether a node was rejected because of the limit.
    refused: bool,
    /// Whether what nodes report about themselves must be [admitted](Self::admit).
    checked: bool,
    /// The node that answers `Probe` where all nodes answer together.
    watched: Option<NodeId>,
    reported: Reported,
}

impl Cache {
    /// Creates an empty cache.
    pub(crate) fn new(driver: DriverName, mode: Mode) -> Self {
        let (entries, kept, reported) = Default::default();
        let (synced, refused, checked, watched) = (false, false, false, None);
        Self { driver, mode, entries, kept, synced, refused, checked, watched, reported }
    }

    /// Makes what nodes report about themselves subject to [admission](Self::admit).
    pub(crate) fn require_admission(&mut self) {
        self.checked = true;
        self.entries.values_mut().for_each(|entry| entry.checked = true);
    }

    /// The `node_id` and topology of a node that is not admitted yet, or was refused.
    pub(crate) fn to_admit(&self, node: &NodeId) -> Option<(String, csi::Topology)> {
        let entry = self.entries.get(node).filter(|entry| entry.admission != Admission::Admitted)?;
        entry.reported().map(|(node_id, topology)| (node_id.to_owned(), topology.clone()))
    }

    /// Admits a node with what it reports, or refuses it. Returns whether to log this: it is a change, and a refusal of
    /// this node at most once in 10 s. Has no effect if the node reports something else by now.
    pub(crate) fn admit(
        &mut self,
        node: &NodeId,
        reported: &(String, csi::Topology),
        conflict: Option<ClaimConflict>,
        now: Instant,
    ) -> bool {
        let admission = conflict.map_or(Admission::Admitted, Admission::Refused);
        let Some(entry) = self.entries.get_mut(node) else { return false };
        let current = entry.reported() == Some((reported.0.as_str(), &reported.1));
        let refused = matches!(admission, Admission::Refused(_));
        let changed = current && std::mem::replace(&mut entry.admission, admission.clone()) != admission;
        changed && (!refused || entry.reported.conflict.permits(now))
    }

    /// The nodes that take no part, and why.
    pub(crate) fn conflicts(&self) -> Vec<(NodeId, ClaimConflict)> {
        let conflict = |(node, entry): (&NodeId, &Entry)| Some((node.clone(), entry.conflict()?.clone()));
        self.entries.iter().filter_map(conflict).collect()
    }

    /// Loads the stored info. Where nodes are discovered, these nodes are added.
    pub(crate) fn restore(
        &mut self,
        kept: impl IntoIterator<Item = (NodeId, Info, SystemTime)>,
        now: Instant,
    ) {
        for (node, info, as_of) in kept.into_iter().take(MAX_NODES) {
            if let Some(entry) = self.entries.get_mut(&node) {
                entry.restore(info, as_of);
            } else if self.mode.discovers() {
                self.insert(node, false, now).restore(info, as_of);
            } else {
                self.kept.insert(node, (info, as_of));
            }
        }
    }

    /// Adds a node of the driver, online or not.
    pub(crate) fn add(&mut self, node: &NodeId, now: Instant) {
        if !self.entries.contains_key(node) {
            self.insert(node.clone(), true, now);
        }
    }

    /// Adds a node that is recorded as one that had the driver, where nodes are discovered: its info may be lost, and
    /// it may have volumes.
    pub(crate) fn add_recorded(&mut self, node: &NodeId, now: Instant) {
        if self.mode.discovers() && self.entries.len() < MAX_NODES && !self.entries.contains_key(node) {
            self.insert(node.clone(), false, now).recorded = true;
        }
    }

    fn insert(&mut self, node: NodeId, named: bool, now: Instant) -> &mut Entry {
        let topology_key = match &self.mode {
            Mode::Together { topology_key, .. } => topology_key.clone(),
            Mode::Each { .. } => None,
        };
        let kept = self.kept.remove(&node);
        let mut entry = Entry::new(node.clone(), named, topology_key, now);
        entry.checked = self.checked;
        let entry = self.entries.entry(node).or_insert(entry);
        if let Some((info, as_of)) = kept {
            entry.restore(info, as_of);
        }
        entry
    }

    /// Removes a node and its info. Returns whether [`Self::add`] had added the node.
    pub(crate) fn remove(&mut self, node: &NodeId) -> bool {
        self.kept.remove(node);
        self.entries.remove(node).is_some_and(|entry| entry.named)
    }

    /// Whether a node is connected, if known; `None` for an unknown node.
    pub(crate) fn is_connected(&self, node: &NodeId) -> Option<bool> {
        self.entries.get(node).map(|entry| entry.seen || entry.is_online())
    }

    /// Records that a node is connected. Returns a notice for the first node above the limit.
    pub(crate) fn arrived(&mut self, node: &NodeId, now: Instant) -> Option<Notice> {
        if !self.entries.contains_key(node) {
            if !self.mode.discovers() {
                return None;
            }
            if self.entries.len() >= MAX_NODES {
                return (!std::mem::replace(&mut self.refused, true)).then_some(Notice::TooMany);
            }
            self.insert(node.clone(), false, now);
        }
        let together = self.mode.is_together();
        if let Some(entry) = self.entries.get_mut(node)
            && (together || !entry.ready)
        {
            entry.arrived(now);
        }
        None
    }

    /// Records that a node is disconnected. Calls at the node may still be running.
    pub(crate) fn left(&mut self, node: &NodeId, now: Instant) {
        let Slot::Occupied(mut slot) = self.entries.entry(node.clone()) else { return };
        slot.get_mut().left(now);
        if !slot.get().is_of_driver() {
            slot.remove();
        }
        self.watch(now);
    }

    /// Records that the list of connected nodes is complete.
    pub(crate) fn synced(&mut self, now: Instant) {
        self.synced = true;
        for entry in self.entries.values_mut() {
            entry.synced(now);
        }
    }

    /// Whether every node is known: nodes are configured, or the list of connected nodes is complete.
    pub(crate) fn knows_nodes(&self) -> bool {
        self.synced || !self.mode.discovers()
    }

    /// Derives the presence of a node from the outcome of a call.
    pub(crate) fn observe(&mut self, node: &NodeId, outcome: &Outcome, now: Instant) {
        let presence = match &outcome.origin {
            Origin::Driver => Presence::Online,
            Origin::Relay(fault) => match implied_presence(fault) {
                Some(presence) => presence,
                None => return,
            },
            Origin::Endpoint => return,
        };
        let Some(entry) = self.entries.get_mut(node) else { return };
        // A node without complete info cannot be selected.
        if presence != Presence::Online || entry.info().is_complete(true) {
            if entry.set_presence(presence) && presence == Presence::Online {
                // The node is reachable again: refresh its readiness and changed answers soon.
                entry.refresh_soon(now);
            }
            self.watch(now);
        }
    }

    /// The record of an entry to store now, and its time. [`Self::saved`] must follow. `is_last` marks the last
    /// write before the shutdown.
    pub(crate) fn take_record(&mut self, node: &NodeId, is_last: bool) -> Option<(Bytes, SystemTime)> {
        let reports_age = !self.mode.is_together() || self.watched.as_ref() == Some(node);
        self.entries.get_mut(node)?.take_record(reports_age, is_last)
    }

    /// Records whether a record was stored; if not, the write is retried.
    pub(crate) fn saved(&mut self, node: &NodeId, as_of: SystemTime, done: bool) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.saved(as_of, done);
        }
    }

    /// All entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&NodeId, &Entry)> {
        self.entries.iter()
    }

    /// The entry of a node.
    pub(crate) fn entry(&self, node: &NodeId) -> Option<&Entry> {
        self.entries.get(node)
    }

    /// The only node, if no other node can be added.
    pub(crate) fn only(&self) -> Option<NodeId> {
        let mut nodes = self.entries.keys();
        match (nodes.next(), nodes.next()) {
            (Some(only), None) if !self.mode.discovers() => Some(only.clone()),
            _ => None,
        }
    }
}

/// The presence that a fault implies. An unreachable hub implies nothing.
fn implied_presence(fault: &Fault) -> Option<Presence> {
    match fault {
        Fault::NodeOffline { .. } => Some(Presence::Offline),
        Fault::DriverNotRegistered { .. } => Some(Presence::WithoutDriver),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
