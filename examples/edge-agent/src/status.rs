//! The status page of the agent.

use std::sync::Arc;

use csi_proxy::Dispatcher;
use edge_transport::Peer;

use super::kubelet_sockets::KubeletSockets;
use super::kubernetes::PluginView;
use super::renewal::RenewalView;
use super::volumes::NodeVolumes;
use edge_csi_common::status::{Fact, Status};
use edge_csi_common::uplink::{self, LinkFiles};

/// The content of the agent's status page.
#[derive(Debug)]
pub(super) struct AgentStatus {
    pub(super) peer: Peer,
    pub(super) files: LinkFiles,
    pub(super) renewal: Option<RenewalView>,
    pub(super) dispatcher: Dispatcher,
    pub(super) volumes: Option<NodeVolumes>,
    pub(super) kubelet_sockets: Option<Arc<KubeletSockets>>,
    pub(super) pods: Option<PluginView>,
}

impl Status for AgentStatus {
    fn name(&self) -> &'static str {
        "edge-agent"
    }

    fn ready(&self) -> Result<(), String> {
        uplink::readiness(&self.peer.clone().into())
    }

    fn facts(&self) -> Vec<Fact> {
        // While it is connected, the agent seldom checks by itself.
        self.files.check_soon();
        let mut facts = uplink::facts(&self.peer.clone().into(), self.peer.name());
        facts.extend(self.renewal.iter().flat_map(RenewalView::facts));
        facts.extend(self.dispatcher.drivers().into_iter().map(|name| Fact::new("driver", name)));
        let counts = self.dispatcher.operation_counts();
        facts.extend([
            Fact::new("operations running", counts.running),
            Fact::new("calls that wait for their turn", counts.waiting),
            Fact::new("results kept for retries", counts.kept),
        ]);
        facts.extend(self.volumes.iter().flat_map(volume_facts));
        facts.extend(self.pods.iter().flat_map(PluginView::facts));
        facts.extend(self.kubelet_sockets.iter().flat_map(|sockets| monitor_facts(sockets)));
        facts
    }

    fn publish_metrics(&self) {
        uplink::publish_metrics(&self.peer.clone().into(), &self.files);
        self.dispatcher.publish_metrics();
        if let Some(sockets) = &self.kubelet_sockets {
            sockets.publish_metrics();
        }
        if let Some(pods) = &self.pods {
            pods.publish_metrics();
        }
        if let Some(volumes) = &self.volumes {
            let summary = volumes.summary();
            metrics::gauge!("edge_csi_desired_revision").set(summary.revision as f64);
            metrics::gauge!("edge_csi_refused_consumers").set(summary.refused.len() as f64);
        }
    }
}

/// Returns the rows about the monitored calls of orchestrators.
fn monitor_facts(sockets: &KubeletSockets) -> Vec<Fact> {
    let counts = sockets.counts();
    vec![
        Fact::new("monitored volumes", counts.volumes),
        Fact::new("calls that violated the CSI specification", counts.violations),
    ]
}

/// Returns the rows about volumes: the number in each state, and the problems.
fn volume_facts(volumes: &NodeVolumes) -> Vec<Fact> {
    let summary = volumes.summary();
    let states: Vec<_> =
        summary.counts.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    let mut facts = vec![Fact::new("volumes", states), Fact::new("desired revision", summary.revision)];
    let problems = [
        ("refused consumers", summary.refused.len()),
        ("volumes that wait for their driver", summary.counts.dormant),
        ("volumes with a call of unknown outcome", summary.counts.uncertain),
        ("records of volumes that cannot be read", summary.counts.quarantined),
    ];
    facts
        .extend(problems.iter().filter(|(_, count)| *count > 0).map(|(name, count)| Fact::new(*name, count)));
    facts
}
