//! Frames carry no clock times, only remaining times. Near peer, hub and far peer have separate clocks.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edge_transport::advanced::frame::{self, End, Frame, Hello, Kind};
use edge_transport::advanced::{
    Action, Core, Event, HubSettings, LinkAction, LinkCore, LinkEvent, Role, Session, SessionKey,
    SessionSettings,
};
use edge_transport::hub::Rules;
use edge_transport::link::Lane;
use edge_transport::{PeerId, Request, ServiceName, SessionId};

const SESSION: SessionId = SessionId { instance: 7, number: 7 };
const NEAR: usize = 0;
const FAR: usize = 1;
const HOUR: Duration = Duration::from_secs(3600);

/// A peer, the hub's end of its link, and their clocks.
struct Party {
    session: Session,
    link_core: Option<LinkCore>,
    key: Option<SessionKey>,
    clock: Instant,
    /// What the services and callers of the peer received, as text.
    seen: Vec<String>,
}

struct Net {
    parties: [Party; 2],
    core: Core,
    hub_clock: Instant,
    /// Every sent frame in order: its sender and its bytes.
    wire: Vec<(String, Vec<u8>)>,
}

impl Net {
    /// Three independent clocks.
    fn new(near: Instant, hub: Instant, far: Instant) -> Self {
        let party = |name: &str, clock| {
            let mut hello = Hello::new(PeerId::new(name).unwrap(), SESSION);
            hello.services = vec![ServiceName::new("csi").unwrap()];
            let session = Session::new(hello, SessionSettings::default());
            Party { session, link_core: None, key: None, clock, seen: Vec::new() }
        };
        let parties = [party("near", near), party("far", far)];
        let core = Core::new(HubSettings::default(), Arc::new(Rules::allow_all()));
        let mut net = Self { parties, core, hub_clock: hub, wire: Vec::new() };
        for which in [NEAR, FAR] {
            let hello = Hello::new(PeerId::new("hub").unwrap(), SESSION);
            let link_core = LinkCore::new(
                Role::Acceptor,
                hello.into(),
                SessionSettings::default(),
                net.hub_clock,
                &mut Vec::new(),
            );
            net.parties[which].link_core = Some(link_core);
            net.event(which, Event::LinkUp);
        }
        net
    }

    fn event(&mut self, which: usize, event: Event) {
        let party = &mut self.parties[which];
        party.session.handle(event, party.clock);
        let mut sent = Vec::new();
        while let Some(action) = party.session.poll_action() {
            match action {
                Action::Send { frame, .. } => sent.push(Bytes::from([frame.head, frame.body].concat())),
                Action::Serve(incoming) => {
                    party.seen.push(format!("serves with {:?} left", incoming.request.remaining.unwrap()));
                    let end = Some(End::Finished(Bytes::new()));
                    let answer = Event::Answer {
                        inbound: incoming.inbound,
                        message: Some(Bytes::from_static(b"answer")),
                        end,
                    };
                    party.session.handle(answer, party.clock);
                }
                Action::Reply { number, end, .. } => party.seen.push(format!("answer of {number}: {end:?}")),
                _ => {}
            }
        }
        for bytes in sent {
            self.wire.push((format!("peer {which}"), bytes.to_vec()));
            self.reach_hub(which, bytes);
        }
    }

    fn reach_hub(&mut self, which: usize, bytes: Bytes) {
        let frame = frame::decode(bytes, usize::MAX).unwrap();
        match self.parties[which].key {
            Some(key) if matches!(frame.kind, Kind::Call(..)) => {
                self.link_event(which, LinkEvent::Activity);
                self.core.route(key, frame, self.hub_clock);
            }
            _ => self.link_event(which, LinkEvent::Frame(frame.kind)),
        }
        for which in [NEAR, FAR] {
            let Some(key) = self.parties[which].key else { continue };
            let mut frames = std::collections::VecDeque::new();
            self.core.take(key, &mut frames, usize::MAX, self.hub_clock).unwrap();
            self.core.written(key, 0);
            for frame in frames {
                self.reach_peer(which, Bytes::from([frame.head, frame.body].concat()));
            }
        }
    }

    fn reach_peer(&mut self, which: usize, bytes: Bytes) {
        self.wire.push((format!("hub to {which}"), bytes.to_vec()));
        self.event(which, Event::Received(bytes));
    }

    fn link_event(&mut self, which: usize, event: LinkEvent) {
        let mut actions = Vec::new();
        let now = self.hub_clock;
        self.parties[which].link_core.as_mut().unwrap().handle(event, now, &mut actions);
        for action in actions {
            match action {
                LinkAction::Send(kind) => {
                    self.reach_peer(which, frame::encode(Frame::link(kind), Lane::Control).head);
                }
                LinkAction::HelloReceived(remote) => {
                    self.parties[which].key = Some(self.core.admit(&remote).unwrap());
                    self.link_event(which, LinkEvent::Admit);
                }
                LinkAction::Close(reason) => panic!("closed: {reason:?}"),
                _ => {}
            }
        }
    }

    /// Advances all clocks by the same time.
    fn pass(&mut self, time: Duration) {
        self.hub_clock += time;
        for which in [NEAR, FAR] {
            self.parties[which].clock += time;
        }
        for which in [NEAR, FAR] {
            self.event(which, Event::Tick);
            self.link_event(which, LinkEvent::Tick);
        }
    }

    fn call(&mut self, number: u64, target: &str, remaining: Duration) {
        let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::from_static(b"body"));
        request.credit = 1000;
        let deadline = Some(self.parties[NEAR].clock + remaining);
        let target = PeerId::new(target).unwrap();
        self.event(NEAR, Event::Call { number, target, request, deadline });
    }
}

/// A scenario with hellos, calls, pauses, pings and a call to an unknown peer. Returns all sent frames and all received
/// results.
fn scenario(near: Instant, hub: Instant, far: Instant) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
    let mut net = Net::new(near, hub, far);
    net.call(1, "far", Duration::from_secs(10));
    for _ in 0..8 {
        net.pass(Duration::from_secs(2));
    }
    net.call(2, "unknown", Duration::from_secs(10));
    net.call(3, "far", HOUR);
    net.call(4, "far", Duration::from_millis(1));
    net.pass(Duration::from_secs(4));
    let seen = net.parties.into_iter().flat_map(|party| party.seen).collect();
    (net.wire, seen)
}

/// With clocks that differ by an hour in either direction, every byte on every link and every result is the same as with equal
/// clocks. This would fail if any frame contained a clock time.
#[test]
fn clock_differences_change_no_frame_and_no_result() {
    let now = Instant::now() + 2 * HOUR;
    let (wire, seen) = scenario(now, now, now);
    assert!(wire.len() > 20, "{wire:?}");
    assert!(seen.contains(&"serves with 10s left".to_owned()), "{seen:?}");
    for (near, hub, far) in [
        (now + HOUR, now, now),
        (now - HOUR, now, now),
        (now, now + HOUR, now),
        (now, now, now + HOUR),
        (now + HOUR, now, now - HOUR),
        (now, now - HOUR, now + HOUR),
    ] {
        let (apart, seen_apart) = scenario(near, hub, far);
        assert_eq!(apart, wire);
        assert_eq!(seen_apart, seen);
    }
}
