//! The pure cores of peers and hub against each other: virtual time, random operations, faults. No runtime.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails and speaks by them"
)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edge_transport::frame::{self, CallId, End, FEATURE_RESUME, Frame, Hello, Lane, WireFrame};
use edge_transport::hub::{AllowAll, Core, HubSettings, SessionKey};
use edge_transport::session::{
    Action, CloseReason, Event, Hop, HopAction, HopEvent, Role, ServingId, Session, Settings,
};
use edge_transport::{Epoch, PeerId, Reason, ServiceName};

const CREDIT: u64 = 1000;
const MAX_CALLS: usize = 16;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Says how to run the same again if the test fails.
struct Replay(u64);

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

fn name(index: usize) -> PeerId {
    PeerId::new(format!("peer-{index}")).unwrap()
}

fn service() -> ServiceName {
    ServiceName::new("echo").unwrap()
}

/// The hub's end of a link, and what is on its way.
struct Wire {
    hop: Hop,
    key: Option<SessionKey>,
    up: VecDeque<Bytes>,
    down: VecDeque<Bytes>,
    hub_closed: bool,
}

struct Node {
    session: Session,
    wire: Option<Wire>,
    next_number: u64,
    /// Ends that each call got.
    ends: HashMap<u64, Vec<Result<(), Reason>>>,
    unread: HashMap<u64, u64>,
    running: Vec<(ServingId, i64)>,
    executed: Vec<(PeerId, CallId)>,
    /// What services of this peer have said, by call: the length of each message, and whether that was all.
    said: HashMap<(PeerId, CallId), (Vec<usize>, bool)>,
    heard: HashMap<u64, Vec<usize>>,
    targets: HashMap<u64, usize>,
    /// Whose answer each running service gives.
    answering: HashMap<ServingId, (PeerId, CallId)>,
    closed: Option<CloseReason>,
}

struct Sim {
    now: Instant,
    random: Random,
    core: Core,
    nodes: Vec<Node>,
    features: Vec<String>,
    /// Lanes by link and direction.
    open_lanes: HashSet<(usize, bool, Lane)>,
}

fn note_lane(open: &mut HashSet<(usize, bool, Lane)>, index: usize, up: bool, frame: &WireFrame) {
    if frame.last {
        open.remove(&(index, up, frame.lane));
    } else if frame.lane != Lane::Control {
        open.insert((index, up, frame.lane));
    }
}

impl Sim {
    fn new(seed: u64, peers: usize) -> Self {
        Self::with_features(seed, peers, &[])
    }

    fn with_features(seed: u64, peers: usize, features: &[&str]) -> Self {
        let features: Vec<String> = features.iter().map(ToString::to_string).collect();
        let mut settings = HubSettings::default();
        settings.max_calls = MAX_CALLS;
        settings.queue_frames = 64;
        settings.queue_bytes = 64 * 1024;
        let nodes = (0..peers)
            .map(|index| {
                let mut hello = Hello::new(name(index), Epoch::new(1));
                hello.services = vec![service()];
                hello.features = features.clone();
                let mut settings = Settings::default();
                settings.max_requests = MAX_CALLS;
                settings.max_serving = MAX_CALLS;
                Node {
                    session: Session::new(hello, settings),
                    wire: None,
                    next_number: 1,
                    ends: HashMap::new(),
                    unread: HashMap::new(),
                    running: Vec::new(),
                    executed: Vec::new(),
                    said: HashMap::new(),
                    heard: HashMap::new(),
                    targets: HashMap::new(),
                    answering: HashMap::new(),
                    closed: None,
                }
            })
            .collect();
        Self {
            now: Instant::now(),
            random: Random(seed),
            core: Core::new(settings, Arc::new(AllowAll)),
            open_lanes: HashSet::new(),
            features,
            nodes,
        }
    }

