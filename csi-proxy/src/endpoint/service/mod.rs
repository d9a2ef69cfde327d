//! Dispatches inbound calls: answered locally, rejected, or relayed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi::v1::Topology;
use csi_proto::{Code, DriverName, Method};
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
    router: Router,
    relay: Arc<dyn Relay>,
    pub(super) settings: Settings,
    driver_info: Arc<DriverInfo>,
    /// Whether the endpoint serves one node of several, which share a refresher: `NodeGetInfo` is then a start-up
    /// call, and a new volume gets the topology of the node.
    single_node: bool,
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
        Self { driver, router, relay, settings: Settings::default(), driver_info, single_node }
    }

    /// The node of this endpoint; `None` for all nodes.
    fn node(&self) -> Option<&NodeId> {
        match &self.router {
            Router::Fixed(node) => Some(node),
            Router::Topology(_) => None,
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

    /// Starts the refresher of the start-up answers.
    pub(super) fn spawn_refresher(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            if !service.single_node {
                service.driver_info.run(&*service.relay).await;
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
            let wait = self.settings.startup_timeout.min(time_left(inbound.end));
            return self.driver_info.answer(self.node(), question, wait).await;
        }
        if inbound.method.service() == NODE_SERVICE && !self.settings.relay_node_calls {
            let text =
                "Node RPCs mount volumes on the host of the driver; call them on the socket of that node";
            return Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text));
        }
        let node = match &self.router {
            Router::Fixed(node) => node,
            // Boxed, since otherwise every call to a fixed node would carry this half of the future.
            Router::Topology(topology) => {
                let relay = BoundedAnswers(&*self.relay);
                return Box::pin(topology.answer(&relay, inbound)).await;
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
            Some(_) => BoundedAnswers(&*self.relay).relay(call).await,
            None => self.relay.relay(call).await,
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
