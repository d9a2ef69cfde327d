//! The hub's routing table: peers that connect and disconnect, and arbitrary frames from them. Then a caller and its
//! node beside a hostile node: their exchange completes, and the hostile node reads nothing of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use edge_transport::advanced::frame::{End, Frame, Hello, Kind, Part, Reply, decode};
use edge_transport::advanced::{
    Core, HubSettings, LinkAction, LinkCore, LinkEvent, Remote, Role, SessionKey, SessionSettings,
};
use edge_transport::hub::{Policy, Rules};
use edge_transport::{Request, SessionId};

use crate::script::{Script, name, service, wire};

const PEERS: usize = 3;
const CALLS: usize = 4;
/// The bound for calls to the hub's own services.
const OWN_CALLS: usize = 3;
const QUEUED: usize = 32 * 1024;

fn settings() -> HubSettings {
    let mut settings = HubSettings::default();
    (settings.max_peers, settings.max_calls, settings.queue_frames) = (PEERS, CALLS, 16);
    (settings.queue_bytes, settings.total_queue_bytes) = (8 * 1024, QUEUED);
    settings.max_local_calls = OWN_CALLS;
    settings
}

/// Runs the script that the bytes encode.
pub fn run(data: &[u8]) {
    any_peers(Script::new(data));
    beside_a_hostile_peer(Script::new(data));
}

fn any_peers(mut script: Script<'_>) {
    let settings = settings();
    let answered = (service("csi"), Arc::new(Rules::allow_all()) as Arc<dyn Policy>);
    // The hub has the name of one of the script's peers.
    let mut core =
        Core::new(settings, Arc::new(Rules::allow_all())).with_local(name("hub"), [answered].into());
    let (mut now, mut keys) = (Instant::now(), Vec::new());
    while !script.is_over() {
        step(&mut script, &mut core, &mut keys, &mut now);
        while core.poll_wake().is_some() {}
        while core.poll_presence().is_some() {}
        let stats = core.stats();
        assert!(stats.peers <= PEERS);
        assert!(stats.open_calls <= CALLS * keys.len().max(PEERS));
        assert!(stats.local_calls <= (OWN_CALLS * keys.len()).min(stats.open_calls));
        // Small frames that must not be lost may exceed the bound: those that end calls, and credit.
        assert!(stats.queued_bytes <= QUEUED + keys.len() * (16 + 4 * CALLS) * 2048);
    }
    for key in keys {
        core.lost(key);
    }
    let stats = core.stats();
    assert_eq!((stats.peers, stats.open_calls, stats.local_calls, stats.queued_bytes), (0, 0, 0, 0));
}

/// What the genuine peers say to each other.
const TENANT: &[u8] = b"of a tenant";

/// A caller, its node, and a hostile node that both the caller and the script talk to.
struct Pair {
    core: Core,
    now: Instant,
    proxy: SessionKey,
    node: SessionKey,
    hostile: Option<SessionKey>,
    /// The number of the caller's last call.
    number: u64,
    /// The last number that the caller has given up.
    given_up: u64,
}

fn beside_a_hostile_peer(mut script: Script<'_>) {
    let mut core = Core::new(settings(), Arc::new(Rules::callers([name("proxy")])));
    let mut admit = |peer: &str| {
        let hello = Hello::new(name(peer), SessionId { instance: 1, number: 1 });
        let remote = remote(hello, Instant::now()).expect("a valid hello");
        core.admit(&remote).expect("room for a peer")
    };
    let (proxy, node) = (admit("proxy"), admit("edge-1"));
    let mut pair = Pair { core, now: Instant::now(), proxy, node, hostile: None, number: 0, given_up: 0 };
    while !script.is_over() {
        pair.lie(&mut script);
        if script.below(4) == 0 {
            pair.exchange(&mut script);
        }
    }
    pair.exchange(&mut script);
}

impl Pair {
    /// One step of the hostile peer.
    fn lie(&mut self, script: &mut Script<'_>) {
        let Some(key) = self.hostile else {
            let mut hello = script.hello();
            hello.peer = name("edge-2");
            hello.session =
                SessionId { instance: u64::from(script.byte()), number: u64::from(script.byte()) };
            if let Some(remote) = remote(hello, self.now) {
                self.hostile = self.core.admit(&remote).ok();
            }
            return;
        };
        match script.below(16) {
            0 => self.lost(key),
            1 => self.core.refused(key, wire(script.frame())),
            2 => match decode(script.bytes(), 4096) {
                Ok(frame) => self.core.route(key, frame, self.now),
                Err(error) => self.core.malformed(key, &error),
            },
            3 => self.core.peer_draining(key),
            4 | 5 => self.take_hostile(1 << script.below(14)),
            // The caller asks the hostile node, too, so that some of the numbers are open calls.
            6 | 7 => {
                drop(self.take(self.proxy));
                self.call("edge-2");
            }
            _ => {
                let source = script.flag().then(|| script.peer());
                let frame = script.lie(source);
                self.core.route(key, frame, self.now);
            }
        }
        while self.core.poll_wake().is_some() {}
        while self.core.poll_presence().is_some() {}
        assert!(self.core.stats().queued_bytes <= QUEUED + 3 * (16 + 4 * CALLS) * 2048);
    }

    fn lost(&mut self, hostile: SessionKey) {
        self.core.lost(hostile);
        self.hostile = None;
    }

