//! The routing table of a hub: peers by name, their open calls, and the frames queued for each.

mod admission;
mod calls;
mod dequeue;
mod identity_peers;
mod open;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, RandomState};
use std::sync::Arc;

use self::dequeue::{QueuedFrame, Unwritten};
use self::identity_peers::IdentityPeers;
use self::open::{Call, ServedCall};
use super::identity::{Identity, Sender};
use super::{HubSettings, HubStats, PeerInfo, Policy, Presence, Requester};
use crate::fair_queue::FairQueue;
use crate::fair_share::FairShare;
use crate::frame::{Encoder, Frame, Lane, Reason};
use crate::id_map::IdMap;
use crate::name::{PeerId, ServiceName, SessionId};
use crate::session::{CloseReason, UsedNumbers};

/// Bytes reserved for each control frame: the size of one with names of usual length.
const CONTROL_FRAME: usize = 256;

/// Identifies a peer's session at this hub. Keys are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

/// A map keyed by session.
pub(super) type SessionMap<V> = IdMap<SessionKey, V>;

#[derive(Debug)]
struct Session {
    peer: PeerId,
    identity: Identity,
    id: SessionId,
    services: Arc<[ServiceName]>,
    max_frame: usize,
    /// Whether the peer drains the link itself.
    drains: bool,
    /// Why the peer was asked to leave, if it was.
    leaving: Option<Arc<str>>,
    closed: Option<CloseReason>,
    /// The peer as the sender of frames to others.
    sender: Sender,
    /// The peer as the cause of frames to itself: failures of requests that the hub refuses. Not `sender`: what others read
    /// slowly must not count against these.
    refused: Sender,
    /// The peer as the one for whom answers wait. It asked for them, so a caller that does not read must not use up what the
    /// answers of a node to others may take. On its link the nodes take turns, and one has at most half of the queue.
    answered: Sender,
    /// Frames to this peer. Those of a call belong to the sender at its other end, for which each open call to this peer
    /// reserves one: its cancel.
    outbox: FairQueue<Sender, QueuedFrame>,
    /// Bytes of the queued control frames.
    control_bytes: usize,
    unwritten: Unwritten,
    /// Open calls of this peer, by their numbers on its link.
    calls: BTreeMap<u64, Call>,
    /// Call numbers that this peer has used on its link.
    used: UsedNumbers,
    /// Open calls to this peer, by their numbers on its link.
    inbound: BTreeMap<u64, ServedCall>,
    /// How many calls from and to this peer have a requester that waits.
    waiting_calls: usize,
    /// Whether the peer has to prove that it is alive: another instance wants to be admitted in its place, or a watcher asks.
    is_challenged: bool,
    /// The last number assigned to a call to this peer.
    last_number: u64,
    next_lane: u64,
}

impl Session {
    /// Whether the peer accepts and makes no new calls.
    const fn is_draining(&self) -> bool {
        self.drains || self.leaving.is_some()
    }

    fn info(&self) -> PeerInfo {
        PeerInfo { peer: self.peer.clone(), session: self.id, services: Arc::clone(&self.services) }
    }

    fn next_free_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.next_lane
    }
}

/// The hub's own services.
struct LocalServices {
    name: PeerId,
    /// The services with the policies of their callers.
    services: HashMap<ServiceName, Arc<dyn Policy>>,
}

