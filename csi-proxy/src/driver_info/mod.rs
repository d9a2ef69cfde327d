//! Driver info: the answers of drivers to start-up calls, cached per driver and node and refreshed in the background.
//!
//! A sidecar exits when a start-up call fails, so these calls are never relayed while the sidecar waits: an endpoint
//! answers them from this cache, and a topology route selects nodes by it. See [`Cache`] for the rules. A
//! [`DriverInfoStore`] keeps the answers, so that sidecars can start while the edge is offline; [`StartupView`] reports their
//! age.

mod cache;
mod info;
mod question;
#[cfg(feature = "runtime")]
mod refresh;
#[cfg(feature = "runtime")]
mod store;

pub use self::cache::{Cache, Entry, MAX_NODES, Mode, Notice, Presence, StartupStatus};
pub use self::info::{Fact, Info, MAX_RECORD};
pub use self::question::Question;
#[cfg(feature = "runtime")]
pub use self::refresh::StartupView;
#[cfg(feature = "runtime")]
pub(crate) use self::refresh::{DriverInfo, MAX_CONCURRENT_ROUNDS};
#[cfg(feature = "runtime")]
pub use self::store::DriverInfoStore;
