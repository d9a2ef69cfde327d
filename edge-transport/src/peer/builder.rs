//! Builder and settings of a peer.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::hub_set::HubSet;
use super::runtime::{Driver, Paths};
use super::{Backoff, Peer, Service};
use crate::frame::{Frame, Hello, Kind, Lane, MAX_SERVICES, MIN_MAX_FRAME, encode};
use crate::hub::{Policy, Rules};
use crate::link::{Address, DialOptions, Dialer, LinkError, MAX_UNADMITTED_FRAME};
use crate::name::{PeerId, ServiceName, SessionId};
use crate::session::SessionSettings;
use crate::setters::setters;
use crate::start_error::StartError;
use crate::token::MAX_TOKEN;

/// Largest hello in bytes, before the session number and the token are written into it.
const MAX_HELLO: usize = MAX_UNADMITTED_FRAME - MAX_TOKEN - 64;

/// Timeouts and limits of a peer. Start from `PeerSettings::default()` and change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerSettings {
    /// Timeouts and limits of the session.
    pub session: SessionSettings,
    /// Timeout of one connection attempt to one address. Default 5 s.
    pub dial_timeout: Duration,
    /// Interval between attempts to connect to preferred addresses while a less preferred one is in use. Earlier
    /// dialers are preferred. When a preferred address answers, the peer changes to it, and open calls end with
    /// `LINK_LOST`. A preferred path that fails again is tried less and less often. Default 60 s; zero: never.
    pub failback_interval: Duration,
    /// Longest first delay before a reconnect, also after a link that was open. Default 200 ms; the actual delay is between
    /// half of this value and this value.
    pub backoff_initial: Duration,
    /// Longest delay before a reconnect. Default 10 s.
    pub backoff_max: Duration,
    /// Queued bytes of this peer's own calls above which callers must wait. Default 4 MiB, plus one frame.
    pub max_queued_bytes: usize,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            session: SessionSettings::default(),
            dial_timeout: Duration::from_secs(5),
            failback_interval: Duration::from_secs(60),
            backoff_initial: Duration::from_millis(200),
            backoff_max: Duration::from_secs(10),
            max_queued_bytes: 4 * 1024 * 1024,
        }
    }
}

/// Builds a [`Peer`].
#[must_use]
pub struct PeerBuilder {
    name: PeerId,
    dialers: Vec<Box<dyn Dialer>>,
    /// For each dialer, the index of the first one that is equal to it.
    equal_to: Vec<usize>,
    services: HashMap<ServiceName, Arc<dyn Service>>,
    policy: Arc<dyn Policy>,
    settings: PeerSettings,
    seed: Option<u64>,
}

impl PeerBuilder {
    pub(super) fn new(name: PeerId) -> Self {
        let settings = PeerSettings::default();
        let policy = Arc::new(Rules::allow_all());
        let (dialers, equal_to) = (Vec::new(), Vec::new());
        Self { name, dialers, equal_to, services: HashMap::new(), policy, settings, seed: None }
    }

    /// Adds the address of a hub, as in `.dial("wss://hub:443".parse()?, &tls)?`. The options are a
    /// [`ClientTls`](crate::tls::ClientTls) or [`DialOptions`]. Addresses are tried in the order in which they were added: add
    /// the preferred one first.
    ///
    /// # Errors
    /// If the address cannot be used: TLS is required and not configured, or this build does not support the kind of link.
    pub fn dial(self, address: Address, options: impl Into<DialOptions>) -> Result<Self, LinkError> {
        let dialer = address.dialer(&options.into())?;
        Ok(self.dialer(dialer))
    }

    /// Adds an own path to a hub. Paths are tried in the order in which they were added: add the preferred one first.
    pub fn dialer(self, dialer: Box<dyn Dialer>) -> Self {
        self.equal_dialers([dialer])
    }

    /// Adds paths to a hub, in the order of preference.
    pub fn dialers(self, dialers: impl IntoIterator<Item = Box<dyn Dialer>>) -> Self {
        dialers.into_iter().fold(self, Self::dialer)
    }

    /// Adds paths of equal preference, to one of several hubs: they are tried in random order, so that the peers spread over
    /// the hubs. A peer that is connected to one of them does not change to another.
    pub fn equal_dialers(mut self, dialers: impl IntoIterator<Item = Box<dyn Dialer>>) -> Self {
        let first = self.dialers.len();
        self.dialers.extend(dialers);
        self.equal_to.resize(self.dialers.len(), first);
        self
    }

    /// Adds a service. Replaces a service of the same name.
    pub fn service(mut self, name: ServiceName, service: impl Service) -> Self {
        self.services.insert(name, Arc::new(service));
        self
    }

    /// Sets which peers may call the services of this peer, in addition to the hub's policy: a call that it does not allow
    /// fails with `FORBIDDEN`. The hub has authenticated the names of the callers; their services are not known here. Default
    /// [`Rules::allow_all`]: the hub decides.
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    pub(crate) fn services(mut self, services: HashMap<ServiceName, Arc<dyn Service>>) -> Self {
        self.services = services;
        self
    }

