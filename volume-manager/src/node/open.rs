//! Opening the volumes of a node.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};

use super::connector::{DriverConnector, SocketConnector};
use super::core::Node;
use super::error::OpenVolumesError;
use super::run::Run;
use super::settings::VolumeSettings;
use super::store_worker::StoreWorker;
use super::volumes::Volumes;
use super::watch::Changes;
use crate::driver::Secrets;
use crate::mounts::Mounts;
use crate::store::salvaged::release_salvaged;
use crate::store::{BootId, Loaded, Store, StoreError};

/// The capacity of the command channel. Further callers wait.
const COMMAND_CAPACITY: usize = 256;

/// The components of a volume manager.
pub struct Parts {
    store: Store,
    mounts: Arc<dyn Mounts>,
    drivers: Arc<dyn DriverConnector>,
    boot: Option<BootId>,
    release_salvaged: bool,
}

impl Parts {
    /// Combines a store, the mounts and the source of secrets. Drivers are dialed at their registered sockets, with the
    /// default timeouts.
    pub fn new(store: Store, mounts: impl Mounts + 'static, secrets: impl Secrets + 'static) -> Self {
        let drivers = SocketConnector::new(Arc::new(secrets));
        Self {
            store,
            mounts: Arc::new(mounts),
            drivers: Arc::new(drivers),
            boot: None,
            release_salvaged: false,
        }
    }

    /// Replaces the connector for drivers.
    #[must_use]
    pub fn drivers(mut self, drivers: impl DriverConnector + 'static) -> Self {
        self.drivers = Arc::new(drivers);
        self
    }

    /// Imports the records that were recovered from a damaged store. The import is for callers that compare the records with a
    /// desired set of their own. Default: the records stay quarantined.
    #[must_use]
    pub fn release_salvaged(mut self) -> Self {
        self.release_salvaged = true;
        self
    }

    /// Sets the boot id of the node. Default: the kernel's.
    #[must_use]
    pub fn boot_id(mut self, boot: BootId) -> Self {
        self.boot = Some(boot);
        self
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("boot", &self.boot).finish_non_exhaustive()
    }
}

/// Returns the path without symbolic links, as in the mount table. Components that do not exist yet are kept.
fn without_links(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let (Ok(canonical), Ok(rest)) = (existing.canonicalize(), path.strip_prefix(existing)) {
            return canonical.components().chain(rest.components()).collect();
        }
    }
    path.to_owned()
}

/// Loads the records, including salvaged ones if requested.
fn load(store: &mut Store, with_salvaged: bool) -> Result<Loaded, StoreError> {
    let loaded = store.load()?;
    if !with_salvaged {
        return Ok(loaded);
    }
    let taken = release_salvaged(store, &loaded)?;
    if taken.left > 0 {
        tracing::error!(
            records = taken.left,
            "salvaged records stay quarantined, because the latest of several is unknown; their volumes are not changed"
        );
    }
    if taken.released == 0 { Ok(loaded) } else { store.load() }
}

impl Volumes {
    /// Opens the recorded volumes, and returns a handle to them and the future that runs them.
    ///
    /// The future must be polled, for example by `tokio::spawn`. The future ends when the last handle is dropped.
    /// The future may be dropped at any time, like in a crash: the volumes continue from disk when they are opened
    /// again.
    ///
    /// # Errors
    /// If the store or the mount table cannot be read, or the root is not absolute. Unreadable records are not an
    /// error; see [`quarantined`](Self::quarantined).
    pub async fn open(
        parts: Parts,
        settings: VolumeSettings,
    ) -> Result<(Self, impl Future<Output = ()> + Send + 'static), OpenVolumesError> {
        let Parts { mut store, mounts, drivers, boot, release_salvaged } = parts;
        let mut settings = settings;
        if !settings.root.is_absolute() {
            return Err(OpenVolumesError::Root { root: settings.root });
        }
        let root = settings.root.clone();
        let found = tokio::task::spawn_blocking(move || without_links(&root)).await;
        settings.root = found.map_err(|error| OpenVolumesError::Task(error.into()))?;
        let boot = match boot {
            Some(boot) => boot,
            None => BootId::read(BootId::PATH).map_err(OpenVolumesError::Boot)?,
        };
        let read = tokio::task::spawn_blocking(move || (load(&mut store, release_salvaged), store)).await;
        let (loaded, store) = read.map_err(|error| OpenVolumesError::Task(error.into()))?;
        let loaded = loaded.map_err(OpenVolumesError::Store)?;
        let table = mounts.table().await.map_err(OpenVolumesError::Mounts)?;
        let (node, opening) = Node::open(settings.clone(), boot, loaded, table);
        let (changes, _) = broadcast::channel(Changes::CAPACITY);
        let (sender, commands) = mpsc::channel(COMMAND_CAPACITY);
        let volumes = Self { commands: sender, changes: changes.downgrade() };
        let run = Run::new(node, StoreWorker::new(store), mounts, drivers, settings, changes);
        Ok((volumes, run.run(commands, opening)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_behind_a_link_is_what_the_mount_table_has() {
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&plain, plain.join("link")).unwrap();
        assert_eq!(without_links(&plain.join("link/not/there")), plain.join("not/there"));
        assert_eq!(without_links(Path::new("/")), Path::new("/"));
    }
}
