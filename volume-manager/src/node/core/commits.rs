//! One commit for all records that wait: whatever comes while a commit runs goes together in the next.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::entry::Wish;
use super::event::{Action, Answer};
use super::{Node, RequestId, Slot};
use crate::lifecycle::{BackOff, Event as Lifecycle};
use crate::node::change::ChangeKind;
use crate::node::desired::Reconciled;
use crate::node::error::{StoreTrouble, bounded};
use crate::node::settings::Settings;
use crate::store;

/// The records that wait, and how the store is.
#[derive(Debug)]
pub(super) struct Commits {
    waiting: BTreeSet<Slot>,
    /// What goes with the next commit and is no volume's.
    changes: Vec<store::Change>,
    /// What the commit that runs has.
    running: Vec<Part>,
    state: State,
    /// What the store said when it failed, until it has taken a commit again.
    trouble: Option<String>,
    /// How often it failed since.
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
struct Part {
    slot: Slot,
    version: u64,
    /// Whether the machine of the volume waits for it.
    awaited: bool,
    removed: bool,
}

/// An answer that is due when some records are on disk.
#[derive(Debug)]
struct Barrier {
    request: RequestId,
    waits_for: HashMap<Slot, u64>,
    reconciled: Reconciled,
}

impl Commits {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeSet::new(),
            changes: Vec::new(),
            running: Vec::new(),
            state: State::Ready,
            trouble: None,
            failures: 0,
            barriers: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, slot: Slot) {
        self.waiting.insert(slot);
    }

    /// Moves records that cannot be read aside, once. If that fails, the next process does it.
    pub(super) fn set_aside(&mut self, changes: Vec<store::Change>) {
        self.changes = changes;
    }

    /// Why no intent is taken.
    pub(super) fn trouble(&self) -> Option<StoreTrouble> {
        self.trouble.as_ref().map(|reason| StoreTrouble { reason: reason.clone() })
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

    /// The store failed: it is opened again after a wait that grows, until it takes a commit.
    fn fail(&mut self, reason: &str, settings: &Settings, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        let waits = BackOff::new(settings.reopen_interval, settings.longest_reopen_interval);
        let wait = waits.wait(self.failures, settings.jitter_seed);
        self.trouble = Some(bounded(reason));
        self.state = State::Failed { retry_at: now.saturating_add(wait) };
    }

    fn heal(&mut self) {
        self.trouble = None;
        self.failures = 0;
    }
}

impl Node {
    /// Answers once everything that these volumes were asked is on disk.
    pub(super) fn answer_when_durable(
        &mut self,
        request: RequestId,
        touched: impl IntoIterator<Item = Slot>,
        reconciled: Reconciled,
    ) {
        let behind = |slot: Slot| {
            let entry = self.volumes.get(&slot)?;
            (entry.durable < entry.version).then_some((slot, entry.version))
        };
        let waits_for: HashMap<_, _> = touched.into_iter().filter_map(behind).collect();
        if waits_for.is_empty() {
            return self.answer(request, Answer::Reconciled(Ok(reconciled)));
        }
        self.commits.barriers.push(Barrier { request, waits_for, reconciled });
    }

    pub(super) fn start_commit(&mut self) {
        let idle = self.commits.waiting.is_empty() && self.commits.changes.is_empty();
        if !matches!(self.commits.state, State::Ready) || idle {
            return;
        }
        let mut changes = std::mem::take(&mut self.commits.changes);
        for slot in std::mem::take(&mut self.commits.waiting) {
            let Some(entry) = self.volumes.get_mut(&slot) else { continue };
            let key = entry.record_key.clone();
            entry.touch();
            changes.push(if entry.forgotten {
                store::Change::Remove(key)
            } else {
                store::Change::Put(key, entry.record(self.boot).encode())
            });
            self.commits.running.push(Part {
                slot,
                version: entry.version,
                awaited: std::mem::take(&mut entry.recording),
                removed: entry.forgotten,
            });
        }
        if !changes.is_empty() {
            self.commits.state = State::Committing;
            self.actions.push(Action::Commit(changes));
        }
    }

