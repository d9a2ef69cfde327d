//! What is asked of the driver and of the mount table, and what the mount table answers.

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

/// A question to the mount table.
#[allow(clippy::exhaustive_enums, reason = "before an unstage, and after a call")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Before `NodeUnstageVolume`: does anybody but us use what is staged, such as through a bind mount that we did
    /// not make? Answers: [`Finding::Agrees`] (nobody), [`Finding::InUse`], [`Finding::Unknown`].
    Unused,
    /// After the call was answered with OK, or with NOT_FOUND on the way down: is it so?
    After(Call),
}

/// What the mount table says.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// As it shall be: the right thing mounted once, after an upward call; nothing, after a downward one; nobody else's
    /// bind, before an unstage.
    Agrees,
    /// After an upward call: nothing is mounted there.
    Missing,
    /// After an upward call: something else is mounted there, or it is mounted more than once, or with other options.
    Wrong,
    /// After a downward call: it is still mounted.
    StillThere,
    /// Before an unstage: somebody else uses it.
    InUse,
    /// It could not be found out, such as by a `stat` that hangs.
    Unknown,
}
