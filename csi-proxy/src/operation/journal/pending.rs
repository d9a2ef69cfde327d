//! What is to be written: changes that wait for the next commit. No clock, no disk.

use std::collections::{BTreeMap, btree_map};
use std::time::{Duration, Instant, SystemTime};

use super::record::seal;
use super::{Change, JournalSettings};
use crate::operation::by_key::ByKey;
use crate::operation::counted::ByCount;
use crate::operation::{Entry, Key, OperationId, Restored, Stage};

/// Longest [`JournalSettings::linger`].
const LONGEST: Duration = Duration::from_secs(60);

/// How long changes wait that need not be on the disk before a driver is called.
const LAZY: Duration = Duration::from_millis(50);

/// The number of a commit, from 1.
pub type CommitNumber = u64;

/// The changes between the core and the disk, the latest of each operation.
///
/// At most one commit is under way at a time: [`Self::take`], then [`Self::done`].
#[derive(Debug)]
pub struct Pending {
    linger: Duration,
    eager: bool,
    /// With when each operation's first change came.
    changes: BTreeMap<OperationId, (Instant, Entry)>,
    due: Option<Instant>,
    urgent: bool,
    /// What may be on the disk, with the keys of the finished answer if it is one.
    on_disk: ByCount<OperationId, Vec<Key>>,
    /// Operations with a finished answer that may be on the disk, by what it is about.
    finished: ByKey<Vec<OperationId>>,
    taken: CommitNumber,
    done: CommitNumber,
    /// The next commit is made even if it is empty: something waits for its number.
    forced: bool,
    under_way: Option<Vec<OperationId>>,
    failed: Option<String>,
}

/// Changes for one commit.
#[derive(Debug)]
#[non_exhaustive]
pub struct Batch {
    entries: Vec<Entry>,
}

impl Batch {
    /// The changes of rows, written at this time.
    #[must_use]
    pub fn changes(&self, now: SystemTime) -> Vec<Change> {
        let change = |entry: &Entry| match entry {
            Entry::Put { operation, identity, stage } => {
                Change::Put(operation.number(), seal(*operation, identity, stage, now))
            }
            Entry::Remove { operation } => Change::Remove(operation.number()),
        };
        self.entries.iter().map(change).collect()
    }
}

impl Pending {
    /// Nothing to write, over a journal that holds this.
    #[must_use]
    pub fn new(settings: JournalSettings, contents: &[Restored]) -> Self {
        let eager = settings.linger.is_zero();
        let mut pending = Self {
            linger: if eager { LAZY } else { settings.linger.min(LONGEST) },
            eager,
            changes: BTreeMap::new(),
            due: None,
            urgent: false,
            on_disk: ByCount::default(),
            finished: ByKey::default(),
            taken: 0,
            done: 0,
            forced: false,
            under_way: None,
            failed: None,
        };
        for Restored { operation, identity, stage, .. } in contents {
            pending.note_on_disk(*operation, stage_keys(identity, stage));
        }
        pending
    }

    /// Takes an entry. While the journal is failed it is dropped: [`Self::reopened`] needs all of them anyway.
    pub fn record(&mut self, now: Instant, entry: Entry) {
        if self.failed.is_some() {
            return;
        }
        let operation = entry.operation();
        if matches!(entry, Entry::Remove { .. }) && !self.on_disk.contains_key(&operation) {
            self.changes.remove(&operation);
            return;
        }
        match self.changes.entry(operation) {
            btree_map::Entry::Vacant(vacant) => drop(vacant.insert((now, entry))),
            btree_map::Entry::Occupied(mut change) => change.get_mut().1 = entry,
        }
        self.due.get_or_insert(now + self.linger);
    }

    /// Whether a finished answer about one of the keys may be on the disk, of another operation than this.
    #[must_use]
    pub fn holds_answer_about(&self, operation: OperationId, keys: &[Key]) -> bool {
        !self.finished.is_empty()
            && keys
                .iter()
                .filter_map(|key| self.finished.get(key))
                .any(|holders| holders.iter().any(|holder| *holder != operation))
    }

