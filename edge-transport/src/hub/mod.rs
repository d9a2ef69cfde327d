//! The hub: takes links, authenticates peers, and passes the frames of their calls on without reading them.
//!
//! [`Core`] is the routing table, pure; with the feature `runtime`, [`Hub`] drives it on listeners.

mod core;
#[cfg(feature = "metrics")]
mod metrics;
mod outbox;
mod policy;
#[cfg(feature = "runtime")]
mod runtime;
mod settings;
mod stats;

pub use self::core::{Core, SessionKey};
pub use policy::{AllowAll, InvalidRule, NodesCallNobody, OnlyNodes, Policy, Requester, Rule, Rules};
#[cfg(feature = "runtime")]
pub(crate) use runtime::WeakHub;
#[cfg(feature = "runtime")]
pub use runtime::{Hub, HubBuilder, HubError};
pub use settings::HubSettings;
pub use stats::{HubStats, PeerInfo, Presence};
