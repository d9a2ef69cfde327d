//! A driver that serves, and the ways to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use volume_manager::mounts::linux::{LinuxMounts, ProbeCommand, Settings};
use volume_manager::mounts::{MemoryMounts, Mounts};
use volume_manager::store::redb::RedbStore;

use super::{Ground, Kubelet, Measured, Mesos, Ours, ScriptedDriver};

/// A driver that serves on a socket in a new directory, until this is dropped.
#[derive(Debug)]
pub struct Stand {
    directory: TempDir,
    driver: ScriptedDriver,
    memory: Option<MemoryMounts>,
    root: PathBuf,
    server: JoinHandle<()>,
}

impl Stand {
    /// A driver that mounts in memory.
    ///
    /// # Errors
    /// If there can be no directory.
    pub async fn start(attaches: bool) -> Measured<Self> {
        let directory = tempfile::tempdir()?;
        let mounts = MemoryMounts::new();
        let ground = Ground::memory(mounts.clone());
        Ok(Self::on(directory, ground, Some(mounts), "/node".into(), attaches).await)
    }

    /// A driver that mounts in this process's mount namespace.
    ///
    /// # Errors
    /// If there can be no directory.
    pub async fn start_on_linux(attaches: bool) -> Measured<Self> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().canonicalize()?.join("node");
        Ok(Self::on(directory, Ground::Linux, None, root, attaches).await)
    }

    async fn on(
        directory: TempDir,
        ground: Ground,
        memory: Option<MemoryMounts>,
        root: PathBuf,
        attaches: bool,
    ) -> Self {
        let driver = ScriptedDriver::new(ground, attaches);
        let (serving, socket) = (driver.clone(), directory.path().join(SOCKET));
        let at = socket.clone();
        let server = tokio::spawn(async move {
            // Whoever calls it is told that it is gone.
            let _ = serving.serve(&at).await;
        });
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Self { directory, driver, memory, root, server }
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &ScriptedDriver {
        &self.driver
    }

    /// Where it serves.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path(SOCKET)
    }

    /// The directory below which volumes are staged and published.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Something in the directory of the stand, which goes with it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// volume-manager, with a store on disk. Once at a time.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn ours(&self) -> Measured<Ours> {
        match &self.memory {
            Some(mounts) => self.ours_with(mounts.clone()).await,
            None => self.ours_with(LinuxMounts::open(ProbeCommand::own(), Settings::default()).await?).await,
        }
    }

    async fn ours_with(&self, mounts: impl Mounts + 'static) -> Measured<Ours> {
        let store = RedbStore::open(self.path("volumes.redb"))?;
        Ours::start(&self.driver, mounts, &self.socket(), &self.root, store).await
    }

    /// kubelet's way.
    ///
    /// # Errors
    /// If there can be no directory for its files.
    pub fn kubelet(&self) -> Measured<Kubelet> {
        Kubelet::new(&self.driver, &self.socket(), &self.root, &self.path("kubelet"))
    }

    /// Mesos' way.
    ///
    /// # Errors
    /// If there can be no directory for its files, or the driver cannot be reached.
    pub async fn mesos(&self) -> Measured<Mesos> {
        Mesos::new(&self.driver, &self.socket(), &self.root, &self.path("mesos")).await
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const SOCKET: &str = "driver.sock";