    pub(super) fn committed(&mut self, outcome: Result<(), String>, now: Duration) {
        let parts = std::mem::take(&mut self.commits.running);
        match outcome {
            Ok(()) => {
                self.commits.state = State::Ready;
                self.commits.heal();
                for part in &parts {
                    self.is_durable(part, now);
                }
                self.lift_barriers(&parts);
            }
            Err(reason) => {
                let reason = bounded(&reason);
                self.commits.fail(&reason, &self.settings, now);
                for part in parts {
                    self.commits.waiting.insert(part.slot);
                    if part.awaited {
                        self.feed(part.slot, Lifecycle::Recorded(false), now);
                    }
                    self.give_up_for_store(part.slot, &reason);
                }
                for barrier in std::mem::take(&mut self.commits.barriers) {
                    let trouble = StoreTrouble { reason: reason.clone() };
                    self.answer(barrier.request, Answer::Reconciled(Err(trouble.into())));
                }
            }
        }
    }

    fn is_durable(&mut self, part: &Part, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&part.slot) else { return };
        entry.durable = entry.durable.max(part.version);
        if part.removed && entry.forgotten && !self.commits.waiting.contains(&part.slot) {
            return self.forget(part.slot);
        }
        if part.awaited {
            self.feed(part.slot, Lifecycle::Recorded(true), now);
        }
    }

    fn lift_barriers(&mut self, parts: &[Part]) {
        for barrier in &mut self.commits.barriers {
            for part in parts {
                if barrier.waits_for.get(&part.slot).is_some_and(|version| *version <= part.version) {
                    barrier.waits_for.remove(&part.slot);
                }
            }
        }
        let lifted: Vec<_> =
            self.commits.barriers.extract_if(.., |barrier| barrier.waits_for.is_empty()).collect();
        for barrier in lifted {
            self.answer(barrier.request, Answer::Reconciled(Ok(barrier.reconciled)));
        }
    }

    /// Whoever waits for something that is not on disk is told. What was asked for goes on when the store does.
    fn give_up_for_store(&mut self, slot: Slot, reason: &str) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let trouble = StoreTrouble { reason: reason.to_owned() };
        for (request, wish) in std::mem::take(&mut entry.waiters) {
            let trouble = trouble.clone();
            let answer = match wish {
                Wish::Publish(_) => Answer::Published(Err(trouble.into())),
                Wish::Unpublish(_) => Answer::Unpublished(Err(trouble.into())),
                Wish::Expand => Answer::Expanded(Err(trouble.into())),
            };
            self.actions.push(Action::Answer { request, answer });
        }
    }

    pub(super) fn reopened(&mut self, outcome: Result<(), String>, now: Duration) {
        if !matches!(self.commits.state, State::Reopening) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.commits.state = State::Ready;
                // It is believed when it has taken a commit; with nothing to commit there is nothing to wait for.
                if self.commits.waiting.is_empty() {
                    self.commits.heal();
                }
                let stuck: Vec<_> = self.commits.waiting.iter().copied().collect();
                for slot in stuck {
                    self.feed(slot, Lifecycle::Proceed, now);
                }
            }
            Err(reason) => self.commits.fail(&reason, &self.settings, now),
        }
    }

    /// Nothing is left of a volume, on disk neither.
    fn forget(&mut self, slot: Slot) {
        self.tell(slot, ChangeKind::Forgotten);
        let Some(entry) = self.volumes.remove(&slot) else { return };
        if entry.touched {
            let staging = entry.staging.as_path();
            let places = [Some(staging), staging.parent()].into_iter().flatten();
            self.actions.push(Action::Clear(places.map(ToOwned::to_owned).collect()));
        }
        self.by_key.remove(&entry.key);
        self.directories.remove(entry.record_key.name());
        self.timers.clear(slot, |_| true);
        for consumer in entry.consumers.values() {
            self.targets.remove(consumer.spec.target_path());
        }
        self.leave_driver(&entry.key.driver, slot);
        for (request, _) in entry.queries {
            let unknown = crate::node::InspectError::Unknown { key: entry.key.clone() };
            self.answer(request, Answer::Inspected(Err(unknown)));
        }
    }
}
