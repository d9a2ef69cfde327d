//! What a peer is made of.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::runtime::Driver;
use super::{Backoff, Peer, Service};
use crate::frame::{Hello, MAX_SERVICES, MIN_MAX_FRAME};
use crate::link::Dialer;
use crate::name::{PeerId, ServiceName, SessionId};
use crate::session::Settings;

/// Times and bounds of a peer. `PeerSettings::default()`, then change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerSettings {
    /// Times and bounds of the session.
    pub session: Settings,
    /// How long one attempt at one address may take. Default 5 s.
    pub dial_timeout: Duration,
    /// While an address is used that is not the first, how often the ones before it are tried. If one answers, it is used from then
    /// on, and calls that are open end with `LINK_LOST`. A better road that does not hold is tried less and less often. Default 60 s;
    /// zero: never.
    pub better_road_every: Duration,
    /// Longest first wait before dialling again, and the wait after a link that was in use. Default 200 ms; the wait is between half
    /// of it and all of it.
    pub retry_first: Duration,
    /// Longest wait before dialling again. Default 10 s.
    pub retry_cap: Duration,
    /// Bytes that may wait to be written before callers and services are held back. Default 4 MiB, plus one frame.
    pub outgoing_bytes: usize,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            session: Settings::default(),
            dial_timeout: Duration::from_secs(5),
            better_road_every: Duration::from_secs(60),
            retry_first: Duration::from_millis(200),
            retry_cap: Duration::from_secs(10),
            outgoing_bytes: 4 * 1024 * 1024,
        }
    }
}

/// Why a peer cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// There is no way to any hub.
    #[error("the peer has no address of a hub; add one with `dialer`")]
    NoDialer,
    /// Too many services.
    #[error("{found} services; at most {MAX_SERVICES} fit into a hello")]
    TooManyServices {
        /// How many.
        found: usize,
    },
    /// A bound is too low to work with.
    #[error("setting {setting} is {found}; it must be at least {min}")]
    TooLow {
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: usize,
        /// The lowest that works.
        min: usize,
    },
    /// There is no runtime to run on.
    #[error("no tokio runtime; call `start` inside one")]
    NoRuntime,
}

/// Puts a peer together.
#[must_use]
pub struct PeerBuilder {
    name: PeerId,
    dialers: Vec<Box<dyn Dialer>>,
    services: HashMap<ServiceName, Arc<dyn Service>>,
    settings: PeerSettings,
    seed: Option<u64>,
}

impl PeerBuilder {
    pub(super) fn new(name: PeerId) -> Self {
        let settings = PeerSettings::default();
        Self { name, dialers: Vec::new(), services: HashMap::new(), settings, seed: None }
    }

    /// Adds a way to a hub. They are tried in the order in which they were added: the one that is wanted most first.
    pub fn dialer(mut self, dialer: Box<dyn Dialer>) -> Self {
        self.dialers.push(dialer);
        self
    }

    /// Adds ways to a hub.
    pub fn dialers(mut self, dialers: impl IntoIterator<Item = Box<dyn Dialer>>) -> Self {
        self.dialers.extend(dialers);
        self
    }

    /// Answers calls to a service. A service of the same name is replaced.
    pub fn service(mut self, name: ServiceName, service: impl Service) -> Self {
        self.services.insert(name, Arc::new(service));
        self
    }

    pub(crate) fn services(mut self, services: HashMap<ServiceName, Arc<dyn Service>>) -> Self {
        self.services = services;
        self
    }

    /// Times and bounds.
    pub fn settings(mut self, settings: PeerSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Seed of the jitter of reconnects and of the instance of this peer: no other start of the same name may use it. For tests.
    /// Default: random.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Starts the peer on the current runtime. It dials, and dials again, until it is closed.
    ///
    /// # Errors
    /// If there is no dialer, no runtime, too many services, or a bound is too low.
    pub fn start(self) -> Result<Peer, PeerError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| PeerError::NoRuntime)?;
        if self.dialers.is_empty() {
            return Err(PeerError::NoDialer);
        }
        if self.services.len() > MAX_SERVICES {
            return Err(PeerError::TooManyServices { found: self.services.len() });
        }
        let settings = self.settings;
        for (setting, found, min) in [
            settings.session.shortest_ping(),
            ("session.max_frame", settings.session.max_frame, MIN_MAX_FRAME),
            ("session.max_requests", settings.session.max_requests, 1),
            ("session.credit", usize::try_from(settings.session.credit).unwrap_or(usize::MAX), 1),
            ("outgoing_bytes", settings.outgoing_bytes, 1),
        ] {
            if found < min {
                return Err(PeerError::TooLow { setting, found, min });
            }
        }
        // A hasher with random keys is the standard library's source of numbers that nobody can guess.
        let mut chance = Rng::with_seed(self.seed.unwrap_or_else(|| RandomState::new().hash_one(())));
        let instance = chance.u64(1..);
        // The number rises with each link.
        let mut hello = Hello::new(self.name.clone(), SessionId { instance, number: 0 });
        hello.max_frame = settings.session.max_frame;
        hello.services = self.services.keys().cloned().collect();
        let backoff = Backoff::new(settings.retry_first, settings.retry_cap, chance.u64(..));
        let (driver, inbox, state) =
            Driver::new(hello, self.dialers, self.services, settings.clone(), backoff);
        runtime.spawn(driver.run());
        Ok(Peer::new(self.name, inbox, state, settings))
    }
}

impl std::fmt::Debug for PeerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerBuilder")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
