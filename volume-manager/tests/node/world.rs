//! A node with its disk, its mounts and its driver, and the process that runs the volumes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::VolumeId;
use tokio::task::JoinHandle;
use volume_manager::driver::{
    Access, AccessMode, Attach, ConsumerSpec, MountPath, NoSecrets, VolumeSpec, VolumeSpecBuilder,
};
use volume_manager::mounts::MemoryMounts;
use volume_manager::node::{
    Changes, Parts, PublishError, Published, VolumeChange as Happened, VolumeSettings, Volumes, WatchEvent,
};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::memory::MemoryDisk;
use volume_manager::store::{BootId, RowTable, RowWrite, Rows, Store, StoreError};
use volume_manager::{ConsumerId, VolumeKey};

use super::driver::{Driver, futures_table};

pub(crate) const ROOT: &str = "/volumes";

/// The state that survives a power cut, and the current process.
pub(crate) struct World {
    pub(crate) disk: MemoryDisk,
    pub(crate) mounts: MemoryMounts,
    pub(crate) driver: Driver,
    boot: u64,
    pub(crate) settings: VolumeSettings,
    run: Option<JoinHandle<()>>,
}

/// Rows that count their writes as effects and stop at a crash.
struct CrashRows {
    inner: MemoryDisk,
    driver: Driver,
    process: u64,
}

impl CrashRows {
    fn is_crashed(&self) -> bool {
        *self.driver.process.borrow() != self.process
    }
}

impl Rows for CrashRows {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(table, key)
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.inner.scan(table, visit)
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        // After a crash, results are dropped.
        if self.is_crashed() || !self.driver.effect() {
            return Ok(());
        }
        self.inner.write(batch)?;
        self.driver.effect();
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.inner.reopen()
    }
}

pub(crate) fn boot(number: u64) -> BootId {
    format!("00000000-0000-0000-0000-{number:012x}").parse().unwrap()
}

impl World {
    pub(crate) fn new() -> Self {
        let (disk, mounts) = (MemoryDisk::default(), MemoryMounts::new());
        let driver = Driver::new("csi.example.org", mounts.clone(), disk.clone());
        Self { disk, mounts, driver, boot: 1, settings: VolumeSettings::new(ROOT), run: None }
    }

    pub(crate) fn parts(&self) -> Parts {
        let process = *self.driver.process.borrow();
        let rows = CrashRows { inner: self.disk.clone(), driver: self.driver.clone(), process };
        self.parts_with(Store::new(rows))
    }

    pub(crate) fn parts_with(&self, store: Store) -> Parts {
        Parts::new(store, self.mounts.clone(), NoSecrets)
            .drivers(self.driver.clone())
            .boot_id(boot(self.boot))
    }

    /// Starts the process and registers the driver.
    pub(crate) async fn start(&mut self) -> Volumes {
        let volumes = self.start_without_driver(self.parts()).await;
        self.register(&volumes).await;
        volumes
    }

    pub(crate) async fn start_without_driver(&mut self, parts: Parts) -> Volumes {
        let (volumes, run) = Volumes::open(parts, self.settings.clone()).await.unwrap();
        self.run = Some(tokio::spawn(run));
        volumes
    }

    pub(crate) async fn register(&self, volumes: &Volumes) {
        let endpoint = DriverEndpoint::from_path("/csi/csi.sock").unwrap();
        let (name, policy) = (self.driver.name.clone(), self.driver.policy.clone());
        volumes.driver_registered(name, endpoint, policy).await.unwrap();
    }

