//! The highest term of each driver's proxy. Calls with a lower term are refused, so that a replaced proxy begins
//! nothing more. A term never decreases, even after a restart, unless an operator has the agent forget it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use csi_proto::DriverName;
use csi_proxy::{Term, TermStore, TermStoreError};
use volume_manager::advanced::store::envelope;
use volume_manager::store::{Change, Defect, InvalidRecordKey, RecordKey, RecordKind, Store};

use super::{TableError, with_reopen};

/// The highest term of each driver, on the disk. Clones share the table.
#[derive(Clone)]
pub(in super::super) struct TermTable(Arc<Mutex<Inner>>);

struct Inner {
    store: Store,
    kind: RecordKind,
    /// The terms on the disk; `None` until the table is read.
    terms: Option<BTreeMap<DriverName, Term>>,
}

impl TermTable {
    /// Creates the terms in a table with records of this kind.
    pub(super) fn new(store: Store, kind: RecordKind) -> Self {
        Self(Arc::new(Mutex::new(Inner { store, kind, terms: None })))
    }

    /// Returns the highest term of each driver that ever had one.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub(in super::super) async fn load(&self) -> Result<BTreeMap<DriverName, Term>, TableError> {
        let table = self.clone();
        tokio::task::spawn_blocking(move || table.lock().attempt(|inner| inner.cached().cloned())).await?
    }

    /// Raises a driver's term. The term is on the disk when this returns. A term that is not higher changes
    /// nothing.
    ///
    /// # Errors
    /// If the write fails: the driver then has the old or the new term.
    pub(in super::super) async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TableError> {
        let (table, driver) = (self.clone(), driver.clone());
        tokio::task::spawn_blocking(move || table.lock().attempt(|inner| inner.raise(driver, term))).await?
    }

    /// Removes a driver's term. The change is on the disk when this returns.
    ///
    /// # Errors
    /// If the write fails: the term may still be on the disk.
    pub(in super::super) async fn forget(&self, driver: &DriverName) -> Result<(), TableError> {
        let (table, driver) = (self.clone(), driver.clone());
        tokio::task::spawn_blocking(move || table.lock().attempt(|inner| inner.forget(&driver))).await?
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A failed operation resets the cached terms.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TermStore for TermTable {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        let terms = Self::load(self).await.map_err(TermStoreError::new)?;
        Ok(terms.get(driver).copied())
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        Self::raise(self, driver, term).await.map_err(TermStoreError::new)
    }

    async fn forget(&self, driver: &DriverName) -> Result<(), TermStoreError> {
        Self::forget(self, driver).await.map_err(TermStoreError::new)
    }
}

impl fmt::Debug for TermTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the lock, which a thread holds while the disk hangs.
        f.debug_struct("TermTable").finish_non_exhaustive()
    }
}

impl Inner {
    fn attempt<T>(
        &mut self,
        attempt: impl FnOnce(&mut Self) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        attempt(self).inspect_err(|_| self.terms = None)
    }

    fn raise(&mut self, driver: DriverName, term: Term) -> Result<(), TableError> {
        if self.cached()?.get(&driver).is_some_and(|highest| *highest >= term) {
            return Ok(());
        }
        let change = put(self.kind, &driver, term)?;
        with_reopen(&mut self.store, |store| store.commit(std::slice::from_ref(&change)))?;
        self.terms.get_or_insert_default().insert(driver, term);
        Ok(())
    }

    fn forget(&mut self, driver: &DriverName) -> Result<(), TableError> {
        self.cached()?;
        let change = Change::Remove(RecordKey::new(self.kind, driver.as_str())?);
        with_reopen(&mut self.store, |store| store.commit(std::slice::from_ref(&change)))?;
        self.terms.get_or_insert_default().remove(driver);
        Ok(())
    }

    fn cached(&mut self) -> Result<&BTreeMap<DriverName, Term>, TableError> {
        let terms = match self.terms.take() {
            Some(terms) => terms,
            None => self.read()?,
        };
        Ok(self.terms.insert(terms))
    }

    /// Reads the terms. A salvaged term of a damaged file counts if it is higher, since a proxy has had it.
    fn read(&mut self) -> Result<BTreeMap<DriverName, Term>, TableError> {
        let loaded = with_reopen(&mut self.store, Store::load)?;
        let mut terms = BTreeMap::new();
        for (key, payload) in &loaded.records {
            match term(key, payload) {
                Some((driver, term)) => drop(terms.insert(driver, term)),
                None => tracing::error!("--state-dir: record {key} is not a valid term; left unchanged"),
            }
        }
        for unreadable in loaded.quarantined.iter().filter(|one| one.id.is_in_place()) {
            tracing::error!(
                "--state-dir: a term cannot be read, so its driver has none until the next one: {}: {}",
                unreadable.id,
                unreadable.reason
            );
        }
        let salvaged = loaded.quarantined.iter().filter(|one| one.reason == Defect::Salvaged);
        for one in salvaged {
            let Some(key) = &one.key else { continue };
            let bytes = self.store.quarantined(&one.id)?;
            let Ok(opened) = envelope::open(key.as_row(), &bytes) else { continue };
            let Some((driver, term)) = term(key, opened.payload) else { continue };
            if terms.get(&driver).is_none_or(|highest| *highest < term) {
                let change = put(self.kind, &driver, term)?;
                self.store.commit(&[change])?;
                terms.insert(driver, term);
            }
            self.store.discard(&one.id)?;
        }
        Ok(terms)
    }
}

