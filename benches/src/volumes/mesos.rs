//! Mounts as Mesos does: the state of a volume is written to a separate file on disk before and after each call.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::node_client::NodeClient;
use csi_proto::csi::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use prost::Message;
use tonic::transport::Channel;

use super::{
    CountingDriver, Measured, VolumeClient, capability, context, publish_request, stage_request, target,
    volume_id,
};
use crate::load;

/// Attaches and mounts as Mesos does, on one connection.
#[derive(Debug)]
pub struct Mesos {
    driver: CountingDriver,
    channel: Channel,
    root: PathBuf,
    files: PathBuf,
    checkpoints: AtomicU64,
}

impl Mesos {
    /// Creates a client with staging and target paths below `root`, and its own files in `files`.
    ///
    /// # Errors
    /// Returns an error if `files` cannot be created or the driver cannot be reached.
    pub async fn new(driver: &CountingDriver, socket: &Path, root: &Path, files: &Path) -> Measured<Self> {
        fs::create_dir_all(files)?;
        let channel = load::connect(&format!("unix://{}", socket.display())).await?;
        let (root, files) = (root.to_owned(), files.to_owned());
        Ok(Self { driver: driver.clone(), channel, root, files, checkpoints: AtomicU64::new(0) })
    }

    /// Returns the number of written checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Relaxed)
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    /// Writes the state of a volume to a temporary name, syncs it, renames it, and syncs the directory.
    async fn checkpoint(&self, number: usize, state: &str) -> Measured<()> {
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        let directory = self.files.join(number.to_string());
        // The file has as many fields as a record of volume-manager.
        let mut bytes = state.as_bytes().to_vec();
        bytes.extend(stage_request(number, &self.staging(number)).encode_to_vec());
        bytes.extend(publish_request(number, &self.staging(number), &self.target(number)).encode_to_vec());
        tokio::task::spawn_blocking(move || write(&directory, &bytes)).await??;
        Ok(())
    }

    fn staging(&self, number: usize) -> PathBuf {
        self.root.join(format!("mesos/{number}/staging"))
    }

    fn target(&self, number: usize) -> PathBuf {
        target(&self.root, number)
    }
}

fn write(directory: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let temporary = directory.join("volume.state.tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, directory.join("volume.state"))?;
    File::open(directory)?.sync_all()
}

impl VolumeClient for Mesos {
    async fn mount(&self, number: usize) -> Measured<()> {
        let (staging, target) = (self.staging(number), self.target(number));
        self.checkpoint(number, "CONTROLLER_PUBLISH").await?;
        let attach = ControllerPublishVolumeRequest {
            volume_id: volume_id(number),
            node_id: "edge-1".into(),
            volume_capability: Some(capability()),
            volume_context: context(),
            ..ControllerPublishVolumeRequest::default()
        };
        let attached = self.controller().controller_publish_volume(attach).await?.into_inner();
        self.checkpoint(number, "NODE_READY").await?;
        self.driver.backend().make_directory(&staging)?;
        self.checkpoint(number, "NODE_STAGE").await?;
        let publish_context = attached.publish_context;
        let stage = NodeStageVolumeRequest {
            publish_context: publish_context.clone(),
            ..stage_request(number, &staging)
        };
        self.node().node_stage_volume(stage).await?;
        self.checkpoint(number, "VOL_READY").await?;
        self.checkpoint(number, "NODE_PUBLISH").await?;
        let publish =
            NodePublishVolumeRequest { publish_context, ..publish_request(number, &staging, &target) };
        self.node().node_publish_volume(publish).await?;
        self.checkpoint(number, "PUBLISHED").await
    }

    async fn unmount(&self, number: usize) -> Measured<()> {
        self.checkpoint(number, "NODE_UNPUBLISH").await?;
        let unpublish = NodeUnpublishVolumeRequest {
            volume_id: volume_id(number),
            target_path: self.target(number).display().to_string(),
        };
        self.node().node_unpublish_volume(unpublish).await?;
        self.checkpoint(number, "VOL_READY").await?;
        self.checkpoint(number, "NODE_UNSTAGE").await?;
        let unstage = NodeUnstageVolumeRequest {
            volume_id: volume_id(number),
            staging_target_path: self.staging(number).display().to_string(),
        };
        self.node().node_unstage_volume(unstage).await?;
        self.checkpoint(number, "NODE_READY").await?;
        self.checkpoint(number, "CONTROLLER_UNPUBLISH").await?;
        let detach = ControllerUnpublishVolumeRequest {
            volume_id: volume_id(number),
            node_id: "edge-1".into(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.controller().controller_unpublish_volume(detach).await?;
        self.checkpoint(number, "CREATED").await
    }
}
