//! One socket for each node of a driver.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::{AbortHandle, spawn_blocking};

use super::service::EndpointService;
use super::{Endpoint, ServeError, Serving, Settings};
use crate::address::{InvalidSocketAddress, SocketAddress};
use crate::call::{Drained, NodeId};
use crate::driver_info::{DriverInfo, DriverInfoStore, Mode, StartupView};
use crate::relay::{InvalidSegment, NodeSegment, Relay, TopologyRelay};
use crate::routing::Router;

/// The default maximum number of sockets. Each socket needs a file descriptor, and one more for each connected
/// caller.
pub const DEFAULT_MAX_SOCKETS: usize = 1024;

/// The name of the socket in the directory of a node.
const SOCKET: &str = "csi.sock";

/// The socket of a node cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeSocketError {
    /// There are too many sockets.
    #[error("node {node}: the limit of {max} sockets is reached; start another process for further nodes")]
    TooMany {
        /// The node.
        node: NodeId,
        /// The bound.
        max: usize,
    },
    /// The path of the socket is invalid.
    #[error("node {node}: {source}")]
    Path {
        /// The node.
        node: NodeId,
        /// What is wrong with the path.
        source: InvalidSocketAddress,
    },
    /// The directory of the node cannot be created.
    #[error("node {node}: cannot create {directory:?}: {source}")]
    Directory {
        /// The node.
        node: NodeId,
        /// The directory.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The topology segment of the node is invalid.
    #[error("node {node}: {source}")]
    Segment {
        /// The node.
        node: NodeId,
        /// What is wrong with the segment.
        source: InvalidSegment,
    },
    /// The socket cannot be opened.
    #[error("node {node}: {source}")]
    Serve {
        /// The node.
        node: NodeId,
        /// The error.
        source: ServeError,
    },
}

/// A socket for each node of a driver, `DIR/NODE/csi.sock`, all over one relay. Calls on a socket are relayed to
/// its node.
///
/// Each socket is an [`Endpoint`] of its node: it answers the start-up calls from the driver info of that node,
/// including `NodeGetInfo`, so that a provisioner with `--node-deployment` can run beside it, away from the node.
/// A new volume without a topology gets that of the node. Each socket has its own directory, so that a sidecar can
/// be given the socket of one node only.
///
/// A socket stays while its node is offline. Cheap to clone.
///
/// ```
/// use csi_proxy::{Dispatcher, DriverName, NodeSockets};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let relay = Dispatcher::new();
/// let name = DriverName::new("csi-hostpath")?;
/// let sockets = NodeSockets::new(directory.path(), name, relay).with_topology_key("kubernetes.io/hostname");
/// sockets.serve(&"edge-1".parse()?).await?;
/// assert!(directory.path().join("edge-1/csi.sock").exists());
/// sockets.shutdown(std::time::Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct NodeSockets(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    driver: DriverName,
    relay: Arc<dyn Relay>,
    settings: Settings,
    driver_info: Arc<DriverInfo>,
    topology_key: Option<String>,
    max_sockets: usize,
    served: Mutex<BTreeMap<NodeId, Serving>>,
    /// Serializes opening sockets and the shutdown.
    opening: AsyncMutex<()>,
    /// The task that refreshes the driver info of all nodes, started with the first socket.
    refreshing: OnceLock<AbortHandle>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(refreshing) = self.refreshing.get() {
            refreshing.abort();
        }
    }
}