    fn connect(&mut self, index: usize) {
        if self.nodes[index].wire.is_some() {
            return;
        }
        let mut hello = Hello::new(PeerId::new("hub").unwrap(), Epoch::new(1));
        hello.features = self.features.clone();
        let hop = Hop::new(Role::Acceptor, hello, Settings::default(), self.now, &mut Vec::new());
        self.nodes[index].wire =
            Some(Wire { hop, key: None, up: VecDeque::new(), down: VecDeque::new(), hub_closed: false });
        self.event(index, Event::LinkUp);
    }

    fn cut(&mut self, index: usize) {
        let Some(wire) = self.nodes[index].wire.take() else { return };
        if let Some(key) = wire.key {
            self.core.lost(key, self.now);
        }
        self.event(index, Event::LinkLost);
        self.flush_hub();
    }

    fn event(&mut self, index: usize, event: Event) {
        let node = &mut self.nodes[index];
        let flushed = !matches!(event, Event::Flushed);
        node.session.handle(event, self.now);
        while let Some(action) = node.session.poll_action() {
            match action {
                Action::Send(frame) => {
                    if let Some(wire) = &mut node.wire {
                        note_lane(&mut self.open_lanes, index, true, &frame);
                        wire.up.push_back([frame.head, frame.body].concat().into());
                    }
                }
                Action::Reply { number, message, end } => {
                    node.heard.entry(number).or_default().extend(message.as_ref().map(Bytes::len));
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
                        "more than the credit and one message lies unread"
                    );
                }
                Action::Serve(incoming) => {
                    node.running.push((incoming.serving, incoming.request.credit as i64));
                    node.answering.insert(incoming.serving, (incoming.source.clone(), incoming.id));
                    node.executed.push((incoming.source, incoming.id));
                }
                Action::Credit { serving, bytes } => {
                    for (running, credit) in &mut node.running {
                        if *running == serving {
                            *credit += bytes as i64;
                        }
                    }
                }
                Action::Close(reason) => node.closed = Some(reason),
                _ => {}
            }
        }
        let (requests, serving) = (node.session.open_requests(), node.session.open_serving());
        assert!(requests <= MAX_CALLS && serving <= MAX_CALLS, "{requests} requests, {serving} served");
        assert_eq!(serving, node.running.len());
        if node.closed.take().is_some() {
            self.cut(index);
        } else if node.session.is_draining() && flushed {
            self.event(index, Event::Flushed);
        }
    }

    fn hop(&mut self, index: usize, event: HopEvent) {
        let mut actions = Vec::new();
        let Some(wire) = &mut self.nodes[index].wire else { return };
        wire.hop.handle(event, self.now, &mut actions);
        for action in actions {
            let Some(wire) = &mut self.nodes[index].wire else { return };
            match action {
                HopAction::Send(kind) => {
                    wire.down.push_back(frame::encode(Frame::hop(kind), Lane::Control).head);
                }
                HopAction::Introduced(remote) => {
                    let admitted = self.core.admit(&remote, self.now);
                    wire.key = admitted.as_ref().ok().copied();
                    self.hop(index, admitted.map_or_else(HopEvent::Refuse, |_| HopEvent::Admit));
                }
                HopAction::Close(_) => wire.hub_closed = true,
                HopAction::Draining { .. } => {
                    if let Some(key) = wire.key {
                        self.core.peer_draining(key);
                    }
                }
                _ => {}
            }
        }
    }

    fn flush_hub(&mut self) {
        while self.core.poll_wake().is_some() {}
        while self.core.poll_presence().is_some() {}
        for index in 0..self.nodes.len() {
            let Some(wire) = &mut self.nodes[index].wire else { continue };
            let Some(key) = wire.key else { continue };
            let mut frames = VecDeque::new();
            let taken = self.core.take(key, &mut frames, usize::MAX);
            for frame in &frames {
                note_lane(&mut self.open_lanes, index, false, frame);
            }
            wire.down.extend(frames.into_iter().map(|frame| Bytes::from([frame.head, frame.body].concat())));
            if let Err(reason) = taken {
                self.hop(index, HopEvent::Refuse(reason));
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

    fn deliver_up(&mut self, index: usize) -> bool {
        let Some(wire) = &mut self.nodes[index].wire else { return false };
        let Some(bytes) = wire.up.pop_front() else { return false };
        if wire.hub_closed {
            return true;
        }
        match (frame::decode(bytes, usize::MAX), wire.key) {
            (Ok(frame), Some(key)) if matches!(frame.kind, frame::Kind::Call(..)) => {
                self.hop(index, HopEvent::Noise);
                self.core.route(key, frame);
            }
            (Ok(frame), _) => self.hop(index, HopEvent::Frame(frame.kind)),
            (Err(error), Some(key)) => {
                self.hop(index, HopEvent::Noise);
                self.core.malformed(key, &error);
            }
            (Err(_), None) => self.hop(index, HopEvent::Refuse(CloseReason::Closed)),
        }
        self.flush_hub();
        true
    }

    fn deliver_down(&mut self, index: usize) -> bool {
        let Some(wire) = &mut self.nodes[index].wire else { return false };
        let Some(bytes) = wire.down.pop_front() else { return false };
        self.event(index, Event::Received(bytes));
        self.flush_hub();
        true
    }

    fn call(&mut self, from: usize, to: usize, deadline: Option<Duration>) {
        let node = &mut self.nodes[from];
        let number = node.next_number;
        node.next_number += 1;
        node.ends.insert(number, Vec::new());
        node.targets.insert(number, to);
        let mut request = frame::Request::new(service(), Bytes::from_static(b"request"));
        request.credit = CREDIT;
        let deadline = deadline.map(|deadline| self.now + deadline);
        self.event(from, Event::Call { number, target: name(to), request, deadline, repeatable: true });
    }

    fn answer(&mut self, index: usize) -> bool {
        if self.nodes[index].running.is_empty() {
            return false;
        }
        let pick = self.random.below(self.nodes[index].running.len());
        let size = self.random.below(900);
        let message = Bytes::from(vec![7; size]);
        let (serving, credit) = &mut self.nodes[index].running[pick];
        let serving = *serving;
        if *credit > 0 && self.random.below(3) > 0 {
            *credit -= frame::cost(&message) as i64;
            let call = self.nodes[index].answering[&serving].clone();
            self.nodes[index].said.entry(call).or_default().0.push(size);
            self.event(index, Event::Answer { serving, message: Some(message), end: None });
        } else {
            self.nodes[index].running.swap_remove(pick);
            let call = self.nodes[index].answering[&serving].clone();
            self.nodes[index].said.entry(call).or_default().1 = true;
            self.event(
                index,
                Event::Answer { serving, message: None, end: Some(End::Finished(Bytes::new())) },
            );
        }
        true
    }

    fn read(&mut self, index: usize) {
        let unread: Vec<(u64, u64)> = self.nodes[index].unread.drain().collect();
        for (number, bytes) in unread {
            self.event(index, Event::Credit { number, bytes });
        }
    }

    fn stop_waiting(&mut self, index: usize) {
        let open: Vec<u64> =
            self.nodes[index].ends.iter().filter(|(_, ends)| ends.is_empty()).map(|(n, _)| *n).collect();
        if let Some(number) = open.iter().min().copied() {
            self.event(index, Event::StopWaiting { number });
            self.nodes[index].ends.remove(&number);
        }
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        for index in 0..self.nodes.len() {
            self.event(index, Event::Tick);
            self.hop(index, HopEvent::Tick);
        }
        self.flush_hub();
    }

    fn tamper(&mut self, index: usize) {
        let Some(wire) = &mut self.nodes[index].wire else { return };
        let queue = if self.random.below(2) == 0 { &mut wire.up } else { &mut wire.down };
        let Some(at) = (!queue.is_empty()).then(|| self.random.below(queue.len())) else { return };
        match self.random.below(4) {
            0 => queue.extend(queue.get(at).cloned()),
            1 => drop(queue.remove(at)),
            2 => queue.swap(0, at),
            _ => {
                let mut bytes = queue[at].to_vec();
                if !bytes.is_empty() {
                    let byte = self.random.below(bytes.len());
                    bytes[byte] ^= 1 << self.random.below(8);
                }
                queue[at] = bytes.into();
            }
        }
    }

    fn step(&mut self, tampering: bool) {
        let peers = self.nodes.len();
        let (index, other) = (self.random.below(peers), self.random.below(peers + 1));
        match self.random.below(40) {
            0 => self.cut(index),
            1..=3 => self.connect(index),
            4..=9 => {
                let deadline = (self.random.below(3) == 0).then(|| Duration::from_millis(500));
                self.call(index, other, deadline);
            }
            10..=14 => drop(self.answer(index)),
            15..=16 => self.read(index),
            17 => self.stop_waiting(index),
            18 => {
                let by = Duration::from_millis(self.random.below(2000) as u64);
                self.advance(by);
            }
            19 if self.random.below(20) == 0 => self.event(index, Event::Drain { reason: "update".into() }),
            20..=22 if tampering => self.tamper(index),
            19..=29 => drop(self.deliver_up(index)),
            _ => drop(self.deliver_down(index)),
        }
        self.flush_hub();
        assert!(self.core.stats().open_calls <= MAX_CALLS * peers);
    }

    /// Faults stop; everything on its way arrives, every service ends.
    fn settle(&mut self) {
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

    fn check_ended(&self) {
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
            assert_eq!(node.session.open_requests(), 0);
        }
        assert_eq!(self.core.stats().open_calls, 0);
        assert_eq!(self.core.stats().queued_bytes, 0);
    }
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EDGE_TRANSPORT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}

#[test]
fn with_links_that_come_and_go_each_call_gets_one_end_and_one_execution() {
    let mut finished = 0;
    for seed in seeds(300) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed, 4);
        for _ in 0..600 {
            sim.step(false);
        }
        sim.settle();
        sim.check_ended();
        for node in &sim.nodes {
            let distinct: HashSet<_> = node.executed.iter().collect();
            assert_eq!(distinct.len(), node.executed.len(), "a request was executed twice");
            finished += node.ends.values().filter(|ends| ends[0].is_ok()).count();
        }
    }
    assert!(finished > 300, "only {finished} calls finished well: the test shows nothing");
}

