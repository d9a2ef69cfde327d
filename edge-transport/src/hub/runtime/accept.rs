//! Accepts links: a table of silent ones, a limited number of handshakes at a time, a limited queue of waiting
//! links, and a cheap rejection of the rest.
//!
//! Handshakes are the most expensive operation of a hub. When ten thousand peers reconnect at once, a peer that would time out
//! before its handshake must not cost one: the hub rejects the peer at once, and the peer retries after a backoff with
//! jitter, which spreads the load. A connection that sends nothing costs neither a slot nor a place in the queue.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::SinkExt;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Shared;
use super::connection::Connection;
use super::silent::SilentLinks;
use super::slots::{HandshakeSlots, SlotRequest};
use super::warn_limit::WarnLimit;
use crate::frame::{Frame, Kind, Lane, encode};
use crate::link::{Incoming, LinkKind, Listener, Source};
use crate::session::CloseReason;

/// Maximum number of refusals written at a time; further links are dropped without one.
const REFUSALS: usize = 64;

/// Timeout of writing a refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn accept_loop(mut listener: Box<dyn Listener>, shared: Arc<Shared>) {
    let stop = shared.stop_accepting.clone();
    let port = Arc::new(Port::new(&*listener, Arc::clone(&shared)));
    let (address, kind) = (&port.address, port.kind);
    let _failure = FailureGuard { address: address.clone(), shared: Arc::clone(&shared) };
    tracing::info!(address, %kind, "listening");
    loop {
        let mut incoming = match stop.run_until_cancelled(listener.accept()).await {
            None => return,
            Some(Ok(incoming)) => incoming,
            Some(Err(error)) => {
                tracing::error!(address, %error, "listener failed; no longer accepting connections");
                return;
            }
        };
        // Polled once here, so that a link whose kind does not wait for a byte is never among the silent ones.
        match poll_fn(|cx| Poll::Ready(incoming.poll_first_byte(cx))).await {
            Poll::Pending => {
                let admission = Arc::clone(&port).admission_of_silent(incoming);
                shared.tasks.spawn(serve(admission, Arc::clone(&shared)));
            }
            Poll::Ready(Ok(())) => {
                if let Some((incoming, request)) = port.request_slot(incoming) {
                    let admission = admission(incoming, request, Arc::clone(&shared));
                    shared.tasks.spawn(serve(admission, Arc::clone(&shared)));
                }
            }
            Poll::Ready(Err(_)) => port.count_silent(),
        }
    }
}

/// Records a listener as failed when its accept loop ends, by an error or a panic, while the hub still accepts
/// links.
struct FailureGuard {
    address: String,
    shared: Arc<Shared>,
}

impl Drop for FailureGuard {
    fn drop(&mut self) {
        if !self.shared.stop_accepting.is_cancelled() {
            let mut failed = self.shared.failed_listeners.lock().unwrap_or_else(PoisonError::into_inner);
            failed.push(std::mem::take(&mut self.address));
        }
    }
}

/// One listener and its limits. A flood on one listener does not affect the others.
struct Port {
    address: String,
    kind: LinkKind,
    silent: SilentLinks,
    slots: HandshakeSlots,
    refusals: Arc<Semaphore>,
    warnings: WarnLimit,
    shared: Arc<Shared>,
}

impl Port {
    fn new(listener: &dyn Listener, shared: Arc<Shared>) -> Self {
        let settings = &shared.settings;
        Self {
            address: listener.local_address(),
            kind: listener.kind(),
            silent: SilentLinks::new(),
            slots: HandshakeSlots::new(settings.max_handshakes, settings.handshake_backlog),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            warnings: WarnLimit::default(),
            shared,
        }
    }

    fn count_silent(&self) {
        self.shared.with_core(|core| core.stats_mut().silent += 1);
    }

    /// Requests a slot for a link whose first byte has arrived; rejects the link if the source must try again
    /// later.
    fn request_slot(&self, incoming: Incoming) -> Option<(Incoming, SlotRequest)> {
        if let Some(request) = self.slots.request(incoming.source(), Instant::now()) {
            return Some((incoming, request));
        }
        self.shared.with_core(|core| core.stats_mut().rejected += 1);
        self.warn(&incoming);
        self.reject(incoming);
        None
    }

    /// Waits for the first byte, and then for a slot.
    async fn admission_of_silent(self: Arc<Self>, mut incoming: Incoming) -> Option<Box<Connection>> {
        if !self.silent.add(incoming.source()).has_first_byte(&mut incoming).await {
            self.count_silent();
            return None;
        }
        let (incoming, request) = self.request_slot(incoming)?;
        let shared = Arc::clone(&self.shared);
        drop(self);
        admission(incoming, request, shared).await
    }

    fn warn(&self, incoming: &Incoming) {
        if self.warnings.permits() {
            let (address, waiting, source) =
                (&self.address, self.shared.settings.handshake_backlog, incoming.source());
            tracing::warn!(address, waiting, ?source, "handshake backlog is full; rejecting connections");
        }
    }

    /// Rejects a link as cheaply as possible. Over a network the handshake is expensive, and dropping the connection
    /// before it refuses it; a connection of this host gets a drain frame with the reason.
    fn reject(&self, incoming: Incoming) {
        if matches!(incoming.source(), Source::Network(_)) {
            return;
        }
        let Ok(refusal) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let max = self.shared.settings.handshake_backlog;
        let reason = CloseReason::Overloaded { resource: "the handshake backlog", max };
        let refusal_frame = encode(Frame::link(Kind::Drain { reason: reason.to_string() }), Lane::Control);
        self.shared.tasks.spawn(async move {
            let send_refusal = async {
                if let Ok(mut link) = incoming.await
                    && link.send(refusal_frame).await.is_ok()
                {
                    // Errors are ignored: the link ends in any case.
                    let _ = link.close().await;
                }
            };
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, send_refusal).await;
            drop(refusal);
        });
    }
}

/// Serves one link, from its admission to its end. The admission is in memory of its own, which is free once the link is
/// admitted: an argument of an asynchronous function takes space in the task until the link ends.
fn serve(
    admission: impl Future<Output = Option<Box<Connection>>> + Send + 'static,
    shared: Arc<Shared>,
) -> impl Future<Output = ()> + Send {
    let admission = Box::pin(admission);
    async move {
        let stop = &shared.stop_accepting;
        if let Some(connection) = stop.run_until_cancelled(admission).await.flatten() {
            connection.run().await;
        }
    }
}

/// Waits for the slot, and performs handshake, hello and authentication in it.
async fn admission(incoming: Incoming, request: SlotRequest, shared: Arc<Shared>) -> Option<Box<Connection>> {
    let slot = request.slot().await?;
    match slot.run(admit(incoming, Arc::clone(&shared))).await {
        Some(admitted) => admitted,
        None => {
            shared.with_core(|core| core.stats_mut().rejected += 1);
            None
        }
    }
}

async fn admit(incoming: Incoming, shared: Arc<Shared>) -> Option<Box<Connection>> {
    // One timeout for everything up to the peer's hello, independent of the link's own handshake timeout.
    let bound = shared.settings.session.hello_timeout * 2;
    let source = format!("{:?}", incoming.source());
    match tokio::time::timeout(bound, incoming).await {
        Ok(Ok(link)) => return Connection::new(link, shared).admission().await,
        Ok(Err(error)) => shared.warnings.0.not_admitted(&source, &error),
        Err(_) => shared.warnings.0.not_admitted(&source, &format!("handshake timed out after {bound:?}")),
    }
    shared.with_core(|core| core.stats_mut().failed_handshakes += 1);
    None
}
