//! Hub, proxy, agent and driver, as the other binaries run them, in this process.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::{CSI_SERVICE, NodeWatch};
use csi_proxy::{
    ClockTerms, DEFAULT_RECONNECT_GRACE, Dispatcher, Endpoint, NodeId, Reachability, RetryRelay, Router,
    Serving, SessionRelay, SessionService, SocketAddress,
};
use edge_transport::link::uds::{self, UdsDialer};
use edge_transport::link::{Dialer, Limits};
use edge_transport::{Hub, Peer, PeerId, ServiceName};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::cable::Cable;
use super::gate::Gate;
use crate::hostpath::config::Config;
use crate::hostpath::driver::Driver;
use crate::hostpath::listen::Listener;
use crate::hostpath::service::Service;

const DRIVER: &str = "hostpath.csi.edge";

const NODE: &str = "edge-1";

/// Longest wait for open calls at the end.
const DRAIN: Duration = Duration::from_secs(2);

/// What runs.
pub(super) struct Parts {
    directory: PathBuf,
    hub: Hub,
    agent: Peer,
    proxy: Peer,
    serving: Serving,
    driver: JoinHandle<()>,
    stop_driver: oneshot::Sender<()>,
    gate: Arc<Gate>,
    cable: Cable,
}

/// A part does not start.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {cause}")]
pub(super) struct NotStarted {
    part: &'static str,
    cause: String,
}

fn failed<E: fmt::Display>(part: &'static str) -> impl FnOnce(E) -> NotStarted {
    move |cause| NotStarted { part, cause: cause.to_string() }
}

impl Parts {
    /// Starts everything below a directory.
    pub(super) async fn start(directory: &Path) -> Result<Self, NotStarted> {
        let driver_name = DriverName::new(DRIVER).map_err(failed("driver"))?;
        let address =
            |name: &str| SocketAddress::new(directory.join(name).to_string_lossy()).map_err(failed("socket"));

        let node = NodeId::new(NODE).map_err(failed("node"))?;
        let config = Config::new(driver_name.clone(), node.clone(), directory.join("driver"), None)
            .map_err(failed("driver"))?;
        let service = Service::new(Driver::open(config).map_err(failed("driver"))?);
        let listener = Listener::bind(address("node.sock")?.path()).map_err(failed("driver"))?;
        let (stop_driver, stopped) = oneshot::channel::<()>();
        let driver = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            if let Err(cause) = listener.serve(&service, stopped).await {
                tracing::error!(%cause, "the driver has failed");
            }
        });

        let hub_socket = directory.join("hub.sock");
        let listener = uds::bind(&hub_socket, Limits::default()).map_err(failed("hub"))?;
        let hub = Hub::builder().listener(Box::new(listener)).presence().start().map_err(failed("hub"))?;
        let dialer = || -> Result<Box<dyn Dialer>, NotStarted> {
            Ok(Box::new(UdsDialer::new(&hub_socket, Limits::default()).map_err(failed("link"))?))
        };

        let dispatcher = Dispatcher::new().with_driver(driver_name.clone(), address("node.sock")?);
        let gate = Arc::new(Gate::new(dispatcher));
        let cable = Cable::new(dialer()?);
        let agent = Peer::builder(PeerId::new(NODE).map_err(failed("agent"))?)
            .service(
                ServiceName::new(CSI_SERVICE).map_err(failed("agent"))?,
                SessionService::new(Arc::clone(&gate)),
            )
            .dialer(Box::new(cable.clone()))
            .start()
            .map_err(failed("agent"))?;

        let proxy = PeerId::new(format!("proxy/{DRIVER}")).map_err(failed("proxy"))?;
        let proxy = Peer::builder(proxy).dialer(dialer()?).start().map_err(failed("proxy"))?;
        // Otherwise the endpoint's first question to the driver fails, and the next one comes a second later.
        agent.connected().await.map_err(failed("agent"))?;
        proxy.connected().await.map_err(failed("proxy"))?;
        let router = Router::fixed(node);
        let reachability = Reachability::new(DEFAULT_RECONNECT_GRACE);
        let mut nodes = NodeWatch::new(proxy.clone(), reachability.clone()).map_err(failed("proxy"))?;
        // Ends when the peer is closed.
        tokio::spawn(async move { while nodes.next().await.is_some() {} });
        let relay = SessionRelay::new(proxy.clone());
        let relay =
            RetryRelay::start(relay, reachability, ClockTerms::default()).await.map_err(failed("proxy"))?;
        let endpoint = Endpoint::new(driver_name, router, relay);
        let serving = endpoint.serve(address("csi.sock")?).await.map_err(failed("proxy"))?;
        let directory = directory.to_owned();
        Ok(Self { directory, hub, agent, proxy, serving, driver, stop_driver, gate, cable })
    }

    /// What the first step tells.
    pub(super) fn told(&self) -> String {
        format!("hub, proxy, agent and {DRIVER} on {NODE}, below {}", self.directory.display())
    }

    /// The socket that the sidecars would use.
    pub(super) fn cloud_socket(&self) -> PathBuf {
        self.directory.join("csi.sock")
    }

    /// The socket that kubelet would use.
    pub(super) fn node_socket(&self) -> PathBuf {
        self.directory.join("node.sock")
    }

    /// A path for mounts.
    pub(super) fn directory(&self, parts: &[&str]) -> PathBuf {
        parts.iter().fold(self.directory.join("kubelet"), |path, part| path.join(part))
    }

    /// Keeps the next CreateVolume at the edge until the link is whole again.
    pub(super) fn hold_next_create(&self) {
        self.gate.close();
    }

    /// Waits until it is there.
    pub(super) async fn create_is_held(&self) {
        self.gate.holds_a_call().await;
    }

    /// Cuts the agent off.
    pub(super) fn cut_link(&self) {
        self.cable.pull();
    }

    /// Lets the agent connect again, and the call at the edge go on.
    pub(super) fn heal_link(&self) {
        self.gate.open();
        self.cable.plug_in();
    }

    /// Ends everything in good order.
    pub(super) async fn stop(self) {
        self.serving.shutdown(DRAIN).await;
        self.proxy.close().await;
        self.agent.close().await;
        self.hub.close().await;
        let _ = self.stop_driver.send(());
        // It drains by itself; the clients of this process have left.
        let _ = tokio::time::timeout(DRAIN, self.driver).await;
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("directory", &self.directory).finish_non_exhaustive()
    }
}
