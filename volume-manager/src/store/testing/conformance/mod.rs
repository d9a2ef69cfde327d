//! What every store promises, as a suite that any implementation can run.
//!
//! ```
//! use volume_manager::store::conformance::{self, Medium};
//! use volume_manager::store::memory::MemoryDisk;
//! use volume_manager::store::Store;
//!
//! struct Memory(MemoryDisk);
//!
//! impl Medium for Memory {
//!     fn open(&mut self) -> Result<Box<dyn Store>, String> {
//!         Ok(Box::new(self.0.open()))
//!     }
//!     fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String> {
//!         self.0.overwrite(row, bytes);
//!         Ok(())
//!     }
//! }
//!
//! conformance::run(|| Ok(Memory(MemoryDisk::default()))).unwrap();
//! ```
//!
//! Power cuts are not among the cases, since each implementation has disks of its own to cut off.

mod cases;

use crate::store::Store;

/// What a store keeps its records on, and what outlives it.
pub trait Medium {
    /// Opens the store that is there. The one before was dropped.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open(&mut self) -> Result<Box<dyn Store>, String>;

    /// Writes the bytes of a record's row past the store, as a failing disk may. No store is open.
    ///
    /// # Errors
    /// Why they cannot be written.
    fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String>;
}

/// A promise that the store does not keep.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The promise.
    pub case: &'static str,
    /// What was seen instead.
    pub what: String,
}

/// Runs every case, each on an empty medium of its own. Takes a few seconds on a disk.
///
/// # Errors
/// The first [`Violation`].
pub fn run<M: Medium>(mut make: impl FnMut() -> Result<M, String>) -> Result<(), Violation> {
    /// One line a case, so that none is forgotten.
    macro_rules! cases {
        ($($promise:literal => $case:path,)*) => {$(
            make()
                .and_then(|mut medium| $case(&mut medium))
                .map_err(|what| Violation { case: $promise, what })?;
        )*};
    }
    cases! {
        "what is committed is there after a restart, in order of the keys" => cases::commits_last,
        "the changes of a commit are made in their order" => cases::changes_keep_order,
        "names and payloads of every size and of any bytes come back" => cases::every_size_comes_back,
        "a commit that is refused changes nothing, and the store goes on" => cases::a_refusal_changes_nothing,
        "a damaged record is quarantined with its reason, and no other suffers" => cases::damage_is_quarantined,
        "a change to the key of a damaged record keeps the old bytes aside" => cases::damage_is_kept_aside,
        "a record that was set aside can be released" => cases::set_aside_and_released,
        "what cannot be released stays in quarantine, and says why" => cases::refused_releases,
        "nothing is deleted from quarantine but what is discarded" => cases::only_discarding_deletes,
        "reopening keeps everything" => cases::reopening_keeps_all,
        "any sequence of commits and restarts ends as in a map" => cases::as_a_map,
    }
    Ok(())
}
