//! A journal in memory: for tests, and where a restart may forget.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Change, Journal, JournalError, MAX_ASIDE};

/// What a [`MemoryJournal`] keeps its rows on. Cheap to clone, and outlives the journals that are opened on it.
#[derive(Debug, Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    rows: BTreeMap<u64, Vec<u8>>,
    aside: VecDeque<(u64, Vec<u8>)>,
    commits: u64,
}

impl MemoryDisk {
    /// The journal that is on it.
    #[must_use]
    pub fn open(&self) -> MemoryJournal {
        MemoryJournal { disk: self.clone() }
    }

    /// Writes the bytes of a row past the journal, as a failing disk may.
    pub fn overwrite(&self, row: u64, bytes: &[u8]) {
        self.tables().rows.insert(row, bytes.to_vec());
    }

    /// All rows.
    #[must_use]
    pub fn rows(&self) -> Vec<(u64, Vec<u8>)> {
        self.tables().rows.clone().into_iter().collect()
    }

    /// How many commits were made.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.tables().commits
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A journal on a [`MemoryDisk`]. It never fails.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    disk: MemoryDisk,
}

impl Journal for MemoryJournal {
    fn load(&mut self, row: &mut dyn FnMut(u64, &[u8])) -> Result<(), JournalError> {
        self.disk.tables().rows.iter().for_each(|(number, bytes)| row(*number, bytes));
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), JournalError> {
        let mut tables = self.disk.tables();
        tables.commits += 1;
        for change in changes {
            match change {
                Change::Put(row, bytes) => drop(tables.rows.insert(*row, bytes.clone())),
                Change::Remove(row) => drop(tables.rows.remove(row)),
                Change::SetAside(row) => {
                    if let Some(bytes) = tables.rows.remove(row) {
                        tables.aside.push_back((*row, bytes));
                        if tables.aside.len() > MAX_ASIDE {
                            tables.aside.pop_front();
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn aside(&mut self) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        Ok(self.disk.tables().aside.iter().cloned().collect())
    }

    fn reopen(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let tables = self.disk.tables();
        tables.rows.values().chain(tables.aside.iter().map(|(_, bytes)| bytes)).map(|b| b.len() as u64).sum()
    }
}
