//! Driver info: the answers of drivers to start-up calls, cached per driver and node and refreshed in the background.
//!
//! A sidecar exits when a start-up call fails, so these calls are never relayed while the sidecar waits: an endpoint
//! answers them from this cache, and a topology route selects nodes by it. See [`Cache`] for the rules. A
//! [`DriverInfoStore`] keeps the answers, so that sidecars can start while the edge is offline; [`StartupView`] reports their
//! age.
#![cfg_attr(
    not(feature = "runtime"),
    allow(dead_code, unused_imports, reason = "only the runtime drives the cache")
)]

mod cache;
mod info;
mod question;
#[cfg(feature = "runtime")]
mod refresh;
#[cfg(feature = "runtime")]
mod store;

pub use self::cache::StartupStatus;
pub(crate) use self::cache::{Cache, Entry, MAX_NODES, Mode, Presence};
pub use self::info::{Info, MAX_RECORD};
pub(crate) use self::question::Question;
#[cfg(feature = "runtime")]
pub use self::refresh::StartupView;
#[cfg(feature = "runtime")]
pub(crate) use self::refresh::{DriverInfo, MAX_CONCURRENT_ROUNDS};
#[cfg(feature = "runtime")]
pub use self::store::DriverInfoStore;
