//! The hub's side: reports the connected peers.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::wire::{Entry, Query, Update};
use crate::frame::{Reason, Request};
use crate::hub::{Hub, PeerInfo, Presence, WeakHub};
use crate::name::{MAX_PEER_ID, MAX_SERVICE_NAME, PeerId, ServiceName};
use crate::peer::{ReplySender, Service};

/// Maximum number of peers that a watch may be restricted to.
pub(super) const MAX_ONLY: usize = 64;

/// Longest request in bytes: the service and that many peers, each with the two or three bytes before a protobuf text.
const MAX_QUERY: usize = (MAX_SERVICE_NAME + 3) + MAX_ONLY * (MAX_PEER_ID + 3);

/// Maximum number of peers in one message.
const LIST_CHUNK: usize = 500;

/// Maximum number of lists that are in memory for one caller, with all names below its own. Each takes about 100 bytes for each
/// peer until the caller has read it, and further watches of the caller wait.
const MAX_LISTS: usize = 8;

/// How long a list may take to be sent. A caller that does not read must not keep the places of its other processes.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The presence service of a hub.
pub(crate) struct PresenceService {
    hub: WeakHub,
    lists: Lists,
}

impl PresenceService {
    pub(crate) fn new(hub: WeakHub) -> Self {
        Self { hub, lists: Lists::default() }
    }
}

/// The places for lists of each caller that has a watch.
#[derive(Default)]
struct Lists(Mutex<HashMap<PeerId, Arc<Semaphore>>>);

impl Lists {
    fn of(&self, caller: &PeerId) -> Arc<Semaphore> {
        let mut callers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, places| Arc::strong_count(places) > 1);
        Arc::clone(callers.entry(caller.top()).or_insert_with(|| Arc::new(Semaphore::new(MAX_LISTS))))
    }
}

#[async_trait::async_trait]
impl Service for PresenceService {
    async fn call(&self, source: PeerId, request: Request, replies: ReplySender) {
        let Some(hub) = self.hub.upgrade() else { return };
        let lists = self.lists.of(&source);
        // In a separate task: a long list takes time, and other watchers must not wait.
        tokio::spawn(answer(hub, source, lists, request, replies));
    }
}

async fn answer(hub: Hub, source: PeerId, lists: Arc<Semaphore>, request: Request, mut replies: ReplySender) {
    let (reason, detail) = match decode_query(request.body) {
        Ok((service, only)) => {
            let watcher = Watcher::new(&hub, source, lists, service, only);
            // The watcher depends on these peers, whose links may be silent for minutes.
            let depended_on = watcher.only.iter().filter(|peer| watcher.may_see(&hub, peer));
            depended_on.for_each(|peer| hub.challenge(peer));
            let stop_watches = hub.stop_watches();
            match stop_watches.run_until_cancelled(watcher.run(&hub, &mut replies)).await {
                Some(Err(Stopped::Ended)) => return,
                Some(Err(Stopped::Unread)) => {
                    (Reason::Overloaded, format!("the list of peers was not read within {LIST_TIMEOUT:?}"))
                }
                Some(Ok(())) | None => (Reason::Draining, "the hub is shutting down".to_owned()),
            }
        }
        Err(error) => (Reason::Protocol, format!("invalid presence request: {error}")),
    };
    // Fails only if the call was cancelled.
    let _ = replies.fail(reason, detail).await;
}

/// Returns the requested service and peers.
fn decode_query(query: Bytes) -> Result<(ServiceName, BTreeSet<PeerId>), String> {
    // Before it is decoded, which takes many times its size.
    if query.len() > MAX_QUERY {
        return Err(format!("it has {} bytes; at most {MAX_QUERY} are allowed", query.len()));
    }
    let Query { service, only } = Query::decode(query).map_err(|error| error.to_string())?;
    let service = ServiceName::new(service).map_err(|error| error.to_string())?;
    if only.len() > MAX_ONLY {
        return Err(format!("field only has {} names; at most {MAX_ONLY} are allowed", only.len()));
    }
    let only = only.into_iter().map(PeerId::new).collect::<Result<_, _>>();
    Ok((service, only.map_err(|error| format!("field only: {error}"))?))
}

/// Why a watch stops.
enum Stopped {
    /// The call has ended, or the hub.
    Ended,
    /// The caller does not read.
    Unread,
}

/// One watch.
struct Watcher {
    source: PeerId,
    /// The services that the source provides.
    services: Arc<[ServiceName]>,
    lists: Arc<Semaphore>,
    service: ServiceName,
    /// The peers that the watch is restricted to; empty for all peers.
    only: BTreeSet<PeerId>,
}

impl Watcher {
    fn new(
        hub: &Hub,
        source: PeerId,
        lists: Arc<Semaphore>,
        service: ServiceName,
        only: BTreeSet<PeerId>,
    ) -> Self {
        let services = hub.services_of(&source).unwrap_or_default();
        Self { source, services, lists, service, only }
    }

    /// Whether the watcher may see a peer.
    fn may_see(&self, hub: &Hub, peer: &PeerId) -> bool {
        (self.only.is_empty() || self.only.contains(peer))
            && hub.may_call((&self.source, &self.services), peer, &self.service)
    }