/// The routing table. Each function is one transition, whose effects the `poll_` functions return.
pub struct Core {
    settings: HubSettings,
    policy: Arc<dyn Policy>,
    sessions: SessionMap<Session>,
    by_name: HashMap<PeerId, SessionKey>,
    /// The peers in `by_name` by what proved their names.
    identity_peers: IdentityPeers,
    /// Makes senders of identities.
    sender_key: RandomState,
    local: Option<LocalServices>,
    next_key: u64,
    /// The bytes of all frames that wait, in the queues and on the links, by the peers that caused them.
    waiting: FairShare<Sender>,
    draining: Option<String>,
    encoder: Encoder,
    wakes: Vec<SessionKey>,
    presence: VecDeque<Presence>,
    stats: HubStats,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("sessions", &self.sessions.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Creates an empty table.
    #[must_use]
    pub fn new(settings: HubSettings, policy: Arc<dyn Policy>) -> Self {
        Self {
            waiting: FairShare::new(settings.total_queue_bytes),
            settings,
            policy,
            sessions: SessionMap::default(),
            by_name: HashMap::new(),
            identity_peers: IdentityPeers::default(),
            sender_key: RandomState::new(),
            local: None,
            next_key: 0,
            draining: None,
            encoder: Encoder::default(),
            wakes: Vec::new(),
            presence: VecDeque::new(),
            stats: HubStats::default(),
        }
    }

    /// Adds the hub's own services under this name. Each service has its own policy, which replaces the policy of the table.
    /// The hub itself is not counted as a peer and is not reported as one.
    #[must_use]
    pub fn with_local(mut self, name: PeerId, services: HashMap<ServiceName, Arc<dyn Policy>>) -> Self {
        self.local = Some(LocalServices { name, services });
        self
    }

    fn is_local(&self, peer: &PeerId) -> bool {
        self.local.as_ref().is_some_and(|local| local.name == *peer)
    }

    /// Whether a peer may call another's service.
    #[must_use]
    pub fn permits(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool {
        let policy = match &self.local {
            // The hub's own peer reports an unknown service, as every peer does.
            Some(local) if local.name == *target => match service.find_in(&local.services) {
                Some(policy) => policy,
                None => return true,
            },
            _ => &self.policy,
        };
        policy.may_call(requester, target, service)
    }

    /// The session of the peer that provides the hub's own services.
    fn local_session(&self) -> Option<(SessionKey, &Session)> {
        let key = *self.by_name.get(&self.local.as_ref()?.name)?;
        Some((key, self.sessions.get(&key)?))
    }

    /// Number of peers, without the hub itself.
    fn remote_peers(&self) -> usize {
        self.by_name.len() - usize::from(self.local_session().is_some())
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        HubStats {
            peers: self.remote_peers(),
            open_calls: self.sessions.values().map(|session| session.calls.len()).sum(),
            local_calls: self.local_session().map_or(0, |(_, local)| local.inbound.len()),
            queued_bytes: self.waiting.used(),
            ..self.stats
        }
    }

    /// Returns the counters, for events before a peer is admitted.
    #[cfg(feature = "runtime")]
    pub(super) const fn stats_mut(&mut self) -> &mut HubStats {
        &mut self.stats
    }

    /// Connected peers, in no particular order.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        let remote_peers = self.by_name.iter().filter(|(peer, _)| !self.is_local(peer));
        remote_peers.filter_map(|(_, key)| self.sessions.get(key)).map(Session::info).collect()
    }

    /// The services of a connected peer.
    #[cfg(feature = "runtime")]
    pub(super) fn services_of(&self, peer: &PeerId) -> Option<Arc<[ServiceName]>> {
        let session = self.sessions.get(self.by_name.get(peer)?)?;
        Some(Arc::clone(&session.services))
    }

    /// Removes and returns a session whose link has frames to send or must be closed. Call until `None` after every transition.
    pub fn poll_wake(&mut self) -> Option<SessionKey> {
        self.wakes.pop()
    }

    /// Removes and returns the next presence event. Call until `None` after [`Core::admit`] and [`Core::lost`].
    pub fn poll_presence(&mut self) -> Option<Presence> {
        self.presence.pop_front()
    }

    /// Handles the loss of a session's link: ends its calls.
    pub fn lost(&mut self, key: SessionKey) {
        self.end_calls(key);
        let Some(mut session) = self.sessions.remove(&key) else { return };
        session.unwritten.release(0, &mut self.waiting);
        give_back(&mut self.waiting, &mut session.outbox);
        if self.by_name.get(&session.peer) == Some(&key) {
            self.by_name.remove(&session.peer);
            self.identity_peers.remove(&session.identity);
            if !self.is_local(&session.peer) {
                let drained = session.is_draining();
                self.presence.push_back(Presence::Down { peer: session.peer, session: session.id, drained });
            }
        }
    }

    /// Marks a peer as draining: it accepts and makes no new calls.
    pub fn peer_draining(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.drains = true;
        }
    }

