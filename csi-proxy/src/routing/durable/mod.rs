//! Placements whose changes are durable before they take effect.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::placements::{Attempt, AttemptResult, Change, Placements};
use super::refusal::Refusal;
use super::request::VolumeRequest;
use super::selection::NodeSelector;
use super::store::{PlacementStore, StoreError, Written};
use crate::call::NodeId;
use crate::call::Subject;

/// The number of locks: changes of one key are serialized.
const LOCKS: usize = 256;

/// The number of concurrent writes when many rows change.
const CONCURRENCY: usize = 256;

/// The number of expired deletions removed with each new row.
const CLEANUP_BATCH: usize = 4;

#[derive(Debug)]
pub(super) struct DurablePlacements {
    core: Mutex<Placements>,
    store: Arc<dyn PlacementStore>,
    locks: Vec<Arc<AsyncMutex<()>>>,
}

impl DurablePlacements {
    /// Loads the rows of the store. Also returns the decommissioned nodes.
    pub(super) async fn open(
        mut core: Placements,
        store: Arc<dyn PlacementStore>,
    ) -> Result<(Arc<Self>, Vec<NodeId>), StoreError> {
        for row in store.list().await? {
            if let Err(defect) = &row.placement {
                tracing::error!(key = %row.key, %defect, "placement is damaged; its name is blocked, and its id is searched on every node");
            }
            core.restore(row);
        }
        let decommissioned = store.decommissioned().await?;
        decommissioned.iter().for_each(|node| core.decommission(node));
        let locks = (0..LOCKS).map(|_| Arc::default()).collect();
        let this = Arc::new(Self { core: Mutex::new(core), store, locks });
        for node in &decommissioned {
            // Completes a decommission that a crash interrupted.
            if let Err(refusal) = this.release_rows(node).await {
                tracing::error!(%node, ?refusal, "the rows of the decommissioned node are not all released; decommission it again");
            }
        }
        Ok((this, decommissioned))
    }

    /// The node of a subject.
    pub(super) fn node_of(&self, subject: &Subject) -> Option<NodeId> {
        self.core().node_of(subject).cloned()
    }

