//! Events and actions of a [`Core`](super::Core).

use std::time::Instant;

use super::super::answer::Answer;
use super::super::identity::Identity;
use crate::call::{CallId, Fault, Fence};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(u64);

        impl $name {
            /// Converts a number to an id.
            pub(crate) const fn new(number: u64) -> Self {
                Self(number)
            }
        }
    )*};
}

numbers! {
    /// Identifies one operation. Never reused.
    OperationId,
    /// Identifies one waiting copy of a call. Assigned by the driver of the core; never reused.
    WaiterId
}

/// An input of the core.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A copy of a call requests an operation.
    Requested {
        /// The copy.
        waiter: WaiterId,
        /// The call; all its copies have this id.
        call: CallId,
        /// The operation.
        identity: Identity,
        /// The fence of the call; `None` for a call made on this node.
        fence: Option<Fence>,
        /// Whether the call came from another host. Remote calls use at most half of each table and queue, and local
        /// calls leave a queue first.
        remote: bool,
        /// When the caller stops waiting; `None` for never. A later result does not reach the caller.
        until: Option<Instant>,
    },
    /// The waiter of this copy has left. Its operation continues.
    Left {
        /// The copy.
        waiter: WaiterId,
    },
    /// The driver has answered.
    Answered {
        /// The operation.
        operation: OperationId,
        /// The answer.
        answer: Answer,
    },
    /// The operation ended without an answer of the driver. If the driver was called, it may still be running.
    Lost {
        /// The operation.
        operation: OperationId,
        /// The fault.
        fault: Fault,
    },
    /// All queued waiters fail with this fault; nothing begins any more.
    RejectQueued {
        /// The fault.
        fault: Fault,
    },
    /// Only time has passed.
    Tick,
}

/// An output of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Call the driver with the request of this waiter. Followed by [`Event::Answered`] or [`Event::Lost`], whether or
    /// not the waiter leaves; no other action is for this waiter.
    Run {
        /// The operation.
        operation: OperationId,
        /// The waiter whose request is used.
        waiter: WaiterId,
    },
    /// The waiter is queued.
    Wait {
        /// The waiter.
        waiter: WaiterId,
        /// When the waiter fails, by an [`Event::Tick`], unless its operation has begun by then.
        deadline: Instant,
    },
    /// The waiter gets the driver's answer. No event follows.
    Answer {
        /// The waiter.
        waiter: WaiterId,
        /// The answer.
        answer: Answer,
        /// How the waiter was served.
        served: Served,
    },
    /// The waiter fails with a fault of the relay. No event follows.
    Fail {
        /// The waiter.
        waiter: WaiterId,
        /// The fault.
        fault: Fault,
    },
}

/// How a waiter got an answer without executing the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// The waiter joined the running operation.
    Joined,
    /// The waiter got a kept result.
    Replayed,
}

/// The counts of a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Running operations.
    pub running: usize,
    /// Waiting copies of calls, for results or in the queue.
    pub waiters: usize,
    /// The waiting copies that are queued: their operation has not begun.
    pub waiting: usize,
    /// Kept results.
    pub kept: usize,
    /// The size of kept results in bytes.
    pub bytes: usize,
}
