//! The calls to a storage driver, against a scripted one on a real socket. Time is virtual: it passes when nothing else
//! happens.
#![cfg(feature = "runtime")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod calls;
mod connecting;
mod killed;
mod scripted;
mod secrets;
mod tonic_driver;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use csi_proto::{DriverName, VolumeId};
use scripted::{NAME, Scripted};
use tempfile::TempDir;
use volume_manager::advanced::driver::{
    CallError, CallOutcome, ConnectError, Driver, DriverConnection, Operation,
};
use volume_manager::driver::{
    Access, AccessMode, Attach, ConsumerSpec, DriverPolicy, MountPath, NoSecrets, Secrets, VolumeSpec,
};
use volume_manager::registry::DriverEndpoint;
use volume_manager::{ConsumerId, VolumeKey};

/// The path of a socket, and the driver as its caller uses it.
struct Place {
    _directory: TempDir,
    socket: PathBuf,
    driver: Dialled,
}

impl Place {
    fn new() -> Self {
        Self::with(DriverPolicy::default(), Arc::new(NoSecrets))
    }

    fn with(policy: DriverPolicy, secrets: Arc<dyn Secrets>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("csi.sock");
        let endpoint = DriverEndpoint::from_path(&socket).expect("an endpoint");
        let driver =
            Dialled { driver: Driver::new(name(), secrets), endpoint, policy, present: Mutex::default() };
        Self { _directory: directory, socket, driver }
    }

    fn start(&self) -> Scripted {
        Scripted::start(&self.socket)
    }
}

/// A driver with the connection of its caller.
struct Dialled {
    driver: Driver,
    endpoint: DriverEndpoint,
    policy: DriverPolicy,
    present: Mutex<Option<Arc<DriverConnection>>>,
}

impl Dialled {
    fn present(&self) -> Option<Arc<DriverConnection>> {
        let present = self.present.lock().expect("no panic");
        present.as_ref().filter(|connection| !connection.is_closed()).cloned()
    }

    /// Returns the current connection, or a new one.
    async fn connection(&self) -> Result<Arc<DriverConnection>, ConnectError> {
        match self.present() {
            Some(present) => Ok(present),
            None => self.connect().await,
        }
    }

    async fn connect(&self) -> Result<Arc<DriverConnection>, ConnectError> {
        let connection = Arc::new(self.driver.connect(&self.endpoint, &self.policy).await?);
        *self.present.lock().expect("no panic") = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        self.connection().await.expect("a connection").call(volume, operation).await
    }
}

fn name() -> DriverName {
    DriverName::new(NAME).expect("a name")
}

fn volume(id: &str) -> VolumeSpec {
    let key = VolumeKey { driver: name(), id: VolumeId::new(id).expect("an id") };
    let volume = VolumeSpec::builder(key, Access::filesystem(), AccessMode::SingleNodeWriter);
    volume.attach(Attach::Here).build().expect("a volume")
}

fn path(path: &str) -> MountPath {
    MountPath::new(path).expect("a path")
}

fn stage() -> Operation {
    Operation::NodeStage { staging_path: path("/staging/1") }
}

fn publish() -> Operation {
    let id = ConsumerId::new("pod-1").expect("an id");
    let consumer = Arc::new(ConsumerSpec::new(id, path("/target/1")));
    Operation::NodePublish { consumer, staging_path: path("/staging/1") }
}