    /// Has everything so far written without waiting for more, and says with which commit it will be on the disk.
    pub fn urge(&mut self) -> CommitNumber {
        if self.failed.is_some() {
            // The one that follows the reopening.
            return self.taken + 1;
        }
        if self.changes.is_empty() && !self.forced {
            return if self.under_way.is_some() { self.taken } else { self.done };
        }
        // What was to be written may be taken back before its turn, and the number is promised.
        (self.urgent, self.forced) = (true, true);
        self.taken + 1
    }

    /// Whether an operation must be on the disk before its driver is called.
    #[must_use]
    pub const fn is_eager(&self) -> bool {
        self.eager
    }

    /// When the next commit is to begin; `None` if nothing is to be written.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The next commit, if its time has come and none is under way. Unless something waits for it, changes that have not lingered
    /// long enough stay: most operations end before, and leave no trace.
    pub fn take(&mut self, now: Instant) -> Option<Batch> {
        if self.under_way.is_some() || !(self.urgent || self.due.is_some_and(|due| due <= now)) {
            return None;
        }
        let all = std::mem::take(&mut self.urgent);
        let linger = self.linger;
        let (ripe, rest) = std::mem::take(&mut self.changes)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, (since, _))| all || *since + linger <= now);
        self.changes = rest;
        let entries: Vec<_> = ripe.into_values().map(|(_, entry)| entry).collect();
        // Not as soon as the next is ripe: others ripen with it.
        self.due = (!self.changes.is_empty()).then(|| now + linger);
        let forced = std::mem::take(&mut self.forced);
        if entries.is_empty() && !forced {
            return None;
        }
        let mut removed = Vec::new();
        for entry in &entries {
            match entry {
                Entry::Put { operation, identity, stage } => {
                    self.note_on_disk(*operation, stage_keys(identity, stage));
                }
                Entry::Remove { operation } => removed.push(*operation),
            }
        }
        self.taken += 1;
        self.under_way = Some(removed);
        Some(Batch { entries })
    }

    /// The commit that was under way is on the disk.
    pub fn done(&mut self) {
        for operation in self.under_way.take().unwrap_or_default() {
            self.note_off_disk(operation);
        }
        self.done = self.taken;
    }

    /// The journal has failed. What may be on the disk stays as it is.
    pub fn failed(&mut self, reason: String) {
        self.under_way = None;
        self.changes.clear();
        self.due = None;
        self.urgent = false;
        self.failed.get_or_insert(reason);
    }

    /// Why it has failed, until it is reopened.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// The journal works again and is to hold these [entries](crate::operation::Core::entries) and nothing else. Says with which
    /// commit it will.
    pub fn reopened(&mut self, now: Instant, entries: Vec<Entry>) -> CommitNumber {
        self.failed = None;
        self.changes.clear();
        let stale: Vec<_> = self.on_disk.keys().copied().collect();
        for operation in stale {
            self.record(now, Entry::Remove { operation });
        }
        for entry in entries {
            self.record(now, entry);
        }
        self.forced = true;
        self.urge()
    }

    /// The number of the commit that began last.
    #[must_use]
    pub const fn taken(&self) -> CommitNumber {
        self.taken
    }

    fn note_on_disk(&mut self, operation: OperationId, keys: Vec<Key>) {
        self.note_off_disk(operation);
        for key in &keys {
            self.finished.entry(key.clone()).or_default().push(operation);
        }
        self.on_disk.insert(operation, keys);
    }

    fn note_off_disk(&mut self, operation: OperationId) {
        for key in self.on_disk.remove(&operation).unwrap_or_default() {
            if let Some(holders) = self.finished.get_mut(&key) {
                holders.retain(|holder| *holder != operation);
                if holders.is_empty() {
                    self.finished.remove(&key);
                }
            }
        }
    }
}

/// What a finished answer is about; empty if it is not finished.
fn stage_keys(identity: &crate::operation::Identity, stage: &Stage) -> Vec<Key> {
    match stage {
        Stage::Finished(answer) => identity.keys().iter().cloned().chain(answer.keys(identity)).collect(),
        Stage::Accepted | Stage::Started => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
