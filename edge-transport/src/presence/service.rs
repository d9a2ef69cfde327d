//! The hub's side: tells peers who is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{self, Receiver};

use super::wire::{Entry, Question, Update};
use crate::frame::Reason;
use crate::hub::{Hub, PeerInfo, Presence, WeakHub};
use crate::name::{PeerId, ServiceName};
use crate::peer::{IncomingRequest, ReplySender, Service};

/// Most peers that a hub remembers as gone for good.
pub const MAX_GONE: usize = 1024;

/// Peers in one message of a list.
const PIECE: usize = 500;

/// Reports that a slow receiver may lag behind.
const REPORTS: usize = 1024;

/// What a watcher has done about a peer that is gone for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Who reports, as authenticated.
    pub from: PeerId,
    /// The peer that is gone.
    pub peer: PeerId,
    /// Whether nothing of it is left there.
    pub done: bool,
    /// What was done, for people.
    pub words: String,
}

/// A peer cannot be declared gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoneError {
    /// It is there.
    #[error("{peer} is connected, so it is not gone; stop it first")]
    Connected {
        /// The peer.
        peer: PeerId,
    },
    /// Nobody could be told.
    #[error("this hub tells nobody who is there; build it with `presence`")]
    NoPresence,
    /// Too many are.
    #[error("{max} peers are remembered as gone, which is the bound; restart the hub to forget them")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

/// Who is gone for good, who wants to hear of it, and what they report.
#[derive(Debug)]
pub(crate) struct Gone {
    state: Mutex<State>,
    reports: broadcast::Sender<Report>,
}

#[derive(Debug, Default)]
struct State {
    peers: BTreeSet<PeerId>,
    /// Watchers, with the number of their watches.
    watchers: BTreeMap<PeerId, usize>,
}

impl Default for Gone {
    fn default() -> Self {
        Self { state: Mutex::default(), reports: broadcast::channel(REPORTS).0 }
    }
}

impl Gone {
    /// Remembers it, if there is room.
    pub(crate) fn remember(&self, peer: &PeerId) -> Result<(), GoneError> {
        let mut state = self.state();
        if state.peers.len() >= MAX_GONE && !state.peers.contains(peer) {
            return Err(GoneError::TooMany { max: MAX_GONE });
        }
        state.peers.insert(peer.clone());
        Ok(())
    }

    /// It is back.
    pub(crate) fn forget(&self, peer: &PeerId) -> bool {
        self.state().peers.remove(peer)
    }

    /// Who watches.
    pub(crate) fn watchers(&self) -> Vec<PeerId> {
        self.state().watchers.keys().cloned().collect()
    }

    /// The reports that come from now on.
    pub(crate) fn reports(&self) -> Receiver<Report> {
        self.reports.subscribe()
    }

    fn peers(&self) -> Vec<String> {
        self.state().peers.iter().map(ToString::to_string).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watcher counts as one until this is dropped.
struct Watching {
    gone: Arc<Gone>,
    peer: PeerId,
}

impl Watching {
    fn begin(gone: Arc<Gone>, peer: PeerId) -> Self {
        *gone.state().watchers.entry(peer.clone()).or_default() += 1;
        Self { gone, peer }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.gone.state();
        if let Some(count) = state.watchers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.watchers.remove(&self.peer);
            }
        }
    }
}

/// The service of a hub's own.
#[derive(Debug)]
pub(crate) struct PresenceService {
    pub(crate) hub: WeakHub,
}

