//! Calls to the driver.

use std::fmt;

use crate::ConsumerId;

use super::state::Rpc;

/// A call to a driver, with the consumer whose target it concerns.
#[allow(clippy::exhaustive_structs, reason = "the volume is known, so these two fields are enough")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The RPC.
    pub rpc: Rpc,
    /// The consumer whose target the call concerns. Set for `NodePublishVolume` and `NodeUnpublishVolume` only.
    pub consumer: Option<ConsumerId>,
}

impl Call {
    /// Creates a call for the volume as a whole.
    #[must_use]
    pub fn of_volume(rpc: Rpc) -> Self {
        Self { rpc, consumer: None }
    }

    /// Creates a call for one consumer's target.
    #[must_use]
    pub fn of_target(rpc: Rpc, consumer: ConsumerId) -> Self {
        Self { rpc, consumer: Some(consumer) }
    }

    /// Returns whether the call is the controller phase of an expansion.
    pub(super) fn is_controller_expand(&self) -> bool {
        self.rpc == Rpc::ControllerExpandVolume
    }

    pub(super) fn part(&self) -> Part {
        match (self.rpc, &self.consumer) {
            (Rpc::NodePublishVolume | Rpc::NodeUnpublishVolume, Some(consumer)) => {
                Part::Target(consumer.clone())
            }
            (Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume, _) => Part::Attach,
            (Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume, _) => Part::Expansion,
            _ => Part::Staging,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.consumer {
            Some(consumer) => write!(f, "{} for {consumer}", self.rpc),
            None => write!(f, "{}", self.rpc),
        }
    }
}

/// The part of a volume that a call changes. Failed calls are kept by part, so that a failing target does not delay
/// another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Part {
    Attach,
    Staging,
    Target(ConsumerId),
    Expansion,
}
