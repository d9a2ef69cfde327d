//! The node side: passes incoming calls to the drivers that they name.

#[cfg(feature = "runtime")]
mod detach_on_drop;
#[cfg(feature = "runtime")]
mod dispatch;
#[cfg(feature = "runtime")]
mod driver;
#[cfg(feature = "runtime")]
mod drivers;
#[cfg(feature = "testing")]
pub mod operation;
#[cfg(all(feature = "runtime", not(feature = "testing")))]
#[allow(unreachable_pub, reason = "reachable with the feature `testing`")]
pub(crate) mod operation;
#[cfg(feature = "runtime")]
mod terms;

#[cfg(feature = "runtime")]
pub use self::dispatch::{DEFAULT_MAX_IN_FLIGHT, Dispatcher};
#[cfg(feature = "testing")]
pub use self::driver::Connector;
#[cfg(feature = "runtime")]
pub use self::driver::Driver;
#[cfg(feature = "runtime")]
pub use self::operation::Counts;
#[cfg(feature = "runtime")]
pub use self::terms::{MemoryTerms, TermStore, TermStoreError};
