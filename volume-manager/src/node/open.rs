//! From parts to volumes that run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};

use super::core::Node;
use super::error::OpenError;
use super::journal::Journal;
use super::link::{Drivers, SocketDrivers};
use super::run::Run;
use super::settings::Settings;
use super::volumes::Volumes;
use super::watch::Changes;
use crate::driver::Secrets;
use crate::mounts::Mounts;
use crate::store::{BootId, Loaded, Store, StoreError, take_back_salvaged};

/// How many questions wait to be taken at most. Who asks more waits.
const WAITING_COMMANDS: usize = 256;

/// What the volumes of a node are made of.
pub struct Parts {
    store: Box<dyn Store>,
    mounts: Arc<dyn Mounts>,
    drivers: Arc<dyn Drivers>,
    boot: Option<BootId>,
    take_back_salvaged: bool,
}

impl Parts {
    /// A store, the mounts, and where secrets come from. Drivers are dialled at the sockets that they register, with
    /// the default times.
    pub fn new(
        store: impl Store + 'static,
        mounts: impl Mounts + 'static,
        secrets: impl Secrets + 'static,
    ) -> Self {
        let drivers = SocketDrivers::new(Arc::new(secrets));
        Self {
            store: Box::new(store),
            mounts: Arc::new(mounts),
            drivers: Arc::new(drivers),
            boot: None,
            take_back_salvaged: false,
        }
    }

    /// Dials drivers in another way.
    #[must_use]
    pub fn drivers(mut self, drivers: impl Drivers + 'static) -> Self {
        self.drivers = Arc::new(drivers);
        self
    }

    /// Makes the records of a damaged store live again that were salvaged; see [`take_back_salvaged`]. For who compares them
    /// with a desired set of its own. Default: they stay aside.
    #[must_use]
    pub fn take_back_salvaged(mut self) -> Self {
        self.take_back_salvaged = true;
        self
    }

    /// Takes this for the boot of the node. Default: what the kernel says.
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

/// The path without symbolic links, as the mount table has it. What is not there yet stays as it is.
fn without_links(path: &Path) -> PathBuf {
    for there in path.ancestors() {
        if let (Ok(plain), Ok(rest)) = (there.canonicalize(), path.strip_prefix(there)) {
            return plain.components().chain(rest.components()).collect();
        }
    }
    path.to_owned()
}

/// What is recorded, with what was salvaged if that is to be taken back.
fn load(store: &mut dyn Store, take_back: bool) -> Result<Loaded, StoreError> {
    let loaded = store.load()?;
    if !take_back {
        return Ok(loaded);
    }
    let taken = take_back_salvaged(store, &loaded)?;
    if taken.left > 0 {
        tracing::error!(
            records = taken.left,
            "salvaged records stay aside, since it cannot be told which of several is the last; their volumes are left as they are"
        );
    }
    if taken.released == 0 { Ok(loaded) } else { store.load() }
}

impl Volumes {
    /// Opens the volumes that are recorded, and answers a handle to them with the future that runs them.
    ///
    /// The future has to be polled, such as by `tokio::spawn`, for anything to happen; it ends when the last handle is
    /// dropped. It may be dropped at any time, as a crash may come at any time: what is on disk goes on when the volumes
    /// are opened again.
    ///
    /// # Errors
    /// If the store or the mount table cannot be read at all, or the root is not absolute. Records that cannot be read
    /// are no error; see [`quarantined`](Self::quarantined).
    pub async fn open(
        parts: Parts,
        settings: Settings,
    ) -> Result<(Self, impl Future<Output = ()> + Send + 'static), OpenError> {
        let Parts { mut store, mounts, drivers, boot, take_back_salvaged } = parts;
        let mut settings = settings;
        if !settings.root.is_absolute() {
            return Err(OpenError::Root { root: settings.root });
        }
        let root = settings.root.clone();
        let found = tokio::task::spawn_blocking(move || without_links(&root)).await;
        settings.root = found.map_err(|error| OpenError::Task(error.into()))?;
        let boot = match boot {
            Some(boot) => boot,
            None => BootId::read(BootId::PATH).map_err(OpenError::Boot)?,
        };
        let read = tokio::task::spawn_blocking(move || (load(&mut *store, take_back_salvaged), store)).await;
        let (loaded, store) = read.map_err(|error| OpenError::Task(error.into()))?;
        let loaded = loaded.map_err(OpenError::Store)?;
        let table = mounts.table().await.map_err(OpenError::Mounts)?;
        let (node, opening) = Node::open(settings.clone(), boot, loaded, table);
        let (changes, _) = broadcast::channel(Changes::CAPACITY);
        let (sender, commands) = mpsc::channel(WAITING_COMMANDS);
        let volumes = Self { commands: sender, changes: changes.downgrade() };
        let run = Run::new(node, Journal::new(store), mounts, drivers, settings, changes);
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
