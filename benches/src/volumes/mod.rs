//! Three ways to mount and unmount a volume with one and the same driver on a real unix socket: that of volume-manager, and
//! those of kubelet and Mesos as far as their cost goes.
//!
//! The baselines do less than what they stand for: no check of a mount table, no queue, no search for work. They make the
//! calls, the connections and the writes that the originals make, and nothing else, so that a ratio to them is not
//! flattered.

mod driver;
mod ground;
mod kubelet;
mod mesos;
mod ours;
mod recovery;
mod stand;
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

pub use driver::ScriptedDriver;
pub use ground::Ground;
pub use kubelet::Kubelet;
pub use mesos::Mesos;
pub use ours::Ours;
pub use recovery::{Recovered, Salvage, recover, salvage};
pub use stand::Stand;
pub use status::{peak_memory, resident_memory};

/// Whatever goes wrong ends the measurement.
pub type Measured<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What the driver is called.
pub const DRIVER: &str = "scripted.csi.edge";

/// A way to mount volumes, which are told apart by a number.
#[allow(async_fn_in_trait, reason = "awaited where it is called, on one thread")]
pub trait Way {
    /// Brings a volume to its target, from nothing.
    async fn mount(&self, number: usize) -> Measured<()>;

    /// Takes it away, until nothing is left.
    async fn unmount(&self, number: usize) -> Measured<()>;
}

/// Mounts the volumes 0 to `count`, so many at the same time, and answers how long it took.
///
/// # Errors
/// The first that fails.
pub async fn mount_all(way: &impl Way, count: usize, in_flight: usize) -> Measured<Duration> {
    let started = Instant::now();
    let mounts = futures_util::stream::iter(0..count).map(|number| way.mount(number));
    mounts.buffer_unordered(in_flight).try_collect::<()>().await?;
    Ok(started.elapsed())
}

/// Unmounts the volumes 0 to `count`, so many at the same time, and answers how long it took.
///
/// # Errors
/// The first that fails.
pub async fn unmount_all(way: &impl Way, count: usize, in_flight: usize) -> Measured<Duration> {
    let started = Instant::now();
    let unmounts = futures_util::stream::iter(0..count).map(|number| way.unmount(number));
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
    let path = MountPath::new(path.to_str().ok_or("the directory's name is no UTF-8")?)?;
    Ok(Arc::new(ConsumerSpec::new(ConsumerId::new(&format!("pod-{number}"))?, path)))
}

/// What both baselines say of a volume, as [`spec`] says it for ours.
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