    /// Drains the hub: it accepts no new peers and no new calls.
    pub fn drain(&mut self, reason: &str) {
        self.draining = Some(reason.to_owned());
        self.wakes.extend(self.sessions.keys().copied());
    }

    /// Closes every session.
    pub fn close_all(&mut self) {
        self.drain("the hub is closing");
        let keys: Vec<SessionKey> = self.sessions.keys().copied().collect();
        for key in keys {
            self.close(key, CloseReason::Closed);
        }
    }

    /// The sessions of peers with services that may leave for another hub, in random order.
    #[must_use]
    pub fn movable(&self) -> Vec<SessionKey> {
        let local = self.local_session().map(|(key, _)| key);
        let movable = self.sessions.iter().filter(|(key, session)| {
            session.closed.is_none()
                && !session.drains
                && !session.services.is_empty()
                && local != Some(**key)
        });
        let mut keys: Vec<_> = movable.map(|(key, _)| *key).collect();
        // The key of a session is a counter of this hub: no peer chooses its place. A run of the simulation can be replayed.
        let shuffle = BuildHasherDefault::<DefaultHasher>::default();
        keys.sort_by_key(|key| shuffle.hash_one(key));
        keys
    }

    /// Asks a peer to leave for another hub. It accepts and makes no new calls on this link.
    pub fn ask_to_leave(&mut self, key: SessionKey, reason: &Arc<str>) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.leaving = Some(Arc::clone(reason));
            self.wakes.push(key);
        }
    }

    /// Why the link of this peer drains, if it does: the hub drains, or the peer was asked to leave.
    #[must_use]
    pub fn draining(&self, key: SessionKey) -> Option<&str> {
        let leaving = self.sessions.get(&key).and_then(|session| session.leaving.as_deref());
        leaving.or(self.draining.as_deref())
    }

    /// Whether this peer provides services.
    #[must_use]
    pub fn has_services(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|session| !session.services.is_empty())
    }

    /// Whether no call from or to this peer is open and no frame is queued for it.
    #[must_use]
    pub fn is_idle(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_none_or(|session| {
            session.calls.is_empty() && session.inbound.is_empty() && session.outbox.len() == 0
        })
    }

    /// Whether a requester of a call from or to this peer waits.
    #[must_use]
    pub fn call_waits(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|session| session.waiting_calls > 0)
    }

    /// Makes the session of this peer, if there is one, prove that it is alive.
    pub fn challenge(&mut self, peer: &PeerId) {
        if let Some(key) = self.by_name.get(peer)
            && let Some(session) = self.sessions.get_mut(key)
        {
            session.is_challenged = true;
            self.wakes.push(*key);
        }
    }

    /// Whether the peer was [challenged](Self::challenge) since the last question.
    pub fn take_challenge(&mut self, key: SessionKey) -> bool {
        self.sessions.get_mut(&key).is_some_and(|session| std::mem::take(&mut session.is_challenged))
    }

    fn close(&mut self, key: SessionKey, reason: CloseReason) {
        self.end_calls(key);
        if let Some(session) = self.sessions.get_mut(&key) {
            session.closed = Some(reason);
            give_back(&mut self.waiting, &mut session.outbox);
            session.control_bytes = 0;
            self.wakes.push(key);
        }
    }

    /// The sender of frames that this session causes; `None` if the session has ended.
    fn sender(&self, key: SessionKey) -> Option<Sender> {
        self.sessions.get(&key).map(|session| session.sender)
    }

    /// Queues a frame of a call, if the limits allow, and room for `reserved` more is left to its sender. Returns its slot in the
    /// queue.
    fn push(
        &mut self,
        key: SessionKey,
        queued: QueuedFrame,
        reserved: usize,
    ) -> Result<u64, (Reason, String)> {
        let QueuedFrame { sender, cause, .. } = queued;
        let Some(session) = self.sessions.get(&key).filter(|session| session.closed.is_none()) else {
            return Err((Reason::PeerOffline, "the link to the other end is being closed".to_owned()));
        };
        let (peer, outbox, len) = (&session.peer, &session.outbox, queued.frame.len());
        if len > session.max_frame {
            let detail = format!("frame of {len} bytes; {peer} accepts at most {}", session.max_frame);
            return Err((Reason::TooLarge, detail));
        }
        let max = self.settings.queue_frames;
        if !outbox.has_item_room(&sender, 1 + reserved, max) {
            let detail = format!(
                "{} frames from this sender are queued for {peer} or reserved, of at most {max} for all senders, \
                 each at most as many as are then unused",
                outbox.items_of(&sender)
            );
            return Err((Reason::Overloaded, detail));
        }
        let max = self.settings.queue_bytes;
        if !outbox.has_byte_room(&sender, len, max) {
            let detail = format!(
                "{} bytes from this sender are queued for {peer}, of at most {max} for all senders, \
                 each at most as many as are then unused",
                outbox.bytes_of(&sender)
            );
            return Err((Reason::Overloaded, detail));
        }
        if !self.waiting.has_room(&cause, len) {
            let detail = format!(
                "{} bytes wait of this caller's requests, or of answers that it has not read, of at most {} for all callers, \
                 each at most as many as are then unused",
                self.waiting.held_by(&cause),
                self.waiting.max()
            );
            return Err((Reason::Overloaded, detail));
        }
        Ok(self.enqueue(key, queued))
    }

    /// Queues a control frame, which must not be lost. A peer with too many queued control frames is disconnected: those that
    /// others can cause are limited where they are caused. Control frames have a separate byte limit, so that a full queue of
    /// replies leaves room for them.
    fn control(&mut self, key: SessionKey, sender: Sender, frame: Frame, lane: Lane) {
        let frame = self.encoder.encode(frame, lane);
        let Some(session) = self.sessions.get(&key).filter(|session| session.closed.is_none()) else {
            return;
        };
        let max = self.settings.queue_frames + 4 * self.settings.max_calls;
        let max_bytes = max.saturating_mul(CONTROL_FRAME);
        let exceeded = if session.outbox.len() >= max {
            Some(("the queue of frames to this peer", max))
        } else if session.control_bytes >= max_bytes {
            Some(("the queue of control frames to this peer, in bytes,", max_bytes))
        } else if !self.has_room_for_control(session, sender, frame.len()) {
            Some(("the queues of all peers, in bytes,", self.waiting.max()))
        } else {
            None
        };
        let Some((resource, max)) = exceeded else {
            self.enqueue(key, QueuedFrame { frame, sender, cause: sender, limit: None, is_control: true });
            return;
        };
        if let Some(session) = self.sessions.get_mut(&key) {
            // The peer's calls end with its link, which its task closes when woken.
            session.closed = Some(CloseReason::Overloaded { resource, max });
            self.wakes.push(key);
        }
    }

    /// Whether a control frame may wait. Failures of a peer's own requests are limited to its share. What others send to it must
    /// not disconnect it before the total is used up.
    fn has_room_for_control(&self, session: &Session, sender: Sender, bytes: usize) -> bool {
        if sender == session.refused {
            self.waiting.has_room(&sender, bytes)
        } else {
            self.waiting.used().saturating_add(bytes) <= self.waiting.max()
        }
    }

    fn enqueue(&mut self, key: SessionKey, queued: QueuedFrame) -> u64 {
        let Some(session) = self.sessions.get_mut(&key) else { return 0 };
        let (sender, bytes) = (queued.sender, queued.frame.len());
        self.waiting.take(&queued.cause, bytes);
        if queued.is_control {
            session.control_bytes += bytes;
        }
        if session.outbox.len() == 0 {
            self.wakes.push(key);
        }
        session.outbox.push(&sender, bytes, queued)
    }
}

/// Empties a queue.
fn give_back(waiting: &mut FairShare<Sender>, outbox: &mut FairQueue<Sender, QueuedFrame>) {
    for QueuedFrame { frame, cause, .. } in outbox.clear() {
        waiting.give_back(&cause, frame.len());
    }
}
