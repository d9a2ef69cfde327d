//! Mounts as kubelet does: eight calls per mount, each on a separate connection, and a file written in place.

use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::csi::v1::node_client::NodeClient;
use csi_proto::csi::v1::{NodeGetCapabilitiesRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use tonic::transport::Channel;

use super::{CountingDriver, Measured, VolumeClient, publish_request, stage_request, target, volume_id};
use crate::load;

/// The number of capability queries that kubelet sends before it stages, and again before it publishes.
const CAPABILITY_QUERIES: usize = 3;

/// Mounts as kubelet does, but without checks of the mount table and without an API server.
#[derive(Debug)]
pub struct Kubelet {
    driver: CountingDriver,
    endpoint: String,
    root: PathBuf,
    files: PathBuf,
}

impl Kubelet {
    /// Creates a client with staging and target paths below `root`, and its own files in `files`.
    ///
    /// # Errors
    /// Returns an error if `files` cannot be created.
    pub fn new(driver: &CountingDriver, socket: &Path, root: &Path, files: &Path) -> Measured<Self> {
        fs::create_dir_all(files)?;
        let endpoint = format!("unix://{}", socket.display());
        Ok(Self { driver: driver.clone(), endpoint, root: root.to_owned(), files: files.to_owned() })
    }

    async fn client(&self) -> Measured<NodeClient<Channel>> {
        Ok(NodeClient::new(load::connect(&self.endpoint).await?))
    }

    async fn query_capabilities(&self) -> Measured<()> {
        for _ in 0..CAPABILITY_QUERIES {
            self.client().await?.node_get_capabilities(NodeGetCapabilitiesRequest {}).await?;
        }
        Ok(())
    }

    /// Writes `vol_data.json`: truncates and rewrites it, without a sync.
    fn write_volume_data(&self, number: usize, step: &str) -> Measured<()> {
        let path = self.files.join(format!("{number}-{step}.json"));
        let data = serde_json::json!({
            "attachmentID": format!("csi-{number:064x}"),
            "driverName": super::DRIVER,
            "nodeName": "edge-1",
            "specVolID": volume_id(number),
            "volumeHandle": volume_id(number),
            "volumeLifecycleMode": "Persistent",
        });
        Ok(fs::write(path, data.to_string())?)
    }

    fn staging(&self, number: usize) -> PathBuf {
        self.root.join(format!("kubelet/{number}/globalmount"))
    }
}

impl VolumeClient for Kubelet {
    async fn mount(&self, number: usize) -> Measured<()> {
        let (staging, target) = (self.staging(number), target(&self.root, number));
        self.query_capabilities().await?;
        self.driver.backend().make_directory(&staging)?;
        self.write_volume_data(number, "staging")?;
        self.client().await?.node_stage_volume(stage_request(number, &staging)).await?;
        self.query_capabilities().await?;
        self.write_volume_data(number, "target")?;
        self.client().await?.node_publish_volume(publish_request(number, &staging, &target)).await?;
        Ok(())
    }

    async fn unmount(&self, number: usize) -> Measured<()> {
        let unpublish = NodeUnpublishVolumeRequest {
            volume_id: volume_id(number),
            target_path: target(&self.root, number).display().to_string(),
        };
        self.client().await?.node_unpublish_volume(unpublish).await?;
        let unstage = NodeUnstageVolumeRequest {
            volume_id: volume_id(number),
            staging_target_path: self.staging(number).display().to_string(),
        };
        self.client().await?.node_unstage_volume(unstage).await?;
        Ok(())
    }
}
