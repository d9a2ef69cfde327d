//! What happens to a volume, and what is to be done.

use crate::ConsumerId;

use super::call::Call;
use super::outcome::{Failure, Outcome};
use super::volume::DriverCapabilities;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A consumer wants the volume at its target. Asking again asks for another [`Reached::Published`].
    Want(ConsumerId),
    /// A consumer does not want it any more.
    Release(ConsumerId),
    /// The volume shall have at least this size.
    Expand {
        /// In bytes, above 0.
        required_bytes: u64,
    },
    /// Make `NodePublishVolume` again for a published target, such as for a fresh token. Ignored for one that is not
    /// published: its publish is still to come. [`Reached::Published`] follows if it succeeds. If it does not, or puts a second
    /// mount on the first, the target stays published, and nobody is told that it is not.
    Republish(ConsumerId),
    /// The attach that is awaited from elsewhere is made. To be said again after a restart, like everything that was said
    /// before a record of it was durable.
    Attached,
    /// The attach that was made elsewhere is gone. What is above it is taken down.
    Detached,
    /// The last [`Effect::Record`] is done: durable if `true`, failed if `false`. After a failure nothing more is sent
    /// before [`Event::Proceed`].
    Recorded(bool),
    /// A call ended, or is known never to answer, and the mount table was looked at if it answered well.
    Finished {
        /// The call.
        call: Call,
        /// How it ended.
        outcome: Outcome,
    },
    /// A mount that should be there is not, or is dead. To be sent to a restored volume, after [`Event::Rebooted`] if that
    /// is due and before [`Event::Proceed`], for everything that its snapshot has as mounted ([`Base::VolReady`],
    /// [`TargetState::Published`], [`TargetState::Republish`]) and the mount table has not.
    ///
    /// [`Base::VolReady`]: super::Base::VolReady
    /// [`TargetState::Published`]: super::TargetState::Published
    /// [`TargetState::Republish`]: super::TargetState::Republish
    Lost(Lost),
    /// The driver's process was replaced: no call of the old one runs any more, and back-offs end.
    NewGeneration(DriverCapabilities),
    /// The driver is connected to anew, and its process may be the one of before: its calls may still run. What it can do
    /// counts from now on, and what it did not do may be asked of it again.
    Reconnected(DriverCapabilities),
    /// The node was booted since the snapshot was recorded: no call runs, and the node's mounts are gone. To be sent to a
    /// restored volume before [`Event::Proceed`]. The caller keeps the boot id beside every snapshot and writes the current
    /// one with each [`Effect::Record`]; one follows here before any call.
    Rebooted,
    /// The back-off of this call is over.
    Resume(Call),
    /// Go on: the volume is new or was just restored, or the store takes records again.
    Proceed,
}

/// A mount that is gone.
#[allow(clippy::exhaustive_enums, reason = "the two kinds of mounts that a volume has")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lost {
    /// That of the staging path.
    Staging,
    /// That of a consumer's target.
    Target(ConsumerId),
}

/// What to do, in the order given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// Make [`Volume::snapshot`](super::Volume::snapshot), as it is now, durable; then send [`Event::Recorded`]. What
    /// depends on it is not asked for before. There is never more than one under way.
    Record,
    /// Make the call, and verify it; then send [`Event::Finished`].
    ///
    /// Before `NodeUnstageVolume` is sent, look whether anybody but us uses what is staged, such as through a bind mount
    /// that we did not make: then it is not sent, and ended [so](Failure::InUse). After an answer that may be OK, look
    /// whether the mount table agrees.
    Call(Call),
    /// Wait; then send [`Event::Resume`] with this call. A new one for the same call, or a restart, replaces it.
    BackOff {
        /// The call that is to be repeated.
        call: Call,
        /// Why.
        failure: Failure,
        /// How often it failed in a row, from 1, for [`BackOff::wait`](super::BackOff::wait). It stops at
        /// [`Policy::counted_attempts`](super::Policy::counted_attempts).
        attempt: u8,
    },
    /// Somebody got what was asked for, and that is on disk.
    Reached(Reached),
    /// Somebody did not get it. It stays wanted, and is tried again as [`Failure`] says.
    Failed {
        /// Who waits.
        waiter: Waiter,
        /// What failed.
        call: Call,
        /// How.
        failure: Failure,
    },
    /// What was asked for is not done, and nothing changed.
    Refused(Refusal),
    /// Nothing is wanted and nothing is left: the record may be removed, and the volume dropped.
    Forget,
}

/// What was reached.
#[allow(clippy::exhaustive_enums, reason = "the answers to the three kinds of wishes")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reached {
    /// The consumer has the volume at its target.
    Published(ConsumerId),
    /// Nothing is left at the consumer's target, and it does not count any more.
    Released(ConsumerId),
    /// The volume has at least the size that was asked for.
    Expanded {
        /// The size that the driver reported, or the one that was asked for if it reported none, in bytes.
        capacity_bytes: u64,
    },
}

/// Who waits for a result.
#[allow(clippy::exhaustive_enums, reason = "the makers of the three kinds of wishes")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiter {
    /// A consumer that asked for the volume, or gave it back.
    Consumer(ConsumerId),
    /// Who asked for the expansion.
    Expansion,
}

/// Why a wish was refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A volume cannot become smaller.
    #[error(
        "required_bytes is {required_bytes}, below the {granted_bytes} that were asked for before; a volume only grows"
    )]
    Shrink {
        /// What was asked for.
        required_bytes: u64,
        /// The largest size that was asked for before.
        granted_bytes: u64,
    },
    /// Neither half of an expansion can be made.
    #[error(
        "neither the driver's controller nor its node service can expand a volume; use a driver that can"
    )]
    CannotExpand,
}
