//! Adapters between relays and tower services, so that timeouts, limits and other middleware are layers.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tower_service::Service;

use crate::call::{Call, Fault, Replies};
use crate::relay::Relay;

/// A [`Relay`], such as a [`Dispatcher`](crate::Dispatcher) or a [`Driver`](crate::Driver), as a tower service of
/// calls. Always ready; cheap to clone.
///
/// ```
/// use std::time::Duration;
///
/// use csi_proxy::{Dispatcher, Fault, RelayService, ServiceRelay};
/// use tower::{BoxError, ServiceBuilder};
///
/// let waited = Duration::from_secs(60);
/// let layered = ServiceBuilder::new()
///     // An error is the timeout or a fault of the relay; a status of the driver is an answer.
///     .map_err(move |error: BoxError| match error.downcast::<Fault>() {
///         Ok(fault) => *fault,
///         Err(_) => Fault::Deadline { waited },
///     })
///     // At most eight concurrent calls, the others wait.
///     .concurrency_limit(8)
///     // Limits the time to the first part of the answer. The work of the driver continues.
///     .timeout(waited)
///     .service(RelayService::new(Dispatcher::new()));
/// let relay = ServiceRelay::new(layered);
/// # let _ = relay;
/// ```
pub struct RelayService<R: ?Sized>(Arc<R>);

impl<R: Relay> RelayService<R> {
    /// Wraps a relay.
    #[must_use]
    pub fn new(relay: R) -> Self {
        Self(Arc::new(relay))
    }
}

impl<R: ?Sized> Clone for RelayService<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: ?Sized> fmt::Debug for RelayService<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayService")
    }
}

impl<R: Relay + ?Sized + 'static> Service<Call> for RelayService<R> {
    type Response = Replies;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<Replies, Fault>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let relay = Arc::clone(&self.0);
        Box::pin(async move { relay.relay(call).await })
    }
}

/// A tower service of calls as a [`Relay`].
#[derive(Debug, Clone)]
pub struct ServiceRelay<S>(S);

impl<S> ServiceRelay<S> {
    /// Wraps a service, which is cloned for every call.
    #[must_use]
    pub fn new(service: S) -> Self {
        Self(service)
    }
}

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