    /// Reads what is queued for the hostile peer.
    fn take_hostile(&mut self, max_bytes: usize) {
        let Some(key) = self.hostile else { return };
        let mut frames = VecDeque::new();
        if self.core.take(key, &mut frames, max_bytes, self.now).is_err() {
            return self.lost(key);
        }
        self.core.written(key, max_bytes / 2);
        for frame in frames {
            let bytes = [frame.head, frame.body].concat();
            assert!(!bytes.windows(TENANT.len()).any(|part| part == TENANT), "the hostile peer reads a body");
        }
    }

    fn call(&mut self, target: &str) {
        self.number += 1;
        let body = if target == "edge-1" { TENANT } else { b"question" };
        let mut request = Request::new(service("csi"), Bytes::from_static(body));
        request.credit = 1000;
        let frame = Frame::call(None, Some(name(target)), self.number, Part::Request(request));
        self.core.route(self.proxy, frame, self.now);
    }

    /// Takes all calls that a genuine peer has received.
    fn take(&mut self, key: SessionKey) -> Vec<Frame> {
        let mut frames = VecDeque::new();
        self.core
            .take(key, &mut frames, usize::MAX, self.now)
            .expect("the link of a genuine peer stays open");
        self.core.written(key, 0);
        let whole = frames.into_iter().map(|frame| [frame.head, frame.body].concat().into());
        whole.map(|bytes| decode(bytes, usize::MAX).expect("a frame from the hub decodes")).collect()
    }

    /// The caller calls its node and gets the answer, with lies before, between and after.
    fn exchange(&mut self, script: &mut Script<'_>) {
        drop((self.take(self.proxy), self.take(self.node)));
        // The caller gives up what the hostile node has not answered.
        for number in self.given_up + 1..=self.number {
            let frame = Frame::call(None, None, number, Part::Cancel);
            self.core.route(self.proxy, frame, self.now);
        }
        self.given_up = self.number;
        self.call("edge-1");
        let number = self.number;
        self.lie(script);
        let received = self.take(self.node);
        let served = received.iter().find_map(|frame| match &frame.kind {
            Kind::Call(served, Part::Request(request)) if request.body == TENANT => Some(*served),
            _ => None,
        });
        let served = served.expect("the node receives the request");
        assert!(received.iter().all(|frame| frame.source.as_ref().is_none_or(|peer| *peer == name("proxy"))));
        let mut reply = Reply::new(1);
        (reply.message, reply.end) = (Some(Bytes::from_static(TENANT)), Some(End::Finished(Bytes::new())));
        self.core.route(self.node, Frame::call(None, None, served, Part::Reply(reply.clone())), self.now);
        let mut answers = self.take(self.proxy);
        self.lie(script);
        answers.extend(self.take(self.proxy));
        let mut own = answers.iter().filter(|frame| matches!(frame.kind, Kind::Call(of, _) if of == number));
        let answer = own.next().expect("the caller receives the answer");
        assert_eq!(*answer, Frame::call(Some(name("edge-1")), None, number, Part::Reply(reply)));
        assert_eq!(own.next(), None, "and nothing else");
    }
}

fn step(script: &mut Script<'_>, core: &mut Core, keys: &mut Vec<SessionKey>, now: &mut Instant) {
    let picked = script.byte();
    let key = (!keys.is_empty()).then(|| usize::from(picked) % keys.len());
    match (script.below(12), key) {
        (0 | 1, _) if keys.len() < 2 * PEERS => {
            if let Some(remote) = remote(script.hello(), *now)
                && let Ok(key) = core.admit(&remote)
            {
                keys.push(key);
            }
        }
        (2, Some(index)) => core.lost(keys.swap_remove(index)),
        (3 | 4, Some(index)) => {
            let mut frames = VecDeque::new();
            // The core returns an error if the link must be closed.
            if core.take(keys[index], &mut frames, 1 << script.below(14), *now).is_err() {
                core.lost(keys.swap_remove(index));
            } else if script.flag() {
                core.written(keys[index], 1 << script.below(14));
            }
            for frame in frames {
                decode([frame.head, frame.body].concat().into(), usize::MAX)
                    .expect("a frame from the hub decodes");
            }
        }
        (5, Some(index)) => match decode(script.bytes(), 4096) {
            Ok(frame) => core.route(keys[index], frame, *now),
            Err(error) => core.malformed(keys[index], &error),
        },
        (6, Some(index)) => core.refused(keys[index], wire(script.frame())),
        (7, Some(index)) if script.below(4) == 0 => core.peer_draining(keys[index]),
        (7, _) if script.below(16) == 0 => core.drain("requested by the script"),
        (7, _) => *now += script.time(),
        (_, Some(index)) => {
            let frame = script.frame();
            if matches!(frame.kind, Kind::Call(..)) {
                core.route(keys[index], frame, *now);
            }
        }
        (_, None) => {}
    }
}

/// Returns the remote end that [`LinkCore`] derives from a hello.
fn remote(hello: Hello, now: Instant) -> Option<Remote> {
    let ours = Hello::new(name("hub"), SessionId { instance: 1, number: 1 });
    let mut actions = Vec::new();
    let mut link_core =
        LinkCore::new(Role::Acceptor, ours.into(), SessionSettings::default(), now, &mut actions);
    link_core.handle(LinkEvent::Frame(Kind::Hello(hello)), now, &mut actions);
    actions.into_iter().find_map(|action| match action {
        LinkAction::HelloReceived(remote) => Some(remote),
        _ => None,
    })
}
