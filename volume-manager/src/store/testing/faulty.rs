//! Fault injection for stores: on command, or at random with a seed.
//!
//! ```
//! use volume_manager::store::{Change, DiskErrorKind, RecordKey, RecordKind, faulty};
//! use volume_manager::store::memory::MemoryDisk;
//!
//! let (mut store, handle) = faulty::wrap(MemoryDisk::default().open(), faulty::Plan::new(42));
//! handle.fail_next_commit(faulty::CommitFault::Refused(DiskErrorKind::NoSpace));
//! let changes = [Change::Put(RecordKey::new(RecordKind(1), "vol-1")?, b"state".to_vec())];
//! assert_eq!(store.commit(&changes).unwrap_err().disk_error_kind(), Some(DiskErrorKind::NoSpace));
//! assert!(store.load().is_err(), "it is stopped");
//! store.reopen()?;
//! store.commit(&changes)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use crate::store::{DiskErrorKind, OpenStoreError, RowTable, RowWrite, Rows, Store, StoreError};

/// How a commit fails. The caller cannot distinguish the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitFault {
    /// Nothing is written.
    Refused(DiskErrorKind),
    /// Everything is written, and the failure is reported.
    Written(DiskErrorKind),
}

/// A plan of random faults. The same seed and the same calls result in the same faults; log it (`Debug`) to reproduce them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The seed of the random numbers.
    pub seed: u64,
    /// The probability, in thousandths, that a commit fails without being written.
    pub refused: u16,
    /// The probability, in thousandths, that a commit is written and fails.
    pub written: u16,
}

impl Plan {
    /// A plan without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Sets the probability, in thousandths, that a commit fails without being written.
    #[must_use]
    pub const fn with_refused(mut self, thousandths: u16) -> Self {
        self.refused = thousandths;
        self
    }

    /// Sets the probability, in thousandths, that a commit is written and fails.
    #[must_use]
    pub const fn with_written(mut self, thousandths: u16) -> Self {
        self.written = thousandths;
        self
    }
}

/// Wraps the rows of a store, with random faults by `plan` and a handle for faults on command. A commit without changes writes
/// nothing, so that it has no fault and is not counted.
#[must_use]
pub fn wrap(store: Store, plan: Plan) -> (Store, Handle) {
    let handle = Handle(Arc::new(Mutex::new(State::new(plan.seed))));
    (Store::new(FaultyRows { inner: store.into_rows(), plan, state: handle.clone() }), handle)
}

/// A handle that controls a faulty store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Rng,
    script: VecDeque<CommitFault>,
    commits: Option<DiskErrorKind>,
    loads: Option<DiskErrorKind>,
    reopens: Option<DiskErrorKind>,
    made: u64,
    tried: u64,
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            script: VecDeque::new(),
            commits: None,
            loads: None,
            reopens: None,
            made: 0,
            tried: 0,
        }
    }

    fn commit_fault(&mut self, plan: Plan) -> Option<CommitFault> {
        if let Some(fault) = self.script.pop_front() {
            return Some(fault);
        }
        if let Some(kind) = self.commits {
            return Some(CommitFault::Refused(kind));
        }
        if plan.refused == 0 && plan.written == 0 {
            return None;
        }
        let (drawn, refused) = (self.rng.u32(..1000), u32::from(plan.refused));
        if drawn < refused {
            Some(CommitFault::Refused(DiskErrorKind::NoSpace))
        } else if drawn < refused + u32::from(plan.written) {
            Some(CommitFault::Written(DiskErrorKind::Device))
        } else {
            None
        }
    }
}

impl Handle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a fault for one commit.
    pub fn fail_next_commit(&self, fault: CommitFault) {
        self.state().script.push_back(fault);
    }

    /// Makes every commit fail, with nothing written, until [`Handle::heal`], as on a full disk.
    pub fn fail_commits(&self, kind: DiskErrorKind) {
        self.state().commits = Some(kind);
    }

    /// Makes every load fail until [`Handle::heal`].
    pub fn fail_loads(&self, kind: DiskErrorKind) {
        self.state().loads = Some(kind);
    }

    /// Makes every reopening fail until [`Handle::heal`].
    pub fn fail_reopens(&self, kind: DiskErrorKind) {
        self.state().reopens = Some(kind);
    }

    /// Clears all faults of this handle. A stopped store remains stopped until it is reopened.
    pub fn heal(&self) {
        let mut state = self.state();
        state.script.clear();
        (state.commits, state.loads, state.reopens) = (None, None, None);
    }

    /// The number of successful commits.
    #[must_use]
    pub fn commits_made(&self) -> u64 {
        self.state().made
    }

    /// The number of attempted commits.
    #[must_use]
    pub fn commits_tried(&self) -> u64 {
        self.state().tried
    }
}

