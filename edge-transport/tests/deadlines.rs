//! No time of any clock travels: only what remains. Near peer, hub and far peer with clocks of their own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edge_transport::frame::{self, End, Frame, Hello, Kind, Lane};
use edge_transport::hub::{AllowAll, Core, HubSettings, SessionKey};
use edge_transport::session::{Action, Event, Hop, HopAction, HopEvent, Role, Session, Settings};
use edge_transport::{PeerId, ServiceName, SessionId};

const SESSION: SessionId = SessionId { instance: 7, number: 7 };
const NEAR: usize = 0;
const FAR: usize = 1;
const HOUR: Duration = Duration::from_secs(3600);

/// A peer, the hub's end of its link, and their clocks.
struct Party {
    session: Session,
    hop: Option<Hop>,
    key: Option<SessionKey>,
    clock: Instant,
    /// What came out for the services and callers of the peer, in words.
    seen: Vec<String>,
}

struct Net {
    parties: [Party; 2],
    core: Core,
    hub_clock: Instant,
    /// Every frame, in the order in which they went out: who sent it, and its bytes.
    wire: Vec<(String, Vec<u8>)>,
}

impl Net {
    /// Three clocks that show what they like.
    fn new(near: Instant, hub: Instant, far: Instant) -> Self {
        let party = |name: &str, clock| {
            let mut hello = Hello::new(PeerId::new(name).unwrap(), SESSION);
            hello.services = vec![ServiceName::new("csi").unwrap()];
            let session = Session::new(hello, Settings::default());
            Party { session, hop: None, key: None, clock, seen: Vec::new() }
        };
        let parties = [party("near", near), party("far", far)];
        let core = Core::new(HubSettings::default(), Arc::new(AllowAll));
        let mut net = Self { parties, core, hub_clock: hub, wire: Vec::new() };
        for which in [NEAR, FAR] {
            let hello = Hello::new(PeerId::new("hub").unwrap(), SESSION);
            let hop = Hop::new(Role::Acceptor, hello, Settings::default(), net.hub_clock, &mut Vec::new());
            net.parties[which].hop = Some(hop);
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
                Action::Send(frame) => sent.push(Bytes::from([frame.head, frame.body].concat())),
                Action::Serve(incoming) => {
                    party.seen.push(format!("serves with {:?} left", incoming.request.remaining.unwrap()));
                    let end = Some(End::Finished(Bytes::new()));
                    let answer = Event::Answer {
                        serving: incoming.serving,
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
                self.hop(which, HopEvent::Noise);
                self.core.route(key, frame, self.hub_clock);
            }
            _ => self.hop(which, HopEvent::Frame(frame.kind)),
        }
        for which in [NEAR, FAR] {
            let Some(key) = self.parties[which].key else { continue };
            let mut frames = std::collections::VecDeque::new();
            self.core.take(key, &mut frames, usize::MAX, self.hub_clock).unwrap();
            for frame in frames {
                self.reach_peer(which, Bytes::from([frame.head, frame.body].concat()));
            }
        }
    }

    fn reach_peer(&mut self, which: usize, bytes: Bytes) {
        self.wire.push((format!("hub to {which}"), bytes.to_vec()));
        self.event(which, Event::Received(bytes));
    }

    fn hop(&mut self, which: usize, event: HopEvent) {
        let mut actions = Vec::new();
        let now = self.hub_clock;
        self.parties[which].hop.as_mut().unwrap().handle(event, now, &mut actions);
        for action in actions {
            match action {
                HopAction::Send(kind) => {
                    self.reach_peer(which, frame::encode(Frame::hop(kind), Lane::Control).head);
                }
                HopAction::Introduced(remote) => {
                    self.parties[which].key = Some(self.core.admit(&remote).unwrap());
                    self.hop(which, HopEvent::Admit);
                }
                HopAction::Close(reason) => panic!("closed: {reason:?}"),
                _ => {}
            }
        }
    }

    /// All clocks go on alike, whatever they show.
    fn pass(&mut self, time: Duration) {
        self.hub_clock += time;
        for which in [NEAR, FAR] {
            self.parties[which].clock += time;
        }
        for which in [NEAR, FAR] {
            self.event(which, Event::Tick);
            self.hop(which, HopEvent::Tick);
        }
    }

    fn call(&mut self, number: u64, target: &str, remaining: Duration) {
        let mut request = frame::Request::new(ServiceName::new("csi").unwrap(), Bytes::from_static(b"body"));
        request.credit = 1000;
        let deadline = Some(self.parties[NEAR].clock + remaining);
        let target = PeerId::new(target).unwrap();
        self.event(NEAR, Event::Call { number, target, request, deadline });
    }
}

/// A life with greetings, calls, silence, pings and a call to nobody: all that goes over the wire, and all that is seen.
fn life(near: Instant, hub: Instant, far: Instant) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
    let mut net = Net::new(near, hub, far);
    net.call(1, "far", Duration::from_secs(10));
    for _ in 0..8 {
        net.pass(Duration::from_secs(2));
    }
    net.call(2, "nobody", Duration::from_secs(10));
    net.call(3, "far", HOUR);
    net.call(4, "far", Duration::from_millis(1));
    net.pass(Duration::from_secs(4));
    let seen = net.parties.into_iter().flat_map(|party| party.seen).collect();
    (net.wire, seen)
}

/// Anchors (f) 19: with clocks that are an hour apart, either way, each byte on each link is what it is with clocks that agree,
/// and so is all that callers and services see. That could not be if any frame held a time.
#[test]
fn clocks_an_hour_apart_change_no_byte_on_the_wire_and_no_end_of_a_call() {
    let now = Instant::now() + 2 * HOUR;
    let (wire, seen) = life(now, now, now);
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
        let (apart, seen_apart) = life(near, hub, far);
        assert_eq!(apart, wire);
        assert_eq!(seen_apart, seen);
    }
}
