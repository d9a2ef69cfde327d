//! The driver: its state, its start, and helpers of all calls.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::config::Config;
use super::data::DataFolder;
use super::error::CallError;
use super::identifier::ResourceId;
use super::snapshot::{GroupRecord, SnapshotRecord};
use super::store::Table;
use super::volume::VolumeRecord;
use edge_csi_common::state::{PathError, StateDirectory, StateError};

/// An error that prevents the start of a driver.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Records or data are not accessible.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A driver on this node. Its calls block: a [`Service`](super::service::Service) runs them beside the runtime.
#[derive(Debug)]
pub struct Driver {
    pub(super) config: Config,
    pub(super) volumes: Table<VolumeRecord>,
    pub(super) snapshots: Table<SnapshotRecord>,
    pub(super) groups: Table<GroupRecord>,
    pub(super) data: DataFolder,
    locks: OperationLocks,
    admission: Mutex<()>,
    // Held for the driver's lifetime, so that no second driver uses the same records.
    _state: StateDirectory,
}

impl Driver {
    /// Opens the state directory, and undoes or completes the unfinished operations of a killed process.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be used or another process uses it.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let state = StateDirectory::open(&config.state_dir)?;
        let driver = Self {
            volumes: Table::open(state.path())?,
            snapshots: Table::open(state.path())?,
            groups: Table::open(state.path())?,
            data: DataFolder::open(state.path())?,
            locks: OperationLocks::default(),
            admission: Mutex::new(()),
            _state: state,
            config,
        };
        driver.recover();
        Ok(driver)
    }

    /// Locks the accounting of space: only one call at a time may check and reserve space.
    pub(super) fn admission(&self) -> MutexGuard<'_, ()> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires the lock of a resource, or of the name of a new one.
    pub(super) fn lock(&self, kind: &str, name: impl Display) -> Result<OperationGuard, CallError> {
        self.locks.acquire(format!("{kind} {name}"))
    }

    /// Finds the volume of a request, and acquires its lock.
    pub(super) fn lock_volume(&self, volume_id: &str) -> Result<(VolumeRecord, OperationGuard), CallError> {
        let id = ResourceId::parse(required("volume_id", "the id of a volume", volume_id)?);
        let id = id.ok_or_else(|| CallError::no_volume(volume_id))?;
        if self.volumes.by_id(&id).is_none() {
            return Err(CallError::no_volume(volume_id));
        }
        let guard = self.lock("volume", &id)?;
        // Read again under the lock, since the record may have changed.
        let volume = self.volumes.by_id(&id).filter(VolumeRecord::is_ready);
        Ok((volume.ok_or_else(|| CallError::no_volume(volume_id))?, guard))
    }

    /// Finds the volume of a read-only request.
    pub(super) fn read_volume(&self, volume_id: &str) -> Result<VolumeRecord, CallError> {
        let id = ResourceId::parse(required("volume_id", "the id of a volume", volume_id)?);
        let volume = id.and_then(|id| self.volumes.by_id(&id)).filter(VolumeRecord::is_ready);
        volume.ok_or_else(|| CallError::no_volume(volume_id))
    }

    /// Returns the path of a volume's tree or image.
    pub(super) fn content(&self, volume: &VolumeRecord) -> PathBuf {
        self.data.content(&volume.id, volume.kind)
    }
}

/// Checks that a text is not empty.
pub(super) fn required<'a>(
    field: &'static str,
    expected: &'static str,
    text: &'a str,
) -> Result<&'a str, CallError> {
    if text.is_empty() { Err(CallError::Missing { field, expected }) } else { Ok(text) }
}

/// The locked resources, one entry for each running call; the number of calls is bounded.
#[derive(Debug, Clone, Default)]
pub struct OperationLocks {
    locked: Arc<Mutex<BTreeSet<String>>>,
}

/// The lock of one resource, released on drop.
#[derive(Debug)]
#[must_use]
pub struct OperationGuard {
    key: String,
    locked: Arc<Mutex<BTreeSet<String>>>,
}

impl OperationLocks {
    /// Acquires the lock for `key`, like `volume vol-1` or `volume name pvc-1`.
    ///
    /// # Errors
    /// Returns [`CallError::Pending`] if another call holds the lock.
    pub fn acquire(&self, key: String) -> Result<OperationGuard, CallError> {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if !locked.insert(key.clone()) {
            return Err(CallError::Pending(key));
        }
        Ok(OperationGuard { key, locked: self.locked.clone() })
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_is_refused_until_the_first_has_ended() {
        let locks = OperationLocks::default();
        let first = locks.acquire("volume a".into()).unwrap();
        assert!(matches!(locks.acquire("volume a".into()), Err(CallError::Pending(_))));
        assert!(locks.acquire("volume b".into()).is_ok());
        drop(first);
        assert!(locks.acquire("volume a".into()).is_ok());
    }
}