impl NodeSockets {
    /// Creates an empty set. [`Self::serve`] opens sockets in `directory`, which is created when needed.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, driver: DriverName, relay: impl Relay + 'static) -> Self {
        let (directory, relay) = (directory.into(), Arc::new(relay));
        let driver_info = DriverInfo::new(driver.clone(), Mode::Each { node_info: true });
        Self(Arc::new(Shared {
            directory,
            driver,
            relay,
            settings: Settings::default(),
            driver_info,
            topology_key: None,
            max_sockets: DEFAULT_MAX_SOCKETS,
            served: Mutex::default(),
            opening: AsyncMutex::default(),
            refreshing: OnceLock::new(),
        }))
    }

    /// Sets the topology key of nodes whose driver reports no topology; its value is the name of the node. Has no
    /// effect after the first clone.
    #[must_use]
    pub fn with_topology_key(mut self, key: impl Into<String>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            let key = key.into();
            let with_topology = TopologyRelay::with_key(Arc::clone(&shared.relay), key.clone());
            (shared.relay, shared.topology_key) = (Arc::new(with_topology), Some(key));
        }
        self
    }

    /// Stores the driver info of all nodes, so that sidecars can start while their node is offline; default: not stored.
    /// The stored info contains no secret. Has no effect if there is a store already.
    #[must_use]
    pub fn with_driver_info(self, store: impl DriverInfoStore + 'static) -> Self {
        self.0.driver_info.store_in(Arc::new(store));
        self
    }

    /// Sets how long capability calls wait for the first answers of a driver; default 10 s. Has no effect after the
    /// first clone.
    #[must_use]
    pub fn with_startup_timeout(mut self, timeout: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.settings.startup_timeout = timeout;
        }
        self
    }

    /// Sets the maximum number of sockets. Has no effect after the first clone.
    #[must_use]
    pub fn with_max_sockets(mut self, sockets: usize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.max_sockets = sockets;
        }
        self
    }

    /// The address of the socket of a node.
    ///
    /// # Errors
    /// If the path is too long for a socket.
    pub fn address(&self, node: &NodeId) -> Result<SocketAddress, NodeSocketError> {
        // A node name is a valid file name: it has no slash and at most 253 bytes, and starts with a letter or digit.
        let path = self.0.directory.join(node.as_str()).join(SOCKET);
        let invalid = |source| NodeSocketError::Path { node: node.clone(), source };
        SocketAddress::new(path.to_string_lossy()).map_err(invalid)
    }

    /// Serves the socket of a node. If the socket is served already, refreshes the driver info of the node.
    ///
    /// # Errors
    /// If the socket cannot be served.
    pub async fn serve(&self, node: &NodeId) -> Result<(), NodeSocketError> {
        let shared = &self.0;
        let _guard = shared.opening.lock().await;
        if let Some(serving) = self.served().get(node) {
            serving.refresh();
            return Ok(());
        }
        let address = self.address(node)?;
        if self.served().len() >= shared.max_sockets {
            return Err(NodeSocketError::TooMany { node: node.clone(), max: shared.max_sockets });
        }
        if let Some(key) = &shared.topology_key {
            let segment = |source| NodeSocketError::Segment { node: node.clone(), source };
            NodeSegment::with_key(node.clone(), key).map_err(segment)?;
        }
        let directory = shared.directory.join(node.as_str());
        let path = directory.clone();
        // A file system that hangs blocks only a thread of the blocking pool.
        let created =
            spawn_blocking(move || DirBuilder::new().recursive(true).mode(0o750).create(path)).await;
        let created = created.unwrap_or_else(|error| Err(io::Error::other(error)));
        created.map_err(|source| NodeSocketError::Directory { node: node.clone(), directory, source })?;
        let router = Router::fixed(node.clone());
        let (relay, driver_info) = (Arc::clone(&shared.relay), Arc::clone(&shared.driver_info));
        let mut service = EndpointService::new(shared.driver.clone(), router, relay, Some(driver_info));
        service.settings = shared.settings.clone();
        let endpoint = Endpoint { service };
        let serving = endpoint.serve(address).await;
        let serving = serving.map_err(|source| NodeSocketError::Serve { node: node.clone(), source })?;
        self.served().insert(node.clone(), serving);
        shared.refreshing.get_or_init(|| shared.spawn_refresher());
        Ok(())
    }

    /// Refreshes the start-up answers of all nodes now.
    pub fn refresh(&self) {
        for serving in self.served().values() {
            serving.refresh();
        }
    }

    /// Reports that a node is online: if its driver is not ready, its driver info is [refreshed](Serving::online).
    pub fn online(&self, node: &NodeId) {
        if let Some(serving) = self.served().get(node) {
            serving.online();
        }
    }

    /// Removes the socket and the directory of a node permanently. Waits up to `bound` for open calls. Returns whether
    /// the node had a socket.
    pub async fn release(&self, node: &NodeId, bound: Duration) -> bool {
        let serving = self.served().remove(node);
        let Some(serving) = serving else { return false };
        let _ = serving.shutdown(bound).await;
        self.0.driver_info.remove(node).await;
        let directory = self.0.directory.join(node.as_str());
        // Succeeds only if the directory is empty.
        let _ = spawn_blocking(move || std::fs::remove_dir(directory)).await;
        true
    }

    /// The nodes with a socket, and the status of their start-up answers.
    #[must_use]
    pub fn nodes(&self) -> Vec<(NodeId, StartupView)> {
        self.served().iter().map(|(node, serving)| (node.clone(), serving.startup())).collect()
    }

    /// Removes the sockets, accepts no more calls, and waits up to `bound` for open calls. The directories stay, so
    /// that a sidecar with such a directory finds the next socket in it.
    pub async fn shutdown(&self, bound: Duration) -> Drained {
        let _guard = self.0.opening.lock().await;
        let served = std::mem::take(&mut *self.served());
        let ends = served.into_values().map(|serving| serving.shutdown(bound));
        let ended = futures_util::future::join_all(ends).await;
        if let Some(refreshing) = self.0.refreshing.get() {
            refreshing.abort();
        }
        self.0.driver_info.save_all().await;
        if ended.iter().all(|drained| *drained == Drained::All) { Drained::All } else { Drained::Some }
    }

    fn served(&self) -> MutexGuard<'_, BTreeMap<NodeId, Serving>> {
        self.0.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Refreshes the driver info of all nodes until aborted.
    fn spawn_refresher(&self) -> AbortHandle {
        let (driver_info, relay) = (Arc::clone(&self.driver_info), Arc::clone(&self.relay));
        tokio::spawn(async move { driver_info.run(&*relay).await }).abort_handle()
    }
}

impl fmt::Debug for NodeSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSockets").field("directory", &self.0.directory).finish_non_exhaustive()
    }
}
