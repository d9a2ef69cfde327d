//! The hub: accepts links, authenticates peers, and forwards the frames of their calls without reading bodies.
//!
//! [`Core`] is the routing table, pure; with the feature `runtime`, [`Hub`] drives it on listeners.

mod core;
mod identity;
#[cfg(feature = "metrics")]
mod metrics;
mod outbox;
mod policy;
#[cfg(feature = "runtime")]
mod runtime;
mod settings;
mod stats;

pub use self::core::{Core, SessionKey};
pub use policy::{AllowAll, ClientsOnly, InvalidRule, NodesOnly, Policy, Requester, Rule, Rules};
#[cfg(feature = "runtime")]
pub(crate) use runtime::WeakHub;
#[cfg(feature = "runtime")]
pub use runtime::{Hub, HubBuilder, HubError};
pub use settings::HubSettings;
pub use stats::{HubStats, PeerInfo, Presence};
