//! What the proxy tells over HTTP.

use csi_proto::DriverName;
use csi_proxy::{NodeId, SocketAddress};
use edge_transport::Peer;

use crate::status::{Fact, Status};
use crate::uplink;

/// The proxy's page.
#[derive(Debug)]
pub(super) struct CsiDriverStatus {
    peer: Peer,
    driver: DriverName,
    node: NodeId,
    socket: SocketAddress,
}

impl CsiDriverStatus {
    pub(super) const fn new(peer: Peer, driver: DriverName, node: NodeId, socket: SocketAddress) -> Self {
        Self { peer, driver, node, socket }
    }
}

impl Status for CsiDriverStatus {
    fn name(&self) -> &'static str {
        "edge-csi-driver"
    }

    fn ready(&self) -> Result<(), String> {
        uplink::readiness(&self.peer)
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![
            Fact::new("driver", &self.driver),
            Fact::new("node", &self.node),
            Fact::new("serves CSI on", &self.socket),
        ];
        facts.extend(uplink::facts(&self.peer));
        facts
    }
    fn publish_metrics(&self) {
        uplink::publish_metrics(&self.peer);
    }
}