    /// Sends a list, then changes, until the call is cancelled.
    async fn run(&self, hub: &Hub, replies: &mut ReplySender) -> Result<(), Stopped> {
        let mut events = self.send_list(hub, replies).await?;
        loop {
            let mut update = Update::default();
            let event = tokio::select! {
                event = events.recv() => event,
                () = replies.cancelled() => return Err(Stopped::Ended),
            };
            match event {
                Ok(event) => self.add(hub, &mut update, event),
                Err(RecvError::Lagged(_)) => {
                    events = self.send_list(hub, replies).await?;
                    continue;
                }
                Err(RecvError::Closed) => return Err(Stopped::Ended),
            }
            let mut lagged = false;
            while update.up.len() + update.down.len() < LIST_CHUNK {
                match events.try_recv() {
                    Ok(event) => self.add(hub, &mut update, event),
                    Err(TryRecvError::Lagged(_)) => {
                        lagged = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            if lagged {
                events = self.send_list(hub, replies).await?;
            } else if update != Update::default() {
                send_update(replies, &update).await?;
            }
        }
    }

    /// Sends the list in order of names, in several messages. Returns the receiver of later changes.
    async fn send_list(&self, hub: &Hub, replies: &mut ReplySender) -> Result<Receiver<Presence>, Stopped> {
        let _place = tokio::select! {
            place = self.lists.acquire() => place.map_err(|_| Stopped::Ended)?,
            () = replies.cancelled() => return Err(Stopped::Ended),
        };
        let (peers, events) = hub.peers_and_events();
        let mut peers: Vec<_> = peers.iter().filter(|info| self.matches(hub, info)).map(entry).collect();
        // Sorted, so that the same peers give the same list.
        peers.sort_unstable_by(|one, other| one.peer.cmp(&other.peer));
        let mut chunks = peers.chunks(LIST_CHUNK).map(<[Entry]>::to_vec).collect::<Vec<_>>();
        let last = chunks.pop().unwrap_or_default();
        let mut reset = true;
        let sent = tokio::time::timeout(LIST_TIMEOUT, async {
            for up in chunks {
                send_update(replies, &Update { reset, up, ..Update::default() }).await?;
                reset = false;
            }
            send_update(replies, &Update { reset, up: last, complete: true, ..Update::default() }).await
        });
        sent.await.unwrap_or(Err(Stopped::Unread))?;
        Ok(events)
    }

    fn add(&self, hub: &Hub, update: &mut Update, event: Presence) {
        match event {
            Presence::Up(info) if self.may_see(hub, &info.peer) => {
                let entry = entry(&info);
                update.down.retain(|down| down.peer != entry.peer);
                update.up.retain(|up| up.peer != entry.peer);
                if self.matches(hub, &info) {
                    update.up.push(entry);
                } else {
                    // An earlier session may have provided the service. Its end is not reported because this session replaced
                    // it.
                    update.down.push(entry);
                }
            }
            Presence::Down { peer, session, drained } if self.may_see(hub, &peer) => {
                let entry = Entry { drained, ..Entry::new(&peer, session) };
                update.up.retain(|up| up.peer != entry.peer);
                update.down.push(entry);
            }
            Presence::Up(_) | Presence::Down { .. } => {}
        }
    }

    fn matches(&self, hub: &Hub, info: &PeerInfo) -> bool {
        info.services.iter().any(|service| service.covers(&self.service)) && self.may_see(hub, &info.peer)
    }
}

fn entry(info: &PeerInfo) -> Entry {
    Entry::new(&info.peer, info.session)
}

async fn send_update(replies: &mut ReplySender, update: &Update) -> Result<(), Stopped> {
    replies.send(update.encode_to_vec().into()).await.map_err(|_| Stopped::Ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Rules;
    use crate::link::memory;
    use crate::name::SessionId;

    /// A request that is too long is refused before it is decoded.
    #[test]
    fn longest_request_is_accepted_and_a_longer_one_is_not() {
        let name = |number: usize| format!("{number:x>MAX_PEER_ID$}");
        let service = "s".repeat(MAX_SERVICE_NAME);
        let query = |count: usize| Query { service: service.clone(), only: (0..count).map(name).collect() };
        assert_eq!(decode_query(query(MAX_ONLY).encode_to_vec().into()).unwrap().1.len(), MAX_ONLY);
        let empty = Query { service: "s".to_owned(), only: vec![String::new(); MAX_QUERY] };
        let error = decode_query(empty.encode_to_vec().into()).unwrap_err();
        assert!(error.starts_with("it has"), "{error}");
    }

    #[tokio::test]
    async fn message_has_the_last_change_of_visible_peers_only() {
        let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
        let (listener, _dialer) = memory::listen("hub", 1 << 20);
        let hub = Hub::builder().listener(listener).allow_unauthenticated();
        let hub = hub.policy(rules).presence().start().unwrap();
        let [proxy, edge, other] = ["proxy", "edge-1", "other"].map(|name| PeerId::new(name).unwrap());
        let csi = ServiceName::new("csi").unwrap();
        let session = SessionId { instance: 1, number: 1 };
        let watcher = Watcher::new(&hub, proxy, Arc::new(Semaphore::new(1)), csi.clone(), BTreeSet::new());
        let changes = async |events: Vec<Presence>| {
            let mut update = Update::default();
            events.into_iter().for_each(|event| watcher.add(&hub, &mut update, event));
            (update.up.len(), update.down.into_iter().map(|down| down.peer).collect::<Vec<_>>())
        };
        let up_with = |services: &[ServiceName]| {
            Presence::Up(PeerInfo { peer: edge.clone(), session, services: services.into() })
        };
        let up = || up_with(std::slice::from_ref(&csi));
        let down = |peer: &PeerId| Presence::Down { peer: peer.clone(), session, drained: false };
        let left = changes(vec![down(&edge), down(&other)]).await;
        assert_eq!(left, (0, vec!["edge-1".to_owned()]));
        let without = changes(vec![up(), up_with(&[])]).await;
        assert_eq!(without, (0, vec!["edge-1".to_owned()]), "reconnected without the service");
        assert_eq!(changes(vec![up_with(&[]), up()]).await, (1, vec![]));
    }
}
