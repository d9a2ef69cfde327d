//! A store that counts what it is asked to make durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use volume_manager::store::{Change, Loaded, QuarantineId, Store, StoreError};

/// How many commits were made. Clones count the same.
#[derive(Debug, Clone, Default)]
pub struct Commits(Arc<AtomicU64>);

impl Commits {
    /// Up to now.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) struct CountingStore<S> {
    pub(super) inner: S,
    pub(super) commits: Commits,
}

impl<S: Store> Store for CountingStore<S> {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.inner.load()
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.commits.0.fetch_add(1, Ordering::Relaxed);
        self.inner.commit(changes)
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.inner.reopen()
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        self.inner.quarantined(id)
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.inner.release(id)
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.inner.discard(id)
    }
}
