//! Hub, proxy, agent and driver, as the other binaries run them, in this process.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::{
    ClockTerms, Dispatcher, Endpoint, NodeId, RetryRelay, Router, ServeCsi as _, Serving, SocketAddress,
};
use edge_transport::link::{Address, DialOptions, ListenOptions};
use edge_transport::{Hub, Peer, PeerId};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{self, Channel};

use super::gate::Gate;
use super::link::CuttableLink;
use hostpath_driver::config::Config;
use hostpath_driver::driver::Driver;
use hostpath_driver::listen::{ListenError, Listener};
use hostpath_driver::service::Service;

const DRIVER: &str = "hostpath.csi.edge";

const NODE: &str = "edge-1";

const CLOUD_SOCKET: &str = "csi.sock";

const NODE_SOCKET: &str = "node.sock";

/// The maximum wait for open calls at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The running parts.
pub(super) struct Parts {
    directory: PathBuf,
    hub: Hub,
    agent: Peer,
    proxy: Peer,
    serving: Serving,
    driver: JoinHandle<Result<(), ListenError>>,
    stop_driver: oneshot::Sender<()>,
    /// The gate in front of the driver, which can hold a call.
    pub(super) gate: Arc<Gate>,
    /// The link between the agent and the hub.
    pub(super) link: CuttableLink,
    /// The connection to the socket that the sidecars would use.
    pub(super) cloud: Channel,
    /// The connection to the socket that kubelet would use.
    pub(super) node: Channel,
}

impl Parts {
    /// Starts all parts, with their files below a directory.
    pub(super) async fn start(directory: &Path) -> Result<Self, Box<dyn Error>> {
        let driver_name = DriverName::new(DRIVER)?;
        let address = |name: &str| SocketAddress::new(directory.join(name).to_string_lossy());
        let node = NodeId::new(NODE)?;

        let config = Config::new(driver_name.clone(), node.clone(), directory.join("driver"), None)?;
        let service = Service::new(Driver::open(config)?);
        let listener = Listener::bind(address(NODE_SOCKET)?.path())?;
        let (stop_driver, stopped) = oneshot::channel::<()>();
        let driver = tokio::spawn(async move { listener.serve(&service, stopped).await });

        let hub_address: Address = format!("unix://{}", directory.join("hub.sock").display()).parse()?;
        let hub =
            Hub::builder().listen(hub_address.clone(), ListenOptions::default()).await?.presence().start()?;
        let dial = DialOptions::default();

        let dispatcher = Dispatcher::new().with_driver(driver_name.clone(), address(NODE_SOCKET)?);
        let gate = Arc::new(Gate::new(dispatcher));
        let link = CuttableLink::new(hub_address.dialer(&dial)?);
        let agent = Peer::builder(PeerId::new(NODE)?)
            .serve_csi(Arc::clone(&gate))
            .dialer(Box::new(link.clone()))
            .start()?;

        let proxy = PeerId::new(format!("proxy/{DRIVER}"))?;
        let proxy = Peer::builder(proxy).dial(hub_address, dial)?.start()?;
        // Otherwise the endpoint's first call to the driver fails, and the next one follows a second later.
        agent.connected().await?;
        proxy.connected().await?;
        let router = Router::fixed(node);
        let relay = RetryRelay::over(proxy.clone(), &driver_name, ClockTerms::default()).await?;
        let serving = Endpoint::new(driver_name, router, relay).serve(address(CLOUD_SOCKET)?).await?;
        let channel = |name: &str| {
            let socket = format!("unix://{}", directory.join(name).display());
            transport::Endpoint::from_shared(socket).map(|endpoint| endpoint.connect_lazy())
        };
        let (cloud, node, directory) = (channel(CLOUD_SOCKET)?, channel(NODE_SOCKET)?, directory.to_owned());
        Ok(Self { directory, hub, agent, proxy, serving, driver, stop_driver, gate, link, cloud, node })
    }

    /// Returns the result of the first step as text.
    pub(super) fn description(&self) -> String {
        format!("hub, proxy, agent and {DRIVER} on {NODE}, below {}", self.directory.display())
    }

    /// Returns a path below the directory.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory.display())
    }

    /// Stops all parts, the clients before the servers.
    pub(super) async fn stop(self) {
        // The clients are closed first, so that no server waits for them.
        drop((self.cloud, self.node));
        self.serving.shutdown(DRAIN_TIMEOUT).await;
        self.proxy.close().await;
        self.agent.close().await;
        self.hub.close().await;
        let _ = self.stop_driver.send(());
        // The driver waits for its open calls itself.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, self.driver).await;
    }
}
