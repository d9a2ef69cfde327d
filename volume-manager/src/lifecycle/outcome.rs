//! Outcomes of calls, and their mapping from gRPC status codes.

use std::fmt;

use super::state::{Direction, Rpc};

/// How a call ended, including its verification in the mount table.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The call succeeded, and the mount table agrees if [the call is visible there](Rpc::shows_in_mount_table).
    /// NOT_FOUND in response to `NodeUnstageVolume` or `NodeUnpublishVolume` is a success as well: otherwise the
    /// call would be repeated forever for a volume that the driver no longer has. For an expansion call, success
    /// means that the volume has the requested size and that the node phase is required; [`Outcome::Expanded`] is
    /// more precise.
    Ok,
    /// `ControllerExpandVolume` or `NodeExpandVolume` succeeded.
    Expanded {
        /// `capacity_bytes` of the response; 0 if absent, as `NodeExpandVolume` permits.
        capacity_bytes: u64,
        /// `node_expansion_required` of the response; without meaning for `NodeExpandVolume`.
        node_expansion_required: bool,
    },
    /// The call failed.
    Failed(Failure),
}

/// The reason why a call failed.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The driver returned an error, and nothing of the call is still running. The call is retried while it is
    /// needed.
    Final,
    /// The request cannot be satisfied, and retries are useless. Occurs for expansions only: the requested size is
    /// abandoned.
    Infeasible,
    /// The driver sent no response, or a response after which the call may still be running. The call is repeated until
    /// its outcome is known, at most [`Policy::quiesce_attempts`](super::Policy::quiesce_attempts) times, even if it is
    /// no longer needed.
    Uncertain,
    /// The driver returned an error, and the spec forbids a retry. The call is not sent again before the driver
    /// restarts or, for an expansion, before a new request.
    NeverRetry,
    /// The driver returned OK, but the mount table disagrees. The call is repeated, or undone and repeated if a wrong
    /// mount was found.
    Contradicted(Mismatch),
    /// The driver returned OK, but the mount table could not be read. The call is repeated.
    Unchecked,
    /// `NodeUnstageVolume` was not sent, because a foreign mount uses the staging path. The intent is undone and set
    /// again later.
    InUse,
    /// The call was not sent to the driver: a secret was unavailable, the target was occupied, or the driver was
    /// unreachable. The intent is undone unless an earlier attempt was sent, and the call is retried while it is
    /// needed. If the earlier attempt may still be running, this counts as [`Failure::Uncertain`].
    NotSent,
    /// The driver returned OK for an expansion, but reported less than the requested size. The call is repeated.
    TooSmall,
    /// The last consumer was removed before the expansion was done.
    Abandoned,
}

/// How the mount table differs from the driver's response.
#[allow(clippy::exhaustive_enums, reason = "each is a case that the machine must handle")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mismatch {
    /// After an upward call: nothing is mounted at the path.
    Missing,
    /// After an upward call: another file system is mounted at the path, or mounts are stacked, or mount options
    /// differ.
    Wrong,
    /// After a downward call: the mount still exists.
    StillThere,
}

impl Failure {
    /// Returns whether the waiters are notified of the failure. An unknown outcome is not a result.
    #[must_use]
    pub fn is_reported(self) -> bool {
        !matches!(self, Self::Uncertain | Self::Unchecked)
    }

    /// Returns whether the driver may have received the call.
    #[must_use]
    pub fn was_sent(self) -> bool {
        !matches!(self, Self::InUse | Self::NotSent | Self::Abandoned)
    }

    /// Returns the failure class in lower case.
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
            Self::Final => "the driver returned an error",
            Self::Infeasible => "the driver cannot satisfy the request",
            Self::Uncertain => "the driver did not respond, or may still be executing the call",
            Self::NeverRetry => "the driver does not support the call, and it must not be retried",
            Self::Contradicted(Mismatch::Missing) => "the driver returned OK, but nothing is mounted",
            Self::Contradicted(Mismatch::Wrong) => {
                "the driver returned OK, but the mount is wrong or stacked"
            }
            Self::Contradicted(Mismatch::StillThere) => {
                "the driver returned OK, but the volume is still mounted"
            }
            Self::Unchecked => "the mount table could not be read",
            Self::InUse => "a foreign mount uses the staging path",
            Self::NotSent => "the call could not be sent to the driver",
            Self::TooSmall => "the driver returned OK, but the volume is smaller than requested",
            Self::Abandoned => "the last consumer was removed before the expansion was done",
        })
    }
}

/// Maps a gRPC status code of a call to an outcome. `None` is a broken connection, or a status that the driver did not
/// send, such as one that the client library generated: pass these as `None` whatever their code is.
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
/// ABORTED means that another call is pending for the volume. A volume has at most one call in flight, so the
/// pending call is an earlier attempt with an unknown outcome: ABORTED counts as no response to it. A number that
/// is not a gRPC code is uncertain.
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