    /// Reads the table.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Placements) -> T) -> T {
        read(&self.core())
    }

    /// Starts an attempt to create a volume, once its placement is durable.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        request: &VolumeRequest,
        selector: NodeSelector<'_>,
    ) -> Result<OpenAttempt, Refusal> {
        let key = Subject::VolumeName(request.name.clone());
        self.clean(SystemTime::now()).await;
        let mut guard = self.lock_key(&key).await;
        let change = self.core().create(request, selector)?;
        if let Some(change) = change {
            let written;
            (guard, written) = self.write(change, guard).await;
            match written {
                // Another proxy has selected a node first; its selection is valid.
                Err(Refusal::Changed { .. }) if self.node_of(&key).is_some() => {}
                other => other?,
            }
        }
        let attempt = self.core().begin(request).ok_or(Refusal::Changed { subject: key })?;
        drop(guard);
        Ok(OpenAttempt { placements: Arc::clone(self), request: request.clone(), attempt, open: true })
    }

    /// Records that a node has this subject.
    pub(super) async fn found(self: &Arc<Self>, subject: &Subject, node: &NodeId) -> Result<(), Refusal> {
        let guard = self.lock_key(subject).await;
        let change = self.core().found(subject, node)?;
        self.write_all(guard, change).await
    }

    /// The names of volumes that are blocked because their rows are damaged.
    pub(super) fn damaged_names(&self) -> BTreeSet<Box<str>> {
        let name = |key: &Subject| match key {
            Subject::VolumeName(name) => Some(name.clone()),
            Subject::Volume(_) | Subject::Snapshot(_) | Subject::GroupSnapshot(_) => None,
        };
        self.core().damaged().filter_map(name).collect()
    }

    /// Replaces the damaged row of a name. Returns whether the row was damaged.
    pub(super) async fn repair(self: &Arc<Self>, name: &str, node: Option<&NodeId>) -> Result<bool, Refusal> {
        let guard = self.lock_key(&Subject::VolumeName(name.into())).await;
        let Some(change) = self.core().repaired(name, node) else { return Ok(false) };
        self.write(change, guard).await.1.map(|()| true)
    }

    /// Records that this subject is deleted.
    pub(super) async fn deleted(self: &Arc<Self>, subject: &Subject) -> Result<(), Refusal> {
        let now = SystemTime::now();
        let key = self.core().deleted(subject, now).first().map(|change| change.key.clone());
        let Some(key) = key else { return Ok(()) };
        let guard = self.lock_key(&key).await;
        // The row may have changed before this task held the lock.
        let changes = self.core().deleted(subject, now);
        let deleted = self.write_all(guard, changes).await;
        self.clean(now).await;
        deleted
    }

    /// Decommissions a node: first records the node, so that nothing more is placed there whatever fails, then
    /// releases its rows one by one. Returns the number of released rows.
    pub(super) async fn decommission(self: &Arc<Self>, node: &NodeId) -> Result<usize, Refusal> {
        self.core().decommission(node);
        self.set_decommissioned(node, true).await?;
        // Waits for changes that began before the node was decommissioned.
        for lock in &self.locks {
            drop(lock.lock().await);
        }
        self.release_rows(node).await
    }

    /// Recommissions a node. Its rows stay released until a node reports their subjects.
    pub(super) async fn recommission(&self, node: &NodeId) -> Result<(), Refusal> {
        self.set_decommissioned(node, false).await?;
        self.core().recommission(node);
        Ok(())
    }

    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), Refusal> {
        let written = self.store.set_decommissioned(node, decommissioned).await;
        written.map_err(|error| Refusal::NotPersisted { reason: error.to_string() })
    }

    /// Releases the rows of a node and returns their number.
    async fn release_rows(self: &Arc<Self>, node: &NodeId) -> Result<usize, Refusal> {
        let before = self.read(Placements::rows);
        let (lost, free) = self.core().released(node);
        for changes in [lost, free] {
            let one = |change: Change| async move {
                let guard = self.lock_key(&change.key).await;
                self.write(change, guard).await.1
            };
            let written: Vec<_> =
                stream::iter(changes).map(one).buffer_unordered(CONCURRENCY).collect().await;
            written.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(before.saturating_sub(self.read(Placements::rows)))
    }

    /// Removes expired deletions.
    async fn clean(self: &Arc<Self>, now: SystemTime) {
        for _ in 0..CLEANUP_BATCH {
            let Some(change) = self.core().expired(now) else { return };
            // A task that holds the lock is about to change the row.
            let Ok(guard) = Arc::clone(self.lock_of(&change.key)).try_lock_owned() else { return };
            if self.write(change, guard).await.1.is_err() {
                return;
            }
        }
    }

    fn lock_of(&self, key: &Subject) -> &Arc<AsyncMutex<()>> {
        let at = crc32fast::hash(key.id().as_bytes()) as usize % self.locks.len();
        // In range: it is a remainder.
        &self.locks[at]
    }

    async fn lock_key(&self, key: &Subject) -> OwnedMutexGuard<()> {
        Arc::clone(self.lock_of(key)).lock_owned().await
    }

    async fn write_all(
        self: &Arc<Self>,
        mut guard: OwnedMutexGuard<()>,
        changes: impl IntoIterator<Item = Change>,
    ) -> Result<(), Refusal> {
        for change in changes {
            let written;
            (guard, written) = self.write(change, guard).await;
            written?;
        }
        Ok(())
    }

    /// Writes a change to the store and applies it. Runs to completion even if no caller waits for it, so that
    /// memory matches the store.
    async fn write(
        self: &Arc<Self>,
        change: Change,
        guard: OwnedMutexGuard<()>,
    ) -> (OwnedMutexGuard<()>, Result<(), Refusal>) {
        let this = Arc::clone(self);
        let subject = change.key.clone();
        let writing = tokio::spawn(async move {
            let written = match this.store.write(&change).await {
                Ok(Written::Done(revision)) => {
                    this.core().apply(change, revision);
                    Ok(())
                }
                Ok(Written::Conflict(row)) => {
                    let subject = change.key.clone();
                    match row {
                        Some(row) => this.core().restore(row),
                        None => this.core().remove(&subject),
                    }
                    Err(Refusal::Changed { subject })
                }
                Err(error) => Err(Refusal::NotPersisted { reason: error.to_string() }),
            };
            (guard, written)
        });
        match writing.await {
            Ok(written) => written,
            // The task has panicked or the runtime is shutting down: no caller uses this result.
            Err(error) => {
                (self.lock_key(&subject).await, Err(Refusal::NotPersisted { reason: error.to_string() }))
            }
        }
    }

    fn core(&self) -> MutexGuard<'_, Placements> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt to create a volume. If dropped without a result, the result is unknown.
#[derive(Debug)]
pub(super) struct OpenAttempt {
    placements: Arc<DurablePlacements>,
    request: VolumeRequest,
    attempt: Attempt,
    open: bool,
}

impl OpenAttempt {
    /// The node of the attempt.
    pub(super) fn node(&self) -> &NodeId {
        self.attempt.node()
    }

    /// Records the result, and waits until it is durable.
    pub(super) async fn end(mut self, end: AttemptResult<'_>) -> Result<(), Refusal> {
        let placements = Arc::clone(&self.placements);
        let guard = placements.lock_key(&Subject::VolumeName(self.request.name.clone())).await;
        self.open = false;
        let change = placements.core().ended(&self.request, &self.attempt, end)?;
        placements.write_all(guard, change).await
    }
}

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        if self.open {
            // An unknown result changes nothing durable.
            let _ = self.placements.core().ended(&self.request, &self.attempt, AttemptResult::Unknown);
        }
    }
}

#[cfg(test)]
mod tests;
