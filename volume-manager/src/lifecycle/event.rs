//! Events that the state machine handles, and effects that it requests.

use crate::ConsumerId;

use super::call::Call;
use super::outcome::{Failure, Outcome};
use super::volume::DriverCapabilities;

/// An event of one volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A consumer wants the volume at its target. A repeated event requests another [`Completed::Published`].
    Want(ConsumerId),
    /// A consumer no longer wants the volume.
    Release(ConsumerId),
    /// The volume must have at least this size.
    Expand {
        /// The size in bytes, above 0.
        required_bytes: u64,
    },
    /// Repeats `NodePublishVolume` for a published target, for example with a fresh token. The event is ignored
    /// for a target that is not published, because its publish is still pending. [`Completed::Published`] follows
    /// on success. If the call fails or stacks a second mount, the target stays published and no waiter is
    /// notified.
    Republish(ConsumerId),
    /// The external attach is complete. The caller must repeat the event after a restart, like every event that was
    /// sent before its record was durable.
    Attached,
    /// The external attach was removed. The volume is unpublished and unstaged.
    Detached,
    /// The last [`Effect::Record`] ended: durable if `true`, failed if `false`. After a failure no call is sent before
    /// [`Event::Proceed`].
    Recorded(bool),
    /// A call ended, or can no longer return a response. After a successful response the mount table was checked.
    Finished {
        /// The call.
        call: Call,
        /// The outcome of the call and of its verification.
        outcome: Outcome,
    },
    /// A mount is missing or dead. The caller must send the event to a restored volume, after a due [`Event::Rebooted`]
    /// and before [`Event::Proceed`], for every mount that the snapshot contains ([`Base::VolReady`],
    /// [`TargetState::Published`], [`TargetState::Republish`]) and the mount table does not.
    ///
    /// [`Base::VolReady`]: super::Base::VolReady
    /// [`TargetState::Published`]: super::TargetState::Published
    /// [`TargetState::Republish`]: super::TargetState::Republish
    MountLost(LostMount),
    /// The driver's process was replaced: no call of the old process is running, and back-offs end.
    DriverRestarted(DriverCapabilities),
    /// The driver is connected again, possibly with the same process, so its calls may still be running. The new
    /// capabilities apply, and RPCs that the driver did not implement may be sent again.
    Reconnected(DriverCapabilities),
    /// The node was booted after the snapshot was recorded: no call is running, and the node's mounts no longer exist.
    /// The caller must send the event to a restored volume before [`Event::Proceed`]. The caller stores the boot id
    /// with every snapshot and writes the current id with each [`Effect::Record`]; an [`Effect::Record`] follows this
    /// event before any call.
    Rebooted,
    /// The back-off of this call has elapsed.
    Resume(Call),
    /// Makes the due call after the volume was created or restored, or when the store accepts records again.
    Proceed,
}

/// A mount that is missing or dead.
#[allow(clippy::exhaustive_enums, reason = "the two kinds of mounts that a volume has")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostMount {
    /// The mount at the staging path.
    Staging,
    /// The mount at a consumer's target.
    Target(ConsumerId),
}

/// An action that the caller performs, in the given order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// Make the current [`Volume::snapshot`](super::Volume::snapshot) durable, then send [`Event::Recorded`]. Effects
    /// that depend on the record are not requested before that. At most one record is in progress.
    Record,
    /// Make the call and verify it, then send [`Event::Finished`].
    ///
    /// Before `NodeUnstageVolume` is sent, check that no foreign mount, such as a bind mount of another program, uses
    /// the staging path. If one does, do not send the call and finish it with [`Failure::InUse`]. After a response that
    /// may be OK, compare the mount table.
    Call(Call),
    /// Wait, then send [`Event::Resume`] with this call. A new back-off for the same call replaces this one, and
    /// [`Event::DriverRestarted`] ends it.
    BackOff {
        /// The call to repeat.
        call: Call,
        /// Why the call failed.
        failure: Failure,
        /// The number of consecutive failures, from 1, for [`BackOff::wait`](super::BackOff::wait). It is capped at
        /// [`Policy::counted_attempts`](super::Policy::counted_attempts).
        attempt: u8,
    },
    /// A request is completed, and the result is on disk.
    Completed(Completed),
    /// A call that a request depends on failed. The request stays active and is retried as [`Failure`] specifies.
    Failed {
        /// The waiter to notify.
        waiter: Waiter,
        /// The call that failed.
        call: Call,
        /// Why the call failed.
        failure: Failure,
    },
    /// The request is rejected, and nothing changed.
    Rejected(RejectReason),
    /// No consumer wants the volume and nothing of it remains: the record may be removed and the volume dropped.
    Forget,
}

/// The result of a request.
#[allow(clippy::exhaustive_enums, reason = "the results of the three kinds of requests")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Completed {
    /// The volume is published at the consumer's target.
    Published(ConsumerId),
    /// Nothing remains at the consumer's target, and the consumer is no longer counted.
    Released(ConsumerId),
    /// The volume has at least the requested size.
    Expanded {
        /// The size that the driver reported, in bytes, or the requested size if the driver reported none.
        capacity_bytes: u64,
    },
}

/// A request that waits for a result.
#[allow(clippy::exhaustive_enums, reason = "the sources of the three kinds of requests")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiter {
    /// A publish or unpublish request of this consumer.
    Consumer(ConsumerId),
    /// The expansion request.
    Expansion,
}

/// The reason for a rejected request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The requested size is below an earlier one; a volume cannot shrink.
    #[error(
        "required_bytes is {required_bytes}, below the earlier request of {granted_bytes}; a volume cannot shrink"
    )]
    Shrink {
        /// The requested size in bytes.
        required_bytes: u64,
        /// The largest size requested before, in bytes.
        granted_bytes: u64,
    },
    /// The driver supports neither phase of an expansion.
    #[error(
        "neither the controller nor the node service of the driver has EXPAND_VOLUME; use a driver that has it"
    )]
    CannotExpand,
}
