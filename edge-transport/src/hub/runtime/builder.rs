//! What a hub is made of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::accept::accept_loop;
use super::auth::Authentication;
use super::{Hub, Shared, Table, WeakHub};
use crate::frame::{Hello, MIN_MAX_FRAME};
use crate::hub::{Core, HubSettings, NodesCallNobody, Policy, Requester};
use crate::link::{Listener, memory};
use crate::name::{PeerId, ServiceName, SessionId};
use crate::peer::{Peer, PeerError, PeerSettings, Service};
use crate::presence::PresenceService;
use crate::token::Tokens;

/// Presence events that a slow receiver may lag behind.
const PRESENCE_BOUND: usize = 1024;

/// Why a hub cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// No peer could ever come in.
    #[error("the hub has no listener; add one with `listener`")]
    NoListener,
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
    /// What answers calls to the hub itself cannot start.
    #[error("the hub's own services: {0}")]
    Own(#[source] PeerError),
}

/// A service of the hub itself.
struct OwnService {
    callers: Arc<dyn Policy>,
    service: Arc<dyn Service>,
}

/// Puts a hub together.
#[must_use]
pub struct HubBuilder {
    name: Option<PeerId>,
    listeners: Vec<Box<dyn Listener>>,
    policy: Arc<dyn Policy>,
    settings: HubSettings,
    authentication: Authentication,
    services: HashMap<ServiceName, OwnService>,
    presence: bool,
}

/// Who may ask who is there.
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
            policy: Arc::new(NodesCallNobody),
            settings: HubSettings::default(),
            authentication: Authentication::default(),
            services: HashMap::new(),
            presence: false,
        }
    }

    /// The hub's own name in its hello. Default `hub`.
    pub fn name(mut self, name: PeerId) -> Self {
        self.name = Some(name);
        self
    }

    /// Takes links from a listener; may be called again for further ones.
    pub fn listener(mut self, listener: Box<dyn Listener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Who may call whom. Default: whoever offers no service may call, nodes may not ([`NodesCallNobody`]); a hub with nodes that
    /// are not trusted wants [`Rules`](crate::hub::Rules).
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// Times and bounds.
    pub fn settings(mut self, settings: HubSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Believes the name that a peer gives on a link without credentials. For tests and closed networks only; the hub says so
    /// in its log.
    pub const fn allow_unauthenticated(mut self) -> Self {
        self.authentication.allow_unauthenticated = true;
        self
    }

    /// Takes peers that prove their names by a token, on links that prove none and hide it from others: `wss` and QUIC without a
    /// client certificate, unix sockets of other users. Over plain websockets a token is refused.
    pub fn tokens(mut self, tokens: impl Tokens + 'static) -> Self {
        self.authentication.tokens = Some(Arc::new(tokens));
        self
    }

    /// Tells peers that ask which others are there, as the service [`presence::SERVICE`](crate::presence::SERVICE) of the hub's own
    /// name. Nobody is told of peers that the policy does not let it call, and who may
    /// [call nobody](crate::hub::Policy::may_watch) is refused.
    pub const fn presence(mut self) -> Self {
        self.presence = true;
        self
    }

    /// Answers calls to a service of the hub itself, by the name in the hub's hello ([`Peer::hub`]), which nobody else may take.
    /// Who may make them `callers` says, in place of the hub's policy; whose call it is says
    /// [`Service::call`]. How many may be open at once
    /// [`HubSettings::max_own_calls`] says. Those that stay open are to be ended before [`Hub::drain`], which waits for them.
    pub fn service(
        mut self,
        name: ServiceName,
        callers: impl Policy + 'static,
        service: impl Service,
    ) -> Self {
        let (callers, service) = (Arc::new(callers), Arc::new(service));
        self.services.insert(name, OwnService { callers, service });
        self
    }

    /// Starts the hub on the current runtime.
    ///
    /// # Errors
    /// If there is no listener, no runtime, or a bound is too low.
    pub fn start(self) -> Result<Hub, HubError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| HubError::NoRuntime)?;
        if self.listeners.is_empty() {
            return Err(HubError::NoListener);
        }
        let settings = &self.settings;
        for (setting, found, min) in [
            ("max_peers", settings.max_peers, 1),
            ("max_calls", settings.max_calls, 1),
            ("max_own_calls", settings.max_own_calls, 1),
            ("max_handshakes", settings.max_handshakes, 1),
            ("queue_frames", settings.queue_frames, 1),
            settings.session.shortest_ping(),
            ("session.max_frame", settings.session.max_frame, MIN_MAX_FRAME),
        ] {
            if found < min {
                return Err(HubError::TooLow { setting, found, min });
            }
        }
        if self.authentication.allow_unauthenticated {
            tracing::warn!(
                "this hub believes peers without credentials: anyone who can reach it may take any name"
            );
        }
        // `hub` is a valid name, so there is no error to report.
        let name = self.name.or_else(|| PeerId::new("hub").ok()).ok_or(HubError::NoListener)?;
        let own = (self.presence || !self.services.is_empty()).then(|| name.clone());
        // A hub dials nobody, so nobody compares its sessions.
        let mut hello = Hello::new(name, SessionId { instance: 1, number: 1 });
        hello.max_frame = settings.session.max_frame;
        // The name is a constant that is one.
        let presence = self.presence.then_some(ServiceName::new(crate::presence::SERVICE).ok()).flatten();
        let mut services = self.services;
        let shared = Arc::new_cyclic(|shared| {
            if let Some(name) = presence {
                let service = Arc::new(PresenceService { hub: WeakHub(shared.clone()) });
                let callers = Arc::new(MayWatch(Arc::clone(&self.policy)));
                services.insert(name, OwnService { callers, service });
            }
            let mut core = Core::new(self.settings.clone(), self.policy);
            if let Some(own) = &own {
                let callers = services.iter().map(|(name, own)| (name.clone(), Arc::clone(&own.callers)));
                core = core.with_own(own.clone(), callers.collect());
            }
            Shared {
                table: Mutex::new(Table { core, wakers: Default::default() }),
                presence: broadcast::channel(PRESENCE_BOUND).0,
                authentication: self.authentication,
                hello,
                stop_accepting: CancellationToken::new(),
                tasks: TaskTracker::new(),
                addresses: self.listeners.iter().map(|listener| listener.local_address()).collect(),
                own: OnceLock::new(),
                settings: self.settings,
            }
        });
        if let Some(own) = own {
            let services = services.into_iter().map(|(name, own)| (name, own.service)).collect();
            let _ = shared.own.set(own_peer(&shared, own, services)?);
        }
        for listener in self.listeners {
            shared.tasks.spawn_on(accept_loop(listener, Arc::clone(&shared)), &runtime);
        }
        Ok(Hub { shared })
    }
}

/// The peer that answers calls to the hub itself, over a link inside the process that proves its name and takes no other.
fn own_peer(
    shared: &Arc<Shared>,
    own: PeerId,
    services: HashMap<ServiceName, Arc<dyn Service>>,
) -> Result<Peer, HubError> {
    let max_frame = shared.settings.session.max_frame;
    let (listener, dialer) = memory::listen_proven(own.clone(), max_frame);
    shared.tasks.spawn(accept_loop(Box::new(listener), Arc::clone(shared)));
    let mut settings = PeerSettings { session: shared.settings.session.clone(), ..PeerSettings::default() };
    settings.session.max_serving = shared.settings.max_peers.saturating_mul(2);
    let builder = Peer::builder(own).dialer(Box::new(dialer)).settings(settings);
    builder.services(services).start().map_err(HubError::Own)
}

impl std::fmt::Debug for HubBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
