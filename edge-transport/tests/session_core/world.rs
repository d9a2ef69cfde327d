//! A hub and peers with links that a test cuts, delays and corrupts, in virtual time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edge_transport::advanced::frame::{self, End, Frame, Hello};
use edge_transport::advanced::{
    Action, CloseReason, Core, Event, HubSettings, InboundCallId, LinkAction, LinkCore, LinkEvent, Role,
    Session, SessionKey, SessionSettings,
};
use edge_transport::hub::{Policy, Rules};
use edge_transport::link::{Lane, WireFrame};
use edge_transport::{PeerId, Reason, Request, ServiceName, SessionId};
use fastrand::Rng;

pub(crate) const CREDIT: u64 = 1000;
pub(crate) const MAX_CALLS: usize = 16;
/// Open calls of a peer to the hub's own services.
const MAX_OWN_CALLS: usize = 12;

/// Prints how to reproduce a failed test.
pub(crate) struct Replay(pub(crate) u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "replay: EDGE_TRANSPORT_SEED={} cargo test -p edge-transport --test session_core",
                self.0
            );
        }
    }
}

pub(crate) fn name(index: usize) -> PeerId {
    PeerId::new(format!("peer-{index}")).unwrap()
}

pub(crate) fn service() -> ServiceName {
    ServiceName::new("echo").unwrap()
}

/// A call: the index of its requester, and its number there.
pub(crate) type CallKey = (usize, u64);

fn body(call: CallKey) -> Bytes {
    format!("{} {}", call.0, call.1).into()
}

/// The call of a request, unless the request was corrupted.
fn call_of(body: &Bytes) -> Option<CallKey> {
    let (from, number) = std::str::from_utf8(body).ok()?.split_once(' ')?;
    Some((from.parse().ok()?, number.parse().ok()?))
}

/// The hub's end of a link and the frames in flight.
pub(crate) struct Wire {
    pub(crate) link_core: LinkCore,
    pub(crate) key: Option<SessionKey>,
    pub(crate) up: VecDeque<Bytes>,
    pub(crate) down: VecDeque<Bytes>,
    pub(crate) hub_closed: bool,
}

pub(crate) struct Node {
    pub(crate) session: Session,
    /// The session of the node's last link.
    pub(crate) id: SessionId,
    pub(crate) wire: Option<Wire>,
    pub(crate) next_number: u64,
    /// The ends of each call.
    pub(crate) ends: HashMap<u64, Vec<Result<(), Reason>>>,
    pub(crate) unread: HashMap<u64, u64>,
    pub(crate) running: Vec<(InboundCallId, i64)>,
    pub(crate) executed: Vec<CallKey>,
    /// Replies of this peer's services by call: the length of each message, and whether the reply is complete.
    pub(crate) sent: HashMap<CallKey, (Vec<usize>, bool)>,
    pub(crate) received: HashMap<u64, Vec<usize>>,
    pub(crate) targets: HashMap<u64, usize>,
    /// The call of each running service.
    pub(crate) answering: HashMap<InboundCallId, CallKey>,
    /// Services whose call was cancelled.
    pub(crate) abandoned: HashSet<InboundCallId>,
    pub(crate) closed: Option<CloseReason>,
}

pub(crate) struct Sim {
    pub(crate) now: Instant,
    pub(crate) random: Rng,
    pub(crate) core: Core,
    pub(crate) nodes: Vec<Node>,
    /// Whether frames are corrupted.
    pub(crate) tampers: bool,
    /// Links that are lost at the peer's end and still open at the hub.
    pub(crate) half_open: Vec<SessionKey>,
    /// Lanes by link and direction.
    pub(crate) open_lanes: HashSet<(usize, bool, Lane)>,
}

pub(crate) fn note_lane(open: &mut HashSet<(usize, bool, Lane)>, index: usize, up: bool, frame: &WireFrame) {
    if frame.last {
        open.remove(&(index, up, frame.lane));
    } else if frame.lane != Lane::Control {
        open.insert((index, up, frame.lane));
    }
}

