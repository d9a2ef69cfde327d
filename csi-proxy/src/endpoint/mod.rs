//! The server side: gRPC on a unix socket becomes calls.

mod authority;
mod connection;
mod front;
mod nodes;
mod serving;
mod socket;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

use self::front::Front;
pub use self::nodes::{DEFAULT_MAX_SOCKETS, NodeSocketError, NodeSockets};
pub use self::serving::{Drained, Serving};
pub use self::socket::ServeError;
use crate::address::SocketAddress;
use crate::driver_info::{DriverInfoStore, View};
use crate::relay::Relay;
use crate::routing::Router;

/// Bounds of an [`Endpoint`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EndpointSettings {
    /// How long a caller who sets no deadline is kept waiting; default 15 minutes, as long as the driver may take.
    pub ceiling: Duration,
    /// Whether calls of the Node service are relayed; default no. They mount volumes where the driver is, so this is only for
    /// an endpoint on the driver's own host, the edge shim.
    pub relay_node_calls: bool,
    /// Where to keep what the driver says of itself, so that sidecars can start while its node is off; default nowhere. A route by
    /// topology has a store of its own. Holds no secret.
    pub driver_info: Option<Arc<dyn DriverInfoStore>>,
    /// How long the first capability questions wait for the driver's first answers; default 10 s.
    pub first_answer: Duration,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            ceiling: Duration::from_secs(15 * 60),
            relay_node_calls: false,
            driver_info: None,
            first_answer: Duration::from_secs(10),
        }
    }
}

/// A CSI socket whose driver is elsewhere.
///
/// Answers `GetPluginInfo`, `GetPluginCapabilities`, `ControllerGetCapabilities`, `GroupControllerGetCapabilities`,
/// `NodeGetCapabilities` and `Probe` from what it has learnt in the background, refuses the rest of the Node service, and relays everything else untouched. Any `:authority` is accepted: the
/// path of the socket, as Python and C++ send it, or nothing.
#[must_use = "an endpoint does nothing until it serves"]
pub struct Endpoint {
    front: Front,
}

impl Endpoint {
    /// An endpoint for one driver, with default bounds.
    pub fn new(driver: DriverName, router: Router, relay: impl Relay + 'static) -> Self {
        Self::with_settings(driver, router, relay, EndpointSettings::default())
    }

    /// An endpoint for one driver, with these bounds.
    pub fn with_settings(
        driver: DriverName,
        router: Router,
        relay: impl Relay + 'static,
        settings: EndpointSettings,
    ) -> Self {
        Self { front: Front::new(driver, router, Arc::new(relay), settings, None) }
    }

    /// How the start-up answers stand, from now on and while the endpoint serves.
    #[must_use]
    pub fn startup(&self) -> View {
        self.front.startup()
    }

    /// Opens the socket, readable and writable by this user only, and serves it in tasks of the current runtime.
    ///
    /// A socket file that nobody listens on is replaced. Serving goes on until [`Serving::shutdown`], also if the returned
    /// handle is dropped.
    ///
    /// # Errors
    /// If somebody listens there already, something else than a socket is there, or the directory is missing or not writable.
    pub async fn serve(self, address: SocketAddress) -> Result<Serving, ServeError> {
        let listener = socket::listen(&address).await?;
        self.front.load().await;
        Ok(serving::start(listener, address, self.front))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("settings", &self.front.settings).finish_non_exhaustive()
    }
}
