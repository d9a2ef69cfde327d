//! What is known of a driver on each of its nodes: when to ask, and what to answer meanwhile. No clock, no call: what happened and the
//! time go in, what to do comes out.

mod entry;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message;

pub use self::entry::{Entry, Presence};
use super::info::{self, Fact, Info};
use super::question::Question;
use crate::call::{Fault, NodeId, Origin, Outcome};

/// Pause after a good round of an entry by which `Probe` is answered.
const ROUND: Duration = Duration::from_secs(10);

/// Longest pause after a failed round, and pause after a good one of the other nodes where nobody says which nodes come and go.
const LONGEST: Duration = Duration::from_secs(30);

/// Pause after a good round of the other nodes where somebody does: a driver may have been replaced under a node that has stayed. And
/// the longest one for a node that has not got the driver, or is not there.
const LONG_ROUND: Duration = Duration::from_secs(300);

/// Pause after the first failed round; doubles from round to round.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Shortest time between the begins of two rounds that are begun because a node is online.
const HASTE: Duration = Duration::from_secs(1);

/// What was asked this short a time ago is not asked again before an answer that depends on it.
const RECENT: Duration = Duration::from_millis(500);

/// Most nodes where nodes are discovered.
pub const MAX_NODES: usize = 10_000;

/// How the answers of the nodes are given.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the two kinds of endpoint")]
pub enum Mode {
    /// Each node answers for itself.
    Each {
        /// Whether `NodeGetInfo` is one of the questions.
        node_info: bool,
    },
    /// All answer together with what they have in common.
    Together {
        /// The topology key of nodes whose driver names no topology; the node's name is its value.
        topology_key: Option<String>,
        /// Whether nodes that arrive belong to the driver too, and not only those that were added.
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

/// What drivers say of themselves.
///
/// A round is `GetPluginInfo`, then, if anything is missing, the vendor's version has changed or the node was away, the capabilities and
/// `NodeGetInfo`, then `Probe`. A round that fails is tried again after 1 s, 2 s and so on. While a driver is not ready, a node that comes
/// online has a round begin at once, at most one a second.
///
/// Answers meanwhile: `GetPluginInfo` always (version `unknown` until the driver was reached), `Probe` always with success, and with
/// `ready` only if the last round reached a driver that is ready, capabilities as last learnt. Before they were learnt the caller must
/// wait: an empty list would make a sidecar leave out work permanently.
#[derive(Debug)]
pub struct Cache {
    driver: DriverName,
    mode: Mode,
    entries: BTreeMap<NodeId, Entry>,
    /// What was kept of nodes that are not there yet.
    kept: BTreeMap<NodeId, (Info, SystemTime)>,
    /// Somebody says which nodes come and go.
    told: bool,
    /// A node was left out, since there are too many.
    refused: bool,
    /// The node by which `Probe` is answered where all answer together.
    watched: Option<NodeId>,
    said: Said,
}

/// What the operator was last told of the driver.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    reached: Option<bool>,
    stale: bool,
}

/// What an operator is to be told.
#[derive(Debug, PartialEq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of the state machine")]
pub enum News {
    /// The driver calls itself otherwise than it was configured.
    ForeignName {
        /// What it calls itself.
        found: String,
    },
    /// The driver cannot be asked. Once, until it can.
    Unreachable(Outcome),
    /// The driver can be asked, for the first time or again.
    Reached,
    /// A node is left out, since there are too many. Once.
    TooMany,
    /// A node says that it is somewhere else than before.
    Moved {
        /// Where it was.
        before: csi::Topology,
        /// Where it is.
        now: csi::Topology,
    },
}

/// How the start-up answers stand.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whether the driver could be asked the last time; `None` before it was asked for the first time.
    pub reached: Option<bool>,
    /// What `Probe` answers.
    pub ready: bool,
    /// Whether every capability question can be answered.
    pub complete: bool,
    /// How long ago the driver has last said what is answered: seconds while it can be reached, and growing while it cannot. By
    /// the clock of this host, over restarts too. `None` if nothing is known.
    pub age: Option<Duration>,
}

impl Cache {
    /// Nothing is known of the driver yet, and no node is there.
    #[must_use]
    pub fn new(driver: DriverName, mode: Mode) -> Self {
        let (entries, kept, said) = Default::default();
        Self { driver, mode, entries, kept, told: false, refused: false, watched: None, said }
    }

    /// Takes in what was kept of earlier starts. Where nodes are discovered, these are nodes of the driver.
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

    /// Takes in that a node belongs to the driver, whether it is there or not.
    pub fn add(&mut self, node: &NodeId, now: Instant) {
        if !self.entries.contains_key(node) {
            self.insert(node.clone(), true, now);
        }
    }

