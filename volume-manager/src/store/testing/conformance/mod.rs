//! A conformance suite for implementations of [`Store`].
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
//! Power cuts are not included, since they depend on the medium of each implementation.

mod cases;

use crate::store::Store;

/// The medium of a store, which outlives it.
pub trait Medium {
    /// Opens the store. The previous one was dropped.
    ///
    /// # Errors
    /// If the store cannot be opened.
    fn open(&mut self) -> Result<Box<dyn Store>, String>;

    /// Overwrites a row behind the store's back, as a failing disk may. No store is open.
    ///
    /// # Errors
    /// If the row cannot be written.
    fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String>;
}

/// A violated rule of the contract.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The rule.
    pub case: &'static str,
    /// The actual result.
    pub what: String,
}

/// Runs every case, each on its own empty medium. Takes a few seconds on a disk.
///
/// # Errors
/// The first [`Violation`].
pub fn run<M: Medium>(mut make: impl FnMut() -> Result<M, String>) -> Result<(), Violation> {
    /// One line per case, so that none is omitted.
    macro_rules! cases {
        ($($rule:literal => $case:path,)*) => {$(
            make()
                .and_then(|mut medium| $case(&mut medium))
                .map_err(|what| Violation { case: $rule, what })?;
        )*};
    }
    cases! {
        "commits survive a restart, in order of the keys" => cases::commits_are_durable,
        "the changes of a commit are made in order" => cases::changes_keep_order,
        "names and payloads of every size and any bytes round-trip" => cases::every_size_round_trips,
        "a rejected commit changes nothing, and the store continues" => cases::rejected_commit_changes_nothing,
        "a damaged record is quarantined with its defect, and others are unaffected" => cases::damage_is_quarantined,
        "a change to the key of a damaged record moves the old bytes aside" => cases::overwritten_damage_is_moved_aside,
        "a quarantined record can be released" => cases::quarantined_and_released,
        "a failed release keeps the record in quarantine, with a reason" => cases::failed_releases,
        "only a discard deletes from the quarantine" => cases::only_discard_deletes,
        "reopening keeps everything" => cases::reopen_keeps_everything,
        "any sequence of commits and restarts behaves as a map" => cases::behaves_as_a_map,
    }
    Ok(())
}
