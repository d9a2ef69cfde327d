//! The routing table of a hub: peers by name, their open calls, and the frames that wait for each.

mod calls;
mod dequeue;
mod open;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use self::open::{Call, Served};
use super::outbox::{Limit, Outbox, Waiting};
use super::{HubSettings, HubStats, PeerInfo, Policy, Presence, Requester};
use crate::counted::ByCount;
use crate::frame::{Encoder, Frame, Lane, Reason};
use crate::name::{PeerId, ServiceName, SessionId};
use crate::session::{CloseReason, Remote, UsedNumbers};

/// Bytes of a small frame that must not be lost, with names of a usual length. A queue has room for so many of each of them.
const CONTROL_FRAME: usize = 256;

/// A peer's session at this hub. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

/// A map by session.
pub(super) type BySession<V> = ByCount<SessionKey, V>;

#[derive(Debug)]
struct Session {
    peer: PeerId,
    id: SessionId,
    services: Arc<[ServiceName]>,
    max_frame: usize,
    draining: bool,
    closed: Option<CloseReason>,
    outbox: Outbox,
    /// Open calls of this peer, by the numbers that it gave them.
    calls: BTreeMap<u64, Call>,
    /// Numbers that it has used.
    used: UsedNumbers,
    /// Open calls to this peer, by the numbers that they have on its link.
    serving: BTreeMap<u64, Served>,
    /// The last of these numbers.
    last_number: u64,
    next_lane: u64,
}

impl Session {
    fn info(&self) -> PeerInfo {
        PeerInfo { peer: self.peer.clone(), session: self.id, services: Arc::clone(&self.services) }
    }

    fn fresh_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.next_lane
    }
}

/// What the hub answers itself.
struct Own {
    name: PeerId,
    /// Its services, and who may call them.
    services: HashMap<ServiceName, Arc<dyn Policy>>,
}

/// The routing table. Every function is one transition; what is to be done then is polled.
pub struct Core {
    settings: HubSettings,
    policy: Arc<dyn Policy>,
    sessions: BySession<Session>,
    by_name: HashMap<PeerId, SessionKey>,
    own: Option<Own>,
    next_key: u64,
    queued_bytes: usize,
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
    /// An empty table.
    #[must_use]
    pub fn new(settings: HubSettings, policy: Arc<dyn Policy>) -> Self {
        Self {
            settings,
            policy,
            sessions: BySession::default(),
            by_name: HashMap::new(),
            own: None,
            next_key: 0,
            queued_bytes: 0,
            draining: None,
            encoder: Encoder::default(),
            wakes: Vec::new(),
            presence: VecDeque::new(),
            stats: HubStats::default(),
        }
    }

    /// The same for a hub that answers calls itself, by this name. Who may call each of its services its own policy says, in
    /// place of the table's. It is not counted among the peers, and nobody is told of it.
    #[must_use]
    pub fn with_own(mut self, name: PeerId, services: HashMap<ServiceName, Arc<dyn Policy>>) -> Self {
        self.own = Some(Own { name, services });
        self
    }

    fn is_own(&self, peer: &PeerId) -> bool {
        self.own.as_ref().is_some_and(|own| own.name == *peer)
    }

