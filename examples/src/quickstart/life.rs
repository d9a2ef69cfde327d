//! A volume's life as Kubernetes would lead it: the cloud's calls on the proxy's socket, the node's on the driver's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::node_client::NodeClient;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::parts::Parts;
use super::story::{Place, StepFailed, Story};

/// What the sidecars give a call; `--timeout=60s` is what they should be run with.
const CALL_TIME: Duration = Duration::from_secs(60);

/// Longest wait for the driver to be reachable.
const READY_WITHIN: Duration = Duration::from_secs(20);

const PROBE_EVERY: Duration = Duration::from_millis(5);

const MIB: i64 = 1 << 20;

const FILE: &str = "hello.txt";

const CONTENT: &[u8] = b"written through the mount\n";

/// A volume that is on its way to a pod.
#[derive(Debug)]
struct Mounted {
    volume: csi::Volume,
    staging: PathBuf,
    target: PathBuf,
}

/// The clients of one life.
#[derive(Debug)]
pub(super) struct Life<'a> {
    identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    node_id: String,
    parts: &'a Parts,
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIME);
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

impl<'a> Life<'a> {
    /// Connects to the sockets of the parts when the first call is made.
    pub(super) fn new(parts: &'a Parts) -> Self {
        let (cloud, node) = (super::channel(&parts.cloud_socket()), super::channel(&parts.node_socket()));
        Self {
            identity: IdentityClient::new(cloud.clone()),
            controller: ControllerClient::new(cloud),
            node: NodeClient::new(node),
            node_id: String::new(),
            parts,
        }
    }

