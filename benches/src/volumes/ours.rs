//! The way of volume-manager, with its store on disk.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use volume_manager::VolumeKey;
use volume_manager::driver::{Attach, DriverPolicy, NoSecrets};
use volume_manager::mounts::Mounts;
use volume_manager::node::{ChangeKind, Changes, Parts, Settings, Volumes, Watched};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::{Store, faulty};

use super::{DRIVER, Measured, ScriptedDriver, Way, consumer, spec};

/// Volumes that run, with a driver that is connected. They end when this is dropped.
#[derive(Debug)]
pub struct Ours {
    volumes: Volumes,
    attach: Attach,
    root: PathBuf,
    store: faulty::Handle,
    going: Going,
    tasks: [JoinHandle<()>; 2],
}

/// Who waits for which volume to be gone.
type Going = Arc<Mutex<HashMap<VolumeKey, oneshot::Sender<()>>>>;

impl Ours {
    /// With staging and targets below `root`. Answers when the driver is connected.
    ///
    /// # Errors
    /// If the volumes cannot be opened, or the one that is mounted for trial cannot be.
    pub async fn start(
        driver: &ScriptedDriver,
        mounts: impl Mounts + 'static,
        socket: &Path,
        root: &Path,
        store: impl Store + 'static,
    ) -> Measured<Self> {
        // Without faults in its plan it only counts.
        let (counted, store) = faulty::wrap(store, faulty::Plan::default());
        let parts = Parts::new(counted, mounts, NoSecrets);
        let (volumes, run) = Volumes::open(parts, Settings::new(root.join("volumes"))).await?;
        let endpoint = DriverEndpoint::from_path(socket)?;
        let going = Going::default();
        let tasks =
            [tokio::spawn(run), tokio::spawn(follow(volumes.watch(), volumes.clone(), going.clone()))];
        volumes.driver_registered(DRIVER.parse()?, endpoint, DriverPolicy::default()).await?;
        let attach = if driver.attaches() { Attach::Here } else { Attach::NotRequired };
        let ours = Self { volumes, attach, root: root.to_owned(), store, going, tasks };
        ours.mount(usize::MAX).await?;
        ours.unmount(usize::MAX).await?;
        Ok(ours)
    }

    /// The handle.
    #[must_use]
    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    /// How many commits the store was asked for.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.store.commits_tried()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Way for Ours {
    async fn mount(&self, number: usize) -> Measured<()> {
        let (spec, consumer) = (spec(number, self.attach)?, consumer(&self.root, number)?);
        self.volumes.publish(spec, consumer).await?;
        Ok(())
    }

    async fn unmount(&self, number: usize) -> Measured<()> {
        let (spec, consumer) = (spec(number, self.attach)?, consumer(&self.root, number)?);
        let (sender, gone) = oneshot::channel();
        lock(&self.going).insert(spec.key().clone(), sender);
        self.volumes.unpublish(spec.key(), consumer.id()).await?;
        Ok(gone.await?)
    }
}

fn lock(going: &Going) -> MutexGuard<'_, HashMap<VolumeKey, oneshot::Sender<()>>> {
    going.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells those who wait which volumes are gone.
async fn follow(mut changes: Changes, volumes: Volumes, going: Going) {
    while let Some(watched) = changes.next().await {
        match watched {
            Watched::Change(change) if change.kind == ChangeKind::Forgotten => {
                if let Some(sender) = lock(&going).remove(&change.key) {
                    // Nobody need wait.
                    let _ = sender.send(());
                }
            }
            Watched::Missed(_) => {
                let Ok(left) = volumes.list().await else { return };
                let left: HashSet<_> = left.into_iter().collect();
                for (_, sender) in lock(&going).extract_if(|key, _| !left.contains(key)) {
                    let _ = sender.send(());
                }
            }
            _ => {}
        }
    }
}
