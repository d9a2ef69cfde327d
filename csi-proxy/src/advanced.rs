//! **No stability promise**: the parts below the types of the front page, for simulations, tools and own stores. Any
//! release may change or remove them.
//!
//! The core of the monitor takes events and the time, and returns what was broken: it opens no socket and starts no task.

/// Parts of a call: what prevents stale copies from beginning, and what identifies a request.
pub mod call {
    pub use crate::call::{
        BadRequest, CallNumber, Digest, Fence, GivenUp, InvalidFence, Key, MAX_GIVEN_UP, MAX_METHOD_PATH,
        MAX_NODE_ID, MAX_SUBJECT, MAX_SUBJECTS, Subject,
    };
}

/// What a store of driver info holds.
pub mod driver_info {
    pub use crate::driver_info::{Info, MAX_RECORD};
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
    pub use crate::relay::{HubPresence, Missing, NodeChange, NodeStatus};
}

/// The default store of terms.
#[cfg(feature = "runtime")]
pub mod terms {
    pub use crate::dispatcher::MemoryTerms;
}

/// What a store of placements holds.
pub mod routing {
    #[cfg(feature = "testing")]
    pub use crate::routing::store::{FaultyStore, Handle, StoreFault, conformance};
    #[cfg(feature = "runtime")]
    pub use crate::routing::store::{PlacementStore, Written};
    pub use crate::routing::{
        Change, Claim, ClaimConflict, Defect, Placement, Refusal, Revision, Row, Status,
    };
}
