//! Relays as tower services and back, so that timeouts, limits and other middleware are layers.
//!
//! ```
//! use std::time::Duration;
//!
//! use csi_proxy::{Dispatcher, Fault};
//! use tower::{BoxError, ServiceBuilder};
//!
//! let waited = Duration::from_secs(60);
//! let layered = ServiceBuilder::new()
//!     // An error is the timeout or a fault of the relay; a status of the driver is an answer.
//!     .map_err(move |error: BoxError| match error.downcast::<Fault>() {
//!         Ok(fault) => *fault,
//!         Err(_) => Fault::Deadline { waited },
//!     })
//!     // At most eight concurrent calls, the others wait.
//!     .concurrency_limit(8)
//!     // Limits the time to the first part of the answer. The work of the driver continues.
//!     .timeout(waited)
//!     .service(csi_proxy::tower::service(Dispatcher::new()));
//! let relay = csi_proxy::tower::relay(layered);
//! # let _ = relay;
//! ```

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tower_service::Service;

use crate::call::{Call, Fault, Replies};
use crate::relay::Relay;

/// The future of an answer.
type Answer = Pin<Box<dyn Future<Output = Result<Replies, Fault>> + Send>>;

/// A relay, such as a [`Dispatcher`](crate::Dispatcher), as a tower service of calls. The service is always ready.
pub fn service(
    relay: impl Relay + 'static,
) -> impl Service<Call, Response = Replies, Error = Fault, Future: Send> + Clone + Send + Sync + 'static {
    RelayService(Arc::new(relay))
}

/// A tower service of calls as a relay. The service is cloned for each call. Dropping the future of the relay drops that of
/// the service.
pub fn relay<S>(service: S) -> impl Relay + Clone + 'static
where
    S: Service<Call, Response = Replies> + Clone + Send + Sync + 'static,
    S::Error: Into<Fault>,
    S::Future: Send,
{
    ServiceRelay(service)
}

#[derive(Clone)]
struct RelayService(Arc<dyn Relay>);

impl Service<Call> for RelayService {
    type Response = Replies;
    type Error = Fault;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let relay = Arc::clone(&self.0);
        Box::pin(async move { relay.relay(call).await })
    }
}

#[derive(Clone)]
struct ServiceRelay<S>(S);

#[async_trait]
impl<S> Relay for ServiceRelay<S>
where
    S: Service<Call, Response = Replies> + Clone + Send + Sync,
    S::Error: Into<Fault>,
    S::Future: Send,
{
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let mut service = self.0.clone();
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
        service.call(call).await.map_err(Into::into)
    }
}
