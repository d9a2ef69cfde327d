//! A driver that is connected to, again and again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use csi_proto::grpc::{self, Connection, Windows};

use super::call_error::CallError;
use super::generation::Generation;
use super::identify::identify;
use super::policy::DriverPolicy;
use super::process::{Predecessors, Process};
use super::secrets::Secrets;
use crate::registry::DriverEndpoint;

/// How long a dial may take: as with kubelet.
const DIAL: Duration = Duration::from_secs(10);

/// A storage driver, and which processes have served it: one value for each driver, whatever it is announced as.
///
/// It holds no connection and tries nothing by itself: how often to connect is the caller's business.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use csi_proto::DriverName;
/// # use volume_manager::driver::{
/// #     Driver, DriverPolicy, MountPath, NoSecrets, Operation, VolumeSpec,
/// # };
/// # async fn stage(volume: VolumeSpec) -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new(DriverName::new("hostpath.csi.example.org")?, Arc::new(NoSecrets));
///
/// let endpoint = "unix:///plugins/hostpath/csi.sock".parse()?;
/// let generation = driver.connect(&endpoint, &DriverPolicy::default()).await?;
/// if generation.facts().capabilities.node.stage_unstage {
///     let staging_path = MountPath::new("/var/lib/edge/volumes/1/staging")?;
///     generation.call(&volume, &Operation::NodeStage { staging_path }).await?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Driver {
    name: DriverName,
    secrets: Arc<dyn Secrets>,
    predecessors: Mutex<Predecessors>,
}

impl Driver {
    /// A driver of this name. Nothing is dialled yet.
    pub fn new(name: DriverName, secrets: Arc<dyn Secrets>) -> Self {
        Self { name, secrets, predecessors: Mutex::default() }
    }

    /// A new generation: dialled, ready, known by its name, and asked for its capabilities. Safe to be dropped.
    ///
    /// # Errors
    /// If the driver cannot be reached, is not ready in time, is another one, or does not say what it must.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its I/O and time drivers enabled.
    pub async fn connect(
        &self,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Generation, ConnectError> {
        let connection = Connection::open(endpoint.path(), Windows::AT_ONCE, DIAL).await?;
        let process = connection.peer_process().and_then(Process::find);
        let facts = identify(&connection, &self.name).await?;
        let mut predecessors = self.predecessors.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = predecessors.succeeded_by(process);
        let (policy, secrets) = (policy.clone(), Arc::clone(&self.secrets));
        Ok(Generation { facts, earlier, connection, policy, secrets })
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why there is no new generation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody could be reached, in time or at all.
    #[error(transparent)]
    Dial(#[from] grpc::ConnectError),
    /// Another plugin serves there.
    #[error(
        "wrong plugin on the socket: {expected} was announced, and {found:?} answers; correct the endpoint or the name"
    )]
    WrongPlugin {
        /// The name that was announced.
        expected: DriverName,
        /// The name that GetPluginInfo answered, at most 128 bytes of it.
        found: String,
    },
    /// The driver is still starting.
    #[error("the driver was not ready within {within:?}; see its log for what it waits for")]
    NotReady {
        /// The time that it had.
        within: Duration,
    },
    /// The driver says that it cannot work.
    #[error("the driver says that it is not healthy: {message}")]
    Unhealthy {
        /// What Probe answered, at most 4 KiB.
        message: String,
    },
    /// A call that it must answer was not answered well.
    #[error(transparent)]
    Call(#[from] CallError),
}
