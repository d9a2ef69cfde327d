//! How calls end, and which gRPC code means what.

use std::fmt;

use super::state::{Direction, Rpc};

/// How a call ended, with what the mount table shows of it.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// OK, and the mount table agrees where [it can](Rpc::shows_in_mount_table). So does NOT_FOUND to
    /// `NodeUnstageVolume` or `NodeUnpublishVolume`: otherwise a driver that forgot a volume would be asked for ever.
    /// After a call of expansion it means that the volume has the size that was asked for, and that the node half is
    /// needed; [`Outcome::Expanded`] says it better.
    Ok,
    /// OK of `ControllerExpandVolume` or `NodeExpandVolume`, with what the response says.
    Expanded {
        /// `capacity_bytes` of the response; 0 if it is not said, as `NodeExpandVolume` may.
        capacity_bytes: u64,
        /// `node_expansion_required` of the response; without meaning for `NodeExpandVolume`.
        node_expansion_required: bool,
    },
    /// Not well.
    Failed(Failure),
}

/// Why a call did not do what it should.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The driver answered with an error, and nothing of the call runs any more. It is repeated while it is wanted.
    Final,
    /// The request cannot be met, whenever it is repeated. Only for expansion: the size is given up.
    Infeasible,
    /// No answer, or one that says that a call may still be running. It is repeated until the end is known, within
    /// [`Policy::quiesce_attempts`](super::Policy::quiesce_attempts), even if it is no longer wanted.
    Uncertain,
    /// The driver answered with an error, and the spec forbids to repeat the call. It is not repeated before the driver's
    /// next generation, or, for an expansion, before it is asked for again.
    NeverRetry,
    /// The driver said OK, and the mount table says otherwise. It is repeated, or undone and repeated if something
    /// wrong is mounted.
    Contradicted(Mismatch),
    /// The driver said OK, and the mount table could not be asked. It is repeated.
    Unchecked,
    /// `NodeUnstageVolume` was not sent, since somebody else uses what is staged. What was intended is undone, and
    /// intended again later.
    InUse,
    /// The call was not sent, and the driver knows nothing of it: a secret could not be had, something else is at the
    /// target, the driver could not be reached. What was intended with it is undone, unless an earlier one of the same
    /// kind was sent; it is repeated while it is wanted. If that one may still be running this counts as
    /// [`Failure::Uncertain`].
    NotSent,
    /// The driver said OK to an expansion, and reported less than was asked for. It is repeated.
    TooSmall,
    /// The last consumer went before an expansion was done.
    Abandoned,
}

/// How the mount table differs from what an OK says.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mismatch {
    /// After an upward call: nothing is mounted there.
    Missing,
    /// After an upward call: something else is mounted there, or it is mounted more than once, or with other options.
    Wrong,
    /// After a downward call: it is still mounted.
    StillThere,
}

impl Failure {
    /// Whether those who wait for the result are answered. An unknown end is no result.
    #[must_use]
    pub fn is_told(self) -> bool {
        !matches!(self, Self::Uncertain | Self::Unchecked)
    }

    /// Whether the driver may have seen the call.
    #[must_use]
    pub fn was_sent(self) -> bool {
        !matches!(self, Self::InUse | Self::NotSent | Self::Abandoned)
    }

    /// One word of small letters.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Final | Self::Infeasible | Self::TooSmall => "final",
            Self::Uncertain => "uncertain",
            Self::NeverRetry => "never-retry",
            Self::Contradicted(_) | Self::Unchecked => "contradicted",
            Self::InUse | Self::NotSent | Self::Abandoned => "prevented",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Final => "the driver answered with an error",
            Self::Infeasible => "the driver says that this cannot be done",
            Self::Uncertain => "the driver did not answer, or may still be working on it",
            Self::NeverRetry => "the driver does not do this, and may not be asked again",
            Self::Contradicted(Mismatch::Missing) => "the driver said OK, but nothing is mounted",
            Self::Contradicted(Mismatch::Wrong) => {
                "the driver said OK, but something else is mounted, or it is mounted twice"
            }
            Self::Contradicted(Mismatch::StillThere) => {
                "the driver said that it is gone, but it is still mounted"
            }
            Self::Unchecked => "the mount table could not be asked",
            Self::InUse => "somebody else uses what is staged",
            Self::NotSent => "it could not be sent to the driver",
            Self::TooSmall => "the driver said OK, but the volume is smaller than was asked for",
            Self::Abandoned => "the last consumer went before it was done",
        })
    }
}

/// The class of a gRPC status code for a call. `None` is a transport that broke, or a status that the driver did not
/// send, such as one that the client library made up: give those as `None` whatever their code is.
///
/// | Code | upward | downward | expansion |
/// |---|---|---|---|
/// | OK | OK | OK | OK |
/// | CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED, RESOURCE_EXHAUSTED, `None` | uncertain | uncertain | uncertain |
/// | RESOURCE_EXHAUSTED of `ControllerPublishVolume` (the attach limit) | final | | |
/// | NOT_FOUND | final | OK at the node if the mount table agrees, final at the controller | infeasible |
/// | INVALID_ARGUMENT, OUT_OF_RANGE | final | final | infeasible |
/// | FAILED_PRECONDITION | final | final | final at the controller, never at the node |
/// | UNIMPLEMENTED | never | never | never |
/// | UNKNOWN, ALREADY_EXISTS, PERMISSION_DENIED, INTERNAL, DATA_LOSS, UNAUTHENTICATED | final | final | final |
///
/// ABORTED says that another call is pending for the volume. We send one at a time, so it is an older one of ours whose
/// end we do not know: it counts as no answer to that one. A number that is no gRPC code is uncertain.
#[must_use]
pub fn outcome_of(rpc: Rpc, code: Option<i32>) -> Outcome {
    Outcome::Failed(match code {
        Some(0) => return Outcome::Ok,
        Some(5) if rpc.direction() == Direction::Down && rpc.shows_in_mount_table() => return Outcome::Ok,
        Some(3 | 5 | 11) if rpc.expands() => Failure::Infeasible,
        Some(8) if rpc == Rpc::ControllerPublishVolume => Failure::Final,
        Some(9) if rpc == Rpc::NodeExpandVolume => Failure::NeverRetry,
        Some(12) => Failure::NeverRetry,
        Some(2 | 3 | 5 | 6 | 7 | 9 | 11 | 13 | 15 | 16) => Failure::Final,
        Some(_) | None => Failure::Uncertain,
    })
}
