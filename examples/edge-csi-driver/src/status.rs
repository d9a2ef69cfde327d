//! The status page of the proxy.

use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::{Reachability, RetryRelay, SessionRelay, StartupStatus};
use edge_transport::HubSet;

use super::decommission::DecommissionedNodes;
use super::front::Shown;
use super::name::HubName;
use super::route::Destination;
use edge_csi_common::status::{Fact, Status};
use edge_csi_common::uplink::{self, LinkFiles};

/// The maximum number of nodes, and of names of volumes, on the page; the counts include all.
const NODES_SHOWN: usize = 200;

/// The proxy's page.
#[derive(Debug)]
pub(super) struct CsiDriverStatus {
    pub(super) hubs: HubSet,
    pub(super) reachability: Reachability,
    pub(super) relay: RetryRelay<SessionRelay>,
    pub(super) name: Arc<HubName>,
    pub(super) files: LinkFiles,
    pub(super) driver: DriverName,
    pub(super) destination: Destination,
    pub(super) shown: Shown,
    pub(super) decommissioned_nodes: DecommissionedNodes,
}

impl Status for CsiDriverStatus {
    fn name(&self) -> &'static str {
        "edge-csi-driver"
    }

    fn ready(&self) -> Result<(), String> {
        uplink::readiness(&self.hubs)
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::new("driver", &self.driver), Fact::new("node", &self.destination)];
        match &self.shown {
            Shown::One(socket, startup) => {
                facts.push(Fact::new("serves CSI on", socket));
                facts.push(Fact::new("start-up answers", answers(&startup.status())));
            }
            Shown::Each(sockets) => {
                let nodes = sockets.nodes();
                facts.push(Fact::new("sockets", nodes.len()));
                facts.extend(nodes.iter().take(NODES_SHOWN).map(|(node, startup)| {
                    let place = sockets.address(node).map(|address| address.to_string()).unwrap_or_default();
                    Fact::new(place, answers(&startup.status()))
                }));
            }
        }
        facts.extend(self.decommissioned_nodes.nodes().into_iter().take(NODES_SHOWN).map(
            |(node, connected)| {
                let place = if connected { "connected, gets no calls" } else { "not connected" };
                Fact::new("decommissioned node", format!("{node}: {place}"))
            },
        ));
        let conflicts = self.destination.claim_conflicts();
        facts.extend(
            conflicts
                .into_iter()
                .take(NODES_SHOWN)
                .map(|(node, reason)| Fact::new("quarantined node", format!("{node}: {reason}"))),
        );
        let disputed = self.destination.disputed_ids().into_iter().take(NODES_SHOWN);
        facts.extend(disputed.map(|(node, ids)| {
            Fact::new("node that lists ids of other nodes", format!("{node}: {ids} ids"))
        }));
        let damaged = self.destination.damaged_names().into_iter().take(NODES_SHOWN);
        facts.extend(damaged.map(|name| Fact::new("damaged placement", name)));
        facts.extend(self.relay.refusing_nodes().into_iter().take(NODES_SHOWN).map(|(node, term)| {
            let reason = format!("{node}: has recorded term {term}; another proxy called it, or it lies");
            Fact::new("node that refuses this proxy", reason)
        }));
        let contested = self.reachability.contested().into_iter().take(NODES_SHOWN);
        facts.extend(
            contested.map(|node| Fact::new("node name of two agents", format!("{node}: gets no calls"))),
        );
        facts.extend(uplink::facts(&self.hubs, &self.name.current()));
        facts
    }

    fn publish_metrics(&self) {
        uplink::publish_metrics(&self.hubs, &self.files);
        for (name, value) in self.gauges() {
            metrics::gauge!(name).set(value as f64);
        }
    }
}

impl CsiDriverStatus {
    /// Returns the gauges of the driver's nodes and placements. Those of several drivers add up.
    pub(super) fn gauges(&self) -> [(&'static str, usize); 7] {
        let decommissioned = self.decommissioned_nodes.nodes();
        let connected = decommissioned.iter().filter(|(_, connected)| *connected).count();
        let disputed: usize = self.destination.disputed_ids().iter().map(|(_, ids)| ids).sum();
        [
            ("edge_csi_contested_nodes", self.reachability.contested().len()),
            ("edge_csi_decommissioned_nodes", decommissioned.len()),
            ("edge_csi_decommissioned_nodes_connected", connected),
            ("edge_csi_quarantined_nodes", self.destination.claim_conflicts().len()),
            ("edge_csi_disputed_ids", disputed),
            ("edge_csi_damaged_placements", self.destination.damaged_names().len()),
            ("edge_csi_refusing_nodes", self.relay.refusing_nodes().len()),
        ]
    }
}

/// Source and age of the answers to start-up calls.
fn answers(status: &StartupStatus) -> String {
    let age = status.age.map(|age| Duration::from_secs(age.as_secs()));
    let known = match (status.reached, age) {
        (Some(true), _) => "as the driver gives them now".to_owned(),
        (_, None) => "none yet: the driver has never been reached".to_owned(),
        (Some(false), Some(age)) => format!("as the driver gave them {age:?} ago; it cannot be reached"),
        (None, Some(age)) => format!("as the driver gave them {age:?} ago; it is being asked"),
    };
    let ready = if status.ready { "Probe answers ready" } else { "Probe answers not ready" };
    format!("{known}; {ready}")
}
