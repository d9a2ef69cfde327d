//! A journal that fails on purpose.
//!
//! ```
//! use csi_proxy::operation::journal::memory::MemoryJournal;
//! use csi_proxy::operation::journal::{Change, Journal, faulty};
//!
//! let (mut journal, handle) = faulty::wrap(MemoryJournal::default());
//! handle.fail(faulty::Fault::Refused);
//! assert!(journal.commit(&[Change::Remove(1)]).is_err());
//! assert!(journal.commit(&[]).is_err(), "it is stopped");
//! journal.reopen()?;
//! journal.commit(&[])?;
//! # Ok::<(), csi_proxy::operation::journal::JournalError>(())
//! ```

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Change, Journal, JournalError};

/// How a commit fails. Its caller cannot tell one from the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing is written.
    Refused,
    /// Everything is written, though the failure is reported.
    Written,
}

/// Wraps a journal.
#[must_use]
pub fn wrap<J: Journal>(journal: J) -> (FaultyJournal<J>, Handle) {
    let handle = Handle::default();
    (FaultyJournal { inner: journal, stopped: None, handle: handle.clone() }, handle)
}

/// Commands to a faulty journal. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Handle(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    next: Option<Fault>,
    /// Commits that still succeed.
    left: Option<u64>,
    no_reopening: bool,
    commits: u64,
}

impl Handle {
    /// Fails the next commit.
    pub fn fail(&self, fault: Fault) {
        self.plan().next = Some(fault);
    }

    /// Refuses every commit after so many more, as if the power had gone: what was written by then is all that there will be.
    pub fn cut_after(&self, commits: u64) {
        self.plan().left = Some(commits);
    }

    /// Fails every reopening from now on, or none.
    pub fn refuse_reopening(&self, refuse: bool) {
        self.plan().no_reopening = refuse;
    }

    /// How many commits have succeeded.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.plan().commits
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A journal that fails when its [`Handle`] says so.
#[derive(Debug)]
pub struct FaultyJournal<J> {
    inner: J,
    stopped: Option<String>,
    handle: Handle,
}

impl<J: Journal> FaultyJournal<J> {
    fn running(&self) -> Result<(), JournalError> {
        match &self.stopped {
            Some(since) => Err(JournalError::Stopped { since: since.clone() }),
            None => Ok(()),
        }
    }
}

fn failure(doing: &'static str) -> JournalError {
    JournalError::Failed { doing, source: io::Error::other("it was told to fail") }
}

impl<J: Journal> Journal for FaultyJournal<J> {
    fn load(&mut self, row: &mut dyn FnMut(u64, &[u8])) -> Result<(), JournalError> {
        self.running()?;
        self.inner.load(row)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), JournalError> {
        self.running()?;
        let mut plan = self.handle.plan();
        let mut fault = plan.next.take();
        match &mut plan.left {
            Some(0) => fault = Some(Fault::Refused),
            Some(left) => *left -= 1,
            None => {}
        }
        if fault != Some(Fault::Refused) {
            self.inner.commit(changes)?;
        }
        if fault.is_some() {
            let error = failure("a commit");
            self.stopped = Some(error.to_string());
            return Err(error);
        }
        plan.commits += 1;
        Ok(())
    }

    fn aside(&mut self) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        self.running()?;
        self.inner.aside()
    }

    fn reopen(&mut self) -> Result<(), JournalError> {
        if self.handle.plan().no_reopening {
            return Err(failure("reopening"));
        }
        self.inner.reopen()?;
        self.stopped = None;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}
