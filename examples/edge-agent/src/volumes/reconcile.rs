//! Applies desired sets to the volume manager.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::MutexGuard;
use volume_manager::advanced::message::refusal::Reason;
use volume_manager::advanced::message::{DesiredSet, Reconciled, Refusal};
use volume_manager::driver::Attach;
use volume_manager::node::{AttachError, Closed, ReconcileError};

use super::{NodeVolumes, State, below_any};

/// The first and the longest wait before an incomplete set is retried.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// The highest revision that a node accepts without a similar one before it: nanoseconds since 1970 stay below it until
/// the year 2116.
const CLOCK_REVISION: u64 = 1 << 62;

/// How far a revision above [`CLOCK_REVISION`] may be above the node's. The steps are so small that no sequence of sets
/// reaches the highest number, after which no set could replace the last one.
const MAX_REVISION_STEP: u64 = 1 << 20;

/// Whether a node with the revision `old` may accept the revision `new`.
const fn may_follow(new: u64, old: u64) -> bool {
    let base = if old > CLOCK_REVISION { old } else { CLOCK_REVISION };
    new <= base.saturating_add(MAX_REVISION_STEP)
}

impl NodeVolumes {
    /// Applies a set. The set is on the disk when this returns. `request` is the set as received.
    ///
    /// # Errors
    /// If the set is older than the current one, or cannot be applied now.
    pub(super) async fn apply(&self, set: DesiredSet, request: Bytes) -> Result<Reconciled, Refusal> {
        let mut state = self.0.state.lock().await;
        let revision = state.desired.as_ref().map_or(0, |set| set.revision);
        self.check_set(&set, state.desired.as_deref())
            .map_err(|(reason, message)| Refusal::new(reason, message, revision))?;
        let is_new = set.revision != revision;
        if is_new {
            self.0.document.save_from(move || request.to_vec()).await.map_err(|error| {
                let reason = format!(
                    "cannot write the set to --state-dir: {}",
                    edge_csi_common::process::chain(&error)
                );
                Refusal::new(Reason::Unavailable, reason, revision)
            })?;
        }
        let set = Arc::new(set);
        let before = state.desired.replace(Arc::clone(&set));
        self.summary_mut().revision = set.revision;
        let reconciled = async {
            self.update_policies(&state, before.as_deref(), &set).await?;
            self.reconcile(&mut state).await
        };
        reconciled.await.map_err(|error| {
            let text = format!("revision {} is on the disk but not applied, retrying: {error}", set.revision);
            Refusal::new(Reason::Unavailable, text, set.revision)
        })
    }

    fn check_set(&self, set: &DesiredSet, before: Option<&DesiredSet>) -> Result<(), (Reason, String)> {
        let known = before.map_or(0, |set| set.revision);
        if !may_follow(set.revision, known) {
            let text = format!(
                "revision {} is too far above the node's revision {known}; send a lower one",
                set.revision
            );
            return Err((Reason::Invalid, text));
        }
        if let Some(before) = before {
            let (new, old) = (set.revision, before.revision);
            if new < old {
                let text =
                    format!("revision {new} is older than the node's revision {old}; send a higher one");
                return Err((Reason::Stale, text));
            }
            if new == old && set != before {
                let text = format!(
                    "this node has another set with revision {old}; send this one with revision {}",
                    old.saturating_add(1)
                );
                return Err((Reason::Stale, text));
            }
        }
        for volume in &set.volumes {
            for consumer in &volume.consumers {
                let target = consumer.target_path();
                if !below_any(target.as_path(), &self.0.targets) {
                    let (key, id) = (volume.spec.key(), consumer.id());
                    let text = format!(
                        "{key}: the target {target} of {id} is not below a directory of --allowed-target-dir of the agent"
                    );
                    return Err((Reason::Invalid, text));
                }
            }
        }
        Ok(())
    }

    /// Registers drivers again if their policy has changed.
    async fn update_policies(
        &self,
        state: &State,
        before: Option<&DesiredSet>,
        set: &DesiredSet,
    ) -> Result<(), Closed> {
        for (name, endpoint) in &state.drivers {
            let policy = set.policy(name);
            if before.map(|set| set.policy(name)).unwrap_or_default() != policy {
                tracing::info!(driver = %name, "the driver's policy changed, connecting again");
                self.0.volumes.driver_registered(name.clone(), endpoint.clone(), policy).await?;
            }
        }
        Ok(())
    }