    fn insert(&mut self, node: NodeId, named: bool, now: Instant) -> &mut Entry {
        let topology_key = match &self.mode {
            Mode::Together { topology_key, .. } => topology_key.clone(),
            Mode::Each { .. } => None,
        };
        let kept = self.kept.remove(&node);
        let entry = Entry::new(node.clone(), named, topology_key, now);
        let entry = self.entries.entry(node).or_insert(entry);
        if let Some((info, as_of)) = kept {
            entry.restore(info, as_of);
        }
        entry
    }

    /// Takes a node out, with what it has said. Says whether it was [added](Self::add).
    pub fn remove(&mut self, node: &NodeId) -> bool {
        self.kept.remove(node);
        self.entries.remove(node).is_some_and(|entry| entry.named)
    }

    /// Whether a node is connected, as far as is known; `None` if the node is not known.
    #[must_use]
    pub fn is_connected(&self, node: &NodeId) -> Option<bool> {
        self.entries.get(node).map(|entry| entry.seen || entry.is_online())
    }

    /// Takes in that a node is there. Says of the first that is left out, since there are too many.
    pub fn arrived(&mut self, node: &NodeId, now: Instant) -> Option<News> {
        if !self.entries.contains_key(node) {
            if !self.mode.discovers() {
                return None;
            }
            if self.entries.len() >= MAX_NODES {
                return (!std::mem::replace(&mut self.refused, true)).then_some(News::TooMany);
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

    /// Takes in that a node is away. Says nothing of the calls that it may still be working on.
    pub fn left(&mut self, node: &NodeId, now: Instant) {
        let Slot::Occupied(mut slot) = self.entries.entry(node.clone()) else { return };
        slot.get_mut().left(now);
        if !slot.get().is_of_driver() {
            slot.remove();
        }
        self.watch(now);
    }

    /// Takes in that all nodes that are there were told of: no other is.
    pub fn current(&mut self, now: Instant) {
        self.told = true;
        for entry in self.entries.values_mut() {
            entry.current(now);
        }
    }

    /// Takes in that there is a way again. A node is asked; of all together those of which it is not known whether they are there.
    pub fn refresh(&mut self, of: Option<&NodeId>, now: Instant) {
        if let Some(node) = of {
            self.entries.get_mut(node).into_iter().for_each(|entry| entry.ask_all(now));
            return;
        }
        let all = !self.told;
        let unknown = |entry: &Entry| matches!(entry.presence(), Presence::Unknown | Presence::WithoutDriver);
        self.entries.values_mut().filter(|entry| all || unknown(entry)).for_each(|entry| entry.ask_all(now));
    }

    /// Has those nodes asked now that cannot be chosen, as far as they may be there. They are waited for while they are
    /// [open](Self::are_open).
    pub fn ask_absent(&mut self, now: Instant) -> Vec<NodeId> {
        let told = self.told;
        let absent = self.entries.iter_mut().filter(|(_, entry)| {
            (!entry.is_online() || !entry.info().is_complete(true))
                && (entry.seen || (!told && entry.is_of_driver()))
                && !entry.was_asked_since(now.checked_sub(RECENT))
        });
        let ask = |(node, entry): (&NodeId, &mut Entry)| {
            // One that is being asked says so in a moment.
            if entry.due().is_some() {
                entry.hasten(now);
            }
            node.clone()
        };
        absent.map(ask).collect()
    }

    /// Whether one of these is being asked, or is to be asked now.
    #[must_use]
    pub fn are_open(&self, nodes: &[NodeId], now: Instant) -> bool {
        nodes
            .iter()
            .filter_map(|node| self.entries.get(node))
            .any(|entry| entry.due().is_none_or(|due| due <= now))
    }

    /// Begins the rounds of up to so many entries that are due, each with `GetPluginInfo`. Says when the next one is. Where nodes are
    /// discovered, only those that are there begin one before the list of them is complete: a call to a node that is away may be held
    /// for its whole grace.
    pub fn take_due(&mut self, most: usize, now: Instant) -> (Vec<NodeId>, Option<Instant>) {
        let all = self.told || !self.mode.discovers();
        let (mut due, mut later) = (Vec::new(), None);
        for (node, entry) in self.entries.iter_mut().filter(|(_, entry)| all || entry.seen) {
            let Some(next) = entry.due() else { continue };
            if next <= now && due.len() < most {
                entry.begin(now);
                due.push(node.clone());
            } else {
                later = Some(later.map_or(next, |later: Instant| later.min(next)));
            }
        }
        (due, later)
    }

    /// Takes in the answer to a question of a round. Says what the round asks next, if it is not at its end, and what is to be logged.
    pub fn answered(
        &mut self,
        node: &NodeId,
        question: Question,
        answer: Result<Bytes, Outcome>,
        now: Instant,
        time: SystemTime,
    ) -> (Option<Question>, Vec<News>) {
        let Some(entry) = self.entries.get_mut(node) else { return Default::default() };
        let (mut news, before) = (Vec::new(), entry.topology());
        let taken = entry.take(&self.driver, question, answer, &self.mode, &mut news);
        if let (Some(before), Some(now)) = (before, entry.topology())
            && before != now
        {
            news.push(News::Moved { before, now });
        }
        let failure = match taken {
            Ok(Some(next)) => return (Some(next), news),
            Ok(None) => {
                entry.confirm(time);
                None
            }
            Err(outcome) => {
                entry.fail(question, &outcome);
                Some(outcome)
            }
        };
        let together = self.mode.is_together();
        let others =
            together && self.entries.values().any(|entry| entry.is_online() && entry.reached == Some(true));
        let said = self.said(Some(node).filter(|_| !together));
        match failure {
            None if said.reached.replace(true) != Some(true) => {
                said.stale = false;
                news.push(News::Reached);
            }
            Some(outcome) if !others && said.reached.replace(false) != Some(false) => {
                news.push(News::Unreachable(outcome));
            }
            _ => {}
        }
        self.watch(now);
        let pause = self.pause(node);
        if let Some(entry) = self.entries.get_mut(node) {
            entry.rest(pause, now);
        }
        (None, news)
    }

    /// What the operator was last told of a node, or of all together.
    fn said(&mut self, of: Option<&NodeId>) -> &mut Said {
        match of.and_then(|node| self.entries.get_mut(node)) {
            Some(entry) => &mut entry.said,
            None => &mut self.said,
        }
    }

    /// How long the next round of an entry may wait.
    fn pause(&self, node: &NodeId) -> Duration {
        let Some(entry) = self.entries.get(node) else { return LONG_ROUND };
        let together = self.mode.is_together();
        if entry.ready {
            return match (together && self.watched.as_ref() != Some(node), self.told) {
                (false, _) => ROUND,
                (true, true) => LONG_ROUND,
                (true, false) => LONGEST,
            };
        }
        let longest = match entry.presence() {
            // It is asked as soon as it is told to be there.
            _ if together && self.told && !entry.seen => return LONG_ROUND,
            // Most likely it never has the driver.
            Presence::WithoutDriver if together => LONG_ROUND,
            _ if !together && entry.info().is_complete(self.mode.asks_node_info()) => ROUND,
            _ => LONGEST,
        };
        longest.min(FIRST_PAUSE * 2_u32.pow(entry.misses.saturating_sub(1).min(8)))
    }

    /// Looks for another node to answer `Probe` by, if the one that did is not ready any more. That one is asked at once.
    fn watch(&mut self, now: Instant) {
        let watched = self.watched.as_ref().and_then(|node| self.entries.get(node));
        if !self.mode.is_together() || watched.is_some_and(|entry| entry.ready) {
            return;
        }
        if let Some((node, entry)) = self.entries.iter_mut().find(|(_, entry)| entry.ready) {
            self.watched = Some(node.clone());
            // One that is being asked says so in a moment.
            if entry.due().is_some() {
                entry.hasten(now);
            }
        }
    }

    /// Takes in what the end of a call says of a node's presence.
    pub fn heard(&mut self, node: &NodeId, outcome: &Outcome, now: Instant) {
        let presence = match &outcome.origin {
            Origin::Driver => Presence::Online,
            Origin::Relay(fault) => match presence_by(fault) {
                Some(presence) => presence,
                None => return,
            },
            Origin::Endpoint => return,
        };
        let Some(entry) = self.entries.get_mut(node) else { return };
        // Without its info it cannot be chosen.
        if presence != Presence::Online || entry.info().is_complete(true) {
            if entry.set(presence) && presence == Presence::Online {
                // Whether it is ready, and what has changed, is to be known soon.
                entry.hasten(now);
            }
            self.watch(now);
        }
    }

    /// What to tell a caller now, of a node or, with none, of all together; nothing yet if it has to wait for what is learnt.
    #[must_use]
    pub fn answer(&self, of: Option<&NodeId>, question: Question) -> Option<Fact> {
        if question == Question::Probe {
            let ready = Some(self.is_ready(of));
            return Some(Ok(csi::ProbeResponse { ready }.encode_to_vec().into()));
        }
        let known = match of {
            Some(node) => self.entry(node).and_then(|entry| entry.info().get(question)).cloned(),
            None => self.common(question),
        };
        let unknown = || csi::GetPluginInfoResponse {
            name: self.driver.to_string(),
            vendor_version: "unknown".to_owned(),
            ..Default::default()
        };
        known.or_else(|| (question == Question::PluginInfo).then(|| Ok(unknown().encode_to_vec().into())))
    }

    /// What all nodes have in common, of which everything is known.
    fn common(&self, question: Question) -> Option<Fact> {
        let known: Vec<_> = self.entries.values().filter(|entry| entry.info().is_complete(true)).collect();
        let first = known.first()?;
        let mut common = match question {
            Question::PluginInfo => {
                // The first node's, with every version that there is, so that a change of one is noticed.
                let of = |entry: &Entry| entry.info().decoded::<csi::GetPluginInfoResponse>(question);
                let versions = known.iter().filter_map(|entry| Some(of(entry)?.vendor_version));
                let versions: BTreeSet<_> = versions.collect();
                let vendor_version = versions.into_iter().collect::<Vec<_>>().join(", ");
                let info = csi::GetPluginInfoResponse { vendor_version, ..of(first)? };
                Some(Bytes::from(info.encode_to_vec()))
            }
            // A driver on many nodes is none of them.
            Question::NodeInfo | Question::Probe => None,
            _ => info::common(known.iter().map(|entry| entry.info().get(question))),
        };
        // That volumes are bound to places is true of the driver as a whole, even if it does not say so, when every node has one.
        let has_place =
            |entry: &&Entry| entry.topology().is_some_and(|topology| !topology.segments.is_empty());
        if let (Question::PluginCapabilities, Some(plugin)) = (question, &mut common)
            && known.iter().all(has_place)
        {
            let mut response = csi::GetPluginCapabilitiesResponse::decode(plugin.clone()).ok()?;
            if !response.has_service(Service::VolumeAccessibilityConstraints) {
                response
                    .capabilities
                    .push(csi::PluginCapability::service(Service::VolumeAccessibilityConstraints));
            }
            *plugin = response.encode_to_vec().into();
        }
        Some(common.ok_or_else(|| "not every node's driver has the service".to_owned()))
    }

    fn is_ready(&self, of: Option<&NodeId>) -> bool {
        match of {
            Some(node) => self.entry(node).is_some_and(|entry| entry.ready),
            None => self.entries.values().any(|entry| entry.ready),
        }
    }

    /// How the [answers](Self::answer) stand.
    #[must_use]
    pub fn status(&self, of: Option<&NodeId>, time: SystemTime) -> Status {
        let mut asked = info::kept(self.mode == Mode::Each { node_info: true });
        let complete = asked.all(|question| self.answer(of, question).is_some());
        let (as_of, reached) = match of {
            Some(node) => self.entry(node).map_or((None, None), |entry| (entry.as_of, entry.said.reached)),
            None => (self.entries.values().filter_map(|entry| entry.as_of).max(), self.said.reached),
        };
        let age = as_of.map(|as_of| time.duration_since(as_of).unwrap_or_default());
        Status { reached, ready: self.is_ready(of), complete, age }
    }

    /// Whether it is to be said that answers are given without the driver. Once each time that it goes away.
    pub fn says_stale(&mut self, of: Option<&NodeId>) -> bool {
        let said = self.said(of);
        said.reached != Some(true) && !std::mem::replace(&mut said.stale, true)
    }

    /// What is to be kept of an entry now, and when that was true. [`Self::saved`] has to follow. `settles`: there will be no later
    /// time.
    pub fn take_save(&mut self, node: &NodeId, settles: bool) -> Option<(Bytes, SystemTime)> {
        let close = !self.mode.is_together() || self.watched.as_ref() == Some(node);
        self.entries.get_mut(node)?.take_save(close, settles)
    }

    /// A record of that time was kept, or could not be and is tried again.
    pub fn saved(&mut self, node: &NodeId, as_of: SystemTime, done: bool) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.saved(as_of, done);
        }
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = (&NodeId, &Entry)> {
        self.entries.iter()
    }

    /// What is known of a node.
    #[must_use]
    pub fn entry(&self, node: &NodeId) -> Option<&Entry> {
        self.entries.get(node)
    }

    /// The node, if there is only one and there will be no other.
    #[must_use]
    pub fn only(&self) -> Option<NodeId> {
        let mut nodes = self.entries.keys();
        match (nodes.next(), nodes.next()) {
            (Some(only), None) if !self.mode.discovers() => Some(only.clone()),
            _ => None,
        }
    }
}

/// What a fault of a call says of its node's presence. That no hub can be reached says nothing.
fn presence_by(fault: &Fault) -> Option<Presence> {
    match fault {
        Fault::NodeOffline { .. } => Some(Presence::Offline),
        Fault::DriverNotRegistered { .. } => Some(Presence::WithoutDriver),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
