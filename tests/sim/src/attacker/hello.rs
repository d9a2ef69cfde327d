//! The first frame of an attacker: who it claims to be.

use bytes::Bytes;
use edge_transport::advanced::frame::{Frame, Hello, Kind};
use edge_transport::{PeerId, ServiceName, SessionId};

use super::Attacker;
use super::frames::encoded;
use crate::plan::driver_name;

impl Attacker {
    /// Returns the first frame, which mostly is a hello.
    pub(super) fn hello(&mut self) -> Bytes {
        if self.rng.happens(40) {
            return match self.rng.below(2) {
                0 => Bytes::from_static(b"\x05not a frame"),
                _ => encoded(Frame::link(Kind::Ping { nonce: 1 })),
            };
        }
        let claimed = self.claim();
        let mut hello = Hello::new(claimed.clone(), self.session_of(&claimed));
        hello.max_frame = [1, 4 * 1024, 64 * 1024, usize::MAX][self.rng.below(4)];
        hello.services = self.services();
        if self.rng.happens(30) {
            (hello.version_min, hello.version_max) = (u32::MAX - 1, u32::MAX);
        }
        if self.rng.happens(100) {
            hello.features = (0..32).map(|number| format!("feature-{number}")).collect();
        }
        self.claimed = Some(claimed);
        encoded(Frame::link(Kind::Hello(hello)))
    }

    /// Returns the own name, one below it, or the name of another.
    fn claim(&mut self) -> PeerId {
        let below = format!("{}/{}", self.own, self.rng.below(8));
        match self.rng.below(10) {
            0..=5 => self.own.clone(),
            6 => PeerId::new(below).unwrap_or_else(|_| self.own.clone()),
            _ => self.other(),
        }
    }

    /// Returns a session that is as new as can be, older than the last, or the one of the named peer.
    fn session_of(&mut self, claimed: &PeerId) -> SessionId {
        let genuine = self.known_session(claimed).unwrap_or(SessionId { instance: 7, number: 1 });
        let SessionId { instance, number } = genuine;
        match self.rng.below(6) {
            0..=2 => SessionId { instance, number: number.saturating_add(self.number) },
            3 => SessionId { instance, number: u64::MAX },
            4 => SessionId { instance, number: 1 },
            _ => SessionId { instance: 1 + self.rng.number() % 4, number: self.rng.number() },
        }
    }

    /// Returns services that the attacker has mostly no right to answer or to call.
    fn services(&mut self) -> Vec<ServiceName> {
        let names = match self.rng.below(6) {
            0..=2 => vec!["csi".to_owned()],
            3 => Vec::new(),
            4 => (0..self.plan.proxies).map(|driver| format!("csi/{}", driver_name(driver))).collect(),
            _ => vec!["csi".to_owned(), "presence".to_owned(), "volumes".to_owned()],
        };
        names.into_iter().filter_map(|name| ServiceName::new(name).ok()).collect()
    }
}
