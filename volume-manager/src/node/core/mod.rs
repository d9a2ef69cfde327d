//! The state machine of all volumes of a node: requests and events in, actions out.
//!
//! The core has no clock, sockets or tasks. Time is an argument: how long the core has been running. Its caller
//! sends an [`Event`] for each [`Action`] that requests one, in any order, and an [`Event::Tick`] at
//! [`Node::next_deadline`].
//!
//! Each volume is a [`lifecycle::Volume`](crate::lifecycle::Volume). The node adds what the volumes share: the store,
//! with one commit for all pending records; the drivers, with their call queues; timers; and the mount table.
//!
//! ```
//! use std::time::Duration;
//! use volume_manager::node::VolumeSettings;
//! use volume_manager::advanced::node::{Event, Node};
//! use volume_manager::mounts::MountTable;
//! use volume_manager::store::{BootId, Loaded};
//!
//! let boot: BootId = "0d7bb5ac-0e3d-4a3c-9d5e-6b7e4f0c1a2b".parse()?;
//! let table = MountTable::default().into();
//! let (mut node, actions) = Node::open(VolumeSettings::new("/var/lib/volumes"), boot, Loaded::default(), table);
//! assert!(actions.is_empty() && node.next_deadline().is_none());
//! assert!(node.step(Event::Tick, Duration::ZERO).is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

use super::change::{ChangeKind, VolumeChange};
use super::settings::VolumeSettings;
use crate::driver::{DriverFacts, DriverPolicy, MountPath};
use crate::mounts::MountTable;
use crate::name::{ConsumerId, VolumeKey};
use crate::store::BootId;

mod call_queue;
mod calls;
mod commits;
mod drivers;
mod entry;
mod event;
mod explain;
mod mount_checks;
mod mount_loss;
mod recovery;
mod reply;
mod requests;
mod steps;
mod timers;

use call_queue::CallQueue;
use commits::Commits;
use entry::{Entry, Job};
pub use event::{
    Action, CallOrder, CheckError, CheckResult, CommitFailure, Event, Inspect, Observation, PathCheck, Query,
    Request,
};
pub use explain::{Counts, KnownDriver};
pub use reply::{Answer, Reply, ReplyTo};
use timers::{Alarm, Timers};

/// A point in time, counted in steps of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// The internal id of a volume and its job. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

/// All volumes of a node.
#[derive(Debug)]
pub struct Node {
    settings: VolumeSettings,
    boot: BootId,
    volumes: HashMap<Slot, Entry>,
    by_key: BTreeMap<VolumeKey, Slot>,
    /// The staging directories in use, by the names of their record keys.
    directories: HashMap<Box<[u8]>, Slot>,
    /// The consumer of each target path.
    targets: HashMap<MountPath, (Slot, ConsumerId)>,
    drivers: BTreeMap<DriverName, DriverEntry>,
    /// The quarantined records, with the reason.
    quarantined: Vec<(String, String)>,
    /// The names of quarantined records, which must not be overwritten, with the reasons.
    quarantined_names: BTreeMap<Box<[u8]>, String>,
    timers: Timers,
    commits: Commits,
    last_slot: u64,
    epoch: u64,
    /// The last mount table that was read.
    table: Arc<MountTable>,
    /// Volumes whose mount is missing from an inconclusive table, because a job of the volume was running.
    mounts_missing: BTreeSet<Slot>,
    actions: Vec<Action>,
}

/// A driver that is registered or has volumes.
#[derive(Debug)]
struct DriverEntry {
    policy: Arc<DriverPolicy>,
    presence: DriverPresence,
    /// The driver's identity and capabilities at its last connection.
    facts: Option<Box<DriverFacts>>,
    queue: CallQueue,
    volumes: BTreeSet<Slot>,
}

/// Whether a driver can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DriverPresence {
    Unregistered,
    Connecting {
        /// The text of the error of the last attempt, at most 512 bytes.
        last_error: Option<String>,
    },
    Connected,
}

impl DriverEntry {
    fn is_registered(&self) -> bool {
        self.presence != DriverPresence::Unregistered
    }

    fn is_connected(&self) -> bool {
        self.presence == DriverPresence::Connected
    }
}

impl Node {
    /// Handles an event and returns the actions to perform, in order. `now` is how long the core has been running.
    #[must_use = "nothing is done unless the actions are performed"]
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.epoch += 1;
        match event {
            Event::Request(request) => self.request(request, now),
            Event::DriverRegistered { driver, policy } => self.register(driver, policy),
            Event::DriverConnected { facts, earlier_processes_ended } => {
                self.connected(facts, earlier_processes_ended, now);
            }
            Event::DriverUnreachable { driver, error } => self.unreachable(&driver, &error),
            Event::DriverDisconnected(driver) => self.disconnected(&driver),
            Event::DriverDeregistered(driver) => self.deregistered(&driver),
            Event::CallEnded { slot, result, observed } => {
                self.call_ended(slot, result, observed.as_ref(), now);
            }
            Event::Checked { slot, observed } => self.checked(slot, &observed, now),
            Event::Committed(outcome) => self.committed(outcome, now),
            Event::Reopened(outcome) => self.reopened(outcome, now),
            Event::MountsSeen { table, since } => self.mounts_seen(table, since, now),
            Event::Tick => self.tick(now),
        }
        self.start_calls(now);
        self.start_commit(now);
        self.request_table_read();
        std::mem::take(&mut self.actions)
    }

    /// Returns the time at which the next [`Event::Tick`] is due. The time may be in the past.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let reopen = self.commits.reopen_at();
        [self.timers.next(), reopen].into_iter().flatten().min()
    }

    /// Returns the current epoch, to be saved before the mount table is read for an [`Event::MountsSeen`].
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
                Alarm::Remount => {
                    self.mounts_missing.insert(slot);
                }
                Alarm::Record => self.record_again(slot, now),
            }
        }
        if self.commits.reopen_is_due(now) {
            self.actions.push(Action::Reopen);
        }
    }

    fn notify(&mut self, slot: Slot, kind: ChangeKind) {
        if let Some(entry) = self.volumes.get(&slot) {
            self.actions.push(Action::Notify(VolumeChange { key: entry.key.clone(), kind }));
        }
    }

    fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, answer: T) {
        self.actions.push(Action::Answer(reply.into_answer(answer)));
    }

    /// Ends the job of a volume and releases its call slot. Returns `None` if the volume was removed meanwhile.
    fn take_job(&mut self, slot: Slot) -> Option<Job> {
        let epoch = self.epoch;
        let entry = self.volumes.get_mut(&slot)?;
        let job = entry.job.take()?;
        entry.health.last_activity = epoch;
        if job.kind.uses_call_slot()
            && let Some(driver) = self.drivers.get_mut(&entry.key.driver)
        {
            driver.queue.release_slot();
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests;
