//! Group commit: all records that change while a commit runs are written together by the next one.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::event::{Action, CommitFailure};
use super::reply::Reply;
use super::timers::Alarm;
use super::{Node, Slot};
use crate::backoff::BackOff;
use crate::lifecycle::Event as Lifecycle;
use crate::node::change::ChangeKind;
use crate::node::error::{InspectError, NotYetRecorded, StoreUnavailable, bounded};
use crate::node::settings::{LONGEST_REOPEN_INTERVAL, REOPEN_INTERVAL, VolumeSettings};
use crate::store::{self, MAX_PAYLOAD_BYTES, RecordKey};

/// The pending records and the state of the store.
#[derive(Debug)]
pub(super) struct Commits {
    waiting: BTreeSet<Slot>,
    /// Changes of the next commit that do not belong to a volume.
    changes: Vec<store::Change>,
    /// The records of the running commit.
    running: Vec<PendingWrite>,
    running_changes: Vec<store::Change>,
    state: State,
    /// The last error of the store, until it accepts a commit again.
    error: Option<String>,
    /// The number of consecutive failures.
    failures: u8,
    barriers: Vec<Barrier>,
}

#[derive(Debug)]
enum State {
    Ready,
    Committing,
    Failed { retry_at: Duration },
    Reopening,
}

/// One record in a commit.
#[derive(Debug)]
struct PendingWrite {
    slot: Slot,
    version: u64,
    /// True if the state machine of the volume waits for the commit.
    awaited: bool,
    removed: bool,
}

/// A reply that is sent when a set of records is on disk.
#[derive(Debug)]
struct Barrier {
    reply: Reply<Result<(), StoreUnavailable>>,
    waits_for: HashMap<Slot, u64>,
}

impl Commits {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeSet::new(),
            changes: Vec::new(),
            running: Vec::new(),
            running_changes: Vec::new(),
            state: State::Ready,
            error: None,
            failures: 0,
            barriers: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, slot: Slot) {
        self.waiting.insert(slot);
    }

    /// Adds the quarantine of unreadable records to the next commit. If the commit fails, the next process repeats
    /// the quarantine.
    pub(super) fn quarantine(&mut self, changes: Vec<store::Change>) {
        self.changes = changes;
    }

    /// Returns the reason why the store does not accept records, or `None` if it does.
    pub(super) fn unavailable(&self) -> Option<StoreUnavailable> {
        self.error.as_ref().map(|reason| StoreUnavailable { reason: reason.clone() })
    }

    pub(super) fn reopen_at(&self) -> Option<Duration> {
        match self.state {
            State::Failed { retry_at } => Some(retry_at),
            _ => None,
        }
    }

    pub(super) fn reopen_is_due(&mut self, now: Duration) -> bool {
        let due = matches!(self.state, State::Failed { retry_at } if retry_at <= now);
        if due {
            self.state = State::Reopening;
        }
        due
    }

    /// Handles a failure of the store: it is reopened after a back-off, until it accepts a commit.
    fn fail(&mut self, reason: &str, settings: &VolumeSettings, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        let waits = BackOff::new(REOPEN_INTERVAL, LONGEST_REOPEN_INTERVAL);
        let wait = waits.wait(self.failures, settings.jitter_seed);
        self.error = Some(bounded(reason));
        self.state = State::Failed { retry_at: now.saturating_add(wait) };
    }

    fn recovered(&mut self) {
        self.error = None;
        self.failures = 0;
    }
}

