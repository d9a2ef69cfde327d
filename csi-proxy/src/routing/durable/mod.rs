//! Placements whose changes are durable before anybody acts on them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::election::Ballot;
use super::placements::{Attempt, Change, End, Placements};
use super::refusal::Refusal;
use super::request::VolumeRequest;
use super::store::{PlacementStore, StoreError, Written};
use crate::call::NodeId;
use crate::dispatcher::operation::Subject;

/// Locks for the keys: changes of one key are made one after the other.
const LOCKS: usize = 256;

/// Writes at once where many rows change.
const AT_ONCE: usize = 256;

/// Expired deletions that are removed with each new one.
const CLEANED: usize = 4;

#[derive(Debug)]
pub(super) struct DurablePlacements {
    core: Mutex<Placements>,
    store: Arc<dyn PlacementStore>,
    locks: Vec<Arc<Turn<()>>>,
}

impl DurablePlacements {
    /// Takes in what the store has. Gives the decommissioned nodes, too.
    pub(super) async fn open(
        mut core: Placements,
        store: Arc<dyn PlacementStore>,
    ) -> Result<(Arc<Self>, Vec<NodeId>), StoreError> {
        for row in store.list().await? {
            if let Err(defect) = &row.placement {
                tracing::error!(key = %row.key, %defect, "a placement is damaged; its name is barred, and its id is looked for at every node");
            }
            core.restore(row);
        }
        let decommissioned = store.decommissioned().await?;
        decommissioned.iter().for_each(|node| core.decommission(node));
        let locks = (0..LOCKS).map(|_| Arc::default()).collect();
        let this = Arc::new(Self { core: Mutex::new(core), store, locks });
        for node in &decommissioned {
            // A crash may have cut that off.
            if let Err(refusal) = this.forget(node).await {
                tracing::error!(%node, ?refusal, "not everything that the decommissioned node had is released; decommission it again");
            }
        }
        Ok((this, decommissioned))
    }

    /// Where something is.
    pub(super) fn node_of(&self, subject: &Subject) -> Option<NodeId> {
        self.core().node_of(subject).cloned()
    }

    /// How many volumes, snapshots and groups there are.
    pub(super) fn rows(&self) -> usize {
        self.core().rows()
    }

    /// Whether it is on record that this is deleted.
    pub(super) fn is_deleted(&self, subject: &Subject) -> bool {
        self.core().is_deleted(subject)
    }

