//! A driver that is connected to again whenever that is needed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use csi_proto::grpc::{self, Connection, Windows};
use tokio::sync::Mutex;

use super::call_error::CallError;
use super::generation::{Dealings, Generation};
use super::identify::identify;
use super::operation::Operation;
use super::outcome::CallOutcome;
use super::policy::DriverPolicy;
use super::process::{Predecessors, Process};
use super::secrets::Secrets;
use super::volume_spec::VolumeSpec;
use crate::excerpt::{chain, excerpt};
use crate::registry::DriverEndpoint;

/// How long a dial may take: as with kubelet.
const DIAL: Duration = Duration::from_secs(10);

/// A storage driver behind its socket. Clones are the same driver.
///
/// It holds at most one connection, a [`Generation`], and makes the next one when it is asked for after the last has
/// broken. It does not try by itself, and waits for nothing between tries: how often to ask is the caller's business.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use csi_proto::DriverName;
/// # use volume_manager::driver::{
/// #     Driver, DriverPolicy, MountPath, NoSecrets, Operation, VolumeSpec,
/// # };
/// # async fn stage(volume: VolumeSpec) -> Result<(), Box<dyn std::error::Error>> {
/// let name = DriverName::new("hostpath.csi.example.org")?;
/// let endpoint = "unix:///plugins/hostpath/csi.sock".parse()?;
/// let driver = Driver::new(name, endpoint, DriverPolicy::default(), Arc::new(NoSecrets));
///
/// let generation = driver.generation().await?;
/// if generation.facts().capabilities.node.stage_unstage {
///     let staging_path = MountPath::new("/var/lib/edge/volumes/1/staging")?;
///     generation.call(&volume, &Operation::NodeStage { staging_path }).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Driver(Arc<Shared>);

struct Shared {
    name: DriverName,
    endpoint: DriverEndpoint,
    dealings: Arc<Dealings>,
    present: std::sync::Mutex<Option<Arc<Generation>>>,
    /// How many tries to connect have ended.
    tries: AtomicU64,
    /// Held by the one who connects; how the last try failed.
    connecting: Mutex<Option<ConnectError>>,
    lineage: Arc<std::sync::Mutex<Lineage>>,
}

/// What outlives an announcement.
#[derive(Default)]
struct Lineage {
    generations: u64,
    predecessors: Predecessors,
}

impl Driver {
    /// A driver that was announced. Nothing is dialled yet.
    pub fn new(
        name: DriverName,
        endpoint: DriverEndpoint,
        policy: DriverPolicy,
        secrets: Arc<dyn Secrets>,
    ) -> Self {
        Self::announced(name, endpoint, Dealings { policy, secrets }, Arc::default())
    }

    /// The same driver after it was announced anew, perhaps elsewhere or with another policy.
    ///
    /// What is known of the processes that served it stays known, so this and not [`new`](Self::new) is for a driver that
    /// comes back. The old one keeps its connection, for the calls that are under way.
    #[must_use]
    pub fn announced_anew(&self, endpoint: DriverEndpoint, policy: DriverPolicy) -> Self {
        let dealings = Dealings { policy, secrets: self.0.dealings.secrets.clone() };
        Self::announced(self.0.name.clone(), endpoint, dealings, self.0.lineage.clone())
    }

    fn announced(
        name: DriverName,
        endpoint: DriverEndpoint,
        dealings: Dealings,
        lineage: Arc<std::sync::Mutex<Lineage>>,
    ) -> Self {
        Self(Arc::new(Shared {
            name,
            endpoint,
            dealings: Arc::new(dealings),
            present: std::sync::Mutex::new(None),
            tries: AtomicU64::new(0),
            connecting: Mutex::const_new(None),
            lineage,
        }))
    }

    /// The name that the driver was announced under.
    #[must_use]
    pub fn name(&self) -> &DriverName {
        &self.0.name
    }

    /// Where it serves.
    #[must_use]
    pub fn endpoint(&self) -> &DriverEndpoint {
        &self.0.endpoint
    }

    /// What its CSIDriver object says.
    #[must_use]
    pub fn policy(&self) -> &DriverPolicy {
        &self.0.dealings.policy
    }

    /// The present generation, if its connection is there.
    #[must_use]
    pub fn present(&self) -> Option<Arc<Generation>> {
        let present = self.0.present.lock().unwrap_or_else(PoisonError::into_inner);
        present.as_ref().filter(|generation| !generation.is_closed()).cloned()
    }

    /// The present generation, or a new one: dialled, ready, known by its name, and asked for its capabilities.
    ///
    /// Those who ask at the same time share one try and its end. Safe to be dropped.
    ///
    /// # Errors
    /// If the driver cannot be reached, is not ready in time, is another one, or does not say what it must.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its I/O and time drivers enabled.
    pub async fn generation(&self) -> Result<Arc<Generation>, ConnectError> {
        if let Some(present) = self.present() {
            return Ok(present);
        }
        let shared = &*self.0;
        let tries = shared.tries.load(Ordering::Acquire);
        let mut connecting = shared.connecting.lock().await;
        if let Some(present) = self.present() {
            return Ok(present);
        }
        if shared.tries.load(Ordering::Acquire) != tries
            && let Some(failure) = &*connecting
        {
            return Err(failure.clone());
        }
        let connected = shared.connect().await;
        *connecting = connected.as_ref().err().cloned();
        shared.tries.fetch_add(1, Ordering::Release);
        let generation = Arc::new(connected?);
        let mut present = shared.present.lock().unwrap_or_else(PoisonError::into_inner);
        *present = Some(generation.clone());
        Ok(generation)
    }

    /// Makes a call over the present generation, or a new one.
    ///
    /// # Errors
    /// As [`Generation::call`]; [`CallError::NotSent`] if there is no connection to be had.
    pub async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        let generation = self.generation().await.map_err(|error| {
            let reason = excerpt(&chain(&error), 1024);
            CallError::NotSent { method: operation.method(), reason }
        })?;
        generation.call(volume, operation).await
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("name", self.name())
            .field("endpoint", self.endpoint())
            .field("present", &self.present().map(|generation| generation.number()))
            .finish_non_exhaustive()
    }
}

impl Shared {
    async fn connect(&self) -> Result<Generation, ConnectError> {
        let connection =
            Connection::open(self.endpoint.path(), Windows::AT_ONCE, DIAL).await.map_err(Arc::new)?;
        let process = connection.peer_process().and_then(Process::find);
        let facts = identify(&connection, &self.name).await?;
        let mut lineage = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
        lineage.generations += 1;
        Ok(Generation {
            number: lineage.generations,
            facts,
            earlier: lineage.predecessors.succeeded_by(process),
            connection,
            dealings: self.dealings.clone(),
        })
    }
}

/// Why there is no new generation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody could be reached, in time or at all.
    #[error(transparent)]
    Dial(#[from] Arc<grpc::ConnectError>),
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
