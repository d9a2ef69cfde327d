//! `--kubelet-socket-dir`: a socket in front of each driver, which kubelet uses in place of the driver's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::monitor::{Counts, Monitored, Monitors};
use csi_proxy::{
    Dispatcher, Endpoint, InvalidSegment, NodeId, NodeSegment, Relay, Router, Serving, SocketAddress,
    TopologyRelay,
};
use tokio::sync::Mutex;

use super::keep_mounts::KeepMounts;
use edge_csi_common::process::Fatal;
use edge_csi_common::state;

/// Value of `--topology-key` that adds no segment.
const NO_TOPOLOGY: &str = "none";

/// Options of the sockets for kubelet.
#[derive(Debug, Clone, clap::Args)]
pub struct KubeletSocketOptions {
    /// Directory, created if missing, with a socket NAME.sock for each driver, for kubelet to use in place of the driver's own:
    /// equal calls from kubelet and the hub share one operation, the node's topology is added, and calls that violate the CSI
    /// specification are logged and counted
    #[arg(long, value_name = "DIR")]
    pub kubelet_socket_dir: Option<PathBuf>,

    /// Topology key, as PREFIX/NAME, that the sockets of --kubelet-socket-dir add with the node's name for drivers without a
    /// topology; none for volumes that every node can reach [default: topology.DRIVERNAME/node]
    #[arg(long, value_name = "KEY", requires = "kubelet_socket_dir")]
    pub topology_key: Option<String>,

    /// Refuse to unpublish a volume over the sockets of --kubelet-socket-dir while a container of its pod runs. For KubeEdge,
    /// whose kubelet unpublishes such volumes at each of its starts. Needs root with SYS_PTRACE, and in a pod hostPID
    #[arg(long, requires = "kubelet_socket_dir")]
    pub keep_mounts_in_use: bool,
}

/// The sockets. Every driver that has registered keeps its socket while it is disconnected: kubelet's calls then fail with
/// UNAVAILABLE.
pub(super) struct KubeletSockets {
    directory: PathBuf,
    node: NodeId,
    segment: Option<NodeSegment>,
    relay: Arc<dyn Relay>,
    /// The relay for the calls that arrive over the sockets.
    from_kubelet: Arc<dyn Relay>,
    monitors: Monitors,
    serving: Mutex<BTreeMap<DriverName, Serving>>,
}

impl KubeletSockets {
    /// Creates the directory of the sockets; [`serve`](Self::serve) opens them. Returns `None` without
    /// `--kubelet-socket-dir`.
    pub(super) fn open(
        options: &KubeletSocketOptions,
        node: &NodeId,
        dispatcher: &Dispatcher,
    ) -> Result<Option<Arc<Self>>, Fatal> {
        let Some(directory) = &options.kubelet_socket_dir else { return Ok(None) };
        state::directory("--kubelet-socket-dir", directory)?;
        let segment = match options.topology_key.as_deref() {
            None => Some(NodeSegment::of_driver(node.clone())),
            Some(NO_TOPOLOGY) => None,
            Some(key) => {
                let segment = NodeSegment::with_key(node.clone(), key);
                Some(segment.map_err(invalid_segment)?)
            }
        };
        let monitors = Monitors::default();
        let drivers: Arc<dyn Relay> = match &segment {
            Some(segment) => Arc::new(TopologyRelay::new(dispatcher.clone(), segment.clone())),
            None => Arc::new(dispatcher.clone()),
        };
        let relay: Arc<dyn Relay> = Arc::new(Monitored::new(drivers, monitors.clone()));
        let from_kubelet: Arc<dyn Relay> = match options.keep_mounts_in_use {
            true => Arc::new(KeepMounts::new(relay.clone())?),
            false => relay.clone(),
        };
        let (directory, node, serving) = (directory.clone(), node.clone(), Mutex::default());
        Ok(Some(Arc::new(Self { directory, node, segment, relay, from_kubelet, monitors, serving })))
    }

    /// Returns the monitored relay to the drivers. Calls of the hub use the same relay, so that all calls are
    /// monitored.
    pub(super) fn relay(&self) -> Arc<dyn Relay> {
        Arc::clone(&self.relay)
    }

    /// Returns the topology segment that is added for drivers without a topology.
    pub(super) fn segment(&self) -> Option<NodeSegment> {
        self.segment.clone()
    }

    /// Serves the socket of a driver, unless it is served already.
    pub(super) async fn serve(&self, driver: &DriverName) -> Result<(), Fatal> {
        let mut serving = self.serving.lock().await;
        if let Some(serving) = serving.get(driver) {
            // The driver may have restarted with another version.
            serving.refresh();
            return Ok(());
        }
        if let Some(segment) = &self.segment {
            segment.topology(driver).map_err(invalid_segment)?;
        }
        let path = self.directory.join(format!("{driver}.sock"));
        let address = SocketAddress::new(format!("unix://{}", path.display()));
        let address = address.map_err(|error| Fatal::Input(format!("--kubelet-socket-dir: {error}")))?;
        let router = Router::fixed(self.node.clone());
        let endpoint =
            Endpoint::new(driver.clone(), router, Arc::clone(&self.from_kubelet)).with_node_calls();
        let served = endpoint.serve(address).await;
        let served = served.map_err(|error| Fatal::Runtime(format!("--kubelet-socket-dir: {error}")))?;
        serving.insert(driver.clone(), served);
        Ok(())
    }

    /// Stops accepting calls, and waits up to `timeout` for the open calls.
    pub(super) async fn drain(&self, timeout: Duration) {
        let serving = std::mem::take(&mut *self.serving.lock().await);
        let all = serving.into_values().map(|serving| serving.shutdown(timeout));
        futures_util::future::join_all(all).await;
    }

    /// Returns the monitor's counts of volumes and violations.
    pub(super) fn counts(&self) -> Counts {
        self.monitors.counts()
    }

    /// Sets the monitor's gauges.
    pub(super) fn publish_metrics(&self) {
        self.monitors.publish_metrics();
    }
}

fn invalid_segment(error: InvalidSegment) -> Fatal {
    Fatal::Input(format!("--topology-key: {error}; --topology-key none adds no segment"))
}

impl std::fmt::Debug for KubeletSockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeletSockets").field("directory", &self.directory).finish_non_exhaustive()
    }
}
