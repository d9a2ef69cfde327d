//! Sets that this agent makes itself.

use std::sync::Arc;

use volume_manager::message::{DesiredSet, InvalidMessage, Reconciled, Refusal, Request};
use volume_manager::node::Volumes;

use super::NodeVolumes;

/// A set of our own is not taken.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum NotTaken {
    /// It could not be read from the disk again.
    #[error(
        "the volumes of the pods are not a valid set; the node keeps its volumes, so remove pods from it"
    )]
    Invalid(#[from] InvalidMessage),
    /// It cannot be had now.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

impl NodeVolumes {
    /// The set that is wanted now.
    pub(in super::super) async fn desired(&self) -> Option<Arc<DesiredSet>> {
        self.0.state.lock().await.desired.clone()
    }

    /// The volumes themselves.
    pub(in super::super) fn volumes(&self) -> &Volumes {
        &self.0.volumes
    }

    /// Takes a set of this agent's own under the next number.
    ///
    /// # Errors
    /// If it breaks a bound, or cannot be written.
    pub(in super::super) async fn take_own(&self, mut set: DesiredSet) -> Result<Reconciled, NotTaken> {
        set.revision = self.shown().revision.saturating_add(1);
        let request = set.encode();
        Request::decode(&request)?;
        self.take(set, request.into()).await.map_err(NotTaken::Refused)
    }
}
