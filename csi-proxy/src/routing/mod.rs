//! Selects the node of a call.
//!
//! The pure part: a [selector](NodeSelector::select) selects the node of a new volume by topology, [`Placements`]
//! record that choice and the node of everything with an id, and a [`Refusal`] is what the router answers without
//! calling a node. A `TopologyRouter` drives it for a driver on many nodes, over a `PlacementStore`.

mod claims;
#[cfg(feature = "runtime")]
mod durable;
mod placements;
mod refusal;
mod request;
#[cfg(feature = "runtime")]
mod router;
mod selection;
#[cfg(feature = "runtime")]
pub(crate) mod store;
#[cfg(feature = "runtime")]
mod topology;

pub use self::claims::{Claim, ClaimConflict, Claims};
pub use self::placements::{
    Attempt, AttemptResult, Change, DEFAULT_MAX_ROWS, DEFAULT_MAX_ROWS_OF_NODE, DELETED_FOR, Defect,
    Placement, Placements, Revision, Row, Status,
};
pub use self::refusal::Refusal;
pub use self::request::VolumeRequest;
#[cfg(feature = "runtime")]
pub use self::router::Router;
pub use self::selection::{Candidate, NodeSelector, OfflinePolicy, Presence};
#[cfg(feature = "runtime")]
pub use self::topology::{
    DecommissionError, Decommissioned, MAX_DECOMMISSIONED, OpenRouteError, RepairError, TopologyRouter,
    TopologyRouterBuilder,
};
#[cfg(feature = "runtime")]
pub(crate) use self::topology::{InboundCall, with_topology};