fn session(index: usize, instance: u64) -> Session {
    let mut hello = Hello::new(name(index), SessionId { instance, number: 0 });
    hello.services = vec![service()];
    let mut settings = SessionSettings::default();
    settings.max_outbound_calls = MAX_CALLS;
    settings.max_inbound_calls = MAX_CALLS;
    Session::new(hello, settings)
}

impl Sim {
    pub(crate) fn new(seed: u64, peers: usize) -> Self {
        let mut settings = HubSettings::default();
        (settings.max_calls, settings.max_local_calls) = (MAX_CALLS, MAX_OWN_CALLS);
        settings.queue_frames = 64;
        settings.queue_bytes = 64 * 1024;
        let nodes = (0..peers).map(|index| Node {
            session: session(index, 1),
            id: SessionId { instance: 1, number: 0 },
            wire: None,
            next_number: 1,
            ends: HashMap::new(),
            unread: HashMap::new(),
            running: Vec::new(),
            executed: Vec::new(),
            sent: HashMap::new(),
            received: HashMap::new(),
            targets: HashMap::new(),
            answering: HashMap::new(),
            abandoned: HashSet::new(),
            closed: None,
        });
        let nodes = nodes.collect();
        Self {
            now: Instant::now(),
            random: Rng::with_seed(seed),
            // The first node provides the hub's own services.
            core: Core::new(settings, Arc::new(Rules::allow_all())).with_local(
                name(0),
                HashMap::from([(service(), Arc::new(Rules::allow_all()) as Arc<dyn Policy>)]),
            ),
            half_open: Vec::new(),
            open_lanes: HashSet::new(),
            tampers: false,
            nodes,
        }
    }

    pub(crate) fn connect(&mut self, index: usize) {
        if self.nodes[index].wire.is_some() {
            return;
        }
        let hello = Hello::new(PeerId::new("hub").unwrap(), SessionId { instance: 1, number: 1 });
        let link_core = LinkCore::new(
            Role::Acceptor,
            hello.into(),
            SessionSettings::default(),
            self.now,
            &mut Vec::new(),
        );
        self.nodes[index].wire = Some(Wire {
            link_core,
            key: None,
            up: VecDeque::new(),
            down: VecDeque::new(),
            hub_closed: false,
        });
        self.nodes[index].id.number += 1;
        self.event(index, Event::LinkUp);
    }

    /// Restarts the process of a peer. The hub may detect it late.
    fn restart(&mut self, index: usize) {
        match self.random.usize(..2) {
            0 => self.cut(index),
            _ => self.cut_at_peer_only(index),
        }
        let node = &mut self.nodes[index];
        node.id = SessionId { instance: node.id.instance + 1, number: 0 };
        node.session = session(index, node.id.instance);
        node.running.clear();
        node.answering.clear();
        node.abandoned.clear();
    }

    pub(crate) fn cut(&mut self, index: usize) {
        let Some(wire) = self.nodes[index].wire.take() else { return };
        if let Some(key) = wire.key {
            self.core.lost(key);
        }
        self.event(index, Event::LinkLost);
        self.flush_hub();
    }

    /// Breaks the link at the peer's end only. The hub detects it later, when the peer may have reconnected.
    fn cut_at_peer_only(&mut self, index: usize) {
        let Some(wire) = self.nodes[index].wire.take() else { return };
        self.half_open.extend(wire.key);
        self.event(index, Event::LinkLost);
    }

    fn detect_lost_link(&mut self) {
        if !self.half_open.is_empty() {
            let key = self.half_open.swap_remove(self.random.usize(..self.half_open.len()));
            self.core.lost(key);
        }
    }

