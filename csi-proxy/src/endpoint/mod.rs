//! The server side: gRPC on a unix socket becomes calls.

mod authority;
mod connection;
mod nodes;
mod service;
mod serving;
mod socket;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

pub use self::nodes::{DEFAULT_MAX_SOCKETS, NodeSocketError, NodeSockets};
use self::service::EndpointService;
pub use self::serving::Serving;
pub use self::socket::ServeError;
use crate::address::SocketAddress;
use crate::driver_info::{DriverInfoStore, StartupView};
use crate::relay::Relay;
use crate::routing::Router;

/// How the endpoint of one node answers.
#[derive(Debug, Clone)]
struct Settings {
    default_timeout: Duration,
    startup_timeout: Duration,
    relay_node_calls: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_timeout: Duration::from_secs(15 * 60),
            startup_timeout: Duration::from_secs(10),
            relay_node_calls: false,
        }
    }
}

/// A CSI socket for a remote driver.
///
/// Answers `GetPluginInfo`, `GetPluginCapabilities`, `ControllerGetCapabilities`, `GroupControllerGetCapabilities`,
/// `NodeGetCapabilities` and `Probe` from a cache that is refreshed in the background, rejects the rest of the Node
/// service, and relays all other RPCs unchanged. Accepts any `:authority`: the path of the socket, as Python and C++
/// clients send it, or none.
#[must_use = "an endpoint does nothing until it serves"]
pub struct Endpoint {
    service: EndpointService,
}

impl Endpoint {
    /// Creates an endpoint for one driver. Opens no socket yet.
    pub fn new(driver: DriverName, router: Router, relay: impl Relay + 'static) -> Self {
        Self { service: EndpointService::new(driver, router, Arc::new(relay), None) }
    }

    /// Creates an endpoint for a proxy that is not the active one of its driver. `Probe` returns ready=false, which makes
    /// sidecars wait before their own leader election, and every other call but `GetPluginInfo` ends with `UNAVAILABLE`,
    /// until [`Serving::activate`].
    ///
    /// ```
    /// use csi_proxy::{Dispatcher, DriverName, Endpoint, Router};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let socket = format!("unix://{}/csi.sock", directory.path().display());
    /// let name = DriverName::new("csi-hostpath")?;
    /// let serving = Endpoint::standby(name.clone()).serve(socket.parse()?).await?;
    /// // Once the other proxy has ended, for example when this one has acquired its lease:
    /// let relay = Dispatcher::new();
    /// serving.activate(Endpoint::new(name, Router::fixed("edge-1".parse()?), relay)).await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn standby(driver: DriverName) -> Self {
        Self { service: EndpointService::standby(driver) }
    }

    /// Sets how long a caller without a deadline waits; default 15 minutes, the maximum time of a driver.
    pub fn with_default_timeout(mut self, timeout: Duration) -> Self {
        self.service.settings.default_timeout = timeout;
        self
    }

    /// Sets how long capability calls wait for the first answers of the driver; default 10 s.
    pub fn with_startup_timeout(mut self, timeout: Duration) -> Self {
        self.service.settings.startup_timeout = timeout;
        self
    }

    /// Relays Node calls too. Node calls mount volumes on the host of the driver, so this is only for an endpoint on
    /// that host, the edge shim.
    pub fn with_node_calls(mut self) -> Self {
        self.service.settings.relay_node_calls = true;
        self
    }

    /// Stores the driver info, so that sidecars can start while the node is offline; default: not stored. The stored info
    /// contains no secret. Has no effect if there is a store already, as with a topology route.
    pub fn with_driver_info(self, store: impl DriverInfoStore + 'static) -> Self {
        self.service.store_driver_info(Arc::new(store));
        self
    }

    /// The status of the start-up answers, current while the endpoint serves.
    #[must_use]
    pub fn startup(&self) -> StartupView {
        self.service.startup()
    }

    /// Opens the socket, readable and writable by this user only, and serves it in tasks of the current runtime.
    ///
    /// Replaces a socket file without a listener. Serving continues until [`Serving::shutdown`], also if the returned
    /// handle is dropped.
    ///
    /// # Errors
    /// If another process listens on the socket, the path is not a socket, or the directory is missing or not
    /// writable.
    pub async fn serve(self, address: SocketAddress) -> Result<Serving, ServeError> {
        let bound = socket::listen(&address).await?;
        self.service.load().await;
        Ok(serving::start(bound, address, self.service))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("settings", &self.service.settings).finish_non_exhaustive()
    }
}
