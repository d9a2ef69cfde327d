//! What drivers say of themselves: one cache for each driver and node, asked in the background.
//!
//! A sidecar exits when one of the questions fails that it asks at its start, so they never travel with the sidecar waiting: an endpoint
//! answers them from this cache, and a route by topology selects nodes by it. See [`Cache`] for the rules. What was learnt is kept in a
//! [`DriverInfoStore`], so that sidecars can start while the edge is off; [`View`] says how old it is.

mod cache;
mod info;
mod question;
#[cfg(feature = "runtime")]
mod refresh;
#[cfg(feature = "runtime")]
mod store;

pub use self::cache::{Cache, Entry, MAX_NODES, Mode, News, Presence, Status};
pub use self::info::{Fact, Info, MAX_RECORD};
pub use self::question::Question;
#[cfg(feature = "runtime")]
pub use self::refresh::View;
#[cfg(feature = "runtime")]
pub(crate) use self::refresh::{AT_ONCE, DriverInfo};
#[cfg(feature = "runtime")]
pub use self::store::DriverInfoStore;
