//! Interprets bytes as decisions of a script.

use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::frame::{End, Frame, Hello, Kind, Lane, Part, Reply, encode};
use edge_transport::{Failure, PeerId, Reason, Request, ServiceName, SessionId};

/// The remaining bytes of a script. Reads past the end return 0.
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Reads up to 64 raw bytes.
    pub(crate) fn bytes(&mut self) -> Bytes {
        let len = usize::from(self.below(64)).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        Bytes::copy_from_slice(taken)
    }

    /// Reads a duration from a millisecond to minutes.
    pub(crate) fn time(&mut self) -> Duration {
        Duration::from_millis(1 << self.below(18))
    }

    /// Reads a body that may be large.
    pub(crate) fn body(&mut self) -> Bytes {
        vec![b'x'; 1 << self.below(13)].into()
    }

    pub(crate) fn peer(&mut self) -> PeerId {
        name(["edge-1", "edge-2", "proxy", "hub"][usize::from(self.below(4))])
    }

    fn optional_peer(&mut self) -> Option<PeerId> {
        self.flag().then(|| self.peer())
    }

    pub(crate) fn session(&mut self) -> SessionId {
        SessionId { instance: 1 + u64::from(self.below(2)), number: 1 + u64::from(self.below(4)) }
    }

    pub(crate) fn call(&mut self) -> u64 {
        1 + u64::from(self.below(8))
    }

    pub(crate) fn request(&mut self) -> Request {
        let mut request =
            Request::new(service(if self.below(8) == 0 { "other" } else { "csi" }), self.body());
        request.credit = 1 << self.below(16);
        request.to_session = self.flag().then(|| self.session());
        request.remaining = self.flag().then(|| self.time());
        request
    }

    pub(crate) fn end(&mut self) -> Option<End> {
        match self.below(4) {
            0 | 1 => None,
            2 => Some(End::Finished(self.bytes())),
            _ => Some(End::Failed(Failure::new(Reason::ServiceLost, "requested by the script"))),
        }
    }

    pub(crate) fn hello(&mut self) -> Hello {
        let mut hello = Hello::new(self.peer(), self.session());
        hello.version_max = 1 + u32::from(self.below(2));
        hello.max_frame = 1 << (10 + self.below(8));
        if self.flag() {
            hello.services = vec![service("csi")];
        }
        hello
    }

    pub(crate) fn frame(&mut self) -> Frame {
        let kind = match self.below(10) {
            0 => Kind::Hello(self.hello()),
            1 => Kind::Ping { nonce: u64::from(self.byte()) },
            2 => Kind::Pong { nonce: u64::from(self.byte()) },
            3 => Kind::Drain { reason: "requested by the script".to_owned() },
            4 => Kind::Unknown,
            5 => Kind::Call(self.call(), Part::Request(self.request())),
            6 | 7 => {
                let id = self.call();
                let mut reply = Reply::new(u64::from(self.below(6)));
                reply.message = self.flag().then(|| self.body());
                reply.end = self.end();
                Kind::Call(id, Part::Reply(reply))
            }
            8 => Kind::Call(self.call(), Part::Credit { bytes: u64::from(self.byte()) << self.below(57) }),
            _ => Kind::Call(self.call(), Part::Cancel),
        };
        let Kind::Call(id, part) = kind else { return Frame::link(kind) };
        Frame::call(self.optional_peer(), self.optional_peer(), id, part)
    }
}

impl Script<'_> {
    /// Reads a frame of a call as the peer `source` sends it, with any number, sizes and names.
    pub(crate) fn lie(&mut self, source: Option<PeerId>) -> Frame {
        let number = match self.below(4) {
            0 => u64::MAX,
            1 => u64::from(self.byte()) << self.below(57),
            _ => self.call(),
        };
        let part = match self.below(6) {
            0 | 1 => {
                let mut request = self.request();
                request.credit = [0, 1, u64::from(u32::MAX), u64::MAX][usize::from(self.below(4))];
                request.metadata = self.bytes();
                Part::Request(request)
            }
            2 | 3 => {
                let sequence = [0, 1, 2, 3, u64::MAX][usize::from(self.below(5))];
                let mut reply = Reply::new(sequence);
                reply.message = self.flag().then(|| self.body());
                reply.end = self.end();
                Part::Reply(reply)
            }
            4 => Part::Credit { bytes: [0, 1, u64::MAX][usize::from(self.below(3))] },
            _ => Part::Cancel,
        };
        Frame::call(source, self.optional_peer(), number, part)
    }
}

/// Encodes a frame.
pub(crate) fn wire(frame: Frame) -> Bytes {
    let wire = encode(frame, Lane::Control);
    [wire.head, wire.body].concat().into()
}

pub(crate) fn name(name: &str) -> PeerId {
    PeerId::new(name).expect("a short name of letters")
}

pub(crate) fn service(name: &str) -> ServiceName {
    ServiceName::new(name).expect("a short name of letters")
}
