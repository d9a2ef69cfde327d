//! Connecting to a driver.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use csi_proto::grpc::{self, Connection, Windows};

use super::call_error::CallError;
use super::connection::DriverConnection;
use super::identify::identify;
use super::policy::DriverPolicy;
use super::process::{Process, ProcessHistory};
use super::secrets::Secrets;
use crate::registry::DriverEndpoint;

/// The timeout of a dial, the same as kubelet's.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A storage driver and the processes that have served it. Create one value per driver name, even if the endpoint
/// changes.
///
/// It holds no connection and does not retry; the caller decides when to connect.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use csi_proto::DriverName;
/// # use volume_manager::advanced::driver::{Driver, Operation};
/// # use volume_manager::driver::{DriverPolicy, MountPath, NoSecrets, VolumeSpec};
/// # async fn stage(volume: VolumeSpec) -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new(DriverName::new("hostpath.csi.example.org")?, Arc::new(NoSecrets));
///
/// let endpoint = "unix:///plugins/hostpath/csi.sock".parse()?;
/// let connection = driver.connect(&endpoint, &DriverPolicy::default()).await?;
/// if connection.facts().capabilities.node.stage_unstage {
///     let staging_path = MountPath::new("/var/lib/edge/volumes/1/staging")?;
///     connection.call(&volume, &Operation::NodeStage { staging_path }).await?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Driver {
    name: DriverName,
    secrets: Arc<dyn Secrets>,
    history: Mutex<ProcessHistory>,
}

impl Driver {
    /// Creates a driver of this name. Nothing is dialled yet.
    pub fn new(name: DriverName, secrets: Arc<dyn Secrets>) -> Self {
        Self { name, secrets, history: Mutex::default() }
    }

    /// Opens a connection: dials the socket, waits until the driver is ready, checks its name, and reads its capabilities.
    /// Cancel safe.
    ///
    /// # Errors
    /// If the driver cannot be reached, is not ready in time, has another name, or does not answer a required call.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its I/O and time drivers enabled.
    pub async fn connect(
        &self,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<DriverConnection, ConnectError> {
        let grpc = Connection::open(endpoint.path(), Windows::UNARY, DIAL_TIMEOUT).await?;
        let process = grpc.peer_process().and_then(Process::find);
        let facts = identify(&grpc, &self.name).await?;
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = history.record(process);
        let (policy, secrets) = (policy.clone(), Arc::clone(&self.secrets));
        Ok(DriverConnection { facts, earlier, grpc, policy, secrets })
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a driver could not be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket could not be dialled within the timeout.
    #[error(transparent)]
    Dial(#[from] grpc::ConnectError),
    /// The plugin on the socket has another name.
    #[error(
        "wrong plugin on the socket: expected {expected}, found {found:?}; correct the endpoint or the name"
    )]
    WrongPlugin {
        /// The registered name.
        expected: DriverName,
        /// The name from GetPluginInfo, cut at 128 bytes.
        found: String,
    },
    /// The driver did not become ready in time.
    #[error("the driver was not ready within {within:?}; see the driver's log for the cause")]
    NotReady {
        /// The timeout.
        within: Duration,
    },
    /// The driver reported in Probe that it is unhealthy.
    #[error("the driver reports that it is unhealthy: {message}")]
    Unhealthy {
        /// The message from Probe, at most 4 KiB.
        message: String,
    },
    /// A required call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}