/// Anchors (f) 5 and 8, the session's part: whatever is lost with a link, a call whose peers live goes on when there is a link
/// again, is executed once, and its caller hears all that the service said, in order, once.
#[test]
fn calls_outlive_their_links_and_lose_no_word() {
    let (mut finished, mut resumed, mut resent, mut replayed) = (0, 0, 0, 0);
    for seed in seeds(400) {
        let _replay = Replay(seed);
        let mut sim = Sim::with_features(seed, 4, &[FEATURE_RESUME]);
        for _ in 0..800 {
            sim.step(false);
        }
        for _ in 0..3 {
            for index in 0..4 {
                sim.connect(index);
            }
            sim.settle();
        }
        // Calls to a peer that nobody knows, and whose refusal was lost, wait for it as long as they may.
        sim.advance(Settings::default().resume_window);
        sim.check_ended();
        let said: HashMap<(PeerId, CallId), (Vec<usize>, bool)> =
            sim.nodes.iter().flat_map(|node| node.said.clone()).collect();
        for (index, node) in sim.nodes.iter().enumerate() {
            let distinct: HashSet<_> = node.executed.iter().collect();
            assert_eq!(distinct.len(), node.executed.len(), "a request was executed twice");
            for (number, ends) in &node.ends {
                let said = said.get(&(name(index), CallId::new(Epoch::new(1), *number)));
                let heard = node.heard.get(number).cloned().unwrap_or_default();
                match &ends[0] {
                    Ok(()) => assert_eq!(said, Some(&(heard, true)), "call {number} of peer {index}"),
                    Err(reason) => assert!(
                        matches!(
                            reason,
                            Reason::PeerOffline | Reason::Deadline | Reason::Draining | Reason::Overloaded
                        ) || node.targets[number] == 4,
                        "call {number} of peer {index} ended with {reason}"
                    ),
                }
                finished += usize::from(ends[0].is_ok());
            }
            let stats = node.session.stats();
            resumed += stats.resumed;
            resent += stats.resent;
            replayed += stats.replayed;
        }
        for _ in 0..30 {
            sim.advance(Duration::from_secs(5));
            sim.settle();
        }
        for node in &sim.nodes {
            assert_eq!(node.session.kept_bytes(), 0, "answers are kept that nobody can ask for");
        }
    }
    let counts = [finished, resumed as usize, resent as usize, replayed as usize];
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}: the test shows nothing");
}

