//! The cache of a driver's answers on each of its nodes: when to refresh, and what to answer. A pure state
//! machine: events and the time are its inputs, calls and notices its outputs.

mod entry;
mod rounds;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message;

use self::entry::Admission;
pub use self::entry::{Entry, Presence};
use super::info::{self, Fact, Info};
use super::question::Question;
use crate::call::{Fault, NodeId, Origin, Outcome};
use crate::log_limit::LogLimit;
use crate::routing::ClaimConflict;

/// The maximum number of versions in the answer of all nodes together, and of the bytes of each one. Others are omitted.
const MAX_VERSIONS: usize = 8;
const MAX_VERSION: usize = 128;

/// The maximum number of discovered nodes.
pub const MAX_NODES: usize = 10_000;

/// How the answers of nodes are combined.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the two kinds of endpoint")]
pub enum Mode {
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
/// driver is not ready, a round begins as soon as its node comes online, at most one a second.
///
/// Meanwhile `GetPluginInfo` is always answered (version `unknown` until the driver was reached), `Probe` always with
/// success, and with `ready` only if the last round reached a ready driver, capabilities as last known. Until
/// capabilities are known the caller must wait: an empty list would make a sidecar skip work permanently.
#[derive(Debug)]
pub struct Cache {
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

/// The last notices to the operator about a node, or about all nodes together.
#[derive(Debug, Default)]
struct Reported {
    reached: Option<bool>,
    stale: bool,
    /// Notices that a node can cause at will.
    name: LogLimit,
    size: LogLimit,
    topology: LogLimit,
    conflict: LogLimit,
}

impl Reported {
    /// Whether to log a notice about one node.
    fn permits(&self, notice: &Notice, now: Instant) -> bool {
        match notice {
            Notice::NameMismatch { .. } => self.name.permits(now),
            Notice::TooLarge { .. } => self.size.permits(now),
            Notice::Moved { .. } => self.topology.permits(now),
            // Once per outage of all nodes, or of a node with a socket of its own.
            Notice::Unreachable(_) | Notice::Reached | Notice::TooMany => true,
        }
    }
}

/// A notice for the operator.
#[derive(Debug, PartialEq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of the state machine")]
pub enum Notice {
    /// The driver reports another name than configured. Reported for one node at most once in 10 s.
    NameMismatch {
        /// The reported name.
        found: String,
    },
    /// The driver is unreachable. Reported once per outage.
    Unreachable(Outcome),
    /// The driver is reachable, for the first time or again.
    Reached,
    /// An answer is refused before it is decoded. Reported for one node at most once in 10 s.
    TooLarge {
        /// The start-up call.
        question: Question,
        /// The size of the answer in bytes.
        found: usize,
        /// The maximum size in bytes.
        max: usize,
    },
    /// A node is rejected because of the limit. Reported once.
    TooMany,
    /// The topology of a node has changed. Reported for one node at most once in 10 s.
    Moved {
        /// The previous topology.
        before: csi::Topology,
        /// The new topology.
        now: csi::Topology,
    },
}

/// The status of the start-up answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartupStatus {
    /// Whether the last round reached the driver; `None` before the first round.
    pub reached: Option<bool>,
    /// Whether `Probe` reports ready.
    pub ready: bool,
    /// Whether all capabilities are known.
    pub complete: bool,
    /// The time since the driver last confirmed the answers: seconds while the driver is reachable, and growing
    /// while it is not. The clock of this host measures it, across restarts. `None` if nothing is known.
    pub age: Option<Duration>,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(driver: DriverName, mode: Mode) -> Self {
        let (entries, kept, reported) = Default::default();
        let (synced, refused, checked, watched) = (false, false, false, None);
        Self { driver, mode, entries, kept, synced, refused, checked, watched, reported }
    }

    /// Makes what nodes report about themselves subject to [admission](Self::admit).
    pub fn require_admission(&mut self) {
        self.checked = true;
        self.entries.values_mut().for_each(|entry| entry.checked = true);
    }

