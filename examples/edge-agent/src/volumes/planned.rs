//! Desired sets that this agent computes itself.

use std::sync::Arc;

use volume_manager::advanced::message::{DesiredSet, InvalidMessage, Reconciled, Refusal, Request};
use volume_manager::node::Volumes;

use super::NodeVolumes;

/// Why a set of this agent was not applied.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum ApplyOwnError {
    /// The set exceeds a bound: a restart could not decode it.
    #[error(
        "the volumes of the pods are not a valid set, and volumes stay unchanged; move pods to other nodes"
    )]
    Invalid(#[from] InvalidMessage),
    /// The set cannot be applied now.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

impl NodeVolumes {
    /// Returns the current desired set.
    pub(in super::super) async fn desired(&self) -> Option<Arc<DesiredSet>> {
        self.0.state.lock().await.desired.clone()
    }

    /// Returns the handle of the volume manager.
    pub(in super::super) fn volumes(&self) -> &Volumes {
        &self.0.volumes
    }

    /// Applies a set of this agent with the next revision.
    ///
    /// # Errors
    /// If the set exceeds a bound, or cannot be written.
    pub(in super::super) async fn apply_own(&self, mut set: DesiredSet) -> Result<Reconciled, ApplyOwnError> {
        set.revision = self.summary().revision.saturating_add(1);
        let request = set.encode();
        Request::decode(&request)?;
        self.apply(set, request.into()).await.map_err(ApplyOwnError::Refused)
    }
}
