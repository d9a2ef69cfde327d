//! Takes links in: a bounded number of handshakes at a time, a bounded number of links that wait for theirs, and a quick no to
//! the rest.
//!
//! Handshakes are what a hub can do least of in a second. When ten thousand peers come back at once, those for whom it is too late
//! to be served before they give up must not cost one: they are told at once to come back later. Each does so after a wait with a
//! jitter of its own, which spreads them.

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

/// Refusals that are being written at a time; further links are dropped without a word.
const REFUSALS: usize = 64;

/// How long a refusal may take to be written.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// How often it is told that links are turned away.
const TOLD_EVERY: Duration = Duration::from_secs(10);

pub(super) async fn accept_loop(mut listener: Box<dyn Listener>, shared: Arc<Shared>) {
    let stop = shared.stop_accepting.clone();
    let (address, kind) = (listener.local_address(), listener.kind());
    // Each listener has a door of its own: whoever floods one takes no place from the others.
    let mut door = Door::new(&shared.settings);
    tracing::info!(%address, %kind, "listening");
    loop {
        let incoming = match stop.run_until_cancelled(listener.accept()).await {
            None => return,
            Some(Ok(incoming)) => incoming,
            Some(Err(error)) => {
                tracing::error!(%address, %error, "this listener has failed; no more links come in here");
                return;
            }
        };
        match Arc::clone(&door.places).try_acquire_owned() {
            Ok(place) => {
                let turn = Arc::clone(&door.turns);
                shared.tasks.spawn(serve(incoming, place, turn, Arc::clone(&shared)));
            }
            Err(_) => {
                shared.with_core(|core| core.stats_mut().turned_away += 1);
                door.tell(&address);
                door.turn_away(incoming, kind, &shared);
            }
        }
    }
}

/// The bounds of one listener.
struct Door {
    /// One for each link that waits for its handshake or is at it.
    places: Arc<Semaphore>,
    /// One for each handshake under way; whoever waits longest gets the next.
    turns: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    max_waiting: usize,
    told: Option<Instant>,
}

impl Door {
    fn new(settings: &HubSettings) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let (turns, max_waiting) = (settings.max_handshakes, settings.max_waiting_handshakes);
        Self {
            places: semaphore(turns.saturating_add(max_waiting)),
            turns: semaphore(turns),
            refusals: semaphore(REFUSALS),
            max_waiting,
            told: None,
        }
    }

    fn tell(&mut self, address: &str) {
        if self.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            self.told = Some(Instant::now());
            let waiting = self.max_waiting;
            tracing::warn!(
                address,
                waiting,
                "more links come in than handshakes can be made; some are told to try again later"
            );
        }
    }

    /// Says no, as cheaply as the kind of link allows: before TLS by dropping it, which each kind turns into an answer.
    fn turn_away(&self, incoming: Incoming, kind: LinkKind, shared: &Shared) {
        if !matches!(kind, LinkKind::Uds | LinkKind::Memory) {
            return;
        }
        let Ok(refusal) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let reason = CloseReason::Overloaded {
            what: "the queue of links that wait to be let in",
            max: self.max_waiting,
        };
        let words = encode(Frame::hop(Kind::Drain { reason: reason.to_string() }), Lane::Control);
        shared.tasks.spawn(async move {
            let said = async {
                if let Ok(mut link) = incoming.await
                    && link.send(words).await.is_ok()
                {
                    // Whether it was heard changes nothing here.
                    let _ = link.close().await;
                }
            };
            let _ = tokio::time::timeout(REFUSAL_TIME, said).await;
            drop(refusal);
        });
    }
}

/// One link, from its turn at the door to its end.
async fn serve(incoming: Incoming, place: OwnedSemaphorePermit, turns: Arc<Semaphore>, shared: Arc<Shared>) {
    let stop = shared.stop_accepting.clone();
    let admission = async {
        let turn = turns.acquire_owned().await.ok();
        let admitted = admit(incoming, shared).await;
        drop((turn, place));
        admitted
    };
    if let Some(connection) = stop.run_until_cancelled(Box::pin(admission)).await.flatten() {
        connection.run().await;
    }
}

async fn admit(incoming: Incoming, shared: Arc<Shared>) -> Option<Box<Connection>> {
    // The whole way to the peer's hello has one bound, whatever the link's own handshake allows.
    let bound = shared.settings.session.hello_timeout * 2;
    match tokio::time::timeout(bound, incoming).await {
        Ok(Ok(link)) => return Connection::new(link, shared).admission().await,
        Ok(Err(error)) => tracing::info!(%error, "a link was not made"),
        Err(_) => tracing::info!("a link was not made within {bound:?}"),
    }
    shared.with_core(|core| core.stats_mut().failed_handshakes += 1);
    None
}
