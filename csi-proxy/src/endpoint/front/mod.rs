//! Where a question goes: answered here, refused here, or relayed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi::v1::Topology;
use csi_proto::{Code, DriverName, Method};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::EndpointSettings;
use crate::call::{Fault, MethodPath, NodeId, Outcome, Replies};
use crate::driver_info::{self, DriverInfo, Mode, View};
use crate::observe::Observation;
use crate::relay::Relay;
use crate::routing::{Inquiry, Router, with_topology};

const NODE_SERVICE: &str = "csi.v1.Node";

/// What stands behind every connection of an endpoint.
pub(super) struct Front {
    driver: DriverName,
    router: Router,
    relay: Arc<dyn Relay>,
    pub(super) settings: EndpointSettings,
    drivers: Arc<DriverInfo>,
    /// It stands for one of several nodes, which are asked together by somebody else: `NodeGetInfo` is one of the start-up calls, and a new
    /// volume is said to be where the node is.
    stands_for_node: bool,
}

impl Front {
    pub(super) fn new(
        driver: DriverName,
        router: Router,
        relay: Arc<dyn Relay>,
        settings: EndpointSettings,
        shared: Option<Arc<DriverInfo>>,
    ) -> Self {
        let stands_for_node = shared.is_some();
        let drivers = match &router {
            Router::Topology(topology) => Arc::clone(topology.drivers()),
            Router::Fixed(node) => {
                let mode = Mode::Each { node_info: false };
                let own = || DriverInfo::new(driver.clone(), mode, settings.driver_info.clone());
                let drivers = shared.unwrap_or_else(own);
                drivers.change(|cache, now| cache.add(node, now));
                drivers
            }
        };
        Self { driver, router, relay, settings, drivers, stands_for_node }
    }

    /// The node that this stands for; `None` if that is all of them.
    fn node(&self) -> Option<&NodeId> {
        match &self.router {
            Router::Fixed(node) => Some(node),
            Router::Topology(_) => None,
        }
    }

    pub(super) fn refresh(&self) {
        self.drivers.change(|cache, now| cache.refresh(self.node(), now));
    }

    pub(super) fn online(&self) {
        if let Some(node) = self.node() {
            self.drivers.change(|cache, now| cache.arrived(node, now));
        }
    }

    pub(super) fn startup(&self) -> View {
        View::new(Arc::clone(&self.drivers), self.node().cloned())
    }

    /// Takes in what was kept of earlier starts.
    pub(super) async fn load(&self) {
        self.drivers.load().await;
    }

    /// Keeps what is to be kept for the next start.
    pub(super) async fn settle(&self) {
        if !self.stands_for_node {
            self.drivers.settle().await;
        }
    }

    /// Starts to learn what is answered locally.
    pub(super) fn learn(self: &Arc<Self>) -> JoinHandle<()> {
        let front = Arc::clone(self);
        tokio::spawn(async move {
            if !front.stands_for_node {
                front.drivers.run(&*front.relay).await;
            }
        })
    }

    pub(super) async fn answer(&self, question: Inquiry) -> Replies {
        let known = driver_info::Question::from_path(question.method.as_str());
        let is_local = |known: &driver_info::Question| match known {
            driver_info::Question::NodeInfo => self.stands_for_node,
            // Who makes node calls here hears the node itself.
            driver_info::Question::NodeCapabilities => !self.settings.relay_node_calls,
            _ => true,
        };
        if let Some(known) = known.filter(is_local) {
            let wait = self.settings.first_answer.min(left(question.end));
            return self.drivers.answer(self.node(), known, wait).await;
        }
        if question.method.service() == NODE_SERVICE && !self.settings.relay_node_calls {
            let text = "Node calls mount volumes and mean nothing on another host; make them on the node's own socket";
            return Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text));
        }
        let node = match &self.router {
            Router::Fixed(node) => node,
            // Boxed: it is half of this future, which every call of a fixed node would move around as well.
            Router::Topology(topology) => return Box::pin(topology.answer(&*self.relay, question)).await,
        };
        let method = question.method.clone();
        let place = match self.place_of_new(&method, node) {
            Ok(place) => place,
            Err(fault) => return Replies::outcome(fault),
        };
        let call = question.call(node.clone(), self.driver.clone());
        let observation = Observation::start("endpoint", &call).abandoned_by(question.abandoned);
        let answer = match self.relay.relay(call).await {
            Ok(replies) if method.is_unary() => {
                let (message, outcome) = replies.read_unary().await;
                let placed = |message| match &place {
                    Some(place) => with_topology(message, place),
                    None => message,
                };
                Ok(Replies::whole(message.map(placed), outcome))
            }
            answer => answer,
        };
        observation.answered(answer).unwrap_or_else(Replies::outcome)
    }

    /// Where a new volume is said to be if its driver does not say it: where the node is. A volume of which is not said where it is would let
    /// its pod go anywhere, so none is made before the node was asked.
    fn place_of_new(&self, method: &MethodPath, node: &NodeId) -> Result<Option<Topology>, Fault> {
        if !self.stands_for_node || Method::from_path(method.as_str()) != Some(Method::CreateVolume) {
            return Ok(None);
        }
        let place = self.drivers.look(|cache| cache.entry(node)?.topology());
        place.map(Some).ok_or_else(|| Fault::NotReady { driver: self.driver.clone() })
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("driver", &self.driver).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
