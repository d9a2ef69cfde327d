//! The rounds: which nodes are due for a refresh, and what their answers change.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::{Cache, Entry, Notice, Presence, Reported};
use crate::call::{Fault, NodeId, Outcome};
use crate::driver_info::info::MAX_RECORD;
use crate::driver_info::question::Question;

/// The age of the last round of the node that answers `Probe` at which a caller of `Probe` causes another. Also the longest
/// interval after a failed round of a node whose answers are known.
pub(super) const SHORT_INTERVAL: Duration = Duration::from_secs(10);

/// The longest interval after a failed round. Also the interval after a successful round, while the list of connected nodes
/// is not complete.
pub(super) const MEDIUM_INTERVAL: Duration = Duration::from_secs(30);

/// The longest interval for a node that is offline or without the driver.
pub(super) const LONG_INTERVAL: Duration = Duration::from_secs(300);

/// The interval after a successful round: a driver may be replaced on a connected node. The link of the node may cost money
/// by the byte, and a sidecar asks for capabilities only when it starts.
pub(super) const CONFIRM_INTERVAL: Duration = Duration::from_secs(3600);

/// The interval after the first failed round; it doubles with each failed round.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The minimum interval between rounds that begin because a node is online.
pub(super) const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of concurrent rounds of nodes whose last round failed, where all nodes answer together: half of
/// all rounds, so that hanging nodes do not delay the others.
pub(super) const MAX_FAILING_ROUNDS: usize = 8;

/// A node that was refreshed within this time is not refreshed again for an answer that depends on it.
pub(super) const RECENT: Duration = Duration::from_millis(500);

impl Cache {
    /// Refreshes one node after a reconnect or, with `None`, all nodes whose driver may have appeared. Once the
    /// list of connected nodes is complete, these are the nodes of unknown presence or without the driver.
    pub(crate) fn refresh(&mut self, of: Option<&NodeId>, now: Instant) {
        if let Some(node) = of {
            self.entries.get_mut(node).into_iter().for_each(|entry| entry.refresh_all(now));
            return;
        }
        let all = !self.synced;
        let unknown = |entry: &Entry| matches!(entry.presence(), Presence::Unknown | Presence::WithoutDriver);
        self.entries
            .values_mut()
            .filter(|entry| all || unknown(entry))
            .for_each(|entry| entry.refresh_all(now));
    }

    /// A caller has asked for the readiness of a node or, with `None`, of all nodes together. A ready node has another round if
    /// the last one is not recent, since a driver's failure is not reported. Returns whether there is one to begin.
    pub(crate) fn probed(&mut self, of: Option<&NodeId>) -> bool {
        let entry = of.or(self.watched.as_ref()).and_then(|node| self.entries.get_mut(node));
        entry.is_some_and(|entry| entry.ready && entry.refresh_after(SHORT_INTERVAL))
    }

    /// Refreshes the `wanted` nodes that cannot be selected now but may be connected, before all others, and returns
    /// them. See [`Self::any_in_round`] for the end of their rounds.
    pub(crate) fn refresh_absent(
        &mut self,
        wanted: impl Fn(&NodeId, &Entry) -> bool,
        now: Instant,
    ) -> Vec<NodeId> {
        let synced = self.synced;
        let absent = self.entries.iter_mut().filter(|(node, entry)| {
            wanted(node, entry)
                && (!entry.is_online() || !entry.info().is_complete(true))
                && (entry.seen || (!synced && entry.is_of_driver()))
                && !entry.was_asked_since(now.checked_sub(RECENT))
        });
        let ask = |(node, entry): (&NodeId, &mut Entry)| {
            // A running round refreshes the node anyway.
            if entry.due().is_some() {
                entry.refresh_first(now);
            }
            node.clone()
        };
        absent.map(ask).collect()
    }

    /// Whether a round of one of these nodes is running, or due now.
    pub(crate) fn any_in_round(&self, nodes: &[NodeId], now: Instant) -> bool {
        nodes
            .iter()
            .filter_map(|node| self.entries.get(node))
            .any(|entry| entry.due().is_none_or(|due| due <= now))
    }

