//! The watcher's side: repeats the presence call and collects its changes.

use std::collections::VecDeque;
use std::time::Duration;

use prost::Message as _;
use tokio::time::{Instant, sleep_until};

use super::SERVICE;
use super::peer_set::{Change, PeerSet};
use super::service::MAX_ONLY;
use super::wire::{Query, Update};
use crate::frame::{Failure, Reason, Request};
use crate::name::{PeerId, ServiceName};
use crate::peer::{CallError, Peer, ReplyEvent, ReplyStream};

/// First delay before the watch is retried; doubles with every failure.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Longest delay before a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Watches the peers at the hub that provide a service.
///
/// ```no_run
/// # async fn follow(peer: edge_transport::Peer) -> Result<(), edge_transport::InvalidName> {
/// use edge_transport::presence::{Change, Watch};
///
/// let mut nodes = Watch::new(peer, "csi".parse()?);
/// while let Some(changes) = nodes.next().await {
///     for change in changes {
///         match change {
///             Change::Up { peer, session } => println!("{peer} is connected with session {session}"),
///             Change::Down { peer, .. } => println!("{peer} is disconnected"),
///             _ => {}
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    peer: Peer,
    service: ServiceName,
    only: Vec<PeerId>,
    peers: PeerSet,
    stream: Option<ReplyStream>,
    retry_delay: Duration,
    /// Earliest time of the next attempt.
    retry_at: Instant,
    warned: bool,
    pending: VecDeque<Change>,
}

impl Watch {
    /// Creates a watch of the peers that provide this service at the hub of `peer`.
    #[must_use]
    pub fn new(peer: Peer, service: ServiceName) -> Self {
        Self {
            peer,
            service,
            only: Vec::new(),
            peers: PeerSet::default(),
            stream: None,
            retry_delay: MIN_RETRY_DELAY,
            retry_at: Instant::now(),
            warned: false,
            pending: VecDeque::new(),
        }
    }

    /// Restricts the watch to these peers. The hub checks whether they are alive, so that one that has lost its power is reported
    /// as down within 10 s, however rarely it is pinged. With no peers, or with more than 64, the watch covers all peers, as it
    /// does at an older hub.
    #[must_use]
    pub fn only(mut self, peers: impl IntoIterator<Item = PeerId>) -> Self {
        self.only = peers.into_iter().take(MAX_ONLY + 1).collect();
        if self.only.len() > MAX_ONLY {
            self.only.clear();
        }
        self
    }

    /// Waits for the next changes, at least one. No changes are reported while no hub is connected. Returns `None` once the
    /// peer is closed. Cancel safe.
    pub async fn next(&mut self) -> Option<Vec<Change>> {
        loop {
            if !self.pending.is_empty() {
                return Some(self.pending.drain(..).collect());
            }
            if let Err(cause) = self.step().await? {
                self.stream = None;
                self.retry_at = Instant::now() + self.retry_delay;
                self.retry_delay = (2 * self.retry_delay).min(MAX_RETRY_DELAY);
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(cause, "presence watch failed, retrying");
                }
                self.pending.push_back(Change::Failed { cause });
            }
        }
    }

    fn request(&self, query: &Query) -> Option<(PeerId, Request)> {
        let hub = self.peer.hub().ok()?;
        // The constant is a valid service name.
        let service = ServiceName::new(SERVICE).ok()?;
        Some((hub, Request::new(service, query.encode_to_vec())))
    }

    /// Opens the stream, or reads one update from it. Returns `None` if the peer is closed.
    async fn step(&mut self) -> Option<Result<(), String>> {
        let Some(stream) = &mut self.stream else {
            sleep_until(self.retry_at).await;
            self.peer.connected().await.ok()?;
            let only = self.only.iter().map(ToString::to_string).collect();
            let query = Query { service: self.service.to_string(), only };
            let Some((hub, request)) = self.request(&query) else { return Some(Ok(())) };
            return Some(match self.peer.call(hub, request).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    Ok(())
                }
                Err(CallError::Closed) => return None,
                Err(error) => Err(error.to_string()),
            });
        };
        let update = match stream.next().await {
            Some(Ok(ReplyEvent::Message(message))) => Update::decode(message),
            Some(Err(failure)) if matches!(failure.reason(), Reason::LinkLost | Reason::Draining) => {
                // The next step retries as soon as a hub is connected.
                self.stream = None;
                self.retry_at = Instant::now() + MIN_RETRY_DELAY;
                return Some(Ok(()));
            }
            Some(Err(failure)) => return Some(Err(described(&failure))),
            _ => return Some(Err("the presence stream ended".to_owned())),
        };
        Some(match update {
            Ok(update) => {
                (self.retry_delay, self.warned) = (MIN_RETRY_DELAY, false);
                self.pending.extend(self.peers.apply(update));
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        })
    }
}

fn described(failure: &Failure) -> String {
    match failure.reason() {
        Reason::PeerOffline | Reason::NoSuchService => format!("{failure}; build the hub with presence()"),
        Reason::Forbidden => format!("{failure}; the hub's policy must allow this peer to watch"),
        _ => failure.to_string(),
    }
}
