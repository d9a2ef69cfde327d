//! Mounts with volume-manager and its store on disk.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use volume_manager::VolumeKey;
use volume_manager::driver::{Attach, DriverPolicy, NoSecrets};
use volume_manager::mounts::Mounts;
use volume_manager::node::{ChangeKind, Changes, Parts, VolumeSettings, Volumes, WatchEvent};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::{Store, faulty};

use super::{CountingDriver, DRIVER, Measured, VolumeClient, consumer, spec};

/// A running volume-manager with a connected driver, which stops when this value is dropped.
#[derive(Debug)]
pub struct Manager {
    volumes: Volumes,
    attach: Attach,
    root: PathBuf,
    store: faulty::Handle,
    removals: RemovalWaiters,
    tasks: [JoinHandle<()>; 2],
}

/// The waiters for the removal of each volume.
type RemovalWaiters = Arc<Mutex<HashMap<VolumeKey, oneshot::Sender<()>>>>;

impl Manager {
    /// Starts volume-manager with staging and target paths below `root`. Mounts and unmounts one volume as a trial.
    ///
    /// # Errors
    /// Returns an error if volume-manager cannot be started, or if the trial mount fails.
    pub async fn start(
        driver: &CountingDriver,
        mounts: impl Mounts + 'static,
        socket: &Path,
        root: &Path,
        store: Store,
    ) -> Measured<Self> {
        // Without faults in the plan, the wrapper only counts commits.
        let (counted, store) = faulty::wrap(store, faulty::Plan::default());
        let parts = Parts::new(counted, mounts, NoSecrets);
        let (volumes, run) = Volumes::open(parts, VolumeSettings::new(root.join("volumes"))).await?;
        let endpoint = DriverEndpoint::from_path(socket)?;
        let removals = RemovalWaiters::default();
        let tasks = [
            tokio::spawn(run),
            tokio::spawn(notify_removed(volumes.watch(), volumes.clone(), removals.clone())),
        ];
        volumes.driver_registered(DRIVER.parse()?, endpoint, DriverPolicy::default()).await?;
        let attach = if driver.attaches() { Attach::Here } else { Attach::NotRequired };
        let manager = Self { volumes, attach, root: root.to_owned(), store, removals, tasks };
        manager.mount(usize::MAX).await?;
        manager.unmount(usize::MAX).await?;
        Ok(manager)
    }

    /// Returns the handle of the volumes.
    #[must_use]
    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    /// Returns the number of commits to the store.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.store.commits_tried()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl VolumeClient for Manager {
    async fn mount(&self, number: usize) -> Measured<()> {
        let (spec, consumer) = (spec(number, self.attach)?, consumer(&self.root, number)?);
        self.volumes.publish(spec, consumer).await?;
        Ok(())
    }

    async fn unmount(&self, number: usize) -> Measured<()> {
        let (spec, consumer) = (spec(number, self.attach)?, consumer(&self.root, number)?);
        let (sender, removed) = oneshot::channel();
        lock(&self.removals).insert(spec.key().clone(), sender);
        self.volumes.unpublish(spec.key(), consumer.id()).await?;
        Ok(removed.await?)
    }
}

fn lock(removals: &RemovalWaiters) -> MutexGuard<'_, HashMap<VolumeKey, oneshot::Sender<()>>> {
    removals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notifies the waiters of removed volumes.
async fn notify_removed(mut changes: Changes, volumes: Volumes, removals: RemovalWaiters) {
    while let Some(watched) = changes.next().await {
        match watched {
            WatchEvent::Change(change) if change.kind == ChangeKind::Removed => {
                if let Some(sender) = lock(&removals).remove(&change.key) {
                    // The removal may have no waiter.
                    let _ = sender.send(());
                }
            }
            WatchEvent::Lagged(_) => {
                let Ok(left) = volumes.list().await else { return };
                let left: HashSet<_> = left.into_iter().collect();
                for (_, sender) in lock(&removals).extract_if(|key, _| !left.contains(key)) {
                    let _ = sender.send(());
                }
            }
            _ => {}
        }
    }
}
