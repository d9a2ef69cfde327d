//! Where the facts of each driver are kept over a restart, so that sidecars can start while the edge is off.
//!
//! A [`FactsStore`] holds one small [`Kept`] record for each [`Subject`]. It is a cache: what is lost is learnt again as soon as
//! the driver can be asked, so no failure of a store is ever fatal. [`DirectoryFacts`] is the one for production,
//! [`MemoryFacts`] and [`FaultyFacts`] are for tests, and [`conformance`] tests a store of your own.

pub mod conformance;
mod directory;
mod faulty;
mod memory;
mod record;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

pub use self::directory::{DirectoryFacts, MAX_DRIVERS, MAX_SET_ASIDE};
pub use self::faulty::FaultyFacts;
pub use self::memory::MemoryFacts;
pub use self::record::{MAX_RECORD, RecordError, VERSION};
use super::{Facts, Subject};

/// What is known of a driver, and since when it has not been confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a record is what was said and when")]
pub struct Kept {
    /// What the driver said.
    pub facts: Facts,
    /// When it was last known to be true, by the clock of this host. Shown to people as an age; nothing is decided by it.
    pub as_of: SystemTime,
}

/// Keeps what drivers say of themselves. No secret is among it.
///
/// All methods may block for as long as a small write to a disk takes.
pub trait FactsStore: fmt::Debug + Send + Sync {
    /// What is kept of this driver; `None` if nothing is.
    ///
    /// # Errors
    /// If there is something that cannot be used. It was set aside, as far as that was possible, and will not be found again.
    fn load(&self, subject: &Subject) -> Result<Option<Kept>, LoadError>;

    /// Puts a record in the place of the one that is there. It is there as a whole, also after a power cut, when this returns.
    ///
    /// # Errors
    /// If it could not be kept. Then the record that was there is still there.
    fn keep(&self, subject: &Subject, kept: &Kept) -> Result<(), KeepError>;
}

/// What was kept of a driver cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The record is damaged, of another version, too large or another driver's. It is out of the way, for people to look at.
    #[error("{cause}; it was set aside as {place:?}")]
    SetAside {
        /// What is wrong with it.
        cause: RecordError,
        /// Where it is now.
        place: PathBuf,
    },
    /// The same, but it could not be moved out of the way. The next record that is kept takes its place.
    #[error("{cause}; it stays where it is, since it cannot be set aside: {source}")]
    NotSetAside {
        /// What is wrong with it.
        cause: RecordError,
        /// Why it is still there.
        source: io::Error,
    },
    /// It cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A record could not be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// It is too large. A driver's answers have a few hundred bytes.
    #[error("the record has {found} bytes; at most {max} are kept")]
    TooLarge {
        /// Its size in bytes.
        found: usize,
        /// The bound in bytes: [`MAX_RECORD`].
        max: usize,
    },
    /// The disk refuses.
    #[error("cannot {doing} {path:?}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}
