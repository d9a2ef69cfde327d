//! A proxy in the process of its hub: `edge-hub --driver`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::{NodeId, SocketAddress};
use edge_csi_common::process::Fatal;
use edge_csi_common::security::ClientSecurity;
use edge_csi_common::state::StateDirectory;
use edge_csi_common::status::{Fact, Status as _};
use edge_csi_common::uplink::LinkFiles;
use edge_transport::PeerId;
use edge_transport::link::Dialer;

use super::active::{Active, Page};
use super::name::HubName;
use super::options::{CsiDriverOptions, PlacementsOption, Route};
use super::route::TopologyOptions;
use super::running::Running;
use super::status::CsiDriverStatus;

/// How long a call waits for a node that was lost, as by default with `--reconnect-grace`.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);

/// The options of a proxy in the process of its hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InProcessOptions {
    /// The driver.
    pub driver: DriverName,
    /// The node of every call; without it, new volumes go to a node by their topology.
    pub node: Option<NodeId>,
    /// The socket for the sidecars.
    pub endpoint: SocketAddress,
}

/// A proxy in the process of its hub.
#[derive(Debug)]
pub struct InProcess(Running);

impl InProcess {
    /// Starts the proxy with this name at its hub, and opens its socket. Its state is in a folder of the state directory that
    /// has the driver's name.
    ///
    /// # Errors
    /// If the state or the socket cannot be used.
    pub async fn start(
        options: InProcessOptions,
        topology: TopologyOptions,
        state_dir: &Path,
        (name, dialer): (PeerId, Box<dyn Dialer>),
        drain_timeout: Duration,
    ) -> Result<Self, Fatal> {
        let InProcessOptions { driver, node, endpoint } = options;
        let state = StateDirectory::open(state_dir.join(driver.as_str())).map_err(Fatal::runtime)?;
        let security = ClientSecurity::default();
        let files = LinkFiles::open(&security)?;
        let options = CsiDriverOptions {
            drivername: driver,
            endpoint,
            hub: Vec::new(),
            reconnect_grace: RECONNECT_GRACE,
            route: node.is_none().then_some(Route::Topology),
            nodeid: node,
            topology,
            endpoint_dir: None,
            placements: PlacementsOption::Redb,
            kubeconfig: String::new(),
            state_dir: None,
            security,
            http_endpoint: None,
            drain_timeout,
        };
        let (active, dialers) = (Active::from_the_start(), vec![dialer]);
        let running =
            Running::start(options, HubName::given(name), dialers, files, Some(state), active).await?;
        Ok(Self(running))
    }

    /// Serves until another proxy of the driver has replaced this one.
    pub async fn ended(&self) -> Fatal {
        self.0.ended().await
    }

    /// Accepts no more calls, and waits for open ones up to `bound`.
    pub async fn drain(self, bound: Duration) {
        self.0.drain(bound).await;
    }
}

/// The proxies in the process of a hub, for its status page.
#[derive(Debug, Clone, Default)]
pub struct InProcessStatus(Vec<Page>);

impl InProcessStatus {
    /// Returns the status of these proxies.
    pub fn of<'a>(proxies: impl IntoIterator<Item = &'a InProcess>) -> Self {
        Self(proxies.into_iter().map(|InProcess(running)| running.active.page.clone()).collect())
    }

    /// Returns the rows of the page.
    #[must_use]
    pub fn facts(&self) -> Vec<Fact> {
        self.0.iter().flat_map(Page::facts).collect()
    }

    /// Sets the gauges that `edge-csi-driver` has for its one driver, as their sums over all drivers.
    pub fn publish_metrics(&self) {
        let mut sums = BTreeMap::new();
        for (name, value) in self.0.iter().filter_map(|page| page.0.get()).flat_map(CsiDriverStatus::gauges) {
            *sums.entry(name).or_insert(0) += value;
        }
        for (name, value) in sums {
            metrics::gauge!(name).set(value as f64);
        }
    }
}
