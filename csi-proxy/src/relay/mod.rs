//! What carries a call to where its driver is.

mod node_segment;
mod retry;
mod service;
#[cfg(feature = "edge-transport")]
mod session;
#[cfg(any(test, feature = "testing"))]
mod testing;

use async_trait::async_trait;

pub use self::node_segment::{InvalidSegment, NodeSegment, TopologyRelay};
pub use self::retry::{
    ClockTerms, DEFAULT_RECONNECT_GRACE, Missing, NodeStatus, Reachability, Replaced, RetryRelay, TermError,
    TermSource, next_term,
};
pub use self::service::{RelayService, ServiceRelay};
#[cfg(feature = "edge-transport")]
pub use self::session::{CSI_SERVICE, NodeWatch, SessionRelay, SessionService};
#[cfg(any(test, feature = "testing"))]
pub use self::testing::{Fate, FaultyRelay, conformance};
use crate::call::{Call, Fault, Replies};

/// Carries a call to its node and its answer back. The only thing to write for another message bus.
///
/// # Contract
/// - The body and every message arrive byte for byte.
/// - What the driver answered, success or failure, is an `Ok` that ends with [`Origin::Driver`](crate::Origin::Driver); a
///   failure on the way is an `Err`, or, after messages have been passed on, an end with [`Origin::Relay`](crate::Origin::Relay).
/// - Dropping the future or the [`Replies`] ends the wait. It never ends the work: a volume may be half made.
/// - A future that is neither polled nor dropped may hold the work up.
/// - The caller watches its own time; [`Call::remaining`] is for what lies further on.
///
/// `conformance` (feature `testing`) tests an implementation against this.
#[async_trait]
pub trait Relay: Send + Sync {
    /// Carries one call.
    ///
    /// # Errors
    /// If the call failed on its way, so that there is no answer of the driver.
    async fn relay(&self, call: Call) -> Result<Replies, Fault>;
}

#[async_trait]
impl<R: Relay + ?Sized> Relay for std::sync::Arc<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        (**self).relay(call).await
    }
}
