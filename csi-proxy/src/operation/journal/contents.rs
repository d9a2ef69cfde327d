//! Reading a journal at the start.

use std::time::SystemTime;

use super::record::{self, Defect};
use super::{Change, Journal, JournalError};
use crate::operation::{OperationId, Restored};

/// What a journal holds.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Contents {
    /// The operations that can be read.
    pub restored: Vec<Restored>,
    /// The rows that cannot, which are in quarantine now.
    pub quarantined: Vec<Quarantined>,
}

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// Its number.
    pub row: u64,
    /// What is wrong with it.
    pub defect: Defect,
}

/// Reads all rows. Those that cannot be read are set aside, durably.
///
/// # Errors
/// If the journal fails.
pub fn read(journal: &mut dyn Journal, now: SystemTime) -> Result<Contents, JournalError> {
    let mut contents = Contents::default();
    journal.load(&mut |row, bytes| match record::open(OperationId::new(row), bytes, now) {
        Ok(restored) => contents.restored.push(restored),
        Err(defect) => contents.quarantined.push(Quarantined { row, defect }),
    })?;
    if !contents.quarantined.is_empty() {
        let changes: Vec<_> = contents.quarantined.iter().map(|row| Change::SetAside(row.row)).collect();
        journal.commit(&changes)?;
    }
    Ok(contents)
}
