//! A driver that serves on a socket, and clients for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use volume_manager::mounts::linux::{LinuxMounts, MountSettings, ProbeCommand};
use volume_manager::mounts::{MemoryMounts, Mounts};
use volume_manager::store::redb;

use super::{CountingDriver, Kubelet, Manager, Measured, Mesos, MountBackend};

/// A driver that serves on a socket in a new directory until this value is dropped.
#[derive(Debug)]
pub struct Fixture {
    directory: TempDir,
    driver: CountingDriver,
    mounts: NodeMounts,
    root: PathBuf,
    server: JoinHandle<()>,
}

/// Where the driver mounts.
#[derive(Debug)]
enum NodeMounts {
    Memory(MemoryMounts),
    /// In the mount namespace of this process.
    Linux(ProbeCommand),
}

impl Fixture {
    /// Starts a driver that mounts in memory.
    ///
    /// # Errors
    /// Returns an error if no directory can be created.
    pub async fn start(attaches: bool) -> Measured<Self> {
        Self::start_in_memory(attaches, Duration::ZERO).await
    }

    /// Starts a driver that mounts in memory, and whose answers each take at least `work`.
    ///
    /// # Errors
    /// Returns an error if no directory can be created.
    pub async fn start_working(work: Duration) -> Measured<Self> {
        Self::start_in_memory(false, work).await
    }

    async fn start_in_memory(attaches: bool, work: Duration) -> Measured<Self> {
        let directory = tempfile::tempdir()?;
        let mounts = MemoryMounts::new();
        let driver = CountingDriver::new(MountBackend::memory(mounts.clone()), attaches, work);
        Ok(Self::serve(directory, driver, NodeMounts::Memory(mounts), "/node".into()).await)
    }

    /// Starts a driver that mounts in the mount namespace of this process, whose probes have this command.
    ///
    /// # Errors
    /// Returns an error if no directory can be created.
    pub async fn start_on_linux(probe: ProbeCommand, attaches: bool) -> Measured<Self> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().canonicalize()?.join("node");
        let driver = CountingDriver::new(MountBackend::Linux, attaches, Duration::ZERO);
        Ok(Self::serve(directory, driver, NodeMounts::Linux(probe), root).await)
    }

    async fn serve(directory: TempDir, driver: CountingDriver, mounts: NodeMounts, root: PathBuf) -> Self {
        let (serving, socket) = (driver.clone(), directory.path().join(SOCKET));
        let at = socket.clone();
        let server = tokio::spawn(async move {
            // Calls fail when serving ends.
            let _ = serving.serve(&at).await;
        });
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Self { directory, driver, mounts, root, server }
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &CountingDriver {
        &self.driver
    }

    /// Returns the path of the driver's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path(SOCKET)
    }

    /// Returns the directory below which volumes are staged and published.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a path in the directory of the fixture, which is removed with the fixture.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts volume-manager with a store on disk. Only one may run at a time.
    ///
    /// # Errors
    /// Returns an error if volume-manager cannot be started.
    pub async fn manager(&self) -> Measured<Manager> {
        match &self.mounts {
            NodeMounts::Memory(mounts) => self.manager_with(mounts.clone()).await,
            NodeMounts::Linux(probe) => {
                self.manager_with(LinuxMounts::open(probe.clone(), MountSettings::default()).await?).await
            }
        }
    }

    async fn manager_with(&self, mounts: impl Mounts + 'static) -> Measured<Manager> {
        let store = redb::open(self.path("volumes.redb"))?;
        Manager::start(&self.driver, mounts, &self.socket(), &self.root, store).await
    }

    /// Creates a client that mounts as kubelet does.
    ///
    /// # Errors
    /// Returns an error if no directory can be created for its files.
    pub fn kubelet(&self) -> Measured<Kubelet> {
        Kubelet::new(&self.driver, &self.socket(), &self.root, &self.path("kubelet"))
    }

    /// Creates a client that mounts as Mesos does.
    ///
    /// # Errors
    /// Returns an error if no directory can be created for its files, or if the driver cannot be reached.
    pub async fn mesos(&self) -> Measured<Mesos> {
        Mesos::new(&self.driver, &self.socket(), &self.root, &self.path("mesos")).await
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const SOCKET: &str = "driver.sock";
