//! The logic of all volumes of a node: what is asked for and what happens go in, what to do comes out.
//!
//! No clock, no socket, no task. The time is an argument: how long the core has been running. Whoever drives it hands in
//! an [`Event`] for each [`Action`] that asks for one, in any order, and an [`Event::Tick`] at
//! [`Node::next_deadline`].
//!
//! Each volume is a [`lifecycle::Volume`](crate::lifecycle::Volume); here is what they share: the store, whose commits
//! carry the records of all volumes that wait for one; the drivers, with their turns; time; and the mount table.
//!
//! ```
//! use std::time::Duration;
//! use volume_manager::node::Settings;
//! use volume_manager::node::core::{Event, Node};
//! use volume_manager::mounts::MountTable;
//! use volume_manager::store::{BootId, Loaded};
//!
//! let boot: BootId = "0d7bb5ac-0e3d-4a3c-9d5e-6b7e4f0c1a2b".parse()?;
//! let table = MountTable::default().into();
//! let (mut node, actions) = Node::open(Settings::new("/var/lib/volumes"), boot, Loaded::default(), table);
//! assert!(actions.is_empty() && node.next_deadline().is_none());
//! assert!(node.step(Event::Tick, Duration::ZERO).is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

use super::change::{Change, ChangeKind};
use super::settings::Settings;
use crate::driver::{DriverFacts, DriverPolicy, MountPath};
use crate::mounts::MountTable;
use crate::name::{ConsumerId, VolumeKey};
use crate::store::BootId;

mod calls;
mod commits;
mod drivers;
mod entry;
mod event;
mod explain;
mod findings;
mod mount_loss;
mod recovery;
mod reply;
mod requests;
mod steps;
mod timers;
mod turns;

use commits::Commits;
use entry::{Entry, Job};
pub use event::{Action, CallOrder, CommitFailure, Event, Inspect, Look, LookError, Query, Request, Sight};
pub use explain::{Counts, KnownDriver};
pub use reply::{Answer, Reply, ReplyTo};
use timers::{Alarm, Timers};
use turns::Turns;

/// A moment, in steps of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// One volume, as long as it is known, and the job that it has. Never given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

/// All volumes of a node.
#[derive(Debug)]
pub struct Node {
    settings: Settings,
    boot: BootId,
    volumes: HashMap<Slot, Entry>,
    by_key: BTreeMap<VolumeKey, Slot>,
    /// The directories that are taken, by their record keys' names.
    directories: HashMap<Box<[u8]>, Slot>,
    /// Which consumer has a path.
    targets: HashMap<MountPath, (Slot, ConsumerId)>,
    drivers: BTreeMap<DriverName, DriverSlot>,
    /// Why the record of a volume cannot be used, as far as it says of which volume it is.
    quarantined: Vec<(String, String)>,
    /// The rows that are not to be written over, so that no quarantined record is lost sight of.
    quarantined_names: BTreeMap<Box<[u8]>, String>,
    timers: Timers,
    commits: Commits,
    last_slot: u64,
    epoch: u64,
    /// The mount table as it was seen last.
    table: Arc<MountTable>,
    /// Volumes that lack a mount in a table that says nothing certain of them, since something of them ran.
    missed: BTreeSet<Slot>,
    actions: Vec<Action>,
}

/// A driver that is registered, or has volumes.
#[derive(Debug)]
struct DriverSlot {
    policy: Arc<DriverPolicy>,
    registered: bool,
    connected: bool,
    /// What was last known of it.
    facts: Option<Box<DriverFacts>>,
    turns: Turns,
    volumes: BTreeSet<Slot>,
}

impl Node {
    /// Takes what happened, and answers what to do, in this order. `now` is how long the core has been running.
    #[must_use = "nothing is done unless the actions are performed"]
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.epoch += 1;
        match event {
            Event::Request(request) => self.request(request, now),
            Event::DriverRegistered { driver, policy } => self.register(driver, policy),
            Event::DriverConnected { facts, predecessors_ended } => {
                self.connected(facts, predecessors_ended, now);
            }
            Event::DriverDisconnected(driver) => self.disconnected(&driver),
            Event::DriverGone(driver) => self.gone(&driver),
            Event::CallEnded { slot, result, seen } => self.call_ended(slot, result, seen.as_ref(), now),
            Event::Looked { slot, seen } => self.looked(slot, &seen, now),
            Event::Committed(outcome) => self.committed(outcome, now),
            Event::Reopened(outcome) => self.reopened(outcome, now),
            Event::MountsSeen { table, since } => self.mounts_seen(table, since, now),
            Event::Tick => self.tick(now),
        }
        self.start_calls(now);
        self.start_commit(now);
        self.seek_missed();
        std::mem::take(&mut self.actions)
    }

    /// When the next [`Event::Tick`] is due. It may be in the past.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let reopen = self.commits.reopen_at();
        [self.timers.next(), reopen].into_iter().flatten().min()
    }

    /// The present moment, to be noted before the mount table is read for an [`Event::MountsSeen`].
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    fn tick(&mut self, now: Duration) {
        while let Some((slot, alarm)) = self.timers.take_due(now) {
            match alarm {
                Alarm::Resume(call) => self.feed(slot, crate::lifecycle::Event::Resume(call), now),
                Alarm::Republish => self.republish(slot, now),
                Alarm::Inspect => self.inspect(slot, now),
                Alarm::Heal => {
                    self.missed.insert(slot);
                }
                Alarm::Record => self.record_again(slot, now),
            }
        }
        if self.commits.reopen_is_due(now) {
            self.actions.push(Action::Reopen);
        }
    }

    fn tell(&mut self, slot: Slot, kind: ChangeKind) {
        if let Some(entry) = self.volumes.get(&slot) {
            self.actions.push(Action::Tell(Change { key: entry.key.clone(), kind }));
        }
    }

    fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, answer: T) {
        self.actions.push(Action::Answer(reply.with(answer)));
    }

    /// Ends the job of a volume, and the turn that it took. `None` if the volume is gone meanwhile.
    fn take_job(&mut self, slot: Slot) -> Option<Job> {
        let epoch = self.epoch;
        let entry = self.volumes.get_mut(&slot)?;
        let job = entry.job.take()?;
        entry.health.checked = epoch;
        if job.what.takes_turn()
            && let Some(driver) = self.drivers.get_mut(&entry.key.driver)
        {
            driver.turns.ended();
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests;
