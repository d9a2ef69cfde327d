//! Control plane, KubeEdge, and the processes of edge-csi with their sidecars.

use edge_csi_tests::process::Process;

use super::cloudcore::{self, CloudCore};
use super::edgecore::{self, EdgeCore};
use super::steps::Steps;
use super::{csi_node, network};
use crate::error::E2eError;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::edge::NODES;
use crate::kubernetes::kubelet;
use crate::kubernetes::objects::CSI_NODES;
use crate::kubernetes::plane::Plane;
use crate::setup::Setup;

/// The node with edgecore.
pub(super) const NODE: &str = NODES[0];

/// The cluster, whose first node is KubeEdge's. Killed when dropped.
#[derive(Debug)]
pub(super) struct KubeEdge {
    // Fields are dropped in this order.
    _registrars: Vec<Process>,
    pub(super) edgecore: EdgeCore,
    pub(super) cloudcore: CloudCore,
    pub(super) cluster: Cluster,
    /// True if a CSINode existed before this test wrote one.
    pub(super) had_csi_node: bool,
}

impl KubeEdge {
    /// Starts everything, and waits until the drivers are registered with edged.
    pub(super) fn start(setup: &Setup<'_>) -> Result<Self, E2eError> {
        let mut steps = Steps::begin();
        network::create()?;
        kubelet::separate(&edgecore::FOLDERS)?;
        let plane = Plane::start(setup)?;
        steps.done("control plane");
        let definitions = cloudcore::define(setup, &plane)?;
        steps.done(&format!("{definitions} definitions of KubeEdge"));
        let cloudcore = CloudCore::start(setup, &plane)?;
        let token = cloudcore::token(setup, &plane)?;
        steps.done("cloudcore listens");
        let edgecore = EdgeCore::start(setup, &plane, NODE, &token)?;
        steps.done("containerd and edgecore; the Node is ready");
        let cluster = Cluster::before(setup, plane, true)?;
        steps.done("hub, agents, drivers, proxies and sidecars");
        let sockets = cluster.edge.kubelet_sockets();
        let registrars =
            sockets.iter().map(|(driver, socket)| kubelet::start_registrar(setup, driver, socket));
        let registrars = registrars.collect::<Result<Vec<_>, _>>()?;
        let drivers: Vec<&str> = sockets.iter().map(|(driver, _)| *driver).collect();
        let node = csi_node::registered(cluster.api, NODE, &drivers)?;
        steps.done("drivers registered with edged");
        let had_csi_node = cluster.api.read(&format!("{CSI_NODES}/{NODE}"))?.is_some();
        if !had_csi_node {
            csi_node::write(cluster.api, &node, &drivers)?;
        }
        steps.done("CSINode");
        Ok(Self { _registrars: registrars, edgecore, cloudcore, cluster, had_csi_node })
    }

    /// Stops the cluster: the edge-csi processes gracefully, the others immediately.
    pub(super) fn stop(self) -> Result<(), E2eError> {
        drop(self.edgecore);
        drop(self.cloudcore);
        self.cluster.stop()
    }
}
