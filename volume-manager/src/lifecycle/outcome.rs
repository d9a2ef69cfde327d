//! How calls end, and which gRPC code means what.

use std::fmt;

use super::call::Finding;
use super::state::{Direction, Rpc};

/// How a call ended. [`outcome_of`] tells it from the code.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// OK. After a call of expansion it means that the volume has the size that was asked for, and that the node half
    /// is needed; [`Outcome::Expanded`] says it better.
    Ok,
    /// OK of `ControllerExpandVolume` or `NodeExpandVolume`, with what the response says.
    Expanded {
        /// `capacity_bytes` of the response; 0 if it is not said, as `NodeExpandVolume` may.
        capacity_bytes: u64,
        /// `node_expansion_required` of the response; without meaning for `NodeExpandVolume`.
        node_expansion_required: bool,
    },
    /// NOT_FOUND to `NodeUnstageVolume` or `NodeUnpublishVolume`: if the mount table agrees it counts as OK, since
    /// otherwise a driver that forgot a volume would be asked for ever.
    Gone,
    /// The driver answered with an error, and nothing of the call runs any more.
    Final,
    /// The request cannot be met, whenever it is repeated. Only for expansion: the size is given up.
    Infeasible,
    /// No answer, or one that says that a call may still be running.
    Uncertain,
    /// The driver answered with an error, and the spec forbids to repeat the call.
    NeverRetry,
    /// The call was not sent, and the driver knows nothing of it: a secret could not be had, something else is at the
    /// target, the driver could not be reached. What was intended with it is taken back, unless an earlier one of the same
    /// kind was sent. If that one may still be running this counts as [`Outcome::Uncertain`].
    NotSent,
}

/// Why a call has to be repeated, or is given up.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// [`Outcome::Final`]. It is repeated while it is wanted.
    Final,
    /// [`Outcome::Infeasible`]. It is given up.
    Infeasible,
    /// [`Outcome::Uncertain`]. It is repeated until the end is known, within
    /// [`Policy::quiesce_attempts`](super::Policy::quiesce_attempts), even if it is no longer wanted.
    Uncertain,
    /// [`Outcome::NeverRetry`]. It is not repeated before the driver's next generation, or, for an expansion, before
    /// it is asked for again.
    NeverRetry,
    /// The driver said OK, and the mount table says otherwise. It is repeated, or undone and repeated if something
    /// wrong is mounted.
    Contradicted(Finding),
    /// It was not called, since somebody else uses what is staged.
    InUse,
    /// The mount table could not be asked, after an OK or before an unstage. The call, or the question, is repeated.
    Unchecked,
    /// The driver said OK to an expansion, and reported less than was asked for. It is repeated.
    TooSmall,
    /// The last consumer went before an expansion was done.
    Abandoned,
    /// [`Outcome::NotSent`]. It is repeated while it is wanted.
    NotSent,
}

impl Failure {
    /// Whether those who wait for the result are told. An unknown end is no result.
    #[must_use]
    pub fn is_told(self) -> bool {
        !matches!(self, Self::Uncertain | Self::Unchecked)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Final => "the driver answered with an error",
            Self::Infeasible => "the driver says that this cannot be done",
            Self::Uncertain => "the driver did not answer, or may still be working on it",
            Self::NeverRetry => "the driver does not do this, and may not be asked again",
            Self::Contradicted(Finding::Missing) => "the driver said OK, but nothing is mounted",
            Self::Contradicted(Finding::StillThere) => {
                "the driver said that it is gone, but it is still mounted"
            }
            Self::Contradicted(_) => {
                "the driver said OK, but something else is mounted, or it is mounted twice"
            }
            Self::InUse => "somebody else uses what is staged",
            Self::Unchecked => "the mount table could not be asked",
            Self::TooSmall => "the driver said OK, but the volume is smaller than was asked for",
            Self::Abandoned => "the last consumer went before it was done",
            Self::NotSent => "it could not be sent to the driver",
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
/// | NOT_FOUND | final | gone at the node, final at the controller | infeasible |
/// | INVALID_ARGUMENT, OUT_OF_RANGE | final | final | infeasible |
/// | FAILED_PRECONDITION | final | final | final at the controller, never at the node |
/// | UNIMPLEMENTED | never | never | never |
/// | UNKNOWN, ALREADY_EXISTS, PERMISSION_DENIED, INTERNAL, DATA_LOSS, UNAUTHENTICATED | final | final | final |
///
/// ABORTED says that another call is pending for the volume. We send one at a time, so it is an older one of ours whose
/// end we do not know: it counts as no answer to that one. A number that is no gRPC code is uncertain.
#[must_use]
pub fn outcome_of(rpc: Rpc, code: Option<i32>) -> Outcome {
    let expansion = matches!(rpc, Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume);
    match code {
        Some(0) => Outcome::Ok,
        Some(3 | 11) if expansion => Outcome::Infeasible,
        Some(5) if expansion => Outcome::Infeasible,
        Some(5) if rpc.direction() == Direction::Down && rpc.shows_in_mount_table() => Outcome::Gone,
        Some(8) if rpc == Rpc::ControllerPublishVolume => Outcome::Final,
        Some(9) if rpc == Rpc::NodeExpandVolume => Outcome::NeverRetry,
        Some(12) => Outcome::NeverRetry,
        Some(2 | 3 | 5 | 6 | 7 | 9 | 11 | 13 | 15 | 16) => Outcome::Final,
        Some(_) | None => Outcome::Uncertain,
    }
}
