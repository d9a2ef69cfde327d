//! Builder of a hub.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::accept::accept_loop;
use super::auth::Authentication;
use super::connection::read_batch;
use super::receive_budget::{ReceiveBudget, min_budget};
use super::{Hub, Shared, Table, WeakHub};
use crate::frame::{Hello, MIN_MAX_FRAME};
use crate::hub::{Core, HubSettings, Policy, Requester, Rules};
use crate::link::{Address, LinkError, ListenOptions, Listener, memory};
use crate::name::{PeerId, ServiceName, SessionId};
use crate::peer::{Peer, PeerSettings, Service};
use crate::presence::PresenceService;
use crate::setters::setters;
use crate::start_error::StartError;
use crate::token::TokenVerifier;

/// Maximum number of presence events by which a receiver may lag.
const PRESENCE_BOUND: usize = 1024;

/// A service of the hub itself.
struct LocalService {
    callers: Arc<dyn Policy>,
    service: Arc<dyn Service>,
}

/// Builds a [`Hub`].
#[must_use]
pub struct HubBuilder {
    name: Option<PeerId>,
    listeners: Vec<Box<dyn Listener>>,
    policy: Arc<dyn Policy>,
    settings: HubSettings,
    pub(super) authentication: Authentication,
    services: HashMap<ServiceName, LocalService>,
    presence: bool,
}

/// Allows calls of the peers that may watch presence according to the inner policy.
struct MayWatch(Arc<dyn Policy>);

impl Policy for MayWatch {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        self.0.may_watch(requester)
    }
}

impl HubBuilder {
    pub(super) fn new() -> Self {
        Self {
            name: None,
            listeners: Vec::new(),
            policy: Arc::new(Rules::clients_only()),
            settings: HubSettings::default(),
            authentication: Authentication::default(),
            services: HashMap::new(),
            presence: false,
        }
    }

    /// Sets the hub's name in its hello. Default `hub`.
    pub fn name(mut self, name: PeerId) -> Self {
        self.name = Some(name);
        self
    }

    /// Adds a listener on an address, as in `.listen("wss://0.0.0.0:443".parse()?, &tls).await?`. May be called several times.
    /// The options are a [`ServerTls`](crate::tls::ServerTls) or [`ListenOptions`].
    ///
    /// # Errors
    /// If the socket cannot be bound, if TLS is required and not configured, or if this build does not support the kind of
    /// link.
    pub async fn listen(
        self,
        address: Address,
        options: impl Into<ListenOptions>,
    ) -> Result<Self, LinkError> {
        let listener = address.listen(&options.into()).await?;
        Ok(self.listener(listener))
    }

