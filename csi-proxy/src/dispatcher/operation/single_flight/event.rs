//! What goes into a [`Core`](super::Core) and what comes out.

use std::time::Instant;

use super::super::answer::Answer;
use super::super::identity::Identity;
use crate::call::{CallId, Fault, Fence};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Takes a number.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }
        }
    )*};
}

numbers! {
    /// Names one operation. Never used again for another one.
    OperationId,
    /// Names one copy of a call that waits. Chosen by the core's driver; never used again for another one.
    WaiterId
}

/// What has happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A copy of a call arrives and asks for an operation.
    Ask {
        /// The copy.
        waiter: WaiterId,
        /// The call: all copies of it have this id.
        call: CallId,
        /// The operation.
        identity: Identity,
        /// What the call's proxy says of it; `None` for a call that was made on this node.
        fence: Option<Fence>,
        /// When its caller stops waiting; `None`: never. A result that comes later has not reached it.
        until: Option<Instant>,
    },
    /// Nobody waits at this copy any more. Its operation runs on.
    Left {
        /// The copy.
        waiter: WaiterId,
    },
    /// The driver has answered.
    Answered {
        /// The operation.
        operation: OperationId,
        /// What it said.
        answer: Answer,
    },
    /// The operation ended without an answer of the driver. If the driver was called, it may be running still.
    Lost {
        /// The operation.
        operation: OperationId,
        /// How.
        fault: Fault,
    },
    /// Nothing begins any more: all that wait for their turn fail with this.
    TurnAway {
        /// Why.
        fault: Fault,
    },
    /// Only time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// The driver is to be called with the request of this waiter. Followed by [`Event::Answered`] or [`Event::Lost`],
    /// whether or not the waiter leaves; no other action is for this waiter.
    Run {
        /// The operation.
        operation: OperationId,
        /// The waiter whose request is used.
        waiter: WaiterId,
    },
    /// The waiter waits for its turn.
    Wait {
        /// The waiter.
        waiter: WaiterId,
        /// When it is to be failed, by an [`Event::Tick`], unless its operation has begun by then.
        gives_up: Instant,
    },
    /// The waiter gets the driver's answer. No event follows.
    Answer {
        /// The waiter.
        waiter: WaiterId,
        /// The answer.
        answer: Answer,
        /// How it comes to have it.
        way: Way,
    },
    /// The waiter fails with a fault of ours. No event follows.
    Fail {
        /// The waiter.
        waiter: WaiterId,
        /// The fault.
        fault: Fault,
    },
}

/// How a waiter comes to an answer that it has not run the operation for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// The operation was running already.
    Joined,
    /// The result was there.
    Replayed,
}

/// How much a core holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Operations that drivers run.
    pub running: usize,
    /// Copies of calls that wait for a result or for their turn.
    pub waiters: usize,
    /// Those of them that wait for their turn: their operation has not begun.
    pub waiting: usize,
    /// Results that are kept.
    pub kept: usize,
    /// Bytes of those.
    pub bytes: usize,
}
