//! The frames of an attacker after its hello. Each is valid, or nearly so, and says something untrue.

use std::time::Duration;

use bytes::Bytes;
use csi_proxy::advanced::call::{CallNumber, Fence, GivenUp};
use csi_proxy::{Call, CallId, Code, Fault, MethodPath, NodeId, Outcome, Term};
use edge_transport::advanced::frame::{End, Frame, Kind, Part, Reply, encode};
use edge_transport::link::Lane;
use edge_transport::{Failure, PeerId, Reason, Request, ServiceName, SessionId};
use prost::Message as _;

use super::{Attacker, FORGED, Role};
use crate::network::MAX_FRAME;
use crate::plan::driver_name;

/// The hub's presence service, and its request.
const PRESENCE: &str = edge_transport::presence::SERVICE;

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct PresenceRequest {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, repeated, tag = "2")]
    only: Vec<String>,
}

/// Returns the bytes of a frame.
pub(super) fn encoded(frame: Frame) -> Bytes {
    let wire = encode(frame, Lane::Control);
    [wire.head, wire.body].concat().into()
}

impl Attacker {
    /// Returns the next frame.
    pub(super) fn frame(&mut self) -> Bytes {
        let nonce = self.rng.number();
        encoded(match self.rng.below(24) {
            0..=8 => self.request(),
            9..=14 => self.reply(),
            15 | 16 => self.part(Part::Cancel),
            17 | 18 => {
                let bytes = [0, 1, u64::from(u32::MAX), u64::MAX][self.rng.below(4)];
                self.part(Part::Credit { bytes })
            }
            19 => Frame::link(Kind::Ping { nonce }),
            20 => Frame::link(Kind::Pong { nonce: nonce % 3 }),
            21 => self.presence(),
            22 if self.rng.happens(200) => return self.broken(),
            22 if self.rng.happens(200) => Frame::link(Kind::Drain { reason: FORGED.to_owned() }),
            _ => Frame::link(Kind::Unknown),
        })
    }

    /// Returns bytes that are no frame, or too many.
    fn broken(&mut self) -> Bytes {
        match self.rng.below(3) {
            0 => vec![0xff; 1 + self.rng.below(200)].into(),
            1 => {
                let mut bytes = encoded(self.request()).to_vec();
                let at = self.rng.below(bytes.len());
                bytes[at] ^= 1 << self.rng.below(8);
                bytes.into()
            }
            _ => {
                let mut reply = Reply::new(1);
                reply.message = Some(vec![b'.'; 2 * MAX_FRAME].into());
                encoded(Frame::call(None, None, 1, Part::Reply(reply)))
            }
        }
    }

    /// Returns the name of a peer that is not the attacker.
    pub(super) fn other(&mut self) -> PeerId {
        let plan = &self.plan;
        let place = self.rng.below(plan.places() + 2);
        let name = match place {
            place if plan.is_agent(place) => plan.name(place),
            place if place < plan.places() => {
                let driver = place - plan.agents;
                let newest =
                    self.context.with(|inner| inner.endpoints[driver].last().map(|proxy| proxy.instance.0));
                format!("{}/{}", plan.name(place), newest.unwrap_or_default())
            }
            place if place == plan.places() => "hub".to_owned(),
            _ => "edge-9".to_owned(),
        };
        PeerId::new(name).unwrap_or_else(|_| self.own.clone())
    }

    /// Returns the last session of a peer of this name.
    pub(super) fn known_session(&self, name: &PeerId) -> Option<SessionId> {
        let place = (0..self.plan.places()).find(|place| {
            let rest = name.as_str().strip_prefix(&self.plan.name(*place));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })?;
        self.context.with(|inner| {
            let facts = &inner.facts;
            let of = |instance: usize| facts.instances.get(instance).is_some_and(|at| at.place == place);
            let mut links = facts.links.values().rev();
            links.find(|link| of(link.instance.0)).and_then(|link| link.session)
        })
    }

    /// Returns a number of a call: of one that the attacker serves, of its own, or of another peer's.
    fn call_number(&mut self) -> u64 {
        match self.rng.below(8) {
            0 | 1 if !self.served.is_empty() => self.served[self.rng.below(self.served.len())].0,
            2 => 1 + self.rng.number() % self.next,
            3 => u64::MAX,
            _ => 1 + self.rng.number() % 40,
        }
    }

    /// Returns a frame for a call that the attacker has nothing to do with.
    fn part(&mut self, part: Part) -> Frame {
        let source = self.rng.happens(300).then(|| self.other());
        let target = self.rng.happens(300).then(|| self.other());
        Frame::call(source, target, self.call_number(), part)
    }

