//! Which node a call goes to.
//!
//! The pure part: an [election](Ballot::elect) chooses the node of a new volume by topology, [`Placements`] keep to the choice
//! and know where everything is that has an id, and a [`Refusal`] is what the router answers where no node is asked. A
//! `TopologyRouter` drives it for a driver that is on many nodes, over a `PlacementStore`.

#[cfg(feature = "runtime")]
mod durable;
mod election;
mod placements;
mod refusal;
mod request;
#[cfg(feature = "runtime")]
mod router;
#[cfg(feature = "runtime")]
pub mod store;
#[cfg(feature = "runtime")]
mod topology;

pub use self::election::{Ballot, Candidate, OfflinePolicy, Presence};
pub use self::placements::{
    Attempt, Change, DEFAULT_MAX_ROWS, DELETED_FOR, Defect, End, Placement, Placements, Revision, Row, Status,
};
pub use self::refusal::Refusal;
pub use self::request::VolumeRequest;
#[cfg(feature = "runtime")]
pub use self::router::Router;
#[cfg(feature = "runtime")]
pub use self::topology::{
    DecommissionError, Decommissioned, MAX_DECOMMISSIONED, OpenRouteError, TopologyRouter, TopologySettings,
};
#[cfg(feature = "runtime")]
pub(crate) use self::topology::{Inquiry, with_topology};
