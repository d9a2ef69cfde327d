//! A conformance suite for implementations of [`Rows`].
//!
//! It runs the rows alone, and below a [`Store`]. In a test of your own:
//!
//! ```
//! use volume_manager::store::{StoreError, conformance};
//! use volume_manager::store::memory::MemoryDisk;
//!
//! conformance::run(|| {
//!     let disk = MemoryDisk::default(); // a new, empty medium for each case
//!     move || Ok::<_, StoreError>(disk.clone()) // opens its rows; the previous ones were dropped
//! })
//! .unwrap();
//! ```
//!
//! Power cuts are not included, since they depend on the medium: kill a process that writes, or cut the power of a device.

mod cases;
mod rows;

use std::fmt;

use crate::store::{RowTable, RowWrite, Rows, Store};

/// The medium of a case, which outlives the rows.
struct Medium<'m> {
    open: &'m mut dyn FnMut() -> Result<Box<dyn Rows>, String>,
}

impl Medium<'_> {
    fn rows(&mut self) -> Result<Box<dyn Rows>, String> {
        (self.open)()
    }

    fn open(&mut self) -> Result<Store, String> {
        Ok(Store::new(self.rows()?))
    }

    /// Overwrites a record's row behind the store's back, as a failing disk may. No store is open.
    fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String> {
        let write = RowWrite { table: RowTable::Records, key: row.into(), value: Some(bytes.into()) };
        self.rows()?.write(&[write]).map_err(|error| format!("a write failed: {error}"))
    }
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

/// Runs every case, each on its own empty medium: `make` makes one, and returns the function that opens its rows again and again.
/// Takes a few seconds on a disk.
///
/// # Errors
/// The first [`Violation`].
pub fn run<R: Rows + 'static, E: fmt::Display, O: FnMut() -> Result<R, E>>(
    mut make: impl FnMut() -> O,
) -> Result<(), Violation> {
    /// One line per case, so that none is omitted.
    macro_rules! cases {
        ($($rule:literal => $case:path,)*) => {$(
            let mut medium = make();
            let mut open = move || match medium() {
                Ok(rows) => Ok(Box::new(rows) as Box<dyn Rows>),
                Err(error) => Err(format!("the medium cannot be opened: {error}")),
            };
            $case(&mut Medium { open: &mut open }).map_err(|what| Violation { case: $rule, what })?;
        )*};
    }
    cases! {
        "a row has the bytes that were written, and an empty value is a value" => rows::bytes_round_trip,
        "a batch writes and removes all its rows" => rows::batches_write_and_remove,
        "a scan visits each row of its table once" => rows::scans_visit_each_row_once,
        "rows survive a restart and a reopening" => rows::rows_are_durable,
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
