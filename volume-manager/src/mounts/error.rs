//! Errors of the operations on mounts.

use std::io;
use std::path::PathBuf;

use super::{InvalidMountTable, PathState};

/// Why an operation could not be executed. An inspection reports a hanging path or a dead mount as a [`PathState`], not as an
/// error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The system did not answer in time. The operation was abandoned; it may have had its effect, or have it later.
    #[error("{} does not answer: its storage hangs; retrying when it answers", path.display())]
    Hung {
        /// The path.
        path: PathBuf,
    },
    /// The operation was queued too long behind others. It was not started.
    #[error("{}: the operation was not started within {waited:?}, too many others are queued or hang; retrying later", path.display())]
    Overloaded {
        /// The path.
        path: PathBuf,
        /// The time in the queue.
        waited: std::time::Duration,
    },
    /// Too many operations hang in the kernel, where their processes cannot be killed.
    #[error("{limit} operations hang in the kernel, the limit; recover their storage first")]
    TooManyHung {
        /// The limit.
        limit: usize,
    },
    /// A system call failed.
    #[error("{} cannot be used", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The probe process could not be started, or its output is not an answer.
    #[error("the mount probe {} does not work; its main must call probe::serve_if_asked first", program.display())]
    Broken {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Why the mount table could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Reading failed.
    #[error("the mount table cannot be read")]
    Read(#[source] io::Error),
    /// The table changed during every read, so that a mount may be missing from the result.
    #[error("the mount table changed during {reads} reads; check what mounts and unmounts continuously")]
    Unstable {
        /// The number of reads.
        reads: usize,
    },
    /// The read did not finish in time; the kernel blocks it.
    #[error("the mount table could not be read within {waited:?}; retrying")]
    Timeout {
        /// The timeout.
        waited: std::time::Duration,
    },
    /// The text is not a valid mount table.
    #[error(transparent)]
    Invalid(#[from] InvalidMountTable),
}

/// Why a directory was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The path exists and is not a directory.
    #[error("cannot create the directory {}: found {found}; move it elsewhere", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
        /// The state of the path.
        found: PathState,
    },
    /// The operation could not be executed.
    #[error("the directory cannot be created")]
    Probe(#[from] ProbeError),
}

/// Why an entry was not removed. The entry is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The entry is a mount point.
    #[error("will not remove {}: it is a mount point; unmount it first", path.display())]
    Mounted {
        /// The path.
        path: PathBuf,
    },
    /// The directory has entries.
    #[error(
        "will not remove {}: it has {count} entries, the first is {first:?}; check their origin and move them",
        path.display()
    )]
    NotEmpty {
        /// The path.
        path: PathBuf,
        /// The number of entries, counted up to [`Self::MAX_COUNTED`].
        count: usize,
        /// The first entry.
        first: std::ffi::OsString,
    },
    /// The file is not empty.
    #[error("will not remove {}: the file has {size} bytes; check their origin and move the file", path.display())]
    HasData {
        /// The path.
        path: PathBuf,
        /// The size of the file.
        size: u64,
    },
    /// The entry is neither a directory nor a regular file.
    #[error("will not remove {}: found {found}; expected an empty directory or file", path.display())]
    NotRemovable {
        /// The path.
        path: PathBuf,
        /// The state of the path.
        found: PathState,
    },
    /// The operation could not be executed.
    #[error("the entry cannot be removed")]
    Probe(#[from] ProbeError),
}

impl RemoveError {
    /// The number up to which the entries of a directory are counted.
    pub const MAX_COUNTED: usize = 1000;
}