    /// Begins the rounds of up to `most` due entries, each with `GetPluginInfo`: first those that a call waits for, then
    /// the longest due ones.
    /// Returns their nodes, and when the next entry is due. Where nodes are discovered, only connected nodes
    /// begin a round before the list of nodes is complete: a call to an offline node may wait for its whole
    /// grace.
    pub(crate) fn take_due(&mut self, most: usize, now: Instant) -> (Vec<NodeId>, Option<Instant>) {
        let (all, together) = (self.knows_nodes(), self.mode.is_together());
        let is_failing = |entry: &Entry| together && entry.failures > 0;
        let running =
            self.entries.values().filter(|entry| entry.due().is_none() && is_failing(entry)).count();
        let mut failing_room = MAX_FAILING_ROUNDS.saturating_sub(running);
        let entries = self.entries.iter_mut().filter(|(_, entry)| all || entry.seen);
        // Most of many nodes are not due, and this runs with each call.
        let (mut waiting, mut due, mut later) = (Vec::new(), Vec::new(), None);
        let mut is_later = |next| later = Some(later.map_or(next, |later: Instant| later.min(next)));
        for (node, entry) in entries {
            match entry.due() {
                Some(next) if next > now => is_later(next),
                Some(next) => waiting.push((next, node, entry)),
                None => {}
            }
        }
        // Sorts by time, then by name: no node waits for ever.
        waiting.sort_by_key(|(next, _, entry)| (!entry.awaited, *next));
        for (next, node, entry) in waiting {
            let is_failing = is_failing(entry);
            if due.len() >= most {
                is_later(next);
            } else if !is_failing || failing_room > 0 {
                failing_room -= usize::from(is_failing);
                entry.begin(now);
                due.push(node.clone());
            }
            // Otherwise the end of a failing round makes room.
        }
        (due, later)
    }

    /// Handles the answer to a call of a round. Returns the next call of the round, unless it ended, and notices to
    /// log.
    pub(crate) fn answered(
        &mut self,
        node: &NodeId,
        question: Question,
        answer: Result<Bytes, Outcome>,
        now: Instant,
        time: SystemTime,
    ) -> (Option<Question>, Vec<Notice>) {
        let Some(entry) = self.entries.get_mut(node) else { return Default::default() };
        let place = |entry: &Entry| entry.reported().map(|(_, topology)| topology.clone());
        let (mut notices, before) = (Vec::new(), place(entry));
        let handled = match answer {
            Ok(answer) if answer.len() > MAX_RECORD => {
                let (found, max) = (answer.len(), MAX_RECORD);
                notices.push(Notice::TooLarge { question, found, max });
                Err(Fault::ReplyTooLarge { found: found as u64, max: max as u64 }.into())
            }
            answer => entry.handle_answer(&self.driver, question, answer, &self.mode, &mut notices),
        };
        if let (Some(before), Some(now)) = (before, place(entry))
            && before != now
        {
            notices.push(Notice::Moved { before, now });
        }
        notices.retain(|notice| entry.reported.permits(notice, now));
        let failure = match handled {
            Ok(Some(next)) => return (Some(next), notices),
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
        let reported = self.reported(Some(node).filter(|_| !together));
        match failure {
            None if reported.reached.replace(true) != Some(true) => {
                reported.stale = false;
                notices.push(Notice::Reached);
            }
            Some(outcome) if !others && reported.reached.replace(false) != Some(false) => {
                notices.push(Notice::Unreachable(outcome));
            }
            _ => {}
        }
        self.watch(now);
        let pause = self.pause(node);
        if let Some(entry) = self.entries.get_mut(node) {
            entry.schedule_next(pause, now);
        }
        (None, notices)
    }

    /// The last notices about a node or, with `None`, about all nodes together.
    pub(super) fn reported(&mut self, of: Option<&NodeId>) -> &mut Reported {
        match of.and_then(|node| self.entries.get_mut(node)) {
            Some(entry) => &mut entry.reported,
            None => &mut self.reported,
        }
    }

    /// The interval until the next round of an entry.
    fn pause(&self, node: &NodeId) -> Duration {
        let Some(entry) = self.entries.get(node) else { return LONG_INTERVAL };
        let together = self.mode.is_together();
        if entry.ready {
            return if together && !self.synced { MEDIUM_INTERVAL } else { CONFIRM_INTERVAL };
        }
        let longest = match entry.presence() {
            // A disconnected node is refreshed as soon as it connects.
            _ if together && self.synced && !entry.seen => return LONG_INTERVAL,
            // Most likely the node never gets the driver.
            Presence::WithoutDriver if together => LONG_INTERVAL,
            _ if !together && entry.info().is_complete(self.mode.asks_node_info()) => SHORT_INTERVAL,
            _ => MEDIUM_INTERVAL,
        };
        longest.min(FIRST_PAUSE * 2_u32.pow(entry.failures.saturating_sub(1).min(8)))
    }

    /// Selects another node to answer `Probe`, if the current one is not ready, and refreshes it at once.
    pub(super) fn watch(&mut self, now: Instant) {
        let watched = self.watched.as_ref().and_then(|node| self.entries.get(node));
        if !self.mode.is_together() || watched.is_some_and(|entry| entry.ready) {
            return;
        }
        if let Some((node, entry)) = self.entries.iter_mut().find(|(_, entry)| entry.ready) {
            self.watched = Some(node.clone());
            // A running round refreshes the node anyway.
            if entry.due().is_some() {
                entry.refresh_soon(now);
            }
        }
    }
}
