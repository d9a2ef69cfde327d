//! The hub: accepts links, authenticates peers, and forwards the frames of their calls without reading bodies.
//!
//! The routing table is pure ([`advanced::Core`](crate::advanced::Core)); with the feature `runtime`, [`Hub`] drives it on
//! listeners.

pub(crate) mod core;
#[cfg(all(feature = "tls", feature = "runtime"))]
mod deny;
mod identity;
#[cfg(feature = "metrics")]
mod metrics;
mod policy;
#[cfg(feature = "runtime")]
mod runtime;
pub(crate) mod settings;
pub(crate) mod stats;

#[cfg(feature = "runtime")]
pub(crate) use self::core::{Core, SessionKey};
#[cfg(all(feature = "tls", feature = "runtime"))]
pub use self::deny::DenyList;
pub use policy::{InvalidRule, Policy, Requester, Rules};
#[cfg(feature = "runtime")]
pub(crate) use runtime::WeakHub;
#[cfg(feature = "runtime")]
pub use runtime::{Hub, HubBuilder};
pub(crate) use settings::HubSettings;
pub(crate) use stats::Presence;
pub use stats::{HubStats, PeerInfo};
