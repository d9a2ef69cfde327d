//! The node's side: calls arrive, and the driver that they name answers them.

#[cfg(feature = "runtime")]
mod dispatch;
#[cfg(feature = "runtime")]
mod driver;
pub mod operation;
#[cfg(feature = "runtime")]
mod terms;
#[cfg(feature = "runtime")]
mod to_the_end;

#[cfg(feature = "runtime")]
pub use self::dispatch::{DEFAULT_MAX_IN_FLIGHT, Dispatcher};
#[cfg(feature = "testing")]
pub use self::driver::Connector;
#[cfg(feature = "runtime")]
pub use self::driver::{Driver, DriverSettings};
#[cfg(feature = "runtime")]
pub use self::terms::{MemoryTerms, TermStore, TermStoreError};
