//! Why an operation on mounts failed: one error for each operation.

use std::io;
use std::path::PathBuf;

use super::{InvalidMountTable, Presence};

/// Why the operation could not be carried out at all, whatever it was. A path that hangs or whose mount is dead is no error of
/// an inspection: see [`Presence`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The system did not answer in time. The operation was abandoned, and may have had its effect or have it later.
    #[error("{} does not answer; the storage behind it hangs, and this is asked again when it does not", path.display())]
    Hung {
        /// Where.
        path: PathBuf,
    },
    /// So many operations wait that this one did not get its turn in time. It was not begun.
    #[error("{}: the operation got no turn within {waited:?}; too many others wait or hang, and this is asked again later", path.display())]
    Crowded {
        /// Where.
        path: PathBuf,
        /// How long it has waited.
        waited: std::time::Duration,
    },
    /// Too many operations hang already and cannot even be killed.
    #[error(
        "{limit} operations hang in the kernel, which is the most allowed; recover the storage behind them first"
    )]
    TooManyHung {
        /// The most that are allowed.
        limit: usize,
    },
    /// The system refused.
    #[error("{} cannot be used", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The probe process could not be started, or did not answer as one does.
    #[error("the mount probe {} does not work; its program must serve probes before all else", program.display())]
    Probe {
        /// The program.
        program: PathBuf,
        /// What was wrong with it.
        source: io::Error,
    },
}

/// Why the mount table is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It could not be read.
    #[error("the mount table cannot be read")]
    Read(#[source] io::Error),
    /// It changed each time while it was read, and might have lacked a mount that is there.
    #[error(
        "the mount table changed while it was read, {reads} times; find what mounts or unmounts without end"
    )]
    Restless {
        /// How often it was read.
        reads: usize,
    },
    /// It was not read in time; the kernel holds who reads it up.
    #[error("the mount table could not be read within {waited:?}; this is asked again")]
    Late {
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// What was read is no mount table.
    #[error(transparent)]
    Invalid(#[from] InvalidMountTable),
}

/// Why a directory was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Something of another kind is there.
    #[error("cannot make {}: {found} is there; move it away", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: Presence,
    },
    /// It could not be carried out.
    #[error("the directory cannot be made")]
    Trouble(#[from] Trouble),
}

/// Why an entry was not removed. It is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// A mount is on it.
    #[error("will not remove {}: something is mounted there; unmount it first", path.display())]
    Mounted {
        /// Where.
        path: PathBuf,
    },
    /// The directory has entries.
    #[error(
        "will not remove {}: it has {count} entries, the first is {first:?}; look whose they are and move them",
        path.display()
    )]
    NotEmpty {
        /// Where.
        path: PathBuf,
        /// How many there are; counted up to [`Self::MAX_COUNTED`].
        count: usize,
        /// One of them.
        first: std::ffi::OsString,
    },
    /// The file has bytes.
    #[error("will not remove {}: the file holds {size} bytes; look whose they are and move them", path.display())]
    HasBytes {
        /// Where.
        path: PathBuf,
        /// How many.
        size: u64,
    },
    /// It is nothing that may be removed.
    #[error("will not remove {}: it is {found}, which was not put there for a mount", path.display())]
    Unfit {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: Presence,
    },
    /// It could not be carried out.
    #[error("nothing was removed")]
    Trouble(#[from] Trouble),
}

impl RemoveError {
    /// How far the entries of a directory that is not empty are counted.
    pub const MAX_COUNTED: usize = 1000;
}
