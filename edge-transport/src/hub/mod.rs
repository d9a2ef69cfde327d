//! The hub: takes links, authenticates peers, and passes the frames of their calls on without reading them.
//!
//! [`Core`] is the routing table, pure; with the feature `runtime`, [`Hub`] drives it on listeners.

mod core;
#[cfg(feature = "runtime")]
mod driver;
#[cfg(feature = "metrics")]
mod metrics;
mod outbox;
mod policy;
mod settings;
mod stats;

pub use self::core::{Core, SessionKey};
#[cfg(feature = "runtime")]
pub(crate) use driver::WeakHub;
#[cfg(feature = "runtime")]
pub use driver::{Hub, HubBuilder, HubError};
pub use policy::{AllowAll, InvalidRule, NodesCallNobody, OnlyNodes, Policy, Requester, Rule, Rules};
pub use settings::HubSettings;
pub use stats::{HubStats, PeerInfo, Presence};