    /// The `node_id` and topology of a node that is not admitted yet, or was refused.
    #[must_use]
    pub fn to_admit(&self, node: &NodeId) -> Option<(String, csi::Topology)> {
        let entry = self.entries.get(node).filter(|entry| entry.admission != Admission::Admitted)?;
        entry.reported().map(|(node_id, topology)| (node_id.to_owned(), topology.clone()))
    }

    /// Admits a node with what it reports, or refuses it. Returns whether to log this: it is a change, and a refusal of
    /// this node at most once in 10 s. Has no effect if the node reports something else by now.
    pub fn admit(
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
    #[must_use]
    pub fn conflicts(&self) -> Vec<(NodeId, ClaimConflict)> {
        let conflict = |(node, entry): (&NodeId, &Entry)| Some((node.clone(), entry.conflict()?.clone()));
        self.entries.iter().filter_map(conflict).collect()
    }

    /// Loads the stored info. Where nodes are discovered, these nodes are added.
    pub fn restore(&mut self, kept: impl IntoIterator<Item = (NodeId, Info, SystemTime)>, now: Instant) {
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
    pub fn add(&mut self, node: &NodeId, now: Instant) {
        if !self.entries.contains_key(node) {
            self.insert(node.clone(), true, now);
        }
    }

    /// Adds a node that is recorded as one that had the driver, where nodes are discovered: its info may be lost, and
    /// it may have volumes.
    pub fn add_recorded(&mut self, node: &NodeId, now: Instant) {
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
    pub fn remove(&mut self, node: &NodeId) -> bool {
        self.kept.remove(node);
        self.entries.remove(node).is_some_and(|entry| entry.named)
    }

    /// Whether a node is connected, if known; `None` for an unknown node.
    #[must_use]
    pub fn is_connected(&self, node: &NodeId) -> Option<bool> {
        self.entries.get(node).map(|entry| entry.seen || entry.is_online())
    }

    /// Records that a node is connected. Returns a notice for the first node above the limit.
    pub fn arrived(&mut self, node: &NodeId, now: Instant) -> Option<Notice> {
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
    pub fn left(&mut self, node: &NodeId, now: Instant) {
        let Slot::Occupied(mut slot) = self.entries.entry(node.clone()) else { return };
        slot.get_mut().left(now);
        if !slot.get().is_of_driver() {
            slot.remove();
        }
        self.watch(now);
    }

    /// Records that the list of connected nodes is complete.
    pub fn synced(&mut self, now: Instant) {
        self.synced = true;
        for entry in self.entries.values_mut() {
            entry.synced(now);
        }
    }

    /// Whether every node is known: nodes are configured, or the list of connected nodes is complete.
    #[must_use]
    pub fn knows_nodes(&self) -> bool {
        self.synced || !self.mode.discovers()
    }

    /// Derives the presence of a node from the outcome of a call.
    pub fn observe(&mut self, node: &NodeId, outcome: &Outcome, now: Instant) {
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

    /// The answer for a node or, with `None`, for all nodes together. `None` if the caller has to wait.
    #[must_use]
    pub fn answer(&self, of: Option<&NodeId>, question: Question) -> Option<Fact> {
        if question == Question::Probe {
            let ready = Some(self.is_ready(of));
            return Some(Ok(csi::ProbeResponse { ready }.encode_to_vec().into()));
        }
        let known = match of {
            Some(node) => self.entry(node).and_then(|entry| entry.info().get(question)).cloned(),
            None => self.of_most(question),
        };
        let unknown = || csi::GetPluginInfoResponse {
            name: self.driver.to_string(),
            vendor_version: "unknown".to_owned(),
            ..Default::default()
        };
        known.or_else(|| (question == Question::PluginInfo).then(|| Ok(unknown().encode_to_vec().into())))
    }

    /// Whether the nodes with complete info are more than the connected ones whose first round has not ended, so that
    /// the first node to answer does not decide about the [answers](Self::answer) alone.
    #[must_use]
    pub fn is_representative(&self) -> bool {
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.entries.values().partition(|entry| entry.info().is_complete(true));
        known.len() > unknown.iter().filter(|entry| entry.seen && entry.reached.is_none()).count()
    }

    /// What most nodes with complete info have.
    fn of_most(&self, question: Question) -> Option<Fact> {
        let takes_part = |entry: &&Entry| entry.info().is_complete(true) && entry.conflict().is_none();
        let known: Vec<_> = self.entries.values().filter(takes_part).collect();
        let first = known.first()?;
        let mut common = match question {
            Question::PluginInfo => {
                // The answer of the first node with all versions, so that a changed version is visible.
                let of = |entry: &Entry| entry.info().decoded::<csi::GetPluginInfoResponse>(question);
                let versions = known.iter().filter_map(|entry| Some(of(entry)?.vendor_version));
                let versions: BTreeSet<_> = versions.collect();
                let versions = versions.into_iter().filter(|version| version.len() <= MAX_VERSION);
                let vendor_version = versions.take(MAX_VERSIONS).collect::<Vec<_>>().join(", ");
                let info = csi::GetPluginInfoResponse { vendor_version, ..of(first)? };
                Some(Bytes::from(info.encode_to_vec()))
            }
            // These answers differ by node.
            Question::NodeInfo | Question::Probe => None,
            _ => info::of_most(known.iter().map(|entry| entry.info().get(question))),
        };
        // If most nodes have a topology, the volumes of the driver are bound to topologies, even if the driver does
        // not report it.
        let has_place =
            |entry: &&Entry| entry.topology().is_some_and(|topology| !topology.segments.is_empty());
        if let (Question::PluginCapabilities, Some(plugin)) = (question, &mut common)
            && 2 * known.iter().copied().filter(has_place).count() > known.len()
        {
            let mut response = csi::GetPluginCapabilitiesResponse::decode(plugin.clone()).ok()?;
            if !response.has_service(Service::VolumeAccessibilityConstraints) {
                response
                    .capabilities
                    .push(csi::PluginCapability::service(Service::VolumeAccessibilityConstraints));
            }
            *plugin = response.encode_to_vec().into();
        }
        Some(common.ok_or_else(|| "the service is missing on most nodes".to_owned()))
    }

    fn is_ready(&self, of: Option<&NodeId>) -> bool {
        match of {
            Some(node) => self.entry(node).is_some_and(|entry| entry.ready),
            None => self.entries.values().any(|entry| entry.ready && entry.conflict().is_none()),
        }
    }

    /// The status of the [answers](Self::answer).
    #[must_use]
    pub fn status(&self, of: Option<&NodeId>, time: SystemTime) -> StartupStatus {
        let mut asked = info::stored_questions(self.mode == Mode::Each { node_info: true });
        let complete = asked.all(|question| self.answer(of, question).is_some());
        let (as_of, reached) = match of {
            Some(node) => {
                self.entry(node).map_or((None, None), |entry| (entry.as_of, entry.reported.reached))
            }
            None => (self.entries.values().filter_map(|entry| entry.as_of).max(), self.reported.reached),
        };
        let age = as_of.map(|as_of| time.duration_since(as_of).unwrap_or_default());
        StartupStatus { reached, ready: self.is_ready(of), complete, age }
    }

    /// Whether to log that answers are stale: true once per outage.
    pub fn report_stale(&mut self, of: Option<&NodeId>) -> bool {
        let reported = self.reported(of);
        reported.reached != Some(true) && !std::mem::replace(&mut reported.stale, true)
    }

    /// The record of an entry to store now, and its time. [`Self::saved`] must follow. `is_last` marks the last
    /// write before the shutdown.
    pub fn take_record(&mut self, node: &NodeId, is_last: bool) -> Option<(Bytes, SystemTime)> {
        let reports_age = !self.mode.is_together() || self.watched.as_ref() == Some(node);
        self.entries.get_mut(node)?.take_record(reports_age, is_last)
    }

    /// Records whether a record was stored; if not, the write is retried.
    pub fn saved(&mut self, node: &NodeId, as_of: SystemTime, done: bool) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.saved(as_of, done);
        }
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = (&NodeId, &Entry)> {
        self.entries.iter()
    }

    /// The entry of a node.
    #[must_use]
    pub fn entry(&self, node: &NodeId) -> Option<&Entry> {
        self.entries.get(node)
    }

    /// The only node, if no other node can be added.
    #[must_use]
    pub fn only(&self) -> Option<NodeId> {
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