    /// Adds an own listener. May be called several times.
    pub fn listener(mut self, listener: Box<dyn Listener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Sets the policy: which peers may call which. Default [`Rules::clients_only`]: only peers without services may call. With
    /// untrusted nodes, name the callers.
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    setters! {
        /// Sets how long [`Hub::drain`] waits for open calls. Default 30 s.
        drain_timeout(Duration) => session.drain_timeout;
        /// Sets the largest frame in bytes. Default 8 MiB; at least 4 KiB, and at most the limit of the listeners.
        max_frame(usize) => session.max_frame;
        /// Sets the time without a received frame after which a peer is pinged while a call waits, or always on links without
        /// an [idle ping](crate::link::Link::with_idle_ping). Default 3 s; at least 1 ms.
        ping_interval(Duration) => session.ping_interval;
        /// Sets the time without a received frame after which a link is closed as dead. Default 10 s. Should allow three pings.
        liveness_timeout(Duration) => session.liveness_timeout;
        /// Sets the maximum number of connected peers. Default 100,000, each about 4 KiB plus the memory of its link.
        max_peers(usize) => max_peers;
        /// Sets the maximum number of bytes that wait for all peers together, in their queues and in their links. Default
        /// 256 MiB. Each sender may have as many as are then unused.
        total_queue_bytes(usize) => total_queue_bytes;
        /// Sets the maximum number of bytes of unfinished frames on the links of all peers, in addition to 20 KiB on each link.
        /// Default 64 MiB; at least twice the largest frame and 1 MiB. A link that gets no more is not read until others need
        /// less.
        total_receive_bytes(usize) => total_receive_bytes;
    }

    /// Replaces all timeouts and limits, also those without a setter, for tests and simulations: the fields of
    /// [`advanced::HubSettings`](HubSettings) change with any version.
    pub fn settings(mut self, settings: HubSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Accepts the name that a peer claims on a link without credentials. For tests and closed networks only; the hub logs a
    /// warning.
    pub const fn allow_unauthenticated(mut self) -> Self {
        self.authentication.allow_unauthenticated = true;
        self
    }

    /// Accepts peers that prove their name by a token on confidential links without other credentials: `wss` and QUIC without a
    /// client certificate, unix sockets of other users. A token on a plain websocket is refused.
    pub fn token_verifier(mut self, verifier: impl TokenVerifier + 'static) -> Self {
        self.authentication.token_verifier = Some(Arc::new(verifier));
        self
    }

    /// Refuses the peers and certificates of a list, at their admission and, within a second after the list is reloaded, in
    /// the sessions that are open.
    #[cfg(feature = "tls")]
    pub fn deny(mut self, list: crate::hub::DenyList) -> Self {
        self.authentication.deny = Some(list);
        self
    }

    /// Verifies the certificates of open sessions again, within a second after the authorities or revocation lists of these
    /// files are reloaded, and ends the sessions whose certificates are refused now: their authority was removed, or has
    /// revoked them. Give the files of the hub's listeners; a fixed configuration never changes. A session costs no memory for
    /// it, since TLS keeps the certificates. Certificates on links that have no [chain](crate::link::FrameLink::peer_chain) are
    /// not verified again.
    #[cfg(feature = "tls")]
    pub fn client_certificates(mut self, tls: &crate::tls::ServerTls) -> Self {
        self.authentication.certificates = tls.files().cloned();
        self
    }

    /// Provides the service [`presence::SERVICE`](crate::presence::SERVICE) under the hub's name, which reports connected
    /// peers. A watcher sees only peers that the policy allows it to call. The policy decides [which peers may
    /// watch](crate::hub::Policy::may_watch).
    pub const fn presence(mut self) -> Self {
        self.presence = true;
        self
    }

    /// Adds a service of the hub itself, under the name in the hub's hello ([`Peer::hub`]), which is reserved for the hub. The
    /// policy `callers` replaces the hub's policy; [`Service::call`] receives the caller's name.
    /// One peer may have 64 open calls to a hub's own services. End long-lived calls before [`Hub::drain`], which waits for them.
    pub fn service(
        mut self,
        name: ServiceName,
        callers: impl Policy + 'static,
        service: impl Service,
    ) -> Self {
        let (callers, service) = (Arc::new(callers), Arc::new(service));
        self.services.insert(name, LocalService { callers, service });
        self
    }

    /// Starts the hub on the current runtime.
    ///
    /// # Errors
    /// If there is no listener or no runtime, if a limit is too low, or if the hub's own services cannot start.
    pub fn start(self) -> Result<Hub, StartError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        if self.listeners.is_empty() {
            return Err(StartError::NoListener);
        }
        let settings = &self.settings;
        for (setting, found, min) in [
            ("max_peers", settings.max_peers, 1),
            ("max_peers_per_caller", settings.max_peers_per_caller, 1),
            ("max_calls", settings.max_calls, 1),
            ("max_local_calls", settings.max_local_calls, 1),
            ("max_handshakes", settings.max_handshakes, 1),
            ("queue_frames", settings.queue_frames, 1),
            settings.session.shortest_ping(),
            ("session.max_frame", settings.session.max_frame, MIN_MAX_FRAME),
            ("total_receive_bytes", settings.total_receive_bytes, min_budget(settings.session.max_frame)),
        ] {
            if found < min {
                return Err(StartError::TooLow { setting, found, min });
            }
        }
        if self.authentication.allow_unauthenticated {
            tracing::warn!("unauthenticated peers are allowed: anyone with network access can use any name");
        }
        // `hub` is a valid name, so there is no error to report.
        let name = self.name.or_else(|| PeerId::new("hub").ok()).ok_or(StartError::NoListener)?;
        #[cfg(feature = "tls")]
        if let Some(list) = &self.authentication.deny {
            list.protect(&name).map_err(|error| StartError::DeniesHub { cause: error.to_string() })?;
        }
        let local = (self.presence || !self.services.is_empty()).then(|| name.clone());
        // A hub never dials, so its session numbers are never compared.
        let mut hello = Hello::new(name, SessionId { instance: 1, number: 1 });
        hello.max_frame = settings.session.max_frame;
        // The constant is a valid name.
        let presence = self.presence.then_some(ServiceName::new(crate::presence::SERVICE).ok()).flatten();
        let mut services = self.services;
        let shared = Arc::new_cyclic(|shared| {
            if let Some(name) = presence {
                let service = Arc::new(PresenceService::new(WeakHub(shared.clone())));
                let callers = Arc::new(MayWatch(Arc::clone(&self.policy)));
                services.insert(name, LocalService { callers, service });
            }
            let mut core = Core::new(self.settings.clone(), self.policy);
            if let Some(local) = &local {
                let callers = services.iter().map(|(name, local)| (name.clone(), Arc::clone(&local.callers)));
                core = core.with_local(local.clone(), callers.collect());
            }
            Shared {
                table: Mutex::new(Table { core, wakers: Default::default() }),
                presence: broadcast::channel(PRESENCE_BOUND).0,
                authentication: self.authentication,
                hello: Arc::new(hello),
                read_batch: read_batch(self.settings.queue_frames),
                receive_budget: ReceiveBudget::new(
                    self.settings.total_receive_bytes,
                    self.settings.session.max_frame,
                ),
                stop_accepting: CancellationToken::new(),
                stop_watches: CancellationToken::new(),
                left: Notify::new(),
                tasks: TaskTracker::new(),
                addresses: self.listeners.iter().map(Listener::local_address).collect(),
                warnings: Default::default(),
                failed_listeners: Mutex::default(),
                local: OnceLock::new(),
                identity_checks: AtomicU64::new(0),
                settings: self.settings,
            }
        });
        if let Some(local) = local {
            let services = services.into_iter().map(|(name, local)| (name, local.service)).collect();
            let _ = shared.local.set(local_peer(&shared, local, services)?);
        }
        if shared.authentication.can_revoke() {
            runtime.spawn(check_after_reloads(Arc::clone(&shared)));
        }
        for listener in self.listeners {
            shared.tasks.spawn_on(accept_loop(listener, Arc::clone(&shared)), &runtime);
        }
        Ok(Hub { shared })
    }
}

/// How often the hub checks whether a deny list or tokens were reloaded.
const RELOAD_CHECK: Duration = Duration::from_secs(1);

/// Makes every session check its identity after each reload, until the last session has ended. Not one of the hub's own
/// tasks, which a hub that drains waits for.
async fn check_after_reloads(shared: Arc<Shared>) {
    let mut known = shared.authentication.generation();
    while tokio::time::timeout(RELOAD_CHECK, shared.tasks.wait()).await.is_err() {
        let current = shared.authentication.generation();
        if current != known {
            known = current;
            shared.check_identities().await;
        }
    }
}

/// Starts the peer that provides the hub's own services, over a link inside the process that proves its name.
fn local_peer(
    shared: &Arc<Shared>,
    local: PeerId,
    services: HashMap<ServiceName, Arc<dyn Service>>,
) -> Result<Peer, StartError> {
    let max_frame = shared.settings.session.max_frame;
    let (listener, dialer) = memory::listen_of_hub(local.clone(), max_frame);
    shared.tasks.spawn(accept_loop(listener, Arc::clone(shared)));
    let mut settings = PeerSettings { session: shared.settings.session.clone(), ..PeerSettings::default() };
    settings.session.max_inbound_calls = shared.settings.max_peers.saturating_mul(2);
    let builder = Peer::builder(local).dialer(Box::new(dialer)).settings(settings);
    builder.services(services).start().map_err(|cause| StartError::LocalServices(Box::new(cause)))
}

impl std::fmt::Debug for HubBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
