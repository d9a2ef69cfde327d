//! From a desired set to wanted volumes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::MutexGuard;
use volume_manager::driver::Attach;
use volume_manager::message::refusal::Reason;
use volume_manager::message::{DesiredSet, Reconciled, Refusal};
use volume_manager::node::{AttachError, Closed, ReconcileError};

use super::{NodeVolumes, State, below_any};

/// The first and the longest wait before what is not settled is tried again.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

impl NodeVolumes {
    /// Takes a set: from when this returns it is on the disk, and is what this node wants. `request` is what it came in.
    ///
    /// # Errors
    /// If it is older than the one that is there, or cannot be taken now.
    pub(super) async fn take(&self, set: DesiredSet, request: Bytes) -> Result<Reconciled, Refusal> {
        let mut state = self.0.state.lock().await;
        let revision = state.desired.as_ref().map_or(0, |set| set.revision);
        self.may_be_taken(&set, state.desired.as_deref())
            .map_err(|(reason, message)| Refusal::new(reason, message, revision))?;
        let is_new = set.revision != revision;
        if is_new {
            self.0.document.save_from(move || request.to_vec()).await.map_err(|error| {
                let reason = format!(
                    "the set cannot be written to --state-dir: {}",
                    edge_csi_common::process::chain(&error)
                );
                Refusal::new(Reason::Unavailable, reason, revision)
            })?;
        }
        let set = Arc::new(set);
        let before = state.desired.replace(Arc::clone(&set));
        self.shown_mut().revision = set.revision;
        let settled = async {
            self.update_policies(&state, before.as_deref(), &set).await?;
            self.settle(&mut state).await
        };
        settled.await.map_err(|error| {
            let text = format!("revision {} is on the disk, and is tried again: {error}", set.revision);
            Refusal::new(Reason::Unavailable, text, set.revision)
        })
    }

    fn may_be_taken(&self, set: &DesiredSet, before: Option<&DesiredSet>) -> Result<(), (Reason, String)> {
        if let Some(before) = before {
            let (new, old) = (set.revision, before.revision);
            if new < old {
                let text = format!(
                    "revision {new} is older than revision {old}, which this node has; send a higher one"
                );
                return Err((Reason::Stale, text));
            }
            if new == old && set != before {
                let text = format!(
                    "this node has another set as revision {old}; send this one as {}",
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

    /// Registers the drivers with a changed policy again.
    async fn update_policies(
        &self,
        state: &State,
        before: Option<&DesiredSet>,
        set: &DesiredSet,
    ) -> Result<(), Closed> {
        for (name, endpoint) in &state.drivers {
            let policy = set.policy(name);
            if before.map(|set| set.policy(name)).unwrap_or_default() != policy {
                tracing::info!(driver = %name, "another policy; connecting to it anew");
                self.0.volumes.driver_registered(name.clone(), endpoint.clone(), policy).await?;
            }
        }
        Ok(())
    }

    /// Makes the set wanted that is on the disk.
    async fn settle(&self, state: &mut MutexGuard<'_, State>) -> Result<Reconciled, ReconcileError> {
        let Some(set) = state.desired.clone() else {
            state.unsettled = false;
            return Ok(Reconciled::default());
        };
        state.unsettled = true;
        let reconciled = self.0.volumes.reconcile(set.volumes.iter().cloned()).await?;
        let updated = self.update_attachments(state, &set).await?;
        // An existing consumer may be removed before a new one is added: then the volume is forgotten in between, and its
        // attachment must be updated again.
        for (key, ..) in &reconciled.refused {
            state.attached.remove(key);
        }
        state.unsettled = !reconciled.refused.is_empty() || !updated;
        let reconciled = Reconciled::new(set.revision, &reconciled);
        self.shown_mut().refused = Arc::new(reconciled.refused.clone());
        Ok(reconciled)
    }

    /// Updates the volumes that others attach, if their attachments changed. Returns whether all updates succeeded.
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
            let known = match &now {
                now if updated.as_ref() == Some(now) => Ok(true),
                Some(context) => self.0.volumes.attached(&key, context.clone()).await,
                None => self.0.volumes.detached(&key).await,
            };
            match known {
                Ok(true) => drop(state.attached.insert(key, now)),
                Ok(false) => {}
                Err(AttachError::Closed(stopped)) => return Err(stopped),
                Err(error) => {
                    tracing::warn!(volume = %key, "whether it is attached is not noted, trying again: {error}");
                    all = false;
                }
            }
        }
        Ok(all)
    }

    /// Retries refused volumes at once, since a change may have removed the cause.
    pub(in super::super) async fn settle_again(&self) {
        let mut state = self.0.state.lock().await;
        if state.unsettled {
            // What fails is tried again without being asked for.
            let _ = self.settle(&mut state).await;
        }
    }

    /// Settles what is on the disk, and tries again what could not be settled, for ever. Keeps the figures too.
    pub(super) async fn keep_settled(self) {
        let mut wait = AGAIN.0;
        loop {
            let mut state = self.0.state.lock().await;
            if state.unsettled {
                match self.settle(&mut state).await {
                    Ok(reconciled) if reconciled.revision == 0 => {}
                    Ok(reconciled) if reconciled.refused.is_empty() => {
                        tracing::info!(revision = reconciled.revision, "the desired volumes are settled");
                    }
                    Ok(reconciled) => {
                        let refused = reconciled.refused.len();
                        tracing::warn!(refused, "some volumes cannot be had as things are; trying again");
                    }
                    Err(ReconcileError::Closed(stopped)) => return tracing::error!("{stopped}"),
                    Err(error) => {
                        tracing::warn!("the desired volumes are not settled, trying again: {error}");
                    }
                }
                wait = (wait * 2).min(AGAIN.1);
            } else {
                wait = AGAIN.0;
            }
            drop(state);
            let again = tokio::time::Instant::now() + wait;
            while tokio::time::Instant::now() < again {
                match self.0.volumes.counts().await {
                    Ok(counts) => self.shown_mut().counts = counts,
                    Err(stopped) => return tracing::error!("{stopped}"),
                }
                tokio::time::sleep(AGAIN.0).await;
            }
        }
    }
}