    /// Whether a peer may call another's service.
    #[must_use]
    pub fn permits(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool {
        let policy = match &self.own {
            // That there is no such service is said by the hub's own peer, as every peer says it.
            Some(own) if own.name == *target => match own.services.get(service) {
                Some(policy) => policy,
                None => return true,
            },
            _ => &self.policy,
        };
        policy.may_call(requester, target, service)
    }

    /// The session of the peer that answers what the hub answers itself.
    fn own_session(&self) -> Option<(SessionKey, &Session)> {
        let key = *self.by_name.get(&self.own.as_ref()?.name)?;
        Some((key, self.sessions.get(&key)?))
    }

    /// Peers but the hub itself.
    fn others(&self) -> usize {
        self.by_name.len() - usize::from(self.own_session().is_some())
    }

    /// Counts, and what is open now.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        HubStats {
            peers: self.others(),
            open_calls: self.sessions.values().map(|session| session.calls.len()).sum(),
            own_calls: self.own_session().map_or(0, |(_, own)| own.serving.len()),
            queued_bytes: self.queued_bytes,
            ..self.stats
        }
    }

    /// The counts, for what happens before a peer is admitted.
    #[cfg(feature = "runtime")]
    pub(super) const fn stats_mut(&mut self) -> &mut HubStats {
        &mut self.stats
    }

    /// Connected peers, in no order.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        let others = self.by_name.iter().filter(|(peer, _)| !self.is_own(peer));
        others.filter_map(|(_, key)| self.sessions.get(key)).map(Session::info).collect()
    }

    /// Takes out a session whose link has something to send, or is to be closed. Call until `None` after every transition.
    pub fn poll_wake(&mut self) -> Option<SessionKey> {
        self.wakes.pop()
    }

    /// Takes out the next presence event. Call until `None` after [`Core::admit`] and [`Core::lost`].
    pub fn poll_presence(&mut self) -> Option<Presence> {
        self.presence.pop_front()
    }

    /// Whether a peer would be let in now. A newer session of the same instance would; an older one, and every other instance while
    /// this one is connected, is kept out, which is counted. Pings find out that a session is dead.
    fn may_come(&mut self, remote: &Remote) -> Result<(), CloseReason> {
        if let Some(reason) = &self.draining {
            return Err(CloseReason::Drained { reason: reason.clone() });
        }
        let known = self.by_name.get(&remote.peer).and_then(|key| self.sessions.get(key));
        let max = self.settings.max_peers;
        if known.is_none() && self.others() >= max && !self.is_own(&remote.peer) {
            return Err(CloseReason::Overloaded { what: "the number of peers", max });
        }
        let Some(current) = known.filter(|known| known.closed.is_none()).map(|known| known.id) else {
            return Ok(());
        };
        let (peer, found) = (remote.peer.clone(), remote.session);
        let refused = if found.instance != current.instance {
            CloseReason::OtherInstance { peer, found, current }
        } else if found.number <= current.number {
            CloseReason::OlderSession { peer, found, current }
        } else {
            return Ok(());
        };
        self.stats.fenced += 1;
        Err(refused)
    }

    /// Lets a peer in whose name has been authenticated. The older session of the same instance is closed.
    ///
    /// # Errors
    /// [`CloseReason::OlderSession`] or [`CloseReason::OtherInstance`] if another session of the peer stays,
    /// [`CloseReason::Overloaded`] if the hub is full, [`CloseReason::Drained`] if it takes no new peers.
    pub fn admit(&mut self, remote: &Remote) -> Result<SessionKey, CloseReason> {
        self.may_come(remote)?;
        if let Some(old_key) = self.by_name.get(&remote.peer).copied() {
            self.stats.fenced += 1;
            if let Some(old) = self.sessions.get(&old_key)
                && old.id.instance != remote.session.instance
            {
                // It is being closed. Of the end of a session of the same instance the next one's beginning says enough.
                self.presence.push_back(Presence::Down { peer: old.peer.clone(), session: old.id });
            }
            self.close(old_key, CloseReason::Replaced { peer: remote.peer.clone(), by: remote.session });
        }
        self.next_key += 1;
        let key = SessionKey(self.next_key);
        let session = Session {
            peer: remote.peer.clone(),
            id: remote.session,
            services: Arc::clone(&remote.services),
            max_frame: remote.max_frame,
            draining: false,
            closed: None,
            outbox: Outbox::default(),
            calls: BTreeMap::new(),
            used: UsedNumbers::default(),
            serving: BTreeMap::new(),
            last_number: 0,
            next_lane: 0,
        };
        if !self.is_own(&remote.peer) {
            self.presence.push_back(Presence::Up(session.info()));
        }
        self.sessions.insert(key, session);
        self.by_name.insert(remote.peer.clone(), key);
        Ok(key)
    }

    /// Whether frames wait for a peer, or its link is to be closed.
    #[must_use]
    pub fn has_frames(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|session| session.outbox.len() > 0 || session.closed.is_some())
    }

    /// The link of a session is gone: its calls end.
    pub fn lost(&mut self, key: SessionKey) {
        self.end_calls(key);
        let Some(session) = self.sessions.remove(&key) else { return };
        self.queued_bytes -= session.outbox.bytes();
        if self.by_name.get(&session.peer) == Some(&key) {
            self.by_name.remove(&session.peer);
            if !self.is_own(&session.peer) {
                self.presence.push_back(Presence::Down { peer: session.peer, session: session.id });
            }
        }
    }

    /// A peer takes and makes no new calls.
    pub fn peer_draining(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.draining = true;
        }
    }

    /// The hub takes no new peers and no new calls.
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

    /// Why the hub is draining, if it is.
    #[must_use]
    pub fn draining(&self) -> Option<&str> {
        self.draining.as_deref()
    }

    /// Whether no call from or to this peer is open and nothing waits for it.
    #[must_use]
    pub fn is_idle(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_none_or(|session| {
            session.calls.is_empty() && session.serving.is_empty() && session.outbox.len() == 0
        })
    }

    fn close(&mut self, key: SessionKey, reason: CloseReason) {
        self.end_calls(key);
        if let Some(session) = self.sessions.get_mut(&key) {
            session.closed = Some(reason);
            self.queued_bytes -= session.outbox.clear();
            self.wakes.push(key);
        }
    }

    /// Queues a frame that belongs to a call, if the bounds allow. Returns its place in the queue.
    fn push(
        &mut self,
        key: SessionKey,
        frame: Frame,
        lane: Lane,
        limit: Option<Limit>,
    ) -> Result<u64, (Reason, String)> {
        let Some(session) = self.sessions.get(&key).filter(|session| session.closed.is_none()) else {
            return Err((Reason::PeerOffline, "the link to the other end is being closed".to_owned()));
        };
        let frame = self.encoder.encode(frame, lane);
        let (peer, bytes) = (&session.peer, session.outbox.bytes() + frame.len());
        if frame.len() > session.max_frame {
            let detail =
                format!("frame of {} bytes; {peer} takes at most {}", frame.len(), session.max_frame);
            return Err((Reason::TooLarge, detail));
        }
        if session.outbox.places() >= self.settings.queue_frames {
            return Err((Reason::Overloaded, format!("{} frames wait for {peer}", session.outbox.places())));
        }
        if session.outbox.len() > 0 && bytes > self.settings.queue_bytes {
            let detail =
                format!("{bytes} bytes would wait for {peer}; at most {} may", self.settings.queue_bytes);
            return Err((Reason::Overloaded, detail));
        }
        // No peer may hold more than is left for the others: the last of it stays out of reach of those that do not read.
        if bytes > self.settings.total_queue_bytes.saturating_sub(self.queued_bytes) {
            let detail =
                format!("{bytes} bytes would wait for {peer}, and {} wait at the hub", self.queued_bytes);
            return Err((Reason::Overloaded, detail));
        }
        Ok(self.enqueue(key, Waiting { frame, limit, is_control: false }))
    }

    /// Queues a small frame that must not be lost. A peer that lets too many of them wait is closed. They have bytes of their own, so
    /// that a full queue of answers leaves room for them, and they take no more than that.
    fn control(&mut self, key: SessionKey, frame: Frame, lane: Lane) {
        let Some(session) = self.sessions.get_mut(&key).filter(|session| session.closed.is_none()) else {
            return;
        };
        let max = self.settings.queue_frames + 4 * self.settings.max_calls;
        let max_bytes = max.saturating_mul(CONTROL_FRAME);
        let full = if session.outbox.places() >= max {
            Some(("the queue of frames to this peer", max))
        } else {
            let is_full = session.outbox.control_bytes() >= max_bytes;
            is_full.then_some(("the queue of control frames to this peer, in bytes,", max_bytes))
        };
        if let Some((what, max)) = full {
            // Its calls end when its link does, which the wake brings about.
            session.closed = Some(CloseReason::Overloaded { what, max });
            self.wakes.push(key);
            return;
        }
        let frame = self.encoder.encode(frame, lane);
        self.enqueue(key, Waiting { frame, limit: None, is_control: true });
    }

    fn enqueue(&mut self, key: SessionKey, waiting: Waiting) -> u64 {
        let Some(session) = self.sessions.get_mut(&key) else { return 0 };
        self.queued_bytes += waiting.frame.len();
        if session.outbox.len() == 0 {
            self.wakes.push(key);
        }
        session.outbox.push(waiting)
    }
}