    /// The attempt to make a volume, once its placement is durable.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        request: &VolumeRequest,
        ballot: Ballot<'_>,
    ) -> Result<OpenAttempt, Refusal> {
        let key = Subject::VolumeName(request.name.clone());
        self.clean(SystemTime::now()).await;
        let mut turn = self.turn(&key).await;
        let change = self.core().create(request, ballot)?;
        if let Some(change) = change {
            let written;
            (turn, written) = self.write(change, turn).await;
            match written {
                // Another proxy was faster: its choice counts.
                Err(Refusal::Changed { .. }) if self.node_of(&key).is_some() => {}
                other => other?,
            }
        }
        let attempt = self.core().begin(request).ok_or(Refusal::Changed { subject: key })?;
        drop(turn);
        Ok(OpenAttempt { placements: Arc::clone(self), request: request.clone(), attempt, open: true })
    }

    /// Takes in that a node has this.
    pub(super) async fn found(self: &Arc<Self>, subject: &Subject, node: &NodeId) -> Result<(), Refusal> {
        let turn = self.turn(subject).await;
        let change = self.core().found(subject, node)?;
        self.write_all(turn, change).await
    }

    /// Takes in that this is deleted.
    pub(super) async fn deleted(self: &Arc<Self>, subject: &Subject) -> Result<(), Refusal> {
        let now = SystemTime::now();
        let key = self.core().deleted(subject, now).first().map(|change| change.key.clone());
        let Some(key) = key else { return Ok(()) };
        let turn = self.turn(&key).await;
        // As it is now that its turn has come.
        let changes = self.core().deleted(subject, now);
        let deleted = self.write_all(turn, changes).await;
        self.clean(now).await;
        deleted
    }

    /// Whether something is on a node, or may be.
    pub(super) fn has_rows_of(&self, node: &NodeId) -> bool {
        self.core().has_rows_of(node)
    }

    /// Decommissions a node: first who it is, so that nothing more is placed there whatever fails, then row by row what it had. Answers
    /// how many rows that were.
    pub(super) async fn decommission(self: &Arc<Self>, node: &NodeId) -> Result<usize, Refusal> {
        self.core().decommission(node);
        self.quarantine(node, true).await?;
        // Whoever decided before this has written.
        for lock in &self.locks {
            drop(lock.lock().await);
        }
        self.forget(node).await
    }

    /// Undoes it. What was released stays so until a node says that it has it.
    pub(super) async fn recommission(&self, node: &NodeId) -> Result<(), Refusal> {
        self.quarantine(node, false).await?;
        self.core().recommission(node);
        Ok(())
    }

    async fn quarantine(&self, node: &NodeId, decommissioned: bool) -> Result<(), Refusal> {
        let kept = self.store.set_decommissioned(node, decommissioned).await;
        kept.map_err(|error| Refusal::NotKept { reason: error.to_string() })
    }

    /// Releases what a node had. Answers how many rows that were.
    async fn forget(self: &Arc<Self>, node: &NodeId) -> Result<usize, Refusal> {
        let before = self.rows();
        let (lost, free) = self.core().forgotten(node);
        for changes in [lost, free] {
            let one = |change: Change| async move {
                let turn = self.turn(&change.key).await;
                self.write(change, turn).await.1
            };
            let written: Vec<_> = stream::iter(changes).map(one).buffer_unordered(AT_ONCE).collect().await;
            written.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(before.saturating_sub(self.rows()))
    }

    /// Removes deletions that need not be remembered any more.
    async fn clean(self: &Arc<Self>, now: SystemTime) {
        for _ in 0..CLEANED {
            let Some(change) = self.core().expired(now) else { return };
            // Who has it is about to change it.
            let Ok(turn) = Arc::clone(self.lock_of(&change.key)).try_lock_owned() else { return };
            if self.write(change, turn).await.1.is_err() {
                return;
            }
        }
    }

    fn lock_of(&self, key: &Subject) -> &Arc<Turn<()>> {
        let at = crc32fast::hash(key.id().as_bytes()) as usize % self.locks.len();
        // In range, as a remainder is.
        &self.locks[at]
    }

    async fn turn(&self, key: &Subject) -> OwnedMutexGuard<()> {
        Arc::clone(self.lock_of(key)).lock_owned().await
    }

    async fn write_all(
        self: &Arc<Self>,
        mut turn: OwnedMutexGuard<()>,
        changes: impl IntoIterator<Item = Change>,
    ) -> Result<(), Refusal> {
        for change in changes {
            let written;
            (turn, written) = self.write(change, turn).await;
            written?;
        }
        Ok(())
    }

    /// Makes a change durable, and takes it in. Goes on to its end though nobody waits for it: what is durable has to be known.
    async fn write(
        self: &Arc<Self>,
        change: Change,
        turn: OwnedMutexGuard<()>,
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
                        None => this.core().forget(&subject),
                    }
                    Err(Refusal::Changed { subject })
                }
                Err(error) => Err(Refusal::NotKept { reason: error.to_string() }),
            };
            (turn, written)
        });
        match writing.await {
            Ok(written) => written,
            // It has panicked, or the runtime ends: nobody will act on this.
            Err(error) => (self.turn(&subject).await, Err(Refusal::NotKept { reason: error.to_string() })),
        }
    }

    fn core(&self) -> MutexGuard<'_, Placements> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt to make a volume. Dropped without an end, its end is not known.
#[derive(Debug)]
pub(super) struct OpenAttempt {
    placements: Arc<DurablePlacements>,
    request: VolumeRequest,
    attempt: Attempt,
    open: bool,
}

impl OpenAttempt {
    /// Where it goes.
    pub(super) fn node(&self) -> &NodeId {
        self.attempt.node()
    }

    /// Takes in how it ended, and waits until that is durable.
    pub(super) async fn end(mut self, end: End<'_>) -> Result<(), Refusal> {
        let placements = Arc::clone(&self.placements);
        let turn = placements.turn(&Subject::VolumeName(self.request.name.clone())).await;
        self.open = false;
        let change = placements.core().ended(&self.request, &self.attempt, end)?;
        placements.write_all(turn, change).await
    }
}

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        if self.open {
            // An uncertain end changes nothing durable.
            let _ = self.placements.core().ended(&self.request, &self.attempt, End::Uncertain);
        }
    }
}

#[cfg(test)]
mod tests;