    pub(crate) fn event(&mut self, index: usize, event: Event) {
        let node = &mut self.nodes[index];
        let flushed = !matches!(event, Event::Flushed);
        node.session.handle(event, self.now);
        while let Some(action) = node.session.poll_action() {
            match action {
                Action::Send { frame, .. } => {
                    if let Some(wire) = &mut node.wire {
                        note_lane(&mut self.open_lanes, index, true, &frame);
                        wire.up.push_back([frame.head, frame.body].concat().into());
                    }
                }
                Action::Reply { number, message, end } => {
                    node.received.entry(number).or_default().extend(message.as_ref().map(Bytes::len));
                    *node.unread.entry(number).or_default() +=
                        message.map_or(0, |message| frame::cost(&message));
                    if let Some(end) = end {
                        let end = match end {
                            End::Failed(failure) => Err(failure.reason()),
                            _ => Ok(()),
                        };
                        node.ends.get_mut(&number).unwrap().push(end);
                    } else {
                        assert!(node.ends[&number].is_empty(), "a message after the end");
                    }
                    assert!(
                        node.unread[&number] <= CREDIT + 1000,
                        "more than the credit and one message is unread"
                    );
                }
                Action::Serve(incoming) => {
                    node.running.push((incoming.inbound, incoming.request.credit as i64));
                    let call = call_of(&incoming.request.body);
                    if !self.tampers {
                        assert_eq!(incoming.source, name(call.unwrap().0));
                        let to = incoming.request.to_session;
                        assert!(to.is_none_or(|to| to == node.id), "for {to:?}, started by {}", node.id);
                    }
                    node.answering.insert(incoming.inbound, call.unwrap_or_default());
                    node.executed.push(call.unwrap_or_default());
                }
                Action::Cancelled { inbound } => {
                    assert!(node.abandoned.insert(inbound), "cancelled twice");
                }
                Action::Credit { inbound, bytes } => {
                    for (running, credit) in &mut node.running {
                        if *running == inbound {
                            *credit += bytes as i64;
                        }
                    }
                }
                Action::Close(reason) => node.closed = Some(reason),
                _ => {}
            }
        }
        let (requests, inbound) = (node.session.open_outbound(), node.session.open_inbound());
        assert!(requests <= MAX_CALLS && inbound <= MAX_CALLS, "{requests} requests, {inbound} served");
        assert_eq!(inbound, node.running.len());
        if node.closed.take().is_some() {
            self.cut(index);
        } else if node.session.is_draining() && flushed {
            self.event(index, Event::Flushed);
        }
    }

    pub(crate) fn link_event(&mut self, index: usize, event: LinkEvent) {
        let mut actions = Vec::new();
        let Some(wire) = &mut self.nodes[index].wire else { return };
        wire.link_core.handle(event, self.now, &mut actions);
        for action in actions {
            let Some(wire) = &mut self.nodes[index].wire else { return };
            match action {
                LinkAction::Send(kind) => {
                    wire.down.push_back(frame::encode(Frame::link(kind), Lane::Control).head);
                }
                LinkAction::HelloReceived(remote) => {
                    let admitted = self.core.admit(&remote);
                    wire.key = admitted.as_ref().ok().copied();
                    self.link_event(index, admitted.map_or_else(LinkEvent::Refuse, |_| LinkEvent::Admit));
                }
                LinkAction::Close(_) => wire.hub_closed = true,
                LinkAction::Draining { .. } => {
                    if let Some(key) = wire.key {
                        self.core.peer_draining(key);
                    }
                }
                _ => {}
            }
        }
    }

    pub(crate) fn flush_hub(&mut self) {
        while self.core.poll_wake().is_some() {}
        while self.core.poll_presence().is_some() {}
        for index in 0..self.nodes.len() {
            let Some(wire) = &mut self.nodes[index].wire else { continue };
            let Some(key) = wire.key else { continue };
            let mut frames = VecDeque::new();
            let taken = self.core.take(key, &mut frames, usize::MAX, self.now);
            self.core.written(key, 0);
            for frame in &frames {
                note_lane(&mut self.open_lanes, index, false, frame);
            }
            wire.down.extend(frames.into_iter().map(|frame| Bytes::from([frame.head, frame.body].concat())));
            if let Err(reason) = taken {
                self.link_event(index, LinkEvent::Refuse(reason));
            }
        }
        let closing: Vec<usize> = (0..self.nodes.len())
            .filter(|index| {
                self.nodes[*index].wire.as_ref().is_some_and(|wire| wire.hub_closed && wire.down.is_empty())
            })
            .collect();
        for index in closing {
            self.cut(index);
        }
    }

