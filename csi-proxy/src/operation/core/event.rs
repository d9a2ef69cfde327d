//! What goes into a [`Core`](super::Core) and what comes out.

use std::time::{Duration, Instant};

use super::super::answer::Answer;
use super::super::identity::Identity;
use super::super::subject::Key;
use crate::fault::Fault;

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

            /// The number.
            #[must_use]
            pub const fn number(self) -> u64 {
                self.0
            }
        }
    )*};
}

numbers! {
    /// Names one operation, in the core and in the journal. Never used again for another one.
    OperationId,
    /// Names one call that asks. Chosen by whoever drives the core; never used again for another call.
    AskerId
}

/// What has happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A call asks for an operation.
    Ask {
        /// The call.
        asker: AskerId,
        /// What it asks for.
        identity: Identity,
        /// When its caller stops waiting, by its own word; `None`: never. An answer that is sent or taken later counts as not
        /// delivered.
        until: Option<Instant>,
    },
    /// Nobody waits at this call any more, or its answer has got lost on its way. Its operation goes on.
    Left {
        /// The call.
        asker: AskerId,
    },
    /// The answer that was given to this call is on its way, and somebody will say whether it has come: followed by
    /// [`Self::Taken`] or [`Self::Left`]. Until then whoever asks for the same is given the same answer, and one of them that has got
    /// it is enough.
    Sent {
        /// The call.
        asker: AskerId,
    },
    /// The answer that was given to this call has been delivered.
    Taken {
        /// The call.
        asker: AskerId,
    },
    /// The driver is being called.
    Started {
        /// The operation.
        operation: OperationId,
    },
    /// The driver has answered.
    Answered {
        /// The operation.
        operation: OperationId,
        /// What it said.
        answer: Answer,
    },
    /// The call ended without an answer of the driver.
    Lost {
        /// The operation.
        operation: OperationId,
        /// How.
        fault: Fault,
    },
    /// Nothing is begun any more: those who wait for their turn are failed with this.
    TurnAway {
        /// Why.
        fault: Fault,
    },
    /// Time has passed. What has waited too long is forgotten at every event; this is one for when there is no other.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Action {
    /// The driver is to be called. Ends with [`Event::Answered`] or [`Event::Lost`].
    ///
    /// Not before no journal on disk holds a finished answer about the operation's [keys](Identity::keys) any more: after a
    /// crash it would be handed out though it is void. The entries that remove them have come before.
    Run {
        /// The operation.
        operation: OperationId,
        /// Which call's request to use: of the call that has just asked, or of one that has [waited](Self::Wait) first, and may have
        /// gone since.
        asker: AskerId,
        /// What is run.
        identity: Identity,
    },
    /// Something else is done to what the call's operation is about, or waits for it already: the call waits for its turn. It ends
    /// with an answer as any other, or with [`Fault::OperationPending`], for which an event is due at `gives_up`.
    Wait {
        /// The call.
        asker: AskerId,
        /// Whether its request is the one to be used. Then a [`Self::Run`] or a [`Self::LetGo`] of this call follows. If not, a call
        /// before it waits for the same.
        first: bool,
        /// When it is refused, unless its turn has come by then.
        gives_up: Instant,
    },
    /// The request of a call that was to wait for its turn is not needed: nobody waits for it any more.
    LetGo {
        /// The call.
        asker: AskerId,
    },
    /// The actions that follow wait until no journal on disk holds a finished answer of another operation about these keys.
    Settle {
        /// The operation whose answer is given.
        operation: OperationId,
        /// What it was about, beside what its request named.
        keys: Vec<Key>,
    },
    /// A call gets the driver's answer. Followed by [`Event::Taken`] or [`Event::Left`], and before that by [`Event::Sent`] if it takes
    /// time to find out which.
    Answer {
        /// The call.
        asker: AskerId,
        /// The answer.
        answer: Answer,
        /// How it comes to have it.
        way: Way,
    },
    /// A call ends with a fault of ours. No event follows.
    Fail {
        /// The call.
        asker: AskerId,
        /// The fault.
        fault: Fault,
    },
    /// The journal, if there is one, is to know this. It may be written later, but never out of order.
    Record(Entry),
}

/// How a call comes to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// The driver was called for it.
    Ran,
    /// The driver was at it already.
    Joined,
    /// The answer was there and had waited.
    Late,
}

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// The operation has come this far.
    Put {
        /// The operation.
        operation: OperationId,
        /// What it is.
        identity: Identity,
        /// How far.
        stage: Stage,
    },
    /// Nothing is to be known of the operation any more.
    Remove {
        /// The operation.
        operation: OperationId,
    },
}

impl Entry {
    /// Which operation it is of.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        match self {
            Self::Put { operation, .. } | Self::Remove { operation } => *operation,
        }
    }
}

/// How far an operation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// It is to be run. Found after a restart, the driver may have been called or not.
    Accepted,
    /// The driver was called.
    Started,
    /// The driver succeeded with this answer, and nobody has taken it, nor is it on its way to anybody.
    ///
    /// Failures are never written: their text is the driver's and may quote the request. After a restart they are asked for
    /// again.
    Finished(Answer),
}

/// An operation as the journal knew it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Which.
    pub operation: OperationId,
    /// What it is.
    pub identity: Identity,
    /// How far it had come.
    pub stage: Stage,
    /// How long ago that was written.
    pub age: Duration,
}

impl Restored {
    /// Puts one together.
    #[must_use]
    pub const fn new(operation: OperationId, identity: Identity, stage: Stage, age: Duration) -> Self {
        Self { operation, identity, stage, age }
    }
}

/// An operation whose end is not known: the driver was lost, or this process was. Asking again has it done again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uncertain {
    /// Which.
    pub operation: OperationId,
    /// What it is.
    pub identity: Identity,
    /// Whether the driver was certainly called.
    pub started: bool,
}

/// How much a core holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Operations that drivers are at.
    pub running: usize,
    /// Calls that wait, or have an answer that is not delivered yet.
    pub askers: usize,
    /// Those of them that wait for their turn: what they ask for has not begun.
    pub waiting: usize,
    /// Operations that are over and whose answer waits for its asker.
    pub kept: usize,
    /// Operations that are over and whose answer is on its way.
    pub sent: usize,
    /// Operations whose end is not known.
    pub uncertain: usize,
    /// Bytes of all that are over.
    pub bytes: usize,
}