    /// Ends the process like a crash.
    pub(crate) async fn kill(&mut self) {
        if let Some(run) = self.run.take() {
            run.abort();
            let _ = run.await;
        }
        // A running commit has ended.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        self.driver.process.send_modify(|process| *process += 1);
        self.driver.crashed.send_replace(false);
        self.driver.crash_at(None);
        self.driver.redeploy();
    }

    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
        self.driver.reboot();
    }

    /// Lets the next process believe in a reboot, although the mounts are left.
    pub(crate) fn change_boot_id(&mut self) {
        self.boot += 1;
    }

    /// Returns all mount points below a directory.
    pub(crate) fn mounted(&self, below: &str) -> Vec<String> {
        let table = futures_table(&self.mounts);
        let mut mounted: Vec<_> = table
            .iter()
            .map(|mount| mount.mount_point.to_str().unwrap().to_owned())
            .filter(|point| point.starts_with(below))
            .collect();
        mounted.sort();
        mounted
    }

    pub(crate) fn records(&self) -> usize {
        self.disk.open().load().unwrap().records.len()
    }

    /// Asserts that nothing of any volume remains: no mount, no record, no directory.
    pub(crate) async fn assert_clean(&self, about: &str) {
        use volume_manager::mounts::{Mounts as _, PathState};
        assert_eq!(self.mounted("/pods"), Vec::<String>::new(), "{about}");
        assert_eq!(self.mounted(ROOT), Vec::<String>::new(), "{about}");
        assert_eq!(self.records(), 0, "{about}");
        for path in ["/pods/a/mount", "/pods/b/mount"] {
            let state = self.mounts.inspect(Path::new(path)).await.unwrap().state;
            assert_eq!(state, PathState::Missing, "{about}: {path}");
        }
    }
}

pub(crate) fn key(id: &str) -> VolumeKey {
    VolumeKey { driver: "csi.example.org".parse().unwrap(), id: VolumeId::new(id).unwrap() }
}

pub(crate) fn builder(id: &str) -> VolumeSpecBuilder {
    VolumeSpec::builder(key(id), Access::filesystem(), AccessMode::SingleNodeWriter)
}

/// Creates a volume that is attached, staged and published.
pub(crate) fn volume(id: &str) -> Arc<VolumeSpec> {
    Arc::new(builder(id).build().unwrap())
}

/// Creates a volume that needs no attach.
pub(crate) fn unattached(id: &str) -> Arc<VolumeSpec> {
    Arc::new(builder(id).attach(Attach::NotRequired).build().unwrap())
}

pub(crate) fn id(consumer: &str) -> ConsumerId {
    ConsumerId::new(consumer).unwrap()
}

pub(crate) fn consumer(name: &str) -> Arc<ConsumerSpec> {
    at(name, &format!("/pods/{name}/mount"))
}

pub(crate) fn at(name: &str, target: &str) -> Arc<ConsumerSpec> {
    Arc::new(ConsumerSpec::new(id(name), MountPath::new(target).unwrap()))
}

/// A duration longer than any call and back-off of a test, in virtual time.
pub(crate) const LONG: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn publish(
    volumes: &Volumes,
    spec: &Arc<VolumeSpec>,
    name: &str,
) -> Result<Published, PublishError> {
    let publish = volumes.publish(Arc::clone(spec), consumer(name));
    tokio::time::timeout(LONG, publish).await.expect("published within a day")
}

/// Retries a publish until it succeeds. Errors are returned to the caller, and the volume remains desired.
pub(crate) async fn publish_at_last(volumes: &Volumes, spec: &Arc<VolumeSpec>, name: &str) -> Published {
    let mut last = None;
    for _ in 0..200 {
        match publish(volumes, spec, name).await {
            Ok(published) => return published,
            Err(error) => last = Some(error),
        }
    }
    panic!("not published: {last:?}")
}

pub(crate) async fn unpublish_at_last(volumes: &Volumes, id_of: &str, name: &str) {
    let mut last = None;
    for _ in 0..200 {
        let (key, consumer) = (key(id_of), id(name));
        let unpublish = volumes.unpublish(&key, &consumer);
        match tokio::time::timeout(LONG, unpublish).await.expect("unpublished within a day") {
            Ok(()) => return,
            Err(error) => last = Some(error),
        }
    }
    panic!("not unpublished: {last:?}")
}

/// Returns the next change, which must occur within a day.
pub(crate) async fn next(changes: &mut Changes) -> Happened {
    let watched = tokio::time::timeout(LONG, changes.next()).await.expect("something happens within a day");
    match watched {
        Some(WatchEvent::Change(change)) => change,
        other => panic!("{other:?}"),
    }
}

/// Waits until all volumes are removed.
pub(crate) async fn removed(volumes: &Volumes) {
    let mut changes = volumes.watch();
    while !volumes.list().await.unwrap().is_empty() {
        let waited = tokio::time::timeout(LONG, changes.next()).await;
        if waited.is_err() {
            for key in volumes.list().await.unwrap() {
                eprintln!("{}", volumes.explain(&key).await.unwrap().unwrap());
            }
            panic!("nothing happens, and volumes are left");
        }
    }
}
