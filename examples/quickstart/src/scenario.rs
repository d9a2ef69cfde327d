//! The steps of a volume as Kubernetes calls them: the cloud's calls on the proxy's socket, the node's on the driver's own.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::node_client::NodeClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::parts::Parts;
use super::steps::{CLOUD, NODE, StepFailed, StepTable};

/// The time limit of a call, as with sidecars that run with the recommended `--timeout=60s`.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum wait for the driver to be reachable.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

const PROBE_INTERVAL: Duration = Duration::from_millis(5);

const MIB: i64 = 1 << 20;

const FILE: &str = "hello.txt";

const CONTENT: &[u8] = b"written through the mount\n";

/// The clients of the steps.
pub(super) struct Scenario<'a> {
    identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    node_id: String,
    parts: &'a Parts,
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

fn capability() -> csi::VolumeCapability {
    let mode = csi::volume_capability::access_mode::Mode::SingleNodeWriter.into();
    csi::VolumeCapability {
        access_mode: Some(csi::volume_capability::AccessMode { mode }),
        access_type: Some(csi::volume_capability::AccessType::Mount(
            csi::volume_capability::MountVolume::default(),
        )),
    }
}

fn create(name: &str, source: Option<csi::VolumeContentSource>) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 16 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        volume_content_source: source,
        ..Default::default()
    }
}

impl<'a> Scenario<'a> {
    /// Creates the clients, which connect at their first call.
    pub(super) fn new(parts: &'a Parts) -> Self {
        Self {
            identity: IdentityClient::new(parts.cloud.clone()),
            controller: ControllerClient::new(parts.cloud.clone()),
            node: NodeClient::new(parts.node.clone()),
            node_id: String::new(),
            parts,
        }
    }

    fn staging_path(&self, volume: &csi::Volume) -> String {
        self.parts.path(&format!("kubelet/staging/{}", volume.volume_id))
    }

    fn target_path(&self, volume: &csi::Volume) -> String {
        self.parts.path(&format!("kubelet/pods/{}/mount", volume.volume_id))
    }

