//! `--shim`: for each driver a socket that kubelet is given in the place of the driver's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::monitor::{Counts, Monitored, Monitors};
use csi_proxy::{
    Dispatcher, Endpoint, EndpointSettings, InvalidSegment, NodeId, NodeSegment, Relay, Router, Serving,
    SocketAddress, TopologyRelay,
};
use tokio::sync::Mutex;

use edge_csi_common::process::Fatal;
use edge_csi_common::state;

/// What `--topology-key` is where no segment is to be added.
const NO_TOPOLOGY: &str = "none";

/// Options of the sockets for kubelet.
#[derive(Debug, Clone, clap::Args)]
pub struct ShimOptions {
    /// Directory, made if missing, with a socket NAME.sock for each driver, to be given to kubelet in the place of the driver's
    /// own: the same calls are joined over it and over the hub, the node's topology is added, and calls that break the rules of
    /// CSI are logged and counted
    #[arg(long, value_name = "DIR")]
    pub shim: Option<PathBuf>,

    /// Topology key, as PREFIX/NAME, under which --shim gives the node's name for drivers without a topology of their own; none
    /// for volumes that every node can reach [default: topology.DRIVERNAME/node]
    #[arg(long, value_name = "KEY", requires = "shim")]
    pub topology_key: Option<String>,
}

/// The sockets. One for each driver that was ever there, and none is closed while its driver is away: kubelet's calls are
/// answered that it is.
pub(super) struct Shim {
    directory: PathBuf,
    node: NodeId,
    segment: Option<NodeSegment>,
    relay: Arc<dyn Relay>,
    monitors: Monitors,
    serving: Mutex<BTreeMap<DriverName, Serving>>,
}

impl Shim {
    /// The sockets that are asked for; none are served yet.
    pub(super) fn open(
        options: &ShimOptions,
        node: &NodeId,
        dispatcher: &Dispatcher,
    ) -> Result<Option<Arc<Self>>, Fatal> {
        let Some(directory) = &options.shim else { return Ok(None) };
        state::directory("--shim", directory)?;
        let segment = match options.topology_key.as_deref() {
            None => Some(NodeSegment::of_driver(node.clone())),
            Some(NO_TOPOLOGY) => None,
            Some(key) => {
                let segment = NodeSegment::with_key(node.clone(), key);
                Some(segment.map_err(no_segment)?)
            }
        };
        let monitors = Monitors::default();
        let drivers: Arc<dyn Relay> = match &segment {
            Some(segment) => Arc::new(TopologyRelay::new(dispatcher.clone(), segment.clone())),
            None => Arc::new(dispatcher.clone()),
        };
        let relay = Arc::new(Monitored::new(drivers, monitors.clone()));
        let (directory, node, serving) = (directory.clone(), node.clone(), Mutex::default());
        Ok(Some(Arc::new(Self { directory, node, segment, relay, monitors, serving })))
    }

    /// The way to the drivers, for the calls of the hub too: what is watched is what anybody does with a volume.
    pub(super) fn relay(&self) -> Arc<dyn Relay> {
        Arc::clone(&self.relay)
    }

    /// The segment that is added for drivers that have none, if one is.
    pub(super) fn segment(&self) -> Option<NodeSegment> {
        self.segment.clone()
    }

    /// Serves the socket of a driver, if it is not there yet.
    pub(super) async fn serve(&self, driver: &DriverName) -> Result<(), Fatal> {
        let mut serving = self.serving.lock().await;
        if let Some(serving) = serving.get(driver) {
            // It may be another version now.
            serving.refresh();
            return Ok(());
        }
        if let Some(segment) = &self.segment {
            segment.topology(driver).map_err(no_segment)?;
        }
        let path = self.directory.join(format!("{driver}.sock"));
        let address = SocketAddress::new(format!("unix://{}", path.display()));
        let address = address.map_err(|error| Fatal::Input(format!("--shim: {error}")))?;
        let mut settings = EndpointSettings::default();
        settings.relay_node_calls = true;
        let router = Router::fixed(self.node.clone());
        let endpoint = Endpoint::with_settings(driver.clone(), router, self.relay(), settings);
        let served = endpoint.serve(address).await;
        let served = served.map_err(|error| Fatal::Runtime(format!("--shim: {error}")))?;
        serving.insert(driver.clone(), served);
        Ok(())
    }

    /// Takes no more calls, and waits up to `bound` for those that are open.
    pub(super) async fn drain(&self, bound: Duration) {
        let serving = std::mem::take(&mut *self.serving.lock().await);
        let all = serving.into_values().map(|serving| serving.shutdown(bound));
        futures_util::future::join_all(all).await;
    }

    /// How much is watched, and what was found.
    pub(super) fn counts(&self) -> Counts {
        self.monitors.counts()
    }

    /// Sets the gauges.
    pub(super) fn publish_metrics(&self) {
        self.monitors.publish_metrics();
    }
}

fn no_segment(error: InvalidSegment) -> Fatal {
    Fatal::Input(format!("--topology-key: {error}, or --topology-key none"))
}

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shim").field("directory", &self.directory).finish_non_exhaustive()
    }
}