fn put(kind: RecordKind, driver: &DriverName, term: Term) -> Result<Change, InvalidRecordKey> {
    Ok(Change::Put(RecordKey::new(kind, driver.as_str())?, term.get().to_be_bytes().to_vec()))
}

fn term(key: &RecordKey, payload: &[u8]) -> Option<(DriverName, Term)> {
    let driver = DriverName::new(str::from_utf8(key.name()).ok()?).ok()?;
    Some((driver, Term::new(u64::from_be_bytes(payload.try_into().ok()?))?))
}

#[cfg(test)]
mod tests {
    use volume_manager::store::DiskErrorKind;
    use volume_manager::store::faulty::{self, CommitFault};
    use volume_manager::store::memory::MemoryDisk;

    use super::*;

    const KIND: RecordKind = RecordKind(5);

    fn driver(name: &str) -> DriverName {
        DriverName::new(name).unwrap()
    }

    fn t(number: u64) -> Term {
        Term::new(number).unwrap()
    }

    #[tokio::test]
    async fn term_never_falls_over_a_restart() {
        let disk = MemoryDisk::default();
        let terms = TermTable::new(disk.open(), KIND);
        assert!(terms.load().await.unwrap().is_empty());
        for (term, highest) in [(3, 3), (2, 3), (3, 3), (1 << 48, 1 << 48), (1, 1 << 48)] {
            terms.raise(&driver("a.example"), t(term)).await.unwrap();
            terms.raise(&driver("b.example"), t(1)).await.unwrap();
            for table in [terms.clone(), TermTable::new(disk.open(), KIND)] {
                let expected = [(driver("a.example"), t(highest)), (driver("b.example"), t(1))];
                assert_eq!(table.load().await.unwrap(), expected.into());
            }
        }
    }

    #[tokio::test]
    async fn refuses_a_term_until_it_is_saved() {
        for fault in
            [CommitFault::Refused(DiskErrorKind::NoSpace), CommitFault::Written(DiskErrorKind::Device)]
        {
            let disk = MemoryDisk::default();
            let (faulty, handle) = faulty::wrap(disk.open(), faulty::Plan::default());
            let terms = TermTable::new(faulty, KIND);
            let name = driver("a.example");
            terms.raise(&name, t(1)).await.unwrap();
            handle.fail_next_commit(fault);
            assert!(terms.raise(&name, t(2)).await.is_err());
            terms.raise(&name, t(2)).await.unwrap();
            let restarted = TermTable::new(disk.open(), KIND);
            assert_eq!(restarted.load().await.unwrap(), [(name, t(2))].into());
        }
    }

    #[tokio::test]
    async fn invalid_term_record_does_not_affect_others() {
        let disk = MemoryDisk::default();
        TermTable::new(disk.open(), KIND).raise(&driver("a.example"), t(7)).await.unwrap();
        let record =
            |name: &str, payload: &[u8]| Change::Put(RecordKey::new(KIND, name).unwrap(), payload.to_vec());
        let too_high = u64::MAX.to_be_bytes();
        disk.open()
            .commit(&[
                record("b.example", b"short"),
                record("c.example", &too_high),
                record("no name!", &[0; 8]),
            ])
            .unwrap();
        let terms = TermTable::new(disk.open(), KIND);
        assert_eq!(terms.load().await.unwrap(), [(driver("a.example"), t(7))].into());
        terms.raise(&driver("b.example"), t(1)).await.unwrap();
        assert_eq!(terms.load().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn forgotten_term_is_absent_after_a_restart() {
        let disk = MemoryDisk::default();
        let (faulty, handle) = faulty::wrap(disk.open(), faulty::Plan::default());
        let terms = TermTable::new(faulty, KIND);
        let (one, other) = (driver("a.example"), driver("b.example"));
        for name in [&one, &other] {
            terms.raise(name, t(9)).await.unwrap();
        }
        handle.fail_next_commit(CommitFault::Refused(DiskErrorKind::NoSpace));
        assert!(terms.forget(&one).await.is_err());
        assert_eq!(terms.load().await.unwrap().len(), 2);
        for _ in 0..2 {
            terms.forget(&one).await.unwrap();
        }
        for table in [terms, TermTable::new(disk.open(), KIND)] {
            assert_eq!(table.load().await.unwrap(), [(other.clone(), t(9))].into());
            table.raise(&one, t(2)).await.unwrap();
            table.forget(&one).await.unwrap();
        }
    }
}
