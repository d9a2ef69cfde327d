//! Selects the node of a call.
//!
//! The pure part: a [selector](NodeSelector::select) selects the node of a new volume by topology, [`Placements`]
//! record that choice and the node of everything with an id, and a [`Refusal`] is what the router answers without
//! calling a node. A `TopologyRouter` drives it for a driver on many nodes, over a `PlacementStore`.
#![cfg_attr(
    not(feature = "runtime"),
    allow(dead_code, unused_imports, reason = "only the runtime routes calls")
)]

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

pub(crate) use self::claims::Claims;
pub use self::claims::{Claim, ClaimConflict};
pub(crate) use self::placements::AttemptResult;
pub use self::placements::{Change, Defect, Placement, Revision, Row, Status};
pub use self::refusal::Refusal;
pub(crate) use self::request::VolumeRequest;
#[cfg(feature = "runtime")]
pub use self::router::Router;
pub use self::selection::OfflinePolicy;
pub(crate) use self::selection::{Candidate, NodeSelector};
#[cfg(feature = "runtime")]
pub use self::topology::{
    DecommissionError, Decommissioned, MAX_DECOMMISSIONED, OpenRouteError, RepairError, TopologyRouter,
    TopologyRouterBuilder,
};
#[cfg(feature = "runtime")]
pub(crate) use self::topology::{InboundCall, with_topology};