    pub(crate) fn deliver_up(&mut self, index: usize) -> bool {
        let Some(wire) = &mut self.nodes[index].wire else { return false };
        let Some(bytes) = wire.up.pop_front() else { return false };
        if wire.hub_closed {
            return true;
        }
        match (frame::decode(bytes, usize::MAX), wire.key) {
            (Ok(frame), Some(key)) if matches!(frame.kind, frame::Kind::Call(..)) => {
                self.link_event(index, LinkEvent::Activity);
                self.core.route(key, frame, self.now);
            }
            (Ok(frame), _) => self.link_event(index, LinkEvent::Frame(frame.kind)),
            (Err(error), Some(key)) => {
                self.link_event(index, LinkEvent::Activity);
                self.core.malformed(key, &error);
            }
            (Err(_), None) => self.link_event(index, LinkEvent::Refuse(CloseReason::Closed)),
        }
        self.flush_hub();
        true
    }

    pub(crate) fn deliver_down(&mut self, index: usize) -> bool {
        let Some(wire) = &mut self.nodes[index].wire else { return false };
        let Some(bytes) = wire.down.pop_front() else { return false };
        self.event(index, Event::Received(bytes));
        self.flush_hub();
        true
    }

    pub(crate) fn call(&mut self, from: usize, to: usize, deadline: Option<Duration>) {
        self.call_session(from, to, None, deadline);
    }

    pub(crate) fn call_session(
        &mut self,
        from: usize,
        to: usize,
        session: Option<SessionId>,
        deadline: Option<Duration>,
    ) {
        let node = &mut self.nodes[from];
        let number = node.next_number;
        node.next_number += 1;
        node.ends.insert(number, Vec::new());
        node.targets.insert(number, to);
        let mut request = Request::new(service(), body((from, number)));
        (request.credit, request.to_session) = (CREDIT, session);
        let deadline = deadline.map(|deadline| self.now + deadline);
        self.event(from, Event::Call { number, target: name(to), request, deadline });
    }

    pub(crate) fn answer(&mut self, index: usize) -> bool {
        if self.nodes[index].running.is_empty() {
            return false;
        }
        let pick = self.random.usize(..self.nodes[index].running.len());
        let size = self.random.usize(..900);
        let message = Bytes::from(vec![7; size]);
        let (inbound, credit) = &mut self.nodes[index].running[pick];
        let inbound = *inbound;
        if *credit > 0 && self.random.usize(..3) > 0 {
            *credit -= frame::cost(&message) as i64;
            let call = self.nodes[index].answering[&inbound];
            self.nodes[index].sent.entry(call).or_default().0.push(size);
            self.event(index, Event::Answer { inbound, message: Some(message), end: None });
        } else {
            self.nodes[index].running.swap_remove(pick);
            let call = self.nodes[index].answering[&inbound];
            self.nodes[index].sent.entry(call).or_default().1 = true;
            let end = Some(End::Finished(Bytes::new()));
            self.event(index, Event::Answer { inbound, message: None, end });
        }
        true
    }

    pub(crate) fn read(&mut self, index: usize) {
        let unread: Vec<(u64, u64)> = self.nodes[index].unread.drain().collect();
        for (number, bytes) in unread {
            self.event(index, Event::Credit { number, bytes });
        }
    }