/// Rows with fault injection. See the [module](self).
struct FaultyRows {
    inner: Box<dyn Rows>,
    plan: Plan,
    state: Handle,
}

/// Creates a system error of a kind.
fn source(kind: DiskErrorKind) -> io::Error {
    match kind {
        DiskErrorKind::NoSpace => io::ErrorKind::StorageFull.into(),
        DiskErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem.into(),
        DiskErrorKind::Device => io::Error::from_raw_os_error(5),
        DiskErrorKind::TooManyFiles => io::Error::from_raw_os_error(24),
        DiskErrorKind::Denied => io::ErrorKind::PermissionDenied.into(),
        DiskErrorKind::Other => io::Error::other("injected fault"),
    }
}

impl Rows for FaultyRows {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(table, key)
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let fault = self.state.state().loads;
        match fault {
            Some(kind) => Err(StoreError::disk("the load", source(kind))),
            None => self.inner.scan(table, visit),
        }
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        let fault = {
            let mut state = self.state.state();
            state.tried += 1;
            state.commit_fault(self.plan)
        };
        match fault {
            Some(CommitFault::Refused(kind)) => Err(StoreError::disk("the commit", source(kind))),
            Some(CommitFault::Written(kind)) => {
                self.inner.write(batch)?;
                Err(StoreError::disk("the commit", source(kind)))
            }
            None => {
                self.inner.write(batch)?;
                self.state.state().made += 1;
                Ok(())
            }
        }
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        let fault = self.state.state().reopens;
        match fault {
            Some(kind) => Err(OpenStoreError::disk("faulty".as_ref())(source(kind)).into()),
            None => self.inner.reopen(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryDisk;
    use crate::store::{Change, RecordKey, RecordKind};

    fn put(name: &str) -> [Change; 1] {
        [Change::Put(RecordKey::new(RecordKind(0), name).unwrap(), Vec::new())]
    }

    /// Each kind of disk error on a commit is reported as such.
    #[test]
    fn injected_fault_stops_the_store_until_it_is_reopened() {
        for kind in [
            DiskErrorKind::NoSpace,
            DiskErrorKind::ReadOnly,
            DiskErrorKind::Device,
            DiskErrorKind::TooManyFiles,
        ] {
            for written in [false, true] {
                let disk = MemoryDisk::default();
                let (mut store, handle) = wrap(disk.open(), Plan::new(0));
                let fault = if written { CommitFault::Written(kind) } else { CommitFault::Refused(kind) };
                handle.fail_next_commit(fault);
                let error = store.commit(&put("a")).unwrap_err();
                assert!(error.disk_error_kind() == Some(kind) && error.is_stopped(), "{error}");
                for later in [store.commit(&put("b")).unwrap_err(), store.load().unwrap_err()] {
                    assert!(
                        matches!(later, StoreError::Stopped { .. }) && later.disk_error_kind() == Some(kind)
                    );
                }
                handle.fail_reopens(DiskErrorKind::ReadOnly);
                assert_eq!(store.reopen().unwrap_err().disk_error_kind(), Some(DiskErrorKind::ReadOnly));
                assert!(store.load().is_err());
                handle.heal();
                store.reopen().unwrap();
                assert_eq!(store.load().unwrap().records.len(), usize::from(written));
                store.commit(&put("b")).unwrap();
                assert_eq!((handle.commits_tried(), handle.commits_made()), (2, 1));
            }
        }
    }

    #[test]
    fn heal_ends_lasting_faults() {
        let (mut store, handle) = wrap(MemoryDisk::default().open(), Plan::new(0));
        handle.fail_commits(DiskErrorKind::NoSpace);
        for _ in 0..3 {
            assert_eq!(store.commit(&put("a")).unwrap_err().disk_error_kind(), Some(DiskErrorKind::NoSpace));
            store.reopen().unwrap();
        }
        handle.heal();
        store.commit(&put("a")).unwrap();
        handle.fail_loads(DiskErrorKind::Device);
        store.commit(&put("a")).unwrap();
        assert_eq!(store.load().unwrap_err().disk_error_kind(), Some(DiskErrorKind::Device));
    }

    #[test]
    fn seed_reproduces_random_faults() {
        let faults = |seed| {
            let plan = Plan::new(seed).with_refused(200).with_written(200);
            let (mut store, _handle) = wrap(MemoryDisk::default().open(), plan);
            (0..50)
                .map(|_| {
                    let fault = store.commit(&put("a")).err().and_then(|error| error.disk_error_kind());
                    store.reopen().unwrap();
                    fault
                })
                .collect::<Vec<_>>()
        };
        let seen = faults(7);
        assert_eq!(seen, faults(7));
        assert_ne!(seen, faults(8));
        for expected in [None, Some(DiskErrorKind::NoSpace), Some(DiskErrorKind::Device)] {
            assert!(seen.contains(&expected), "{seen:?}");
        }
    }
}
