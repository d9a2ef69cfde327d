//! Relays: carry calls from endpoints to drivers.

mod bounded;
pub mod bus;
mod node_segment;
mod refused;
mod retry;
#[cfg(feature = "edge-transport")]
mod session;
#[cfg(feature = "testing")]
mod testing;
pub mod tower;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::{StreamExt as _, stream};

pub(crate) use self::bounded::BoundedAnswers;
pub use self::node_segment::{InvalidSegment, NodeSegment, TopologyRelay};
pub use self::retry::{
    ClockTerms, DEFAULT_RECONNECT_GRACE, HubPresence, Missing, NodeChange, NodeStatus, Reachability,
    Replaced, RetryRelay, TermError, TermSource, next_term,
};
#[cfg(feature = "edge-transport")]
pub use self::session::{CSI_SERVICE, NodeWatch, ServeCsi, SessionRelay};
#[cfg(feature = "testing")]
pub use self::testing::{FaultyRelay, InjectedFault, conformance};
use crate::call::{Call, Fault, Replies, Reply};

/// Carries a call to its node and returns the answer. The only trait to implement for another message bus.
///
/// # Contract
/// - The body and every message arrive byte for byte.
/// - An answer of the driver, success or failure, is an `Ok` that ends with [`Origin::Driver`](crate::Origin::Driver);
///   a failure of the relay is an `Err`, or, after messages were passed on, an end with
///   [`Origin::Relay`](crate::Origin::Relay).
/// - Dropping the future or the [`Replies`] ends the wait, never the work: a volume may be half created.
/// - A future that is neither polled nor dropped may block the work.
/// - The caller enforces its own deadline; [`Call::remaining`] is for later stages.
///
/// `conformance` (feature `testing`) tests an implementation against this contract.
#[async_trait]
pub trait Relay: Send + Sync {
    /// Carries one call. Runs concurrently with other calls, in any order, on any thread; a relay that bounds its open
    /// calls refuses further ones with [`Fault::Overloaded`]. Dropping the future is safe at any point: the call then has
    /// begun or not, and is not sent later.
    ///
    /// # Errors
    /// If the relay failed before the driver answered, or lost the answer.
    async fn relay(&self, call: Call) -> Result<Replies, Fault>;
}

#[async_trait]
impl<R: Relay + ?Sized> Relay for std::sync::Arc<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        (**self).relay(call).await
    }
}

/// Opens an answer from its parts. The first [`Reply::End`] is the last part that is read; if it is a fault and the first part,
/// it is the error.
async fn opened(parts: impl Stream<Item = Reply> + Send + 'static) -> Result<Replies, Fault> {
    let mut parts = Box::pin(parts);
    match parts.next().await {
        Some(first @ Reply::Message(_)) => Ok(Replies::stream(stream::iter([first]).chain(parts))),
        Some(Reply::End(outcome)) => match outcome.fault() {
            Some(fault) => Err(fault.clone()),
            None => Ok(Replies::outcome(outcome)),
        },
        None => Err(Fault::ServiceLost { what: "the relay".to_owned() }),
    }
}

/// Relays a call until its caller has left; `None` if it has. A queued call without a caller must not begin, and a begun
/// one continues.
async fn until_left(
    relay: &(impl Relay + ?Sized),
    call: Call,
    left: impl Future<Output = ()>,
) -> Option<Replies> {
    tokio::select! {
        biased;
        answer = relay.relay(call) => Some(answer.unwrap_or_else(Replies::outcome)),
        () = left => None,
    }
}