    /// The whole life, step by step.
    pub(super) async fn lead(&mut self, story: &mut Story) -> Result<(), StepFailed> {
        self.meet(story).await?;
        let first = self.create(story, "CreateVolume", "pvc-1", None).await?;
        let first = self.mount(story, first).await?;
        let file = first.target.join(FILE);
        story
            .step(Place::Node, "write a file", async { fs::write(&file, CONTENT) }, |()| {
                format!("{} bytes through the mount", CONTENT.len())
            })
            .await?;

        let second = self.cut_in_mid_call(story).await?;
        self.delete_volume(story, second).await?;

        let snapshot = self.snapshot(story, &first.volume.volume_id).await?;
        let source = csi::volume_content_source::SnapshotSource { snapshot_id: snapshot.clone() };
        let source =
            csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Snapshot(source)) };
        let restored = self.create(story, "CreateVolume from the snapshot", "pvc-3", Some(source)).await?;
        let restored = self.mount(story, restored).await?;
        self.expand(story, &restored).await?;
        story.step(Place::Node, "read the file back", read_back(&restored.target), |()| "same bytes").await?;

        for mounted in [restored, first] {
            let volume = self.unmount(story, mounted).await?;
            self.delete_volume(story, volume).await?;
        }
        let request = csi::DeleteSnapshotRequest { snapshot_id: snapshot, ..Default::default() };
        story
            .step(Place::Cloud, "DeleteSnapshot", self.controller.delete_snapshot(timed(request)), |_| "gone")
            .await?;
        Ok(())
    }

    async fn meet(&mut self, story: &mut Story) -> Result<(), StepFailed> {
        story
            .step(Place::Cloud, "Probe", ready(self.identity.clone()), |probes| {
                format!("ready after {probes} probes")
            })
            .await?;
        let info = self.identity.get_plugin_info(timed(csi::GetPluginInfoRequest {}));
        story
            .step(Place::Cloud, "GetPluginInfo", info, |info| {
                let info = info.get_ref();
                format!("{} {}", info.name, info.vendor_version)
            })
            .await?;
        let info = self.node.node_get_info(timed(csi::NodeGetInfoRequest {}));
        let info = story
            .step(Place::Node, "NodeGetInfo", info, |info| format!("this is {}", info.get_ref().node_id))
            .await?;
        self.node_id = info.into_inner().node_id;
        Ok(())
    }

    async fn create(
        &mut self,
        story: &mut Story,
        step: &'static str,
        name: &str,
        source: Option<csi::VolumeContentSource>,
    ) -> Result<csi::Volume, StepFailed> {
        let answer = async { volume(self.controller.create_volume(timed(create(name, source))).await?) };
        story
            .step(Place::Cloud, step, answer, |volume| {
                format!("{} of {} MiB", volume.volume_id, volume.capacity_bytes / MIB)
            })
            .await
    }

    async fn mount(&mut self, story: &mut Story, volume: csi::Volume) -> Result<Mounted, StepFailed> {
        let volume_id = volume.volume_id.clone();
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: self.node_id.clone(),
            volume_capability: Some(capability()),
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        let publish = self.controller.controller_publish_volume(timed(request));
        let published = story.step(Place::Cloud, "ControllerPublishVolume", publish, |_| "attached").await?;
        let publish_context = published.into_inner().publish_context;

        let staging = self.parts.directory(&["staging", &volume_id]);
        let target = self.parts.directory(&["pods", &volume_id]).join("mount");
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let stage = async {
            fs::create_dir_all(&staging)?;
            let request = csi::NodeStageVolumeRequest {
                volume_id: volume_id.clone(),
                publish_context: publish_context.clone(),
                staging_target_path: text(&staging),
                volume_capability: Some(capability()),
                volume_context: volume.volume_context.clone(),
                ..Default::default()
            };
            self.node.node_stage_volume(timed(request)).await
        };
        story.step(Place::Node, "NodeStageVolume", stage, |_| "staged").await?;
        let publish = async {
            target.parent().map_or(Ok(()), fs::create_dir_all)?;
            let request = csi::NodePublishVolumeRequest {
                volume_id,
                publish_context,
                staging_target_path: text(&staging),
                target_path: text(&target),
                volume_capability: Some(capability()),
                volume_context: volume.volume_context.clone(),
                ..Default::default()
            };
            self.node.node_publish_volume(timed(request)).await
        };
        story.step(Place::Node, "NodePublishVolume", publish, |_| "mounted for the pod").await?;
        Ok(Mounted { volume, staging, target })
    }

    /// A CreateVolume is on the way when the link breaks: it is answered over the next one, and asking again changes nothing.
    async fn cut_in_mid_call(&mut self, story: &mut Story) -> Result<csi::Volume, StepFailed> {
        let request = create("pvc-2", None);
        let (mut caller, cut_off) = (self.controller.clone(), request.clone());
        let cut = async {
            self.parts.hold_next_create();
            let call = tokio::spawn(async move { caller.create_volume(timed(cut_off)).await });
            self.parts.create_is_held().await;
            let cut_at = Instant::now();
            self.parts.cut_link();
            self.parts.heal_link();
            let answer = call.await.map_err(|cause| cause.to_string())?;
            let made = answer.and_then(volume).map_err(|status| status.to_string())?;
            Ok::<_, String>((made, cut_at.elapsed()))
        };
        let told = |(made, after): &(csi::Volume, Duration)| {
            format!(
                "CreateVolume is answered over the next link, {:.0} ms after the cut: {}",
                after.as_secs_f64() * 1_000.0,
                made.volume_id
            )
        };
        let (made, _) = story.step(Place::Cloud, "cut the link in mid-call", cut, told).await?;
        let again = async {
            let again = volume(self.controller.create_volume(timed(request)).await?)?;
            if again.volume_id == made.volume_id {
                Ok(again)
            } else {
                Err(Status::internal(format!("{} was made beside {}", again.volume_id, made.volume_id)))
            }
        };
        let told = |again: &csi::Volume| format!("the same {}", again.volume_id);
        story.step(Place::Cloud, "CreateVolume again", again, told).await
    }

    async fn snapshot(&mut self, story: &mut Story, volume_id: &str) -> Result<String, StepFailed> {
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
        story.step(Place::Cloud, "CreateSnapshot", answer, Clone::clone).await
    }

    async fn expand(&mut self, story: &mut Story, mounted: &Mounted) -> Result<(), StepFailed> {
        let capacity_range = Some(csi::CapacityRange { required_bytes: 32 * MIB, limit_bytes: 0 });
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: mounted.volume.volume_id.clone(),
            capacity_range,
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let expand = self.controller.controller_expand_volume(timed(request));
        let answer = story
            .step(Place::Cloud, "ControllerExpandVolume", expand, |answer| {
                format!("{} MiB", answer.get_ref().capacity_bytes / MIB)
            })
            .await?;
        if answer.get_ref().node_expansion_required {
            let request = csi::NodeExpandVolumeRequest {
                volume_id: mounted.volume.volume_id.clone(),
                volume_path: mounted.target.to_string_lossy().into_owned(),
                staging_target_path: mounted.staging.to_string_lossy().into_owned(),
                capacity_range,
                volume_capability: Some(capability()),
                ..Default::default()
            };
            story
                .step(
                    Place::Node,
                    "NodeExpandVolume",
                    self.node.node_expand_volume(timed(request)),
                    |_| "grown",
                )
                .await?;
        }
        Ok(())
    }

    async fn unmount(&mut self, story: &mut Story, mounted: Mounted) -> Result<csi::Volume, StepFailed> {
        let Mounted { volume, staging, target } = mounted;
        let volume_id = volume.volume_id.clone();
        let target_path = target.to_string_lossy().into_owned();
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path };
        story
            .step(
                Place::Node,
                "NodeUnpublishVolume",
                self.node.node_unpublish_volume(timed(request)),
                |_| "unmounted",
            )
            .await?;
        let staging_target_path = staging.to_string_lossy().into_owned();
        let request = csi::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path };
        story
            .step(
                Place::Node,
                "NodeUnstageVolume",
                self.node.node_unstage_volume(timed(request)),
                |_| "unstaged",
            )
            .await?;
        let node_id = self.node_id.clone();
        let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        let unpublish = self.controller.controller_unpublish_volume(timed(request));
        story.step(Place::Cloud, "ControllerUnpublishVolume", unpublish, |_| "detached").await?;
        Ok(volume)
    }

    async fn delete_volume(&mut self, story: &mut Story, volume: csi::Volume) -> Result<(), StepFailed> {
        let request = csi::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
        story
            .step(Place::Cloud, "DeleteVolume", self.controller.delete_volume(timed(request)), |_| "gone")
            .await?;
        Ok(())
    }
}

fn volume(answer: tonic::Response<csi::CreateVolumeResponse>) -> Result<csi::Volume, Status> {
    answer.into_inner().volume.ok_or_else(|| Status::internal("the answer has no volume"))
}

async fn read_back(target: &Path) -> Result<(), String> {
    match fs::read(target.join(FILE)) {
        Ok(bytes) if bytes == CONTENT => Ok(()),
        Ok(bytes) => Err(format!("{} other bytes came back", bytes.len())),
        Err(cause) => Err(format!("{}: {cause}", target.join(FILE).display())),
    }
}

/// Asks until the plugin is ready; gives how often it was asked.
async fn ready(mut identity: IdentityClient<Channel>) -> Result<u32, String> {
    let since = Instant::now();
    for probes in 1.. {
        let answer =
            identity.probe(timed(csi::ProbeRequest {})).await.map_err(|status| status.to_string())?;
        if answer.into_inner().ready.unwrap_or(true) {
            return Ok(probes);
        }
        if since.elapsed() > READY_WITHIN {
            break;
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Err(format!("not ready within {} s", READY_WITHIN.as_secs()))
}
