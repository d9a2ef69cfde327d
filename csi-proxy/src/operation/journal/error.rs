//! How a journal fails.

use std::io;
use std::path::PathBuf;

/// A journal did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The disk, or whatever it is on, failed.
    #[error("the journal failed at {doing}: {source}; reopen it when its disk is well again")]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// What is on the disk is not what was written.
    #[error("the journal is damaged, found at {doing}: {what}")]
    Damaged {
        /// What was being done.
        doing: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// It failed before and has not been reopened.
    #[error("the journal is stopped since it failed: {since}; reopen it")]
    Stopped {
        /// The first failure.
        since: String,
    },
}

/// A journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenJournalError {
    /// Another process has the file.
    #[error("the journal {path:?} is in use by another process; give each its own")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path:?} is no journal of operations: {what}; give another path, or take the file away")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
    /// The file was written by a version that this one does not know.
    #[error(
        "the journal {path:?} has layout {found}, and this version knows {supported}; use the version that wrote it, or take the file away"
    )]
    OtherLayout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u64,
        /// The one that is known.
        supported: u64,
    },
    /// The disk failed.
    #[error("the journal {path:?} cannot be opened: {source}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("the journal {path:?} is damaged: {what}; take the file away to begin a new one")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was opened, but its rows cannot be read or set aside.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The thread that writes cannot be started.
    #[error("the journal's thread cannot be started: {0}")]
    Thread(io::Error),
}
