//! A store that fails on purpose: on command, or by chance with a seed.
//!
//! ```
//! use volume_manager::store::{Store, Trouble, faulty, memory::MemoryStore};
//!
//! let (mut store, handle) = faulty::wrap(MemoryStore::default(), faulty::Plan::new(42));
//! handle.fail_next_commit(faulty::CommitFault::Refused(Trouble::NoSpace));
//! assert_eq!(store.commit(&[]).unwrap_err().trouble(), Some(Trouble::NoSpace));
//! assert!(store.load().is_err(), "it is stopped");
//! store.reopen()?;
//! store.commit(&[])?;
//! # Ok::<(), volume_manager::store::StoreError>(())
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use crate::store::{Change, Loaded, OpenError, QuarantineId, Store, StoreError, Trouble};

/// How a commit fails. Its caller cannot tell one from the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitFault {
    /// Nothing is written.
    Refused(Trouble),
    /// Everything is written, though the failure is reported.
    Written(Trouble),
}

/// What goes wrong by chance. The same seed and the same calls make the same faults; print it (`Debug`) to run them
/// again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Where chance begins.
    pub seed: u64,
    /// Chance in thousandths that a commit is refused.
    pub refused: u16,
    /// Chance in thousandths that a commit is written and yet fails.
    pub written: u16,
}

impl Plan {
    /// A plan without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Sets the chance in thousandths that a commit is refused, with nothing written.
    #[must_use]
    pub const fn with_refused(mut self, thousandths: u16) -> Self {
        self.refused = thousandths;
        self
    }

    /// Sets the chance in thousandths that a commit is written and yet fails.
    #[must_use]
    pub const fn with_written(mut self, thousandths: u16) -> Self {
        self.written = thousandths;
        self
    }
}

/// Wraps a store.
#[must_use]
pub fn wrap<S: Store>(store: S, plan: Plan) -> (FaultyStore<S>, Handle) {
    let handle = Handle(Arc::new(Mutex::new(State::new(plan.seed))));
    (FaultyStore { inner: store, plan, stop: None, state: handle.clone() }, handle)
}

/// Commands to a faulty store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    chance: Rng,
    script: VecDeque<CommitFault>,
    commits: Option<Trouble>,
    loads: Option<Trouble>,
    reopens: Option<Trouble>,
    made: u64,
    tried: u64,
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            chance: Rng::with_seed(seed),
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
        if let Some(trouble) = self.commits {
            return Some(CommitFault::Refused(trouble));
        }
        if plan.refused == 0 && plan.written == 0 {
            return None;
        }
        let (drawn, refused) = (self.chance.u32(..1000), u32::from(plan.refused));
        if drawn < refused {
            Some(CommitFault::Refused(Trouble::NoSpace))
        } else if drawn < refused + u32::from(plan.written) {
            Some(CommitFault::Written(Trouble::Device))
        } else {
            None
        }
    }
}

impl Handle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next commit that has no fault yet fail, once.
    pub fn fail_next_commit(&self, fault: CommitFault) {
        self.state().script.push_back(fault);
    }

    /// Makes every commit fail, with nothing written, until [`Handle::heal`]: a full disk, say.
    pub fn fail_commits(&self, trouble: Trouble) {
        self.state().commits = Some(trouble);
    }

    /// Makes every load fail until [`Handle::heal`].
    pub fn fail_loads(&self, trouble: Trouble) {
        self.state().loads = Some(trouble);
    }

    /// Makes every reopening fail until [`Handle::heal`].
    pub fn fail_reopens(&self, trouble: Trouble) {
        self.state().reopens = Some(trouble);
    }

    /// Ends all faults that were commanded. A store that is stopped stays so until it is reopened.
    pub fn heal(&self) {
        let mut state = self.state();
        state.script.clear();
        (state.commits, state.loads, state.reopens) = (None, None, None);
    }

    /// How many commits have been made, those that were written and yet failed not among them.
    #[must_use]
    pub fn commits_made(&self) -> u64 {
        self.state().made
    }

    /// How many commits were asked for.
    #[must_use]
    pub fn commits_tried(&self) -> u64 {
        self.state().tried
    }
}

/// A store that fails on purpose. See the [module](self).
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    plan: Plan,
    stop: Option<StoreError>,
    state: Handle,
}

/// An error of the system that is of this class.
fn source(trouble: Trouble) -> io::Error {
    match trouble {
        Trouble::NoSpace => io::ErrorKind::StorageFull.into(),
        Trouble::ReadOnly => io::ErrorKind::ReadOnlyFilesystem.into(),
        Trouble::Device => io::Error::from_raw_os_error(5),
        Trouble::TooManyFiles => io::Error::from_raw_os_error(24),
        Trouble::Denied => io::ErrorKind::PermissionDenied.into(),
        Trouble::Other => io::Error::other("a fault on purpose"),
    }
}

