//! Control plane, KubeEdge, and the processes of edge-csi with their sidecars.

use std::path::Path;

use edge_csi_tests::process::Process;
use edge_csi_tests::wait;

use super::cloudcore::{self, CloudCore};
use super::edgecore::{self, EdgeCore, Place};
use super::steps::Steps;
use super::{csi_node, network};
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Cluster};
use crate::kubernetes::edge::NODES;
use crate::kubernetes::kubelet::{self, HOST_FOLDERS};
use crate::kubernetes::plane::Plane;
use crate::setup::Setup;

/// The node with edgecore.
pub(super) const NODE: &str = NODES[0];

/// The agent's option that has the hub write the CSINode.
pub(super) const REPORT: &str = "--csi-node";

/// The cluster, whose first node is KubeEdge's. Killed when dropped.
#[derive(Debug)]
pub(super) struct KubeEdge {
    // Fields are dropped in this order.
    registrars: Vec<Process>,
    pub(super) edgecore: EdgeCore,
    pub(super) cloudcore: CloudCore,
    pub(super) cluster: Cluster,
}

impl KubeEdge {
    /// Starts everything, and waits until the drivers are registered with edged.
    pub(super) fn start(setup: &Setup<'_>) -> Result<Self, E2eError> {
        let mut steps = Steps::begin();
        network::create()?;
        kubelet::separate(&HOST_FOLDERS)?;
        kubelet::separate(&edgecore::FOLDERS)?;
        let plane = Plane::start(setup)?;
        steps.done("control plane");
        let definitions = cloudcore::define(setup, &plane)?;
        steps.done(&format!("{definitions} definitions of KubeEdge"));
        let cloudcore = CloudCore::start(setup, &plane)?;
        let token = cloudcore::token(setup, &plane)?;
        steps.done("cloudcore listens");
        let edgecore = EdgeCore::start(setup, &plane, (NODE, Place::of_production()), &token)?;
        steps.done("containerd and edgecore; the Node is ready");
        let mut cluster = Cluster::before(setup, plane, true)?;
        steps.done("hub, agents, drivers, proxies and sidecars");
        let registrars = register(setup, &mut cluster, (NODE, &edgecore.place.root))?;
        steps.done("drivers registered with edged; CSINode");
        Ok(Self { registrars, edgecore, cloudcore, cluster })
    }

    /// Restarts the registrars that edged has refused, as edged does with the container of a registrar that has ended, until
    /// all drivers are registered.
    pub(super) fn renew_registrars(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        let mut last = 0;
        let renewed = wait::poll(BOUND, || match self.renew_refused(setup) {
            Ok(0) => Some(Ok(())),
            Ok(missing) => {
                last = missing;
                None
            }
            Err(error) => Some(Err(error)),
        });
        renewed.unwrap_or_else(|| {
            let waited_for = format!("registrations with edged on {NODE}");
            Err(E2eError::Timeout { waited_for, bound: BOUND, last: format!("{last} are missing") })
        })
    }

    /// Restarts the registrars that edged has refused. Returns the number of drivers that are not registered.
    fn renew_refused(&mut self, setup: &Setup<'_>) -> Result<usize, E2eError> {
        let mut missing = 0;
        let sockets = self.cluster.edge.kubelet_sockets(NODE);
        for (registrar, (driver, socket)) in self.registrars.iter_mut().zip(sockets) {
            let log = registrar.log();
            let last = log.lines().last().unwrap_or_default();
            if last.starts_with("refused") {
                registrar.kill();
                let root = &self.edgecore.place.root;
                *registrar = kubelet::start_registrar(setup, &format!("{NODE}-{driver}"), root, &socket)?;
            }
            missing += usize::from(last != "registered");
        }
        Ok(missing)
    }

    /// Restarts the agent of the node with these options, and waits until the hub has written the CSINode.
    pub(super) fn restart_agent(&mut self, setup: &Setup<'_>, options: &[&str]) -> Result<(), E2eError> {
        self.cluster.edge.restart_agent(setup, NODE, options)?;
        let drivers: Vec<&str> =
            self.cluster.edge.kubelet_sockets(NODE).into_iter().map(|(driver, _)| driver).collect();
        csi_node::written(self.cluster.api, NODE, &drivers)
    }

    /// Stops the cluster: the edge-csi processes gracefully, the others immediately.
    pub(super) fn stop(self) -> Result<(), E2eError> {
        drop(self.edgecore);
        drop(self.cloudcore);
        self.cluster.stop()
    }
}

/// Registers a node's drivers with its edged, and waits until the hub has written its CSINode. Returns the registrars.
pub(super) fn register(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    (node, root): (&str, &Path),
) -> Result<Vec<Process>, E2eError> {
    cluster.edge.restart_agent(setup, node, &[REPORT])?;
    let sockets = cluster.edge.kubelet_sockets(node);
    let registrars = sockets
        .iter()
        .map(|(driver, socket)| kubelet::start_registrar(setup, &format!("{node}-{driver}"), root, socket));
    let registrars = registrars.collect::<Result<Vec<_>, _>>()?;
    let drivers: Vec<&str> = sockets.iter().map(|(driver, _)| *driver).collect();
    csi_node::written(cluster.api, node, &drivers)?;
    Ok(registrars)
}