#[async_trait::async_trait]
impl Service for PresenceService {
    async fn call(&self, request: IncomingRequest, mut replies: ReplySender) {
        let Some(hub) = self.hub.upgrade() else { return };
        let question = Question::decode(request.body);
        let ended = match question {
            Ok(Question { report: Some(report), .. }) => match PeerId::new(&report.peer) {
                Ok(peer) => {
                    let words = super::cut(&report.words).to_owned();
                    // Nobody may be interested.
                    let _ = hub.gone().reports.send(Report {
                        from: request.source,
                        peer,
                        done: report.done,
                        words,
                    });
                    // Fails only if nobody waits any more, here and below.
                    let _ = replies.finish(Bytes::new()).await;
                    return;
                }
                Err(error) => error.to_string(),
            },
            Ok(Question { service, .. }) => match ServiceName::new(&service) {
                Ok(service) => {
                    let watcher = Watcher::new(&hub, request.source, service);
                    let stopping = hub.stopping();
                    if let Some(Err(())) =
                        stopping.run_until_cancelled(watcher.tell(&hub, &mut replies)).await
                    {
                        return;
                    }
                    let _ = replies.fail(Reason::Draining, "the hub is ending").await;
                    return;
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        let _ = replies.fail(Reason::Protocol, format!("question for who is there: {ended}")).await;
    }
}

/// One watch.
struct Watcher {
    source: PeerId,
    services: Arc<[ServiceName]>,
    service: ServiceName,
    _watching: Watching,
}

impl Watcher {
    fn new(hub: &Hub, source: PeerId, service: ServiceName) -> Self {
        let known = hub.peers().into_iter().find(|info| info.peer == source);
        let services = known.map(|info| info.services).unwrap_or_default();
        let watching = Watching::begin(hub.gone(), source.clone());
        Self { source, services, service, _watching: watching }
    }

    /// Until nobody listens.
    async fn tell(&self, hub: &Hub, replies: &mut ReplySender) -> Result<(), ()> {
        // Before the list, so that nothing is missed between.
        let mut events = hub.presence();
        self.tell_all(hub, replies).await?;
        loop {
            let mut update = Update::default();
            match events.recv().await {
                Ok(event) => self.add(hub, &mut update, event),
                Err(RecvError::Lagged(_)) => {
                    self.tell_all(hub, replies).await?;
                    continue;
                }
                Err(RecvError::Closed) => return Err(()),
            }
            let mut lagged = false;
            while update.up.len() + update.down.len() < PIECE {
                match events.try_recv() {
                    Ok(event) => self.add(hub, &mut update, event),
                    Err(TryRecvError::Lagged(_)) => {
                        lagged = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            if replies.is_abandoned() {
                return Err(());
            }
            if lagged {
                self.tell_all(hub, replies).await?;
            } else if update != Update::default() {
                say(replies, &update).await?;
            }
        }
    }

    /// The list, in pieces.
    async fn tell_all(&self, hub: &Hub, replies: &mut ReplySender) -> Result<(), ()> {
        let peers: Vec<_> =
            hub.peers().into_iter().filter(|info| self.concerns(hub, info)).map(entry).collect();
        let mut pieces = peers.chunks(PIECE).map(<[Entry]>::to_vec).collect::<Vec<_>>();
        let last = pieces.pop().unwrap_or_default();
        let mut reset = true;
        for up in pieces {
            say(replies, &Update { reset, up, ..Update::default() }).await?;
            reset = false;
        }
        let gone = hub.gone().peers();
        say(replies, &Update { reset, up: last, gone, complete: true, ..Update::default() }).await
    }

    fn add(&self, hub: &Hub, update: &mut Update, event: Presence) {
        match event {
            Presence::Up(info) if self.concerns(hub, &info) => {
                let name = info.peer.to_string();
                update.down.retain(|down| *down != name);
                update.up.retain(|up| up.peer != name);
                update.up.push(entry(info));
            }
            Presence::Down { peer, .. } => {
                let name = peer.to_string();
                update.up.retain(|up| up.peer != name);
                update.down.push(name);
            }
            Presence::Gone { peer } => update.gone.push(peer.to_string()),
            Presence::Up(_) => {}
        }
    }

    fn concerns(&self, hub: &Hub, info: &PeerInfo) -> bool {
        info.services.contains(&self.service)
            && hub.may_call((&self.source, &self.services), &info.peer, &self.service)
    }
}

fn entry(info: PeerInfo) -> Entry {
    Entry { peer: info.peer.to_string(), epoch: info.epoch.number() }
}

async fn say(replies: &mut ReplySender, update: &Update) -> Result<(), ()> {
    replies.message(update.encode_to_vec().into()).await.map_err(|_| ())
}
