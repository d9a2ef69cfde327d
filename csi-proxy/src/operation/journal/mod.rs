//! Rows on a disk, for what has to outlive the process. A [`Journal`] knows nothing of what is in them.
//!
//! [`redb`](mod@redb) (feature `redb`), [`memory`], and [`faulty`], which fails on purpose, are journals.
//! [`conformance`] tests one of your own.

pub mod conformance;
mod error;
pub mod faulty;
pub mod memory;
#[cfg(feature = "redb")]
pub mod redb;
pub(crate) mod sealed;

/// What is wrong with a row.
pub mod record {
    pub use super::sealed::Defect;
}

pub use self::error::{JournalError, OpenJournalError};

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

/// A row that cannot be read and was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// Its number.
    pub row: u64,
    /// What is wrong with it.
    pub defect: record::Defect,
}
