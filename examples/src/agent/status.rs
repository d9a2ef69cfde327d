//! What the agent tells over HTTP.

use csi_proxy::Dispatcher;
use edge_transport::Peer;

use crate::status::{Fact, Status};
use crate::uplink;

/// The agent's page.
#[derive(Debug)]
pub(super) struct AgentStatus {
    peer: Peer,
    dispatcher: Dispatcher,
}

impl AgentStatus {
    pub(super) const fn new(peer: Peer, dispatcher: Dispatcher) -> Self {
        Self { peer, dispatcher }
    }
}

impl Status for AgentStatus {
    fn name(&self) -> &'static str {
        "edge-agent"
    }

    fn ready(&self) -> Result<(), String> {
        uplink::readiness(&self.peer)
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = uplink::facts(&self.peer);
        facts.extend(self.dispatcher.drivers().into_iter().map(|name| Fact::new("driver", name)));
        facts
    }
    fn publish_metrics(&self) {
        uplink::publish_metrics(&self.peer);
    }
}