    setters! {
        /// Sets how long [`Peer::drain`] waits for open calls. Default 30 s.
        drain_timeout(Duration) => session.drain_timeout;
        /// Sets the timeout of one connection attempt to one address. Default 5 s.
        dial_timeout(Duration) => dial_timeout;
        /// Sets the interval between attempts to connect to preferred addresses while a less preferred one is in use. When a
        /// preferred address answers, the peer changes to it, and open calls end with `LINK_LOST`. A preferred path that fails
        /// again is tried less and less often. Default 60 s; zero: never.
        failback_interval(Duration) => failback_interval;
        /// Sets the largest frame in bytes. Default 8 MiB; at least 4 KiB, and at most the limit of the dialers.
        max_frame(usize) => session.max_frame;
        /// Sets the time without a received frame after which the hub is pinged while a call waits, or always on links without
        /// an [idle ping](crate::link::Link::with_idle_ping). Default 3 s; at least 1 ms.
        ping_interval(Duration) => session.ping_interval;
        /// Sets the time without a received frame after which the link is closed as dead. Default 10 s. Should allow three
        /// pings.
        liveness_timeout(Duration) => session.liveness_timeout;
        /// Sets the maximum number of bytes of requests in progress at this peer; as many bytes of messages may wait for their
        /// callers, and as many for the link. Default 16 MiB.
        max_inbound_bytes(usize) => session.max_inbound_bytes;
    }

    /// Replaces all timeouts and limits, also those without a setter, for tests and simulations: the fields of
    /// [`advanced::PeerSettings`](PeerSettings) change with any version.
    pub fn settings(mut self, settings: PeerSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the seed of the reconnect jitter and of the peer's instance. Use it once per name, for tests only. Default: random.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Starts the peer on the current runtime. The peer connects to one hub and reconnects until it is closed.
    ///
    /// # Errors
    /// If there is no dialer or no runtime, if there are too many services or their names are too long together, or if
    /// a limit is too low.
    pub fn start(self) -> Result<Peer, StartError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let hello = self.hello()?;
        let Self { name, dialers, equal_to, services, policy, settings, .. } = self;
        let mut rng = Rng::with_seed(hello.session.instance);
        let backoff = Backoff::new(settings.backoff_initial, settings.backoff_max, rng.u64(..));
        let paths = Paths::new(dialers, equal_to, rng);
        let (driver, handle, state) =
            Driver::new(hello, paths, (services, policy), settings.clone(), backoff);
        runtime.spawn(driver.run());
        Ok(Peer::new(name, handle, state, settings))
    }

    /// Starts a peer at each hub, on the current runtime: at each address, and at each address of a name, which is resolved
    /// again and again. For callers: each hub has its own part of the nodes. Give each hub one address: a second path to
    /// a hub is only tried while no hub is connected, and once a minute.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_at_each_hub(mut self) -> Result<HubSet, StartError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        self.hello()?;
        let dialers = std::mem::take(&mut self.dialers);
        Ok(HubSet::start(self, dialers, &runtime))
    }

    /// The same peer with another dialer and another instance.
    pub(super) fn at(&self, dialer: Box<dyn Dialer>, number: u64) -> Self {
        Self {
            name: self.name.clone(),
            dialers: vec![dialer],
            equal_to: vec![0],
            services: self.services.clone(),
            policy: Arc::clone(&self.policy),
            settings: self.settings.clone(),
            seed: self.seed.map(|seed| seed.wrapping_add(number)),
        }
    }

    pub(super) const fn dial_timeout_of(&self) -> Duration {
        self.settings.dial_timeout
    }

    /// Checks the settings, and returns the hello of the peer, with its instance and without a session number.
    fn hello(&self) -> Result<Hello, StartError> {
        if self.dialers.is_empty() {
            return Err(StartError::NoDialer);
        }
        if self.services.len() > MAX_SERVICES {
            return Err(StartError::TooManyServices { found: self.services.len() });
        }
        let settings = &self.settings;
        for (setting, found, min) in [
            settings.session.shortest_ping(),
            ("session.max_frame", settings.session.max_frame, MIN_MAX_FRAME),
            ("session.max_outbound_calls", settings.session.max_outbound_calls, 1),
            ("session.credit", usize::try_from(settings.session.credit).unwrap_or(usize::MAX), 1),
            ("max_queued_bytes", settings.max_queued_bytes, 1),
        ] {
            if found < min {
                return Err(StartError::TooLow { setting, found, min });
            }
        }
        // A hasher with random keys is the standard library's source of unpredictable numbers.
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let instance = Rng::with_seed(seed).u64(1..);
        // The session number increases with each link.
        let mut hello = Hello::new(self.name.clone(), SessionId { instance, number: 0 });
        hello.max_frame = settings.session.max_frame;
        hello.services = self.services.keys().cloned().collect();
        let found = encode(Frame::link(Kind::Hello(hello.clone())), Lane::Control).len();
        if found > MAX_HELLO {
            return Err(StartError::HelloTooLarge { found, max: MAX_HELLO });
        }
        Ok(hello)
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