impl Node {
    /// Schedules a write of the volume's record after a request. Waiters are notified after the commit that is
    /// scheduled here.
    pub(super) fn mark_dirty(&mut self, slot: Slot) {
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.progress.version += 1;
            self.commits.add(slot);
        }
    }

    /// Replies when the current records of these volumes are on disk.
    pub(super) fn answer_when_durable(
        &mut self,
        touched: impl IntoIterator<Item = Slot>,
        reply: Reply<Result<(), StoreUnavailable>>,
    ) {
        let pending = |slot: Slot| {
            let entry = self.volumes.get(&slot)?;
            (entry.progress.durable < entry.progress.version).then_some((slot, entry.progress.version))
        };
        let waits_for: HashMap<_, _> = touched.into_iter().filter_map(pending).collect();
        if waits_for.is_empty() {
            return self.answer(reply, Ok(()));
        }
        // Abandoned requests are dropped, so that they cannot accumulate.
        self.commits.barriers.retain(|barrier| !barrier.reply.is_closed());
        self.commits.barriers.push(Barrier { reply, waits_for });
    }

    pub(super) fn start_commit(&mut self, now: Duration) {
        let idle = self.commits.waiting.is_empty() && self.commits.changes.is_empty();
        if !matches!(self.commits.state, State::Ready) || idle {
            return;
        }
        let mut changes = std::mem::take(&mut self.commits.changes);
        self.commits.running_changes.clone_from(&changes);
        let mut too_large = Vec::new();
        for slot in std::mem::take(&mut self.commits.waiting) {
            let Some(entry) = self.volumes.get_mut(&slot) else { continue };
            let key = entry.record_key.clone();
            entry.touch();
            changes.push(if entry.progress.removable {
                store::Change::Remove(key)
            } else {
                match entry.record.payload() {
                    Ok(payload) => store::Change::Put(key, payload),
                    Err(found) => {
                        too_large.push((slot, found));
                        continue;
                    }
                }
            });
            self.commits.running.push(PendingWrite {
                slot,
                version: entry.progress.version,
                awaited: std::mem::take(&mut entry.progress.recording),
                removed: entry.progress.removable,
            });
        }
        if !changes.is_empty() {
            self.commits.state = State::Committing;
            self.actions.push(Action::Commit(changes));
        }
        for (slot, found) in too_large {
            let reason = format!("the record has {found} bytes; at most {MAX_PAYLOAD_BYTES} can be stored");
            self.exclude_record(slot, &reason, now);
        }
    }

    /// Excludes a record that cannot be stored from commits, so that only its own volume waits.
    fn exclude_record(&mut self, slot: Slot, reason: &str, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if std::mem::take(&mut entry.progress.recording) {
            self.feed(slot, Lifecycle::Recorded(false), now);
        }
        self.fail_waiters_for_store(slot, reason);
        let waits = |barrier: &mut Barrier| barrier.waits_for.contains_key(&slot);
        for barrier in self.commits.barriers.extract_if(.., waits).collect::<Vec<_>>() {
            self.answer(barrier.reply, Err(StoreUnavailable { reason: reason.to_owned() }));
        }
        self.timers.set(slot, Alarm::Record, now.saturating_add(LONGEST_REOPEN_INTERVAL));
    }

    pub(super) fn record_again(&mut self, slot: Slot, now: Duration) {
        self.commits.add(slot);
        self.feed(slot, Lifecycle::Proceed, now);
    }

    /// Handles a commit with one record that the store rejected: the others go into the next commit.
    fn record_rejected(&mut self, key: &RecordKey, reason: &str, writes: Vec<PendingWrite>, now: Duration) {
        self.commits.state = State::Ready;
        let other_changes = std::mem::take(&mut self.commits.running_changes);
        self.commits.changes.extend(other_changes.into_iter().filter(|change| change.key() != key));
        let mut refused = None;
        for write in writes {
            let Some(entry) = self.volumes.get_mut(&write.slot) else { continue };
            entry.progress.recording |= write.awaited;
            if entry.record_key == *key {
                refused = Some(write.slot);
            } else {
                self.commits.waiting.insert(write.slot);
            }
        }
        if let Some(slot) = refused {
            // A change made meanwhile does not trigger an immediate retry.
            self.commits.waiting.remove(&slot);
            self.exclude_record(slot, reason, now);
        }
    }

    pub(super) fn committed(&mut self, outcome: Result<(), CommitFailure>, now: Duration) {
        let writes = std::mem::take(&mut self.commits.running);
        let outcome = match outcome {
            Err(CommitFailure { reason, refused: Some(key) }) if self.is_in_commit(&key, &writes) => {
                return self.record_rejected(&key, &bounded(&reason), writes, now);
            }
            outcome => outcome.map_err(|failure| failure.reason),
        };
        match outcome {
            Ok(()) => {
                self.commits.state = State::Ready;
                self.commits.recovered();
                for write in &writes {
                    self.mark_durable(write, now);
                }
                self.complete_barriers(&writes);
            }
            Err(reason) => {
                let reason = bounded(&reason);
                self.commits.fail(&reason, &self.settings, now);
                // Waiters of the next commit would wait for as long as the store fails.
                for slot in self.commits.waiting.clone() {
                    self.fail_waiters_for_store(slot, &reason);
                }
                for write in writes {
                    self.commits.waiting.insert(write.slot);
                    if write.awaited {
                        self.feed(write.slot, Lifecycle::Recorded(false), now);
                    }
                    self.fail_waiters_for_store(write.slot, &reason);
                }
                for barrier in std::mem::take(&mut self.commits.barriers) {
                    self.answer(barrier.reply, Err(StoreUnavailable { reason: reason.clone() }));
                }
            }
        }
    }

    fn is_in_commit(&self, key: &RecordKey, writes: &[PendingWrite]) -> bool {
        let is_of = |write: &PendingWrite| {
            self.volumes.get(&write.slot).is_some_and(|entry| entry.record_key == *key)
        };
        self.commits.running_changes.iter().any(|change| change.key() == key) || writes.iter().any(is_of)
    }

    fn mark_durable(&mut self, write: &PendingWrite, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&write.slot) else { return };
        entry.progress.durable = entry.progress.durable.max(write.version);
        if write.version == entry.progress.version {
            let unrecorded_releases = std::mem::take(&mut entry.progress.unrecorded_releases);
            for id in
                unrecorded_releases.into_iter().filter(|id| entry.target(id).is_none()).collect::<Vec<_>>()
            {
                self.drop_consumer(write.slot, &id);
                self.answer_all(write.slot, |waiters| &mut waiters.unpublished, |waits| *waits == id, Ok(()));
            }
        }
        let Some(entry) = self.volumes.get(&write.slot) else { return };
        if write.removed && entry.progress.removable && !self.commits.waiting.contains(&write.slot) {
            return self.remove_volume(write.slot);
        }
        if write.awaited {
            self.feed(write.slot, Lifecycle::Recorded(true), now);
        }
    }

    fn complete_barriers(&mut self, writes: &[PendingWrite]) {
        for barrier in &mut self.commits.barriers {
            for write in writes {
                if barrier.waits_for.get(&write.slot).is_some_and(|version| *version <= write.version) {
                    barrier.waits_for.remove(&write.slot);
                }
            }
        }
        let completed: Vec<_> =
            self.commits.barriers.extract_if(.., |barrier| barrier.waits_for.is_empty()).collect();
        for barrier in completed {
            self.answer(barrier.reply, Ok(()));
        }
    }

    /// Fails all waiters of a volume, because its record is not on disk. The requests themselves continue when the
    /// store is available again.
    fn fail_waiters_for_store(&mut self, slot: Slot, reason: &str) {
        let not_recorded = NotYetRecorded { reason: reason.to_owned() };
        self.answer_all(slot, |waiters| &mut waiters.published, |_| true, Err(not_recorded.clone().into()));
        self.answer_all(slot, |waiters| &mut waiters.unpublished, |_| true, Err(not_recorded.clone().into()));
        self.answer_all(slot, |waiters| &mut waiters.expanded, |_| true, Err(not_recorded.into()));
    }

    pub(super) fn reopened(&mut self, outcome: Result<(), String>, now: Duration) {
        if !matches!(self.commits.state, State::Reopening) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.commits.state = State::Ready;
                // The store counts as recovered after a commit, or immediately if there is nothing to commit.
                if self.commits.waiting.is_empty() {
                    self.commits.recovered();
                }
                let waiting: Vec<_> = self.commits.waiting.iter().copied().collect();
                for slot in waiting {
                    self.feed(slot, Lifecycle::Proceed, now);
                }
            }
            Err(reason) => self.commits.fail(&reason, &self.settings, now),
        }
    }

    /// Removes a volume after its record was removed from disk.
    fn remove_volume(&mut self, slot: Slot) {
        self.notify(slot, ChangeKind::Removed);
        let Some(entry) = self.volumes.remove(&slot) else { return };
        if entry.record.touched {
            let staging = entry.staging.as_path();
            let paths = [Some(staging), staging.parent()].into_iter().flatten();
            self.actions.push(Action::RemoveEmpty(paths.map(ToOwned::to_owned).collect()));
        }
        self.by_key.remove(&entry.key);
        self.directories.remove(entry.record_key.name());
        self.timers.clear(slot, |_| true);
        self.targets.retain(|_, (of, _)| *of != slot);
        if entry.job.is_some_and(|job| job.kind.uses_call_slot())
            && let Some(driver) = self.drivers.get_mut(&entry.key.driver)
        {
            driver.queue.release_slot();
        }
        self.detach_from_driver(&entry.key.driver, slot);
        for (_, reply) in entry.queries {
            self.answer(reply, Err(InspectError::Unknown { key: entry.key.clone() }));
        }
    }
}