    /// Runs all steps.
    pub(super) async fn run(&mut self, table: &mut StepTable) -> Result<(), StepFailed> {
        self.identify(table).await?;
        let first = self.create(table, "CreateVolume", "pvc-1", None).await?;
        self.mount(table, &first).await?;
        let file = format!("{}/{FILE}", self.target_path(&first));
        let written = |(): &()| format!("{} bytes through the mount", CONTENT.len());
        table.step(NODE, "write a file", async { fs::write(&file, CONTENT) }, written).await?;

        let second = self.cut_in_mid_call(table).await?;
        self.delete_volume(table, second).await?;

        let snapshot_id = self.snapshot(table, &first.volume_id).await?;
        let source = csi::volume_content_source::SnapshotSource { snapshot_id: snapshot_id.clone() };
        let source =
            csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Snapshot(source)) };
        let restored = self.create(table, "CreateVolume from the snapshot", "pvc-3", Some(source)).await?;
        self.mount(table, &restored).await?;
        self.expand(table, &restored).await?;
        let file = format!("{}/{FILE}", self.target_path(&restored));
        let read = async {
            match fs::read(&file)? {
                bytes if bytes == CONTENT => Ok(()),
                bytes => Err(io::Error::other(format!(
                    "read {} bytes that differ from the written ones",
                    bytes.len()
                ))),
            }
        };
        table.step(NODE, "read the file back", read, |()| "same bytes").await?;

        for volume in [restored, first] {
            self.unmount(table, &volume).await?;
            self.delete_volume(table, volume).await?;
        }
        let request = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        let delete = self.controller.delete_snapshot(timed(request));
        table.step(CLOUD, "DeleteSnapshot", delete, |_| "deleted").await.map(drop)
    }

    async fn identify(&mut self, table: &mut StepTable) -> Result<(), StepFailed> {
        let show = |probes: &u32| format!("ready after {probes} probes");
        table.step(CLOUD, "Probe", ready(self.identity.clone()), show).await?;
        let info = self.identity.get_plugin_info(timed(csi::GetPluginInfoRequest {}));
        let show = |info: &Response<csi::GetPluginInfoResponse>| info.get_ref().name.clone();
        table.step(CLOUD, "GetPluginInfo", info, show).await?;
        let info = self.node.node_get_info(timed(csi::NodeGetInfoRequest {}));
        let show = |info: &Response<csi::NodeGetInfoResponse>| format!("this is {}", info.get_ref().node_id);
        self.node_id = table.step(NODE, "NodeGetInfo", info, show).await?.into_inner().node_id;
        Ok(())
    }

    async fn create(
        &mut self,
        table: &mut StepTable,
        step: &'static str,
        name: &str,
        source: Option<csi::VolumeContentSource>,
    ) -> Result<csi::Volume, StepFailed> {
        let answer = async { volume(self.controller.create_volume(timed(create(name, source))).await?) };
        let show = |made: &csi::Volume| format!("{} of {} MiB", made.volume_id, made.capacity_bytes / MIB);
        table.step(CLOUD, step, answer, show).await
    }

    async fn mount(&mut self, table: &mut StepTable, volume: &csi::Volume) -> Result<(), StepFailed> {
        let (volume_id, volume_context) = (volume.volume_id.clone(), volume.volume_context.clone());
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: self.node_id.clone(),
            volume_capability: Some(capability()),
            volume_context: volume_context.clone(),
            ..Default::default()
        };
        let publish = self.controller.controller_publish_volume(timed(request));
        let published = table.step(CLOUD, "ControllerPublishVolume", publish, |_| "attached").await?;
        let publish_context = published.into_inner().publish_context;

        let (staging_target_path, target_path) = (self.staging_path(volume), self.target_path(volume));
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume_id.clone(),
            publish_context: publish_context.clone(),
            staging_target_path: staging_target_path.clone(),
            volume_capability: Some(capability()),
            volume_context: volume_context.clone(),
            ..Default::default()
        };
        let stage = async {
            fs::create_dir_all(&staging_target_path)?;
            self.node.node_stage_volume(timed(request)).await
        };
        table.step(NODE, "NodeStageVolume", stage, |_| "staged").await?;

        let directory = Path::new(&target_path).parent().map(Path::to_owned);
        let request = csi::NodePublishVolumeRequest {
            volume_id,
            publish_context,
            staging_target_path,
            target_path,
            volume_capability: Some(capability()),
            volume_context,
            ..Default::default()
        };
        let publish = async {
            directory.map_or(Ok(()), fs::create_dir_all)?;
            self.node.node_publish_volume(timed(request)).await
        };
        table.step(NODE, "NodePublishVolume", publish, |_| "mounted for the pod").await.map(drop)
    }

    /// Cuts the link during a CreateVolume: the call returns over the next link, and a retry returns the same volume.
    async fn cut_in_mid_call(&mut self, table: &mut StepTable) -> Result<csi::Volume, StepFailed> {
        let request = create("pvc-2", None);
        let (mut caller, cut_off) = (self.controller.clone(), request.clone());
        let cut = async {
            self.parts.gate.close();
            let call = tokio::spawn(async move { caller.create_volume(timed(cut_off)).await });
            self.parts.gate.holds_a_call().await;
            let cut_at = Instant::now();
            self.parts.link.cut();
            self.parts.gate.open();
            let answer = call.await.map_err(|cause| cause.to_string())?;
            let made = answer.and_then(volume).map_err(|status| status.to_string())?;
            Ok::<_, String>((made, cut_at.elapsed()))
        };
        let show = |(made, after): &(csi::Volume, Duration)| {
            format!(
                "CreateVolume is answered over the next link, {:.0} ms after the cut: {}",
                after.as_secs_f64() * 1_000.0,
                made.volume_id
            )
        };
        let (made, _) = table.step(CLOUD, "cut the link in mid-call", cut, show).await?;
        let again = async {
            let again = volume(self.controller.create_volume(timed(request)).await?)?;
            if again.volume_id == made.volume_id {
                Ok(again)
            } else {
                Err(Status::internal(format!(
                    "the retry created {} besides {}",
                    again.volume_id, made.volume_id
                )))
            }
        };
        let show = |again: &csi::Volume| format!("the same {}", again.volume_id);
        table.step(CLOUD, "CreateVolume again", again, show).await
    }

    async fn snapshot(&mut self, table: &mut StepTable, volume_id: &str) -> Result<String, StepFailed> {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume_id.to_owned(),
            name: "snapshot-1".to_owned(),
            ..Default::default()
        };
        let answer = async {
            let answer = self.controller.create_snapshot(timed(request)).await?.into_inner();
            let snapshot = answer.snapshot.ok_or_else(|| Status::internal("the answer has no snapshot"))?;
            if snapshot.ready_to_use {
                Ok(snapshot.snapshot_id)
            } else {
                Err(Status::internal("the snapshot is not ready to use"))
            }
        };
        table.step(CLOUD, "CreateSnapshot", answer, Clone::clone).await
    }

    async fn expand(&mut self, table: &mut StepTable, volume: &csi::Volume) -> Result<(), StepFailed> {
        let capacity_range = Some(csi::CapacityRange { required_bytes: 32 * MIB, limit_bytes: 0 });
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.volume_id.clone(),
            capacity_range,
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let expand = self.controller.controller_expand_volume(timed(request));
        let show = |answer: &Response<csi::ControllerExpandVolumeResponse>| {
            format!("{} MiB", answer.get_ref().capacity_bytes / MIB)
        };
        // Volumes of this kind are directories: the node has nothing to do.
        table.step(CLOUD, "ControllerExpandVolume", expand, show).await.map(drop)
    }

    async fn unmount(&mut self, table: &mut StepTable, volume: &csi::Volume) -> Result<(), StepFailed> {
        let volume_id = volume.volume_id.clone();
        let target_path = self.target_path(volume);
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path };
        let unpublish = self.node.node_unpublish_volume(timed(request));
        table.step(NODE, "NodeUnpublishVolume", unpublish, |_| "unmounted").await?;
        let staging_target_path = self.staging_path(volume);
        let request = csi::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path };
        let unstage = self.node.node_unstage_volume(timed(request));
        table.step(NODE, "NodeUnstageVolume", unstage, |_| "unstaged").await?;
        let node_id = self.node_id.clone();
        let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        let unpublish = self.controller.controller_unpublish_volume(timed(request));
        table.step(CLOUD, "ControllerUnpublishVolume", unpublish, |_| "detached").await.map(drop)
    }

    async fn delete_volume(&mut self, table: &mut StepTable, volume: csi::Volume) -> Result<(), StepFailed> {
        let request = csi::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
        let delete = self.controller.delete_volume(timed(request));
        table.step(CLOUD, "DeleteVolume", delete, |_| "deleted").await.map(drop)
    }
}

fn volume(answer: Response<csi::CreateVolumeResponse>) -> Result<csi::Volume, Status> {
    answer.into_inner().volume.ok_or_else(|| Status::internal("the answer has no volume"))
}

/// Calls Probe until the plugin is ready, and returns the number of calls.
async fn ready(mut identity: IdentityClient<Channel>) -> Result<u32, String> {
    let since = Instant::now();
    for probes in 1.. {
        let answer =
            identity.probe(timed(csi::ProbeRequest {})).await.map_err(|status| status.to_string())?;
        if answer.into_inner().ready.unwrap_or(true) {
            return Ok(probes);
        }
        if since.elapsed() > READY_TIMEOUT {
            break;
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
    Err(format!("not ready within {} s", READY_TIMEOUT.as_secs()))
}