#[test]
fn frames_lost_twisted_or_doubled_never_panic_and_no_call_ends_twice() {
    for seed in seeds(600) {
        let _replay = Replay(seed);
        let features: &[&str] = if seed % 2 == 0 { &[] } else { &[FEATURE_RESUME] };
        let mut sim = Sim::with_features(seed ^ 0x5eed, 4, features);
        for _ in 0..600 {
            sim.step(true);
        }
        for index in 0..4 {
            sim.cut(index);
        }
        sim.advance(Settings::default().resume_window);
        sim.settle();
        sim.check_ended();
    }
}

#[test]
fn a_request_that_comes_twice_is_executed_once_even_after_it_was_answered() {
    let mut sim = Sim::new(1, 2);
    sim.connect(0);
    sim.connect(1);
    sim.settle();
    sim.call(0, 1, None);
    sim.deliver_up(0);
    let request = sim.nodes[1].wire.as_ref().unwrap().down.back().unwrap().clone();
    sim.settle();
    assert_eq!(sim.nodes[0].ends[&1], [Ok(())]);
    sim.nodes[1].wire.as_mut().unwrap().down.push_back(request);
    sim.settle();
    assert_eq!(sim.nodes[1].executed.len(), 1);
    assert_eq!(sim.nodes[1].session.stats().duplicates, 1);
}