impl<S: Store> FaultyStore<S> {
    fn running(&mut self) -> Result<&mut S, StoreError> {
        match &self.stop {
            Some(stop) => Err(stop.clone()),
            None => Ok(&mut self.inner),
        }
    }

    fn stop(&mut self, action: &'static str, trouble: Trouble) -> StoreError {
        let error = StoreError::disk(action, source(trouble));
        self.stop = Some(error.stopped());
        error
    }

    /// Does what changes the store, with what may go wrong.
    fn change(&mut self, write: impl FnOnce(&mut S) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.running()?;
        let fault = {
            let mut state = self.state.state();
            state.tried += 1;
            state.commit_fault(self.plan)
        };
        match fault {
            Some(CommitFault::Refused(trouble)) => Err(self.stop("the commit", trouble)),
            Some(CommitFault::Written(trouble)) => {
                write(&mut self.inner)?;
                Err(self.stop("the commit", trouble))
            }
            None => {
                write(&mut self.inner)?;
                self.state.state().made += 1;
                Ok(())
            }
        }
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.running()?;
        let fault = self.state.state().loads;
        match fault {
            Some(trouble) => Err(self.stop("the load", trouble)),
            None => self.inner.load(),
        }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.change(|inner| inner.commit(changes))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        let fault = self.state.state().reopens;
        let reopened = match fault {
            Some(trouble) => Err(OpenError::disk("faulty".as_ref())(source(trouble)).into()),
            None => self.inner.reopen(),
        };
        self.stop = reopened.as_ref().err().map(StoreError::stopped);
        reopened
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        self.running()?.quarantined(id)
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.change(|inner| inner.release(id))
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.change(|inner| inner.discard(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryDisk;
    use crate::store::{RecordKey, RecordKind};

    fn put(name: &str) -> [Change; 1] {
        [Change::Put(RecordKey::new(RecordKind(0), name).unwrap(), Vec::new())]
    }

    /// Anchors (f) 3: each trouble of the disk on a commit, as a store reports it.
    #[test]
    fn a_commanded_fault_stops_the_store_until_it_is_reopened_and_says_whose_fault_it_was() {
        for trouble in [Trouble::NoSpace, Trouble::ReadOnly, Trouble::Device, Trouble::TooManyFiles] {
            for written in [false, true] {
                let disk = MemoryDisk::default();
                let (mut store, handle) = wrap(disk.open(), Plan::new(0));
                let fault =
                    if written { CommitFault::Written(trouble) } else { CommitFault::Refused(trouble) };
                handle.fail_next_commit(fault);
                let error = store.commit(&put("a")).unwrap_err();
                assert!(error.trouble() == Some(trouble) && error.is_stopped(), "{error}");
                for later in [store.commit(&put("b")).unwrap_err(), store.load().unwrap_err()] {
                    assert!(matches!(later, StoreError::Stopped { .. }) && later.trouble() == Some(trouble));
                }
                handle.fail_reopens(Trouble::ReadOnly);
                assert_eq!(store.reopen().unwrap_err().trouble(), Some(Trouble::ReadOnly));
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
    fn faults_that_last_end_when_healed() {
        let (mut store, handle) = wrap(MemoryDisk::default().open(), Plan::new(0));
        handle.fail_commits(Trouble::NoSpace);
        for _ in 0..3 {
            assert_eq!(store.commit(&put("a")).unwrap_err().trouble(), Some(Trouble::NoSpace));
            store.reopen().unwrap();
        }
        handle.heal();
        handle.fail_loads(Trouble::Device);
        store.commit(&put("a")).unwrap();
        assert_eq!(store.load().unwrap_err().trouble(), Some(Trouble::Device));
    }

    #[test]
    fn the_seed_repeats_the_faults_of_chance() {
        let faults = |seed| {
            let plan = Plan::new(seed).with_refused(200).with_written(200);
            let (mut store, _handle) = wrap(MemoryDisk::default().open(), plan);
            (0..50)
                .map(|_| {
                    let fault = store.commit(&put("a")).err().and_then(|error| error.trouble());
                    store.reopen().unwrap();
                    fault
                })
                .collect::<Vec<_>>()
        };
        let seen = faults(7);
        assert_eq!(seen, faults(7));
        assert_ne!(seen, faults(8));
        for expected in [None, Some(Trouble::NoSpace), Some(Trouble::Device)] {
            assert!(seen.contains(&expected), "{seen:?}");
        }
    }
}
