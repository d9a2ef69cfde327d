//! Which node a call goes to.
//!
//! The pure part: an [election](Ballot::elect) chooses the node of a new volume by topology, a [`Ledger`] keeps to the choice
//! and knows where everything is that has an id, and a [`Refusal`] is what the router answers where no node is asked. A
//! `TopologyRouter` drives it for a driver that is on many nodes.

mod election;
mod field;
#[cfg(feature = "runtime")]
mod keeper;
mod ledger;
mod refusal;
mod request;
#[cfg(feature = "runtime")]
mod router;
#[cfg(feature = "runtime")]
mod topology;

pub use self::election::{Ballot, Candidate, OfflinePolicy, Presence};
pub use self::ledger::{Attempt, DEFAULT_MAX_ROWS, End, Event, Ledger, MAGIC, Step, VERSION};
pub use self::refusal::Refusal;
pub use self::request::VolumeRequest;
#[cfg(feature = "runtime")]
pub(crate) use self::router::Chosen;
#[cfg(feature = "runtime")]
pub use self::router::{Route, RouteError, Router};
#[cfg(feature = "runtime")]
pub use self::topology::{
    DecommissionError, Decommissioned, MAX_DECOMMISSIONED, OpenRouteError, TopologyRouter, TopologySettings,
};
#[cfg(feature = "runtime")]
pub(crate) use self::topology::{Inquiry, Way};
