//! The watcher's side.

use std::collections::VecDeque;
use std::time::Duration;

use prost::Message as _;
use tokio::time::{Instant, sleep_until};

use super::SERVICE;
use super::roster::{Change, Roster};
use super::service::MAX_ONLY;
use super::wire::{Question, Update};
use crate::frame::Reason;
use crate::frame::Request;
use crate::name::{PeerId, ServiceName};
use crate::peer::{CallError, Peer, ReplyEvent, ReplyStream};

/// First pause before the hub is asked again; doubles from time to time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Follows which peers are at the hub that offer a service.
///
/// ```no_run
/// # async fn follow(peer: edge_transport::Peer) -> Result<(), edge_transport::InvalidName> {
/// use edge_transport::presence::{Change, Watch};
///
/// let mut nodes = Watch::new(peer, "csi".parse()?);
/// while let Some(changes) = nodes.next().await {
///     for change in changes {
///         match change {
///             Change::Up { peer, session } => println!("{peer} is there, with session {session}"),
///             Change::Down { peer, .. } => println!("{peer} is away"),
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
    roster: Roster,
    stream: Option<ReplyStream>,
    pause: Duration,
    /// When the hub may be asked again.
    again: Instant,
    told: bool,
    waiting: VecDeque<Change>,
}

impl Watch {
    /// Will follow the peers that offer this service at the hub of `peer`.
    #[must_use]
    pub fn new(peer: Peer, service: ServiceName) -> Self {
        Self {
            peer,
            service,
            only: Vec::new(),
            roster: Roster::default(),
            stream: None,
            pause: FIRST_PAUSE,
            again: Instant::now(),
            told: false,
            waiting: VecDeque::new(),
        }
    }

    /// The same of these peers alone. None, or more than 64, which are too many to be named: then it is told of all, as it is by a hub
    /// from before.
    #[must_use]
    pub fn only(mut self, peers: impl IntoIterator<Item = PeerId>) -> Self {
        self.only = peers.into_iter().take(MAX_ONLY + 1).collect();
        if self.only.len() > MAX_ONLY {
            self.only.clear();
        }
        self
    }

    /// Waits for the next changes, which are never none. While the hub is away nothing changes. `None` once the peer is closed.
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Vec<Change>> {
        loop {
            if !self.waiting.is_empty() {
                return Some(self.waiting.drain(..).collect());
            }
            if let Err(reason) = self.step().await? {
                self.stream = None;
                self.again = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(reason, "the hub does not tell which nodes are there; asking again");
                }
            }
        }
    }

    fn request(&self, question: &Question) -> Option<(PeerId, Request)> {
        let hub = self.peer.hub().ok()?;
        // The name of a service is a constant that is one.
        let service = ServiceName::new(SERVICE).ok()?;
        Some((hub, Request::new(service, question.encode_to_vec())))
    }

    /// `None` if the peer is closed.
    async fn step(&mut self) -> Option<Result<(), String>> {
        let Some(stream) = &mut self.stream else {
            sleep_until(self.again).await;
            self.peer.connected().await.ok()?;
            let only = self.only.iter().map(ToString::to_string).collect();
            let question = Question { service: self.service.to_string(), only };
            let Some((hub, request)) = self.request(&question) else { return Some(Ok(())) };
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
                // As soon as there is a hub again.
                self.stream = None;
                self.again = Instant::now() + FIRST_PAUSE;
                return Some(Ok(()));
            }
            Some(Err(failure)) => return Some(Err(failure.to_string())),
            _ => return Some(Err("the answer has ended".to_owned())),
        };
        Some(match update {
            Ok(update) => {
                (self.pause, self.told) = (FIRST_PAUSE, false);
                self.waiting.extend(self.roster.take(update));
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        })
    }
}