#[test]
fn both_ends_ping_only_when_nothing_was_heard() {
    let mut sim = Sim::new(1, 1);
    sim.connect(0);
    sim.settle();
    sim.advance(Duration::from_secs(2));
    assert!(sim.nodes[0].wire.as_ref().unwrap().up.is_empty());
    sim.advance(Duration::from_secs(1));
    assert_eq!(sim.nodes[0].wire.as_ref().unwrap().up.len(), 1);
    for _ in 0..100 {
        sim.settle();
        sim.advance(Duration::from_secs(3));
    }
    sim.settle();
    assert!(sim.nodes[0].session.is_open());
    sim.nodes[0].wire.as_mut().unwrap().down.clear();
    for _ in 0..4 {
        sim.advance(Duration::from_secs(3));
    }
    assert!(!sim.nodes[0].session.is_open(), "silence of 12 s");
}

#[test]
fn every_lane_that_was_used_is_closed_however_its_call_ends() {
    for seed in seeds(100) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed, 3);
        for index in 0..3 {
            sim.connect(index);
        }
        for _ in 0..300 {
            let (index, other) = (sim.random.below(3), sim.random.below(3));
            match sim.random.below(5) {
                0 => sim.call(index, other, Some(Duration::from_millis(300))),
                1 => drop(sim.answer(index)),
                2 => sim.read(index),
                3 if sim.random.below(4) == 0 => sim.stop_waiting(index),
                3 if sim.random.below(9) == 0 => sim.advance(Duration::from_millis(200)),
                3 => drop(sim.deliver_up(index)),
                _ => drop(sim.deliver_down(index)),
            }
            sim.flush_hub();
        }
        sim.settle();
        sim.check_ended();
        assert!(sim.open_lanes.is_empty(), "{:?} are open", sim.open_lanes);
    }
}
