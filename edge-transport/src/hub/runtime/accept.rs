//! Accepts links: a limited number of handshakes at a time, a limited backlog of waiting links, and a cheap rejection of the
//! rest.
//!
//! Handshakes are the most expensive operation of a hub. When ten thousand peers reconnect at once, a peer that would time out
//! before its handshake must not cost one: the hub rejects the peer at once, and the peer retries after a backoff with
//! jitter, which spreads the load.

use std::sync::Arc;
use std::time::Duration;

use futures_util::SinkExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::Shared;
use super::connection::Connection;
use crate::frame::{Frame, Kind, Lane, encode};
use crate::hub::HubSettings;
use crate::link::{Incoming, LinkKind, Listener};
use crate::session::CloseReason;

/// Maximum number of refusals written at a time; further links are dropped without one.
const REFUSALS: usize = 64;

/// Timeout of writing a refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Shortest interval between warnings about rejected links.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

pub(super) async fn accept_loop(mut listener: Box<dyn Listener>, shared: Arc<Shared>) {
    let stop = shared.stop_accepting.clone();
    let (address, kind) = (listener.local_address(), listener.kind());
    // Each listener has its own limiter, so that a flood on one does not affect the others.
    let mut limiter = AcceptLimiter::new(&shared.settings);
    tracing::info!(%address, %kind, "listening");
    loop {
        let incoming = match stop.run_until_cancelled(listener.accept()).await {
            None => return,
            Some(Ok(incoming)) => incoming,
            Some(Err(error)) => {
                tracing::error!(%address, %error, "listener failed; no longer accepting connections");
                return;
            }
        };
        match Arc::clone(&limiter.slots).try_acquire_owned() {
            Ok(slot) => {
                let handshake = Arc::clone(&limiter.handshakes);
                shared.tasks.spawn(serve(incoming, slot, handshake, Arc::clone(&shared)));
            }
            Err(_) => {
                shared.with_core(|core| core.stats_mut().rejected += 1);
                limiter.warn(&address);
                limiter.reject(incoming, kind, &shared);
            }
        }
    }
}

/// The limits of one listener.
struct AcceptLimiter {
    /// One permit for each link that waits for its handshake or executes it.
    slots: Arc<Semaphore>,
    /// One permit for each handshake in progress, in order of arrival.
    handshakes: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    backlog: usize,
    last_warning: Option<Instant>,
}

impl AcceptLimiter {
    fn new(settings: &HubSettings) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let (handshakes, backlog) = (settings.max_handshakes, settings.handshake_backlog);
        Self {
            slots: semaphore(handshakes.saturating_add(backlog)),
            handshakes: semaphore(handshakes),
            refusals: semaphore(REFUSALS),
            backlog,
            last_warning: None,
        }
    }

    fn warn(&mut self, address: &str) {
        if self.last_warning.is_none_or(|last_warning| last_warning.elapsed() >= WARN_INTERVAL) {
            self.last_warning = Some(Instant::now());
            let waiting = self.backlog;
            tracing::warn!(address, waiting, "handshake backlog is full; rejecting connections");
        }
    }

    /// Rejects a link as cheaply as its kind allows. Dropping a websocket or QUIC link before its handshake sends a
    /// refusal; the other kinds get a drain frame with the reason.
    fn reject(&self, incoming: Incoming, kind: LinkKind, shared: &Shared) {
        if !matches!(kind, LinkKind::Uds | LinkKind::Memory) {
            return;
        }
        let Ok(refusal) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let reason = CloseReason::Overloaded { resource: "the handshake backlog", max: self.backlog };
        let refusal_frame = encode(Frame::link(Kind::Drain { reason: reason.to_string() }), Lane::Control);
        shared.tasks.spawn(async move {
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

/// Serves one link, from its handshake to its end.
async fn serve(incoming: Incoming, slot: OwnedSemaphorePermit, limit: Arc<Semaphore>, shared: Arc<Shared>) {
    let stop = shared.stop_accepting.clone();
    let admission = async {
        let handshake = limit.acquire_owned().await.ok();
        let admitted = admit(incoming, shared).await;
        drop((handshake, slot));
        admitted
    };
    if let Some(connection) = stop.run_until_cancelled(Box::pin(admission)).await.flatten() {
        connection.run().await;
    }
}

async fn admit(incoming: Incoming, shared: Arc<Shared>) -> Option<Box<Connection>> {
    // One timeout for everything up to the peer's hello, independent of the link's own handshake timeout.
    let bound = shared.settings.session.hello_timeout * 2;
    match tokio::time::timeout(bound, incoming).await {
        Ok(Ok(link)) => return Connection::new(link, shared).admission().await,
        Ok(Err(error)) => tracing::info!(%error, "handshake failed"),
        Err(_) => tracing::info!("handshake timed out after {bound:?}"),
    }
    shared.with_core(|core| core.stats_mut().failed_handshakes += 1);
    None
}