    /// Applies the set that is on the disk.
    async fn reconcile(&self, state: &mut MutexGuard<'_, State>) -> Result<Reconciled, ReconcileError> {
        let Some(set) = state.desired.clone() else {
            state.incomplete = false;
            return Ok(Reconciled::default());
        };
        state.incomplete = true;
        let reconciled = self.0.volumes.reconcile(set.volumes.iter().cloned()).await?;
        let updated = self.update_attachments(state, &set).await?;
        // An existing consumer may be removed before a new one is added: then the volume is removed in between,
        // and its attachment must be updated again.
        for (key, ..) in &reconciled.refused {
            state.attached.remove(key);
        }
        state.incomplete = !reconciled.refused.is_empty() || !updated;
        let reconciled = Reconciled::new(set.revision, &reconciled);
        self.summary_mut().refused = Arc::new(reconciled.refused.clone());
        Ok(reconciled)
    }

    /// Updates the volumes that others attach, if their attachments changed. Returns whether all updates
    /// succeeded.
    async fn update_attachments(&self, state: &mut State, set: &DesiredSet) -> Result<bool, Closed> {
        let mut before = std::mem::take(&mut state.attached);
        let mut all = true;
        for volume in &set.volumes {
            let spec = &volume.spec;
            if spec.attach() != Attach::Awaited || volume.consumers.is_empty() {
                continue;
            }
            let key = spec.key().clone();
            let now = set.is_attached(spec).then(|| spec.publish_context().clone());
            let updated = before.remove(&key);
            let result = match &now {
                now if updated.as_ref() == Some(now) => Ok(true),
                Some(context) => self.0.volumes.attached(&key, context.clone()).await,
                None => self.0.volumes.detached(&key).await,
            };
            match result {
                Ok(true) => drop(state.attached.insert(key, now)),
                Ok(false) => {}
                Err(AttachError::Closed(stopped)) => return Err(stopped),
                Err(error) => {
                    tracing::warn!(volume = %key, "cannot update the attachment, retrying: {error}");
                    all = false;
                }
            }
        }
        Ok(all)
    }

    /// Retries refused volumes at once, since a change may have removed the cause.
    pub(in super::super) async fn retry_refused(&self) {
        let mut state = self.0.state.lock().await;
        if state.incomplete {
            // The background task retries after a failure.
            let _ = self.reconcile(&mut state).await;
        }
    }

    /// Applies the set that is on the disk, and retries until the set is complete. Updates the summary's counts.
    /// Runs until the volume manager has stopped.
    pub(super) async fn keep_reconciled(self) {
        let mut wait = RETRY_DELAY.0;
        loop {
            let mut state = self.0.state.lock().await;
            if state.incomplete {
                match self.reconcile(&mut state).await {
                    Ok(reconciled) if reconciled.revision == 0 => {}
                    Ok(reconciled) if reconciled.refused.is_empty() => {
                        tracing::info!(revision = reconciled.revision, "the desired set is applied");
                    }
                    Ok(reconciled) => {
                        let refused = reconciled.refused.len();
                        tracing::warn!(refused, "some consumers of the desired set are refused, retrying");
                    }
                    Err(ReconcileError::Closed(stopped)) => return tracing::error!("{stopped}"),
                    Err(error) => {
                        tracing::warn!("cannot apply the desired set, retrying: {error}");
                    }
                }
                wait = (wait * 2).min(RETRY_DELAY.1);
            } else {
                wait = RETRY_DELAY.0;
            }
            drop(state);
            let retry_at = tokio::time::Instant::now() + wait;
            while tokio::time::Instant::now() < retry_at {
                match self.0.volumes.counts().await {
                    Ok(counts) => self.summary_mut().counts = counts,
                    Err(stopped) => return tracing::error!("{stopped}"),
                }
                tokio::time::sleep(RETRY_DELAY.0).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One set of a hostile caller cannot use up the revisions.
    #[test]
    fn revision_follows_a_clock_or_the_last_one() {
        assert!(may_follow(1, 0) && may_follow(CLOCK_REVISION, 7));
        for top in [CLOCK_REVISION, u64::MAX - MAX_REVISION_STEP - 1] {
            assert!(
                may_follow(top + MAX_REVISION_STEP, top) && !may_follow(top + MAX_REVISION_STEP + 1, top)
            );
        }
        assert!(!may_follow(u64::MAX, 0) && !may_follow(u64::MAX, CLOCK_REVISION));
        assert!(may_follow(u64::MAX, u64::MAX), "it is acknowledged again");
        const { assert!((u64::MAX - CLOCK_REVISION) / MAX_REVISION_STEP > 1 << 40) };
    }
}
