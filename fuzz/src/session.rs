//! The session core: any sequence of events of callers, services, links and time, and arbitrary frames.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use edge_transport::SessionId;
use edge_transport::frame::{End, Hello, decode};
use edge_transport::session::{Action, Event, InboundCallId, Session, Settings};

use crate::script::{Script, name, service, wire};

const OPEN: usize = 4;
const MAX_FRAME: usize = 16 * 1024;

struct Peer {
    session: Session,
    now: Instant,
    linked: bool,
    /// Calls by number; true for calls that have ended.
    calls: BTreeMap<u64, bool>,
    running: Vec<InboundCallId>,
}

/// Runs the script that the bytes encode.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut hello = Hello::new(name("edge-1"), SessionId { instance: 1, number: 0 });
    hello.max_frame = MAX_FRAME;
    hello.services = vec![service("csi")];
    let mut settings = Settings::default();
    (settings.max_frame, settings.max_outbound_calls, settings.max_inbound_calls) = (MAX_FRAME, OPEN, OPEN);
    let mut peer = Peer {
        session: Session::new(hello, settings),
        now: Instant::now(),
        linked: false,
        calls: BTreeMap::new(),
        running: Vec::new(),
    };
    while !script.is_over() {
        peer.step(&mut script);
    }
}

impl Peer {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(16) {
            0 | 1 if !self.linked => {
                self.linked = true;
                self.handle(Event::LinkUp);
                if script.below(8) > 0 {
                    let mut hello = Hello::new(name("hub"), SessionId { instance: 1, number: 1 });
                    hello.max_frame = 1 << (11 + script.below(5));
                    self.receive(wire(edge_transport::frame::Frame::link(
                        edge_transport::frame::Kind::Hello(hello),
                    )));
                }
            }
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
            Action::Send(frame) => {
                assert!(frame.len() <= MAX_FRAME);
                let bytes: Bytes = [frame.head, frame.body].concat().into();
                decode(bytes, MAX_FRAME).expect("a frame from the session decodes");
            }
            Action::Serve(incoming) => self.running.push(incoming.inbound),
            Action::Reply { number, end, .. } => {
                let ended = self.calls.get_mut(&number).expect("a reply to a call that was sent");
                assert!(!*ended, "call {number} received a reply after its end");
                *ended = end.is_some();
                if let Some(End::Failed(failure)) = end {
                    assert!(failure.detail().len() <= edge_transport::frame::MAX_TEXT);
                }
            }
            Action::Close(_) => self.linked = false,
            _ => {}
        }
    }
}
