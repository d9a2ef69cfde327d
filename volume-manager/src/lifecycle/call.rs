//! What is asked of the driver.

use std::fmt;

use crate::ConsumerId;

use super::state::Rpc;

/// One call to a driver: which, and for which consumer's target.
#[allow(clippy::exhaustive_structs, reason = "the volume is known, so these two say all")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The method.
    pub rpc: Rpc,
    /// Whose target it is about: set for `NodePublishVolume` and `NodeUnpublishVolume`, and for no other.
    pub consumer: Option<ConsumerId>,
}

impl Call {
    /// A call about the volume as a whole.
    #[must_use]
    pub fn of_volume(rpc: Rpc) -> Self {
        Self { rpc, consumer: None }
    }

    /// A call about one consumer's target.
    #[must_use]
    pub fn of_target(rpc: Rpc, consumer: ConsumerId) -> Self {
        Self { rpc, consumer: Some(consumer) }
    }

    /// Whether it is the controller half of an expansion.
    pub(super) fn is_growth(&self) -> bool {
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

/// What a call changes. Troubles are kept for each part, so that one target's do not hold up another's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Part {
    Attach,
    Staging,
    Target(ConsumerId),
    Expansion,
}