    fn request(&mut self) -> Frame {
        let target = if self.rng.happens(100) { self.own.clone() } else { self.other() };
        let drivers = self.plan.proxies;
        // The attacker may call the driver after those of the tenants.
        let driver = self.rng.below(drivers + 1);
        let service = match self.rng.below(8) {
            0 => "csi".to_owned(),
            1 => "volumes".to_owned(),
            2..=4 if self.role == Role::Caller => format!("csi/{}", driver_name(drivers)),
            _ => format!("csi/{}", driver_name(driver)),
        };
        let (header, body) = self.call(&target, driver).unwrap_or_default();
        let service = ServiceName::new(service).or_else(|_| ServiceName::new("csi"));
        let Ok(service) = service else { return Frame::link(Kind::Unknown) };
        let mut request = Request::new(service, body).metadata(header);
        request.credit = [0, 1, 100, u64::from(u32::MAX), u64::MAX][self.rng.below(5)];
        request.remaining = match self.rng.below(4) {
            0 => None,
            1 => Some(Duration::from_millis(1)),
            2 => Some(Duration::from_millis(u64::MAX)),
            _ => Some(Duration::from_secs(2)),
        };
        request.to_session = match self.rng.below(4) {
            0 => Some(SessionId { instance: self.rng.number(), number: u64::MAX }),
            1 => None,
            _ => self.known_session(&target),
        };
        let number = if self.rng.happens(150) { self.call_number() } else { self.next };
        self.next = self.next.max(number).saturating_add(1).min(u64::MAX - 1);
        let source = self.rng.happens(150).then(|| self.other());
        Frame::call(source, Some(target), number, Part::Request(request))
    }

    /// Returns header and body of a call to a driver of a node, as its proxy would make it.
    fn call(&mut self, target: &PeerId, driver: usize) -> Option<(Bytes, Bytes)> {
        let operation = self.plan.operations[self.rng.below(self.plan.operations.len())];
        let node = NodeId::new(target.as_str()).ok()?;
        let name = driver_name(driver).parse().ok()?;
        let body = operation.request(FORGED);
        // Ids of the tenants' calls are small numbers.
        let id = CallId::from_bytes(u128::to_le_bytes(u128::from(self.rng.number() % 50)));
        let call = Call::new(id, node, name, MethodPath::new(operation.path()).ok()?, body.clone());
        let number = CallNumber::new([1, 2, 30, u64::MAX][self.rng.below(4)])?;
        let lowest = if self.rng.happens(500) { number } else { CallNumber::FIRST };
        let fence = Fence::new(self.term(driver)?, number, lowest, GivenUp::default()).ok()?;
        let call = if self.rng.happens(800) { call.with_fence(fence) } else { call };
        Some((call.encode_header(), body))
    }

    /// Returns a term for a driver: the current one, a later one, or the highest.
    fn term(&mut self, driver: usize) -> Option<Term> {
        let current = self.context.with(|inner| inner.starts.get(&driver).map_or(1, |term| term.get()));
        let terms = [1, current, current.saturating_add(1), (1 << 62) - 1, 1 << 62, u64::MAX];
        Term::new(terms[self.rng.below(terms.len())])
    }

    fn reply(&mut self) -> Frame {
        if !self.served.is_empty() && self.rng.happens(700) {
            let (number, request) = self.served[self.rng.below(self.served.len())].clone();
            return self.answer(number, request);
        }
        let mut reply = Reply::new([0, 1, 1, 2, 7, u64::MAX][self.rng.below(6)]);
        reply.message = self.rng.happens(500).then(|| self.message());
        reply.end = self.end();
        self.part(Part::Reply(reply))
    }

    /// Answers a call that was sent to the attacker, perhaps for the second time.
    fn answer(&mut self, number: u64, request: Request) -> Frame {
        let mut reply = Reply::new(1);
        let stale = Call::decode(request.metadata, request.body).ok().and_then(|call| {
            let (driver, found) = (call.driver, call.fence?.term());
            let terms = [found.get().saturating_add(1), 1 << 41, (1 << 62) - 1, u64::MAX];
            let current = Term::new(terms[self.rng.below(terms.len())])?;
            Some(Outcome::from(Fault::StaleTerm { driver, found, current }))
        });
        match stale {
            Some(stale) if self.rng.happens(600) => reply.end = Some(End::Finished(stale.encode())),
            _ => {
                reply.sequence = 1 + self.rng.number() % 3;
                reply.message = self.rng.happens(700).then(|| self.message());
                reply.end = self.end();
            }
        }
        Frame::call(None, None, number, Part::Reply(reply))
    }

    fn message(&mut self) -> Bytes {
        FORGED.repeat(1 + self.rng.below(300)).into()
    }

    fn end(&mut self) -> Option<End> {
        let reason = || FORGED.to_owned();
        Some(match self.rng.below(8) {
            0..=2 => return None,
            3 => End::Finished(Outcome::from_driver(Code::OK, FORGED).encode()),
            4 => End::Finished(Outcome::from(Fault::Protocol { reason: reason() }).encode()),
            5 => End::Finished(Outcome::from(Fault::Draining { what: reason() }).encode()),
            6 => End::Finished(Bytes::from_static(b"\xff")),
            _ => {
                let reasons = [Reason::PeerOffline, Reason::LinkLost, Reason::WrongSession, Reason::Draining];
                End::Failed(Failure::new(reasons[self.rng.below(reasons.len())], FORGED))
            }
        })
    }

    /// Asks the hub who is connected.
    fn presence(&mut self) -> Frame {
        let service = format!("csi/{}", driver_name(self.rng.below(self.plan.proxies + 1)));
        let only = (0..self.rng.below(3)).map(|_| self.other().to_string()).collect();
        let body = PresenceRequest { service, only }.encode_to_vec();
        let (Ok(service), Ok(hub)) = (ServiceName::new(PRESENCE), PeerId::new("hub")) else {
            return Frame::link(Kind::Unknown);
        };
        let mut request = Request::new(service, body);
        request.credit = 10_000;
        let number = self.next;
        self.next = number.saturating_add(1).min(u64::MAX - 1);
        Frame::call(None, Some(hub), number, Part::Request(request))
    }
}
