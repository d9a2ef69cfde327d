//! Dispatches inbound calls: answered locally, rejected, or relayed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi::v1::Topology;
use csi_proto::{Code, DriverName, Method};
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Settings;
use crate::call::{Fault, MethodPath, NodeId, Outcome, Replies};
use crate::driver_info::{self, DriverInfo, DriverInfoStore, Mode, StartupView};
use crate::observe::Observation;
use crate::relay::{BoundedAnswers, Relay};
use crate::routing::{InboundCall, Router, with_topology};

const NODE_SERVICE: &str = "csi.v1.Node";

/// The service shared by all connections of an endpoint.
pub(super) struct EndpointService {
    driver: DriverName,
    role: Role,
    pub(super) settings: Settings,
    driver_info: Arc<DriverInfo>,
    /// Whether the endpoint serves one node of several, which share a refresher: `NodeGetInfo` is then a start-up
    /// call, and a new volume gets the topology of the node.
    single_node: bool,
}

/// Whether the service relays calls.
enum Role {
    /// Relays calls.
    Active(Router, Arc<dyn Relay>),
    /// Relays nothing, until another service answers.
    Standby(SetOnce<Arc<EndpointService>>),
}

impl EndpointService {
    pub(super) fn new(
        driver: DriverName,
        router: Router,
        relay: Arc<dyn Relay>,
        shared: Option<Arc<DriverInfo>>,
    ) -> Self {
        let single_node = shared.is_some();
        let driver_info = match &router {
            Router::Topology(topology) => Arc::clone(topology.driver_info()),
            Router::Fixed(node) => {
                let mode = Mode::Each { node_info: false };
                let own = || DriverInfo::new(driver.clone(), mode);
                let driver_info = shared.unwrap_or_else(own);
                driver_info.change(|cache, now| cache.add(node, now));
                driver_info
            }
        };
        let role = Role::Active(router, relay);
        Self { driver, role, settings: Settings::default(), driver_info, single_node }
    }

    /// Creates a service that knows no node, so that `Probe` reports not ready.
    pub(super) fn standby(driver: DriverName) -> Self {
        let driver_info = DriverInfo::new(driver.clone(), Mode::Each { node_info: false });
        let (role, settings) = (Role::Standby(SetOnce::new()), Settings::default());
        Self { driver, role, settings, driver_info, single_node: false }
    }

    /// The service that answers: a standby is replaced once.
    pub(super) fn current(self: &Arc<Self>) -> Arc<Self> {
        let active = match &self.role {
            Role::Active(..) => None,
            Role::Standby(active) => active.get(),
        };
        Arc::clone(active.unwrap_or(self))
    }

    /// Makes another service answer in place of a standby.
    pub(super) fn activate(&self, by: Self) {
        if let Role::Standby(active) = &self.role
            && active.set(Arc::new(by)).is_ok()
        {
            tracing::info!(driver = %self.driver, "active: calls are relayed");
        }
    }

    /// The node of this endpoint; `None` for all nodes.
    fn node(&self) -> Option<&NodeId> {
        match &self.role {
            Role::Active(Router::Fixed(node), _) => Some(node),
            Role::Active(Router::Topology(_), _) | Role::Standby(_) => None,
        }
    }

    pub(super) fn refresh(&self) {
        self.driver_info.change(|cache, now| cache.refresh(self.node(), now));
    }

    pub(super) fn online(&self) {
        if let Some(node) = self.node() {
            self.driver_info.change(|cache, now| cache.arrived(node, now));
        }
    }

    pub(super) fn startup(&self) -> StartupView {
        StartupView::new(Arc::clone(&self.driver_info), self.node().cloned())
    }

    pub(super) fn store_driver_info(&self, store: Arc<dyn DriverInfoStore>) {
        self.driver_info.store_in(store);
    }

    /// Loads the stored driver info.
    pub(super) async fn load(&self) {
        self.driver_info.load().await;
    }

    /// Stores the driver info for the next start.
    pub(super) async fn save_driver_info(&self) {
        if !self.single_node {
            self.driver_info.save_all().await;
        }
    }

    /// Starts the refresher of the start-up answers; of a standby once it is active.
    pub(super) fn spawn_refresher(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            let service = match &service.role {
                Role::Active(..) => &service,
                Role::Standby(active) => active.wait().await,
            };
            if let (Role::Active(_, relay), false) = (&service.role, service.single_node) {
                service.driver_info.run(&**relay).await;
            }
        })
    }

    pub(super) async fn answer(&self, inbound: InboundCall) -> Replies {
        let question = driver_info::Question::from_path(inbound.method.as_str());
        let is_local = |question: &driver_info::Question| match question {
            driver_info::Question::NodeInfo => self.single_node,
            // Callers of Node RPCs on this host get the answer of the node itself.
            driver_info::Question::NodeCapabilities => !self.settings.relay_node_calls,
            _ => true,
        };
        if let Some(question) = question.filter(is_local) {
            let wait = match &self.role {
                Role::Active(..) => self.settings.startup_timeout.min(time_left(inbound.end)),
                Role::Standby(_) => Duration::ZERO,
            };
            // Boxed for the same reason as the route by topology.
            return Box::pin(self.driver_info.answer(self.node(), question, wait)).await;
        }
        if inbound.method.service() == NODE_SERVICE && !self.settings.relay_node_calls {
            let text =
                "Node RPCs mount volumes on the host of the driver; call them on the socket of that node";
            return Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text));
        }
        let (node, relay) = match &self.role {
            Role::Active(Router::Fixed(node), relay) => (node, &**relay),
            // Boxed, since otherwise every call to a fixed node would carry this half of the future.
            Role::Active(Router::Topology(topology), relay) => {
                let relay = BoundedAnswers(&**relay);
                return Box::pin(topology.answer(&relay, inbound)).await;
            }
            Role::Standby(_) => {
                let text = format!("this proxy of driver {} waits until it is the active one", self.driver);
                return Replies::outcome(Outcome::from_endpoint(Code::UNAVAILABLE, text));
            }
        };
        let method = inbound.method.clone();
        let topology = match self.default_topology(&method, node) {
            Ok(topology) => topology,
            Err(fault) => return Replies::outcome(fault),
        };
        let call = inbound.call(node.clone(), self.driver.clone());
        let observation = Observation::start("endpoint", &call).abandoned_by(inbound.abandoned);
        let sent = match topology {
            // The answer is decoded.
            Some(_) => BoundedAnswers(relay).relay(call).await,
            None => relay.relay(call).await,
        };
        let answer = match sent {
            Ok(replies) if method.is_unary() => {
                let (message, outcome) = replies.read_unary().await;
                let add_topology = |message| match &topology {
                    Some(topology) => with_topology(message, topology),
                    None => message,
                };
                Ok(Replies::whole(message.map(add_topology), outcome))
            }
            answer => answer,
        };
        observation.answered(answer).unwrap_or_else(Replies::outcome)
    }

    /// The topology of a new volume if its driver reports none: that of the node. Without a topology the pod of the
    /// volume could be scheduled anywhere, so no volume is created before the topology of the node is known.
    fn default_topology(&self, method: &MethodPath, node: &NodeId) -> Result<Option<Topology>, Fault> {
        if !self.single_node || Method::from_path(method.as_str()) != Some(Method::CreateVolume) {
            return Ok(None);
        }
        let topology = self.driver_info.read(|cache| cache.entry(node)?.topology().cloned());
        topology.map(Some).ok_or_else(|| Fault::NotReady { driver: self.driver.clone() })
    }
}

fn time_left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

impl fmt::Debug for EndpointService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointService").field("driver", &self.driver).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
