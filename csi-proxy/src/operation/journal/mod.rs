//! What is known of operations after a restart.
//!
//! A [`Journal`] keeps a row for each operation that runs or whose answer waits: [accepted, started,
//! finished](crate::operation::Stage). In a row are the driver, the method, the names and ids of what it is about, a digest of the
//! request without its secrets, and at the end the answer of a success. No request is ever written, no secret (no response of CSI
//! has a field for one), and no failure of a driver, since its text may quote the request.
//!
//! # What is lost when
//!
//! Rows are written behind the work, by a thread of its own and in groups: a change is written when it has waited for
//! [`linger`](JournalSettings::linger), or for twice that if a commit has just been made, and an operation that was over and
//! delivered by then leaves no trace and costs no write. So:
//!
//! | | `linger` 50 ms (default) | `linger` zero | no journal |
//! |---|---|---|---|
//! | the driver is called | at once | when the row is on the disk | at once |
//! | kill -9 or power cut: operations that ran | those of the last 100 ms are not reported | all are reported as uncertain | none is reported |
//! | answers that nobody had taken | lost if given in the last 100 ms | the same | lost |
//! | answers on their way to an asker | lost, though it may have got them | the same | lost |
//!
//! A commit is on the disk before it counts, so a power cut loses no more than a kill -9. Whatever is lost is safe: CSI calls are
//! idempotent, the sidecar has not got its answer and asks again, and both an operation that is not known and one that is uncertain
//! are then done again. What must never happen is that an answer comes back that was void already. So an operation whose volume has
//! a finished answer on the disk waits until that is off the disk, whatever `linger` is. That is rare: it takes an answer that has
//! waited for its asker.
//!
//! # When it fails
//!
//! A journal that fails once stays failed until [reopened](crate::Dispatcher::reopen_journal), with a log line and the metric
//! `csi_plugin_journal_failed`. Calls go on without it, save those that would make an answer wrong that is on the disk and
//! cannot be removed: they get [`Fault::JournalFailed`](crate::Fault::JournalFailed).
//!
//! # Implementations
//!
//! [`redb`](mod@redb) (feature `redb`), [`memory`], and [`faulty`], which fails on purpose. [`conformance`] tests one of your own.

pub mod conformance;
mod contents;
mod error;
pub mod faulty;
pub mod memory;
mod pending;
pub mod record;
#[cfg(feature = "redb")]
pub mod redb;
pub(crate) mod sealed;
#[cfg(feature = "runtime")]
mod writer;

use std::time::Duration;

pub use self::contents::{Contents, Quarantined, read};
pub use self::error::{JournalError, OpenJournalError};
pub use self::pending::{Batch, CommitNumber, Pending};
#[cfg(feature = "runtime")]
pub(crate) use self::writer::{Wait, Writer};

/// Most rows in quarantine; one more drops the oldest.
pub const MAX_ASIDE: usize = 64;

/// Where rows are kept. It knows nothing of what is in them.
///
/// # Contract
/// - A commit is atomic, and durable when it returns.
/// - After a commit or load that failed, whether it was written is not known, and every call fails with
///   [`JournalError::Stopped`] until [`Self::reopen`] succeeds.
/// - Calls come from one thread at a time, and may block.
pub trait Journal: Send {
    /// Passes every row to `row`, in the order of their numbers.
    ///
    /// # Errors
    /// If they cannot be read.
    fn load(&mut self, row: &mut dyn FnMut(u64, &[u8])) -> Result<(), JournalError>;

    /// Makes all changes, in their order, or none.
    ///
    /// # Errors
    /// If it is not certain that they are durable.
    fn commit(&mut self, changes: &[Change]) -> Result<(), JournalError>;

    /// The rows in quarantine, oldest first: number and bytes.
    ///
    /// # Errors
    /// If they cannot be read.
    fn aside(&mut self) -> Result<Vec<(u64, Vec<u8>)>, JournalError>;

    /// Opens it anew after a failure.
    ///
    /// # Errors
    /// If that fails; it may be tried again.
    fn reopen(&mut self) -> Result<(), JournalError>;

    /// How many bytes it takes where it is, as far as known.
    fn bytes(&self) -> u64;
}

impl Journal for Box<dyn Journal> {
    fn load(&mut self, row: &mut dyn FnMut(u64, &[u8])) -> Result<(), JournalError> {
        (**self).load(row)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), JournalError> {
        (**self).commit(changes)
    }

    fn aside(&mut self) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        (**self).aside()
    }

    fn reopen(&mut self) -> Result<(), JournalError> {
        (**self).reopen()
    }

    fn bytes(&self) -> u64 {
        (**self).bytes()
    }
}

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The row has these bytes.
    Put(u64, Vec<u8>),
    /// There is no such row. It may not have been there.
    Remove(u64),
    /// The row is put in quarantine, which has at most [`MAX_ASIDE`] rows. It may not have been there.
    SetAside(u64),
}

/// How a journal is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalSettings {
    /// How long a change waits before it is written, and commits wait for each other; default 50 ms, at most a minute. Zero: an
    /// operation is on the disk before its driver is called, which costs each of them a commit, and its other changes wait as by
    /// default.
    pub linger: Duration,
}

impl JournalSettings {
    /// Sets how long a change may wait for others.
    #[must_use]
    pub const fn with_linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self { linger: Duration::from_millis(50) }
    }
}
