//! **No stability promise**: the parts below the types of the front page, for simulations, tools and own stores. Any
//! release may change or remove them.
//!
//! The pure cores take events and the time, and return what to do: they open no socket and start no task.

/// Parts of a call: what prevents stale copies from beginning, and what identifies a request.
pub mod call {
    pub use crate::call::{
        BadRequest, CallNumber, Digest, Fence, GivenUp, InvalidFence, Key, MAX_GIVEN_UP, MAX_METHOD_PATH,
        MAX_NODE_ID, MAX_SUBJECT, MAX_SUBJECTS, Subject,
    };
}

/// The cache of the drivers' answers to start-up calls.
pub mod driver_info {
    pub use crate::driver_info::{
        Cache, Entry, Fact, Info, MAX_NODES, MAX_RECORD, Mode, Notice, Presence, Question,
    };
}

/// The state machine that finds the rules which an orchestrator has broken.
pub mod monitor {
    pub use crate::monitor::core::Monitor;
    pub use crate::monitor::event::{CallNumber, End, Event, InitialState, Limits};
    pub use crate::monitor::rule::{Rule, Violation};
}

/// Which operations a dispatcher runs, queues and joins.
#[cfg(feature = "testing")]
pub use crate::dispatcher::operation;

/// What a retrying relay knows about its nodes.
#[cfg(feature = "runtime")]
pub mod reachability {
    pub use crate::relay::{Missing, NodeStatus};
}

/// The default store of terms.
#[cfg(feature = "runtime")]
pub mod terms {
    pub use crate::dispatcher::MemoryTerms;
}

/// The table of placements, and the selection of nodes.
pub mod routing {
    #[cfg(feature = "testing")]
    pub use crate::routing::store::{FaultyStore, Handle, StoreFault, conformance};
    #[cfg(feature = "runtime")]
    pub use crate::routing::store::{PlacementStore, Written};
    pub use crate::routing::{
        Attempt, AttemptResult, Candidate, Change, Claim, ClaimConflict, Claims, DEFAULT_MAX_ROWS,
        DEFAULT_MAX_ROWS_OF_NODE, DELETED_FOR, Defect, NodeSelector, Placement, Placements, Presence,
        Refusal, Revision, Row, Status, VolumeRequest,
    };
}
