//! A node's volumes in the process of the test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::{DriverName, VolumeId};
use tokio::task::JoinHandle;
use volume_manager::driver::{
    Access, AccessMode, ConsumerSpec, DriverPolicy, MountPath, NoSecrets, VolumeSpec,
};
use volume_manager::mounts::linux::{self, LinuxMounts, ProbeCommand};
use volume_manager::node::{
    BackOff, Parts, PublishError, Published, UnpublishError, VolumeSettings, Volumes,
};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::redb;
use volume_manager::{ConsumerId, VolumeKey};

use super::storage::Storage;
use crate::cluster::DRIVER;
use crate::wait;

/// The volumes of the driver of a [`Storage`].
#[derive(Debug)]
#[non_exhaustive]
pub struct LocalNode {
    /// The handle of the managed volumes.
    pub volumes: Volumes,
    /// The mounts of the node.
    pub mounts: LinuxMounts,
    pods: PathBuf,
}

impl LocalNode {
    /// Opens the volumes. A path check may take 120 s, so that a slow machine is not mistaken for hanging storage.
    ///
    /// `program` is the executable of the probe process.
    pub async fn open(storage: &Storage, program: &str) -> Self {
        Self::open_with_deadline(storage, program, Duration::from_secs(120)).await
    }

    /// Opens the volumes with this deadline of a path check.
    ///
    /// # Panics
    /// If the store, the mounts or the volumes cannot be opened.
    pub async fn open_with_deadline(storage: &Storage, program: &str, deadline: Duration) -> Self {
        let settings = linux::MountSettings { deadline, ..linux::MountSettings::default() };
        let mounts = LinuxMounts::open(ProbeCommand::new(program), settings).await.expect("mounts");
        let store = redb::open(storage.directory.join("volumes.redb"));
        let settings = VolumeSettings::new(storage.root())
            .back_off(BackOff::new(Duration::from_millis(10), Duration::from_millis(200)))
            .mount_check_interval(Duration::from_millis(20))
            .inspect_interval(Duration::from_secs(1));
        let parts = Parts::new(store.expect("a store"), mounts.clone(), NoSecrets);
        let (volumes, run) = Volumes::open(parts, settings).await.expect("volumes");
        tokio::spawn(run);
        let endpoint = DriverEndpoint::from_path(storage.interceptor.socket()).expect("a path");
        let name = DriverName::new(DRIVER).expect("a name");
        volumes.driver_registered(name, endpoint, DriverPolicy::default()).await.expect("the volumes run");
        Self { volumes, mounts, pods: storage.pods() }
    }

    /// Publishes a volume at the target of a consumer.
    ///
    /// # Errors
    /// Returns the error of [`Volumes::publish`].
    pub async fn publish(&self, id: &str, name: &str) -> Result<(), PublishError> {
        let (volume, consumer) = self.specs(id, name);
        wait::within("a publish", self.volumes.publish(volume, consumer)).await.map(drop)
    }

    /// Publishes a volume in a task, without a bound on the wait.
    #[must_use]
    pub fn begin(&self, id: &str, name: &str) -> JoinHandle<Result<Published, PublishError>> {
        let (volumes, (volume, consumer)) = (self.volumes.clone(), self.specs(id, name));
        tokio::spawn(async move { volumes.publish(volume, consumer).await })
    }

    /// Unpublishes a volume from the target of a consumer.
    ///
    /// # Errors
    /// Returns the error of [`Volumes::unpublish`].
    pub async fn unpublish(&self, id: &str, name: &str) -> Result<(), UnpublishError> {
        wait::within("an unpublish", self.volumes.unpublish(&key(id), &consumer(name))).await
    }

    /// Repeats [`publish`](Self::publish) until it succeeds.
    pub async fn publish_at_last(&self, id: &str, name: &str) {
        wait::until("a publish succeeds", async || self.publish(id, name).await.ok()).await;
    }

    /// Repeats [`unpublish`](Self::unpublish) until it succeeds.
    pub async fn unpublish_at_last(&self, id: &str, name: &str) {
        wait::until("an unpublish succeeds", async || self.unpublish(id, name).await.ok()).await;
    }

    /// Returns the explanation of a volume's state; empty if the volume is not managed.
    ///
    /// # Panics
    /// If the task that runs the volumes has ended.
    pub async fn explain(&self, id: &str) -> String {
        let explained = self.volumes.explain(&key(id)).await.expect("the volumes run");
        explained.map_or_else(String::new, |explanation| explanation.to_string())
    }

    /// Waits until no volume is managed.
    ///
    /// # Panics
    /// If a volume is still managed after [`wait::SOON`].
    pub async fn wait_until_empty(&self) {
        wait::until("no volume is managed", async || {
            self.volumes.list().await.expect("the volumes run").is_empty().then_some(())
        })
        .await;
    }

    fn specs(&self, id: &str, name: &str) -> (Arc<VolumeSpec>, Arc<ConsumerSpec>) {
        let (access, mode) = (Access::filesystem(), AccessMode::SingleNodeMultiWriter);
        let volume = VolumeSpec::builder(key(id), access, mode).build().expect("a volume");
        let target = MountPath::new(self.target(name)).expect("a path");
        (Arc::new(volume), Arc::new(ConsumerSpec::new(consumer(name), target)))
    }

    fn target(&self, name: &str) -> PathBuf {
        Path::new(&self.pods).join(name).join("mount")
    }
}

/// Returns the key of a volume of the fixture's driver.
///
/// # Panics
/// If `id` is not a valid volume id.
#[must_use]
pub fn key(id: &str) -> VolumeKey {
    VolumeKey {
        driver: DriverName::new(DRIVER).expect("a name"),
        id: VolumeId::new(id).expect("a volume's id"),
    }
}

/// Parses a consumer id.
///
/// # Panics
/// If `name` is not a valid consumer id.
#[must_use]
pub fn consumer(name: &str) -> ConsumerId {
    ConsumerId::new(name).expect("a consumer's id")
}
