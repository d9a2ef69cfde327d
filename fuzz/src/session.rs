//! The session core: any sequence of events of callers, services, links and time, and arbitrary frames. Then calls to
//! one peer while another, which is hostile, sends all that a hub lets through: each call gets its own answer.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use edge_transport::advanced::frame::{End, Frame, Hello, Kind, Part, Reply, decode};
use edge_transport::advanced::{Action, Event, InboundCallId, Session, SessionSettings};
use edge_transport::{Request, SessionId};

use crate::script::{Script, name, service, wire};

const OPEN: usize = 4;
const MAX_FRAME: usize = 16 * 1024;

struct Peer {
    session: Session,
    now: Instant,
    linked: bool,
    /// Calls by number; true for calls that have ended.
    calls: BTreeMap<u64, bool>,
    /// The messages of the last call that received any.
    messages: (u64, Vec<Bytes>),
    running: Vec<InboundCallId>,
}

/// Runs the script that the bytes encode.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut peer = Peer::new();
    while !script.is_over() {
        peer.step(&mut script);
    }
    beside_a_hostile_peer(Script::new(data));
}

/// Calls `edge-2` again and again, while `proxy` lies.
fn beside_a_hostile_peer(mut script: Script<'_>) {
    let mut peer = Peer::new();
    peer.link_up(MAX_FRAME);
    for number in 1.. {
        if script.is_over() {
            break;
        }
        peer.calls.insert(number, false);
        let mut request = Request::new(service("csi"), Bytes::from_static(b"request"));
        request.credit = 1000;
        peer.handle(Event::Call { number, target: name("edge-2"), request, deadline: None });
        let mut expected = Vec::new();
        for sequence in 1..=1 + u64::from(script.below(3)) {
            peer.lies(&mut script);
            let message = Bytes::from(format!("{number} {sequence}"));
            let mut reply = Reply::new(sequence);
            reply.message = Some(message.clone());
            expected.push(message);
            peer.genuine(number, reply);
        }
        peer.lies(&mut script);
        assert!(!peer.calls[&number], "only the called peer ends a call");
        let mut reply = Reply::new(expected.len() as u64 + 1);
        reply.end = Some(End::Finished(Bytes::from_static(b"end")));
        peer.genuine(number, reply);
        assert!(peer.calls[&number] && peer.linked);
        assert_eq!(peer.messages, (number, expected));
        peer.answer(&mut script);
    }
}

impl Peer {
    fn new() -> Self {
        let mut hello = Hello::new(name("edge-1"), SessionId { instance: 1, number: 0 });
        hello.max_frame = MAX_FRAME;
        hello.services = vec![service("csi")];
        let mut settings = SessionSettings::default();
        (settings.max_frame, settings.max_outbound_calls, settings.max_inbound_calls) =
            (MAX_FRAME, OPEN, OPEN);
        Self {
            session: Session::new(hello, settings),
            now: Instant::now(),
            linked: false,
            calls: BTreeMap::new(),
            messages: (0, Vec::new()),
            running: Vec::new(),
        }
    }

    /// Opens a link to a hub.
    fn link_up(&mut self, max_frame: usize) {
        self.linked = true;
        self.handle(Event::LinkUp);
        let mut hello = Hello::new(name("hub"), SessionId { instance: 1, number: 1 });
        hello.max_frame = max_frame;
        self.receive(wire(Frame::link(Kind::Hello(hello))));
    }

    /// Receives a reply of `edge-2`.
    fn genuine(&mut self, number: u64, reply: Reply) {
        self.receive(wire(Frame::call(Some(name("edge-2")), None, number, Part::Reply(reply))));
    }

    /// Receives frames of `proxy`, whose name the hub has written into those that name a source.
    fn lies(&mut self, script: &mut Script<'_>) {
        for _ in 0..script.below(6) {
            let mut frame = script.lie(None);
            if let Kind::Call(_, Part::Request(_) | Part::Reply(_)) = frame.kind {
                frame.source = Some(name("proxy"));
            }
            self.receive(wire(frame));
        }
    }
}

impl Peer {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(16) {
            0 | 1 if !self.linked => match script.below(8) {
                0 => {
                    self.linked = true;
                    self.handle(Event::LinkUp);
                }
                _ => self.link_up(1 << (11 + script.below(5))),
            },
            0 => {
                self.linked = false;
                self.handle(Event::LinkLost);
            }
            1 | 2 => {
                let bytes = script.bytes();
                self.receive(bytes);
            }
            3..=6 => {
                let bytes = wire(script.frame());
                self.receive(bytes);
            }
            7 | 8 => {
                let number = self.calls.len() as u64 + 1;
                self.calls.insert(number, false);
                let deadline = script.flag().then(|| self.now + script.time());
                let (target, request) = (script.peer(), script.request());
                self.handle(Event::Call { number, target, request, deadline });
            }
            9 => {
                let number = 1 + u64::from(script.below(8));
                self.handle(Event::Credit { number, bytes: u64::from(script.byte()) << script.below(57) });
            }
            10 => {
                let number = 1 + u64::from(script.below(8));
                // A caller that has cancelled receives nothing more.
                if let Some(ended) = self.calls.get_mut(&number) {
                    *ended = true;
                }
                self.handle(Event::Cancel { number });
            }
            11 | 12 => self.answer(script),
            13 => {
                self.now += script.time();
                self.handle(Event::Tick);
            }
            14 => {
                let head = wire(script.frame());
                self.handle(Event::Refused(head));
            }
            _ => match script.below(4) {
                0 => self.handle(Event::Drain { reason: "requested by the script".to_owned() }),
                1 => self.handle(Event::Close),
                _ => self.handle(Event::Flushed),
            },
        }
    }

    fn receive(&mut self, bytes: Bytes) {
        if self.linked {
            self.handle(Event::Received(bytes));
        }
    }

    fn answer(&mut self, script: &mut Script<'_>) {
        if self.running.is_empty() {
            return;
        }
        let index = usize::from(script.byte()) % self.running.len();
        let (message, end) = (script.flag().then(|| script.body()), script.end());
        let inbound = if end.is_some() { self.running.swap_remove(index) } else { self.running[index] };
        self.handle(Event::Answer { inbound, message, end });
    }

    fn handle(&mut self, event: Event) {
        self.session.handle(event, self.now);
        while let Some(action) = self.session.poll_action() {
            self.act(action);
        }
        assert!(self.session.open_outbound() <= OPEN);
        assert_eq!(self.session.open_inbound(), self.running.len());
        assert!(self.running.len() <= OPEN);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { frame, .. } => {
                assert!(frame.len() <= MAX_FRAME);
                let bytes: Bytes = [frame.head, frame.body].concat().into();
                decode(bytes, MAX_FRAME).expect("a frame from the session decodes");
            }
            Action::Serve(incoming) => self.running.push(incoming.inbound),
            Action::Reply { number, message, end } => {
                if self.messages.0 != number {
                    self.messages = (number, Vec::new());
                }
                self.messages.1.extend(message);
                let ended = self.calls.get_mut(&number).expect("a reply to a call that was sent");
                assert!(!*ended, "call {number} received a reply after its end");
                *ended = end.is_some();
                if let Some(End::Failed(failure)) = end {
                    assert!(failure.detail().len() <= edge_transport::advanced::frame::MAX_TEXT);
                }
            }
            Action::Close(_) => self.linked = false,
            _ => {}
        }
    }
}
