//! Three clients that mount and unmount a volume with the same driver on a real unix socket: volume-manager, and models of
//! kubelet and Mesos with the same costs as the originals.
//!
//! The models do less than the originals: they check no mount table, have no queue and search for no work. The models make
//! only the calls, the connections and the writes of the originals, so that a ratio to them does not favor
//! volume-manager.

mod backend;
mod boot;
mod driver;
mod fixture;
mod kubelet;
mod manager;
mod mesos;
mod recovery;
mod status;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_proto::csi::v1::volume_capability::{AccessMode as Mode, AccessType, MountVolume, access_mode};
use csi_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};
use futures_util::{StreamExt, TryStreamExt};
use volume_manager::driver::{Access, AccessMode, Attach, ConsumerSpec, MountPath, VolumeSpec};
use volume_manager::{ConsumerId, VolumeKey};

pub use backend::MountBackend;
pub use boot::{PublishedAll, publish_after_boot, publish_bare, record_published};
pub use driver::CountingDriver;
pub use fixture::Fixture;
pub use kubelet::Kubelet;
pub use manager::Manager;
pub use mesos::Mesos;
pub use recovery::{Recovered, Salvage, recover, salvage};
pub use status::{peak_memory, resident_memory};

/// The result of a measurement. Any error ends the measurement.
pub type Measured<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The name of the driver.
pub const DRIVER: &str = "counting.csi.edge";

/// A client that mounts volumes, which are identified by a number.
#[allow(async_fn_in_trait, reason = "awaited where it is called, on one thread")]
pub trait VolumeClient {
    /// Mounts a new volume at its target.
    async fn mount(&self, number: usize) -> Measured<()>;

    /// Unmounts a volume, and removes all of its state.
    async fn unmount(&self, number: usize) -> Measured<()>;
}

/// Mounts `count` volumes, `in_flight` of them concurrently, and returns the elapsed time.
///
/// # Errors
/// Returns the first error.
pub async fn mount_all(client: &impl VolumeClient, count: usize, in_flight: usize) -> Measured<Duration> {
    let started = Instant::now();
    let mounts = futures_util::stream::iter(0..count).map(|number| client.mount(number));
    mounts.buffer_unordered(in_flight).try_collect::<()>().await?;
    Ok(started.elapsed())
}

/// Unmounts `count` volumes, `in_flight` of them concurrently, and returns the elapsed time.
///
/// # Errors
/// Returns the first error.
pub async fn unmount_all(client: &impl VolumeClient, count: usize, in_flight: usize) -> Measured<Duration> {
    let started = Instant::now();
    let unmounts = futures_util::stream::iter(0..count).map(|number| client.unmount(number));
    unmounts.buffer_unordered(in_flight).try_collect::<()>().await?;
    Ok(started.elapsed())
}

fn volume_id(number: usize) -> String {
    format!("0001-0024-edge-site-0042-pvc-{number:08}")
}

fn target(root: &Path, number: usize) -> PathBuf {
    root.join(format!("pods/pod-{number}/volumes/data/mount"))
}

fn spec(number: usize, attach: Attach) -> Measured<Arc<VolumeSpec>> {
    let key = VolumeKey { driver: DRIVER.parse()?, id: volume_id(number).parse()? };
    let builder = VolumeSpec::builder(key, Access::filesystem(), AccessMode::SingleNodeWriter);
    let context = [("pool", "edge-site-0042"), ("kind", "replicated-nvme"), ("encrypted", "true")];
    Ok(Arc::new(builder.attach(attach).volume_context(context).build()?))
}

fn consumer(root: &Path, number: usize) -> Measured<Arc<ConsumerSpec>> {
    let path = target(root, number);
    let path = MountPath::new(path.to_str().ok_or("the directory's name is not UTF-8")?)?;
    Ok(Arc::new(ConsumerSpec::new(ConsumerId::new(&format!("pod-{number}"))?, path)))
}

/// Returns the volume capability that both models use, equal to [`spec`].
fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(Mode { mode: access_mode::Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn context() -> std::collections::BTreeMap<String, String> {
    let context = [("pool", "edge-site-0042"), ("kind", "replicated-nvme"), ("encrypted", "true")];
    context.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn stage_request(number: usize, staging: &Path) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: volume_id(number),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability()),
        volume_context: context(),
        ..NodeStageVolumeRequest::default()
    }
}

fn publish_request(number: usize, staging: &Path, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume_id(number),
        staging_target_path: staging.display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability()),
        volume_context: context(),
        ..NodePublishVolumeRequest::default()
    }
}
