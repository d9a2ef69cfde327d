//! Publishes all volumes of a node again after a boot: with volume-manager, and with a bare loop of the same calls.

use std::path::Path;
use std::time::{Duration, Instant};

use csi_proto::csi::v1::node_client::NodeClient;
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;
use volume_manager::driver::{DriverPolicy, NoSecrets};
use volume_manager::mounts::MemoryMounts;
use volume_manager::node::{Parts, VolumeSettings, VolumeState, Volumes};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::{BootId, redb as store};

use super::recovery::records;
use super::status::reset_peak_memory;
use super::{DRIVER, Fixture, Measured, MountBackend, peak_memory, publish_request, stage_request, target};
use crate::load;

/// Concurrent calls to the driver: the default of volume-manager, which the bare loop also uses.
const CALLS: usize = 16;

/// The boot id after the boot, which differs from the kernel's in the records.
const NEXT_BOOT: &str = "0d7bb5ac-0e3d-4a3c-9d5e-6b7e4f0c1a2b";

/// The result of publishing all volumes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PublishedAll {
    /// Time until all volumes are published. With volume-manager it begins when the store is opened.
    pub elapsed: Duration,
    /// Calls to the driver.
    pub calls: u64,
    /// Resident bytes of this process before, including the driver.
    pub before_bytes: u64,
    /// Peak of the resident bytes of this process, including the driver and the mounts in memory.
    pub peak_bytes: u64,
}

/// Writes a store with the records of `count` published volumes to a new file.
///
/// # Errors
/// Returns an error if the store cannot be written.
pub async fn record_published(file: &Path, count: usize) -> Measured<()> {
    let fixture = Fixture::start(false).await?;
    let (changes, _) = records(&fixture, count).await?;
    store::open(file)?.commit(&changes)?;
    Ok(())
}

/// Opens a copy of the store in `file` after a boot, and waits until all its `count` volumes are published again. Each answer of
/// the driver takes at least `work`.
///
/// # Errors
/// Returns an error if the volumes cannot be opened.
pub async fn publish_after_boot(file: &Path, count: usize, work: Duration) -> Measured<PublishedAll> {
    let fixture = Fixture::start_working(work).await?;
    let copy = fixture.path("volumes.redb");
    std::fs::copy(file, &copy)?;
    let mounts = memory(&fixture)?;
    let before_bytes = reset_peak_memory()?;

    let began = Instant::now();
    let parts = Parts::new(store::open(&copy)?, mounts, NoSecrets).boot_id(NEXT_BOOT.parse::<BootId>()?);
    let settings = VolumeSettings::new(fixture.root().join("volumes")).calls_per_driver(CALLS);
    let (volumes, run) = Volumes::open(parts, settings).await?;
    let run = tokio::spawn(run);
    let endpoint = DriverEndpoint::from_path(fixture.socket())?;
    volumes.driver_registered(DRIVER.parse()?, endpoint, DriverPolicy::default()).await?;
    // The recorded state is reported until the driver is connected.
    loop {
        let counts = volumes.counts().await?;
        if counts.dormant == 0 && counts.states.get(&VolumeState::Published) == Some(&count) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let elapsed = began.elapsed();
    run.abort();
    Ok(PublishedAll { elapsed, calls: fixture.driver().calls(), before_bytes, peak_bytes: peak_memory()? })
}

/// Stages and publishes `count` volumes with as many concurrent calls as [`publish_after_boot`], on one connection, and keeps
/// no state.
///
/// # Errors
/// Returns the first error of a call.
pub async fn publish_bare(count: usize, work: Duration) -> Measured<PublishedAll> {
    let fixture = Fixture::start_working(work).await?;
    let mounts = memory(&fixture)?;
    let before_bytes = reset_peak_memory()?;

    let began = Instant::now();
    let client = NodeClient::new(load::connect(&format!("unix://{}", fixture.socket().display())).await?);
    let (root, mounts) = (fixture.root(), &mounts);
    let published = futures_util::stream::iter(0..count).map(|number| {
        let client = client.clone();
        async move { publish(client, mounts, root, number).await }
    });
    published.buffer_unordered(CALLS).try_collect::<()>().await?;
    let elapsed = began.elapsed();
    Ok(PublishedAll { elapsed, calls: fixture.driver().calls(), before_bytes, peak_bytes: peak_memory()? })
}

async fn publish(
    mut client: NodeClient<Channel>,
    mounts: &MemoryMounts,
    root: &Path,
    number: usize,
) -> Measured<()> {
    let (staging, target) = (root.join(format!("volumes/{number}/staging")), target(root, number));
    mounts.make_directory(&staging)?;
    client.node_stage_volume(stage_request(number, &staging)).await?;
    client.node_publish_volume(publish_request(number, &staging, &target)).await?;
    Ok(())
}

fn memory(fixture: &Fixture) -> Measured<MemoryMounts> {
    match fixture.driver().backend() {
        MountBackend::Memory { mounts, .. } => Ok(mounts.clone()),
        MountBackend::Linux => {
            Err("the driver mounts on Linux; expected a driver that mounts in memory".into())
        }
    }
}