    pub(crate) fn cancel(&mut self, index: usize) {
        let open: Vec<u64> =
            self.nodes[index].ends.iter().filter(|(_, ends)| ends.is_empty()).map(|(n, _)| *n).collect();
        if let Some(number) = open.iter().min().copied() {
            self.event(index, Event::Cancel { number });
            self.nodes[index].ends.remove(&number);
        }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        for index in 0..self.nodes.len() {
            self.event(index, Event::Tick);
            self.link_event(index, LinkEvent::Tick);
        }
        self.flush_hub();
    }

    pub(crate) fn tamper(&mut self, index: usize) {
        let Some(wire) = &mut self.nodes[index].wire else { return };
        let queue = if self.random.usize(..2) == 0 { &mut wire.up } else { &mut wire.down };
        let Some(at) = (!queue.is_empty()).then(|| self.random.usize(..queue.len())) else { return };
        match self.random.usize(..4) {
            0 => queue.extend(queue.get(at).cloned()),
            1 => drop(queue.remove(at)),
            2 => queue.swap(0, at),
            _ => {
                let mut bytes = queue[at].to_vec();
                if !bytes.is_empty() {
                    let byte = self.random.usize(..bytes.len());
                    bytes[byte] ^= 1 << self.random.usize(..8);
                }
                queue[at] = bytes.into();
            }
        }
    }

    pub(crate) fn step(&mut self, tampering: bool) {
        let peers = self.nodes.len();
        let (index, other) = (self.random.usize(..peers), self.random.usize(..peers + 1));
        self.tampers = tampering;
        match self.random.usize(..40) {
            0 => match self.random.usize(..7) {
                0..=1 => self.cut_at_peer_only(index),
                2..=3 => self.detect_lost_link(),
                4 => self.restart(index),
                _ => self.cut(index),
            },
            1..=3 => self.connect(index),
            4..=9 => {
                let deadline = (self.random.usize(..3) == 0).then(|| Duration::from_millis(500));
                // Some requests are for the previous session, some for any.
                let session = self.nodes.get(other).map(|node| node.id);
                let session = session.filter(|_| self.random.usize(..3) > 0).map(|id| SessionId {
                    number: id.number.saturating_sub(u64::from(self.random.usize(..4) == 0)),
                    ..id
                });
                self.call_session(index, other, session, deadline);
            }
            10..=14 => drop(self.answer(index)),
            15..=16 => self.read(index),
            17 => self.cancel(index),
            18 => {
                let by = Duration::from_millis(self.random.u64(..2000));
                self.advance(by);
            }
            19 if self.random.usize(..20) == 0 => self.event(index, Event::Drain { reason: "update".into() }),
            20..=22 if tampering => self.tamper(index),
            19..=29 => drop(self.deliver_up(index)),
            _ => drop(self.deliver_down(index)),
        }
        self.flush_hub();
        let stats = self.core.stats();
        assert!(stats.open_calls <= MAX_CALLS * peers, "{stats:?}");
        assert!(stats.local_calls <= (MAX_OWN_CALLS * peers).min(stats.open_calls), "{stats:?}");
    }

    /// Delivers all frames in flight and completes every service, without faults.
    pub(crate) fn settle(&mut self) {
        while !self.half_open.is_empty() {
            self.detect_lost_link();
        }
        self.flush_hub();
        loop {
            let mut progress = false;
            for index in 0..self.nodes.len() {
                while self.deliver_up(index) || self.deliver_down(index) || self.answer(index) {
                    progress = true;
                }
                self.read(index);
            }
            if !progress {
                return;
            }
        }
    }

    pub(crate) fn check_ended(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            for (number, ends) in &node.ends {
                assert_eq!(
                    ends.len(),
                    1,
                    "call {number} of peer {index} to {} got the ends {ends:?}; {:?}; is open: {}",
                    node.targets[number],
                    node.session,
                    node.session.is_open()
                );
            }
            assert_eq!(node.session.open_outbound(), 0);
        }
        let stats = self.core.stats();
        assert_eq!((stats.open_calls, stats.local_calls, stats.queued_bytes), (0, 0, 0));
    }
}
