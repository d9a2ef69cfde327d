//! A driver in a separate directory, and requests as sidecars and kubelet send them.
#![allow(clippy::unwrap_used, reason = "a fixture fails as its test does")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use csi::controller_server::Controller;
use csi::node_server::Node;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proxy::NodeId;
use hostpath_driver::driver::OpenError;
use hostpath_driver::service::Service;
use hostpath_driver::{Config, Driver};
use tempfile::TempDir;
use tonic::{Code, Request, Response, Status};

pub const NODE: &str = "edge-1";
pub const MIB: i64 = 1 << 20;

pub struct Fixture {
    pub service: Service,
    dir: TempDir,
}

pub fn config(state_dir: &Path) -> Config {
    let name = DriverName::new("hostpath.csi.edge").unwrap();
    Config::new(name, NodeId::new(NODE).unwrap(), state_dir, None).unwrap()
}

pub fn open(state_dir: &Path) -> Result<Service, OpenError> {
    Driver::open(config(state_dir)).map(Service::new)
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(&dir.path().join("state"));
        change(&mut config);
        Self { service: Service::new(Driver::open(config).unwrap()), dir }
    }

    /// Ends the driver and starts a new one.
    pub fn restart(self) -> Self {
        let Self { service, dir } = self;
        drop(service);
        Self { service: open(&dir.path().join("state")).unwrap(), dir }
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
    }

    /// Creates a directory, as the caller of a Node service does.
    pub fn directory(&self, name: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub async fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        answer(self.service.create_volume(Request::new(request)).await).map(|created| created.volume.unwrap())
    }

    pub async fn volume(&self, name: &str, capability: csi::VolumeCapability, bytes: i64) -> String {
        self.create(volume_request(name, capability, bytes)).await.unwrap().volume_id
    }

    pub async fn delete(&self, volume_id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
        answer(self.service.delete_volume(Request::new(request)).await).map(drop)
    }

    pub async fn snapshot(&self, name: &str, source: &str) -> Result<csi::Snapshot, Status> {
        let request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..Default::default()
        };
        answer(self.service.create_snapshot(Request::new(request)).await).map(|made| made.snapshot.unwrap())
    }

    pub async fn attach(&self, volume_id: &str, node: &str, readonly: bool) -> Result<(), Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(mount("")),
            readonly,
            ..Default::default()
        };
        answer(self.service.controller_publish_volume(Request::new(request)).await).map(drop)
    }

    pub async fn detach(&self, volume_id: &str) -> Result<(), Status> {
        let request =
            csi::ControllerUnpublishVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
        answer(self.service.controller_unpublish_volume(Request::new(request)).await).map(drop)
    }

    pub async fn expand(
        &self,
        volume_id: &str,
        bytes: i64,
    ) -> Result<csi::ControllerExpandVolumeResponse, Status> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        answer(self.service.controller_expand_volume(Request::new(request)).await)
    }

    pub async fn expand_on_node(&self, volume_id: &str, path: &str) -> Result<(), Status> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        answer(self.service.node_expand_volume(Request::new(request)).await).map(drop)
    }

    pub async fn stage(
        &self,
        volume_id: &str,
        path: &str,
        capability: csi::VolumeCapability,
    ) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path: path.to_owned(),
            volume_capability: Some(capability),
            ..Default::default()
        };
        answer(self.service.node_stage_volume(Request::new(request)).await).map(drop)
    }

    pub async fn unstage(&self, volume_id: &str, path: &str) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path: path.to_owned(),
        };
        answer(self.service.node_unstage_volume(Request::new(request)).await).map(drop)
    }

    pub async fn publish(
        &self,
        volume_id: &str,
        (staging, target): (&str, &str),
        capability: csi::VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path: staging.to_owned(),
            target_path: target.to_owned(),
            volume_capability: Some(capability),
            readonly,
            ..Default::default()
        };
        answer(self.service.node_publish_volume(Request::new(request)).await).map(drop)
    }

    pub async fn unpublish(&self, volume_id: &str, target: &str) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path: target.to_owned(),
        };
        answer(self.service.node_unpublish_volume(Request::new(request)).await).map(drop)
    }

    pub async fn bytes_at(&self, volume_id: &str, path: &str) -> Result<i64, Status> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume_id.to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        answer(self.service.node_get_volume_stats(Request::new(request)).await)
            .map(|stats| stats.usage[0].total)
    }
}

pub fn answer<T>(response: Result<Response<T>, Status>) -> Result<T, Status> {
    response.map(Response::into_inner)
}

pub fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

pub fn volume_request(name: &str, capability: csi::VolumeCapability, bytes: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability],
        capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    }
}

pub fn from_snapshot(mut request: csi::CreateVolumeRequest, snapshot_id: &str) -> csi::CreateVolumeRequest {
    use csi::volume_content_source::{SnapshotSource, Type};
    let source = Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id.to_owned() });
    request.volume_content_source = Some(csi::VolumeContentSource { r#type: Some(source) });
    request
}

pub fn from_volume(mut request: csi::CreateVolumeRequest, volume_id: &str) -> csi::CreateVolumeRequest {
    use csi::volume_content_source::{Type, VolumeSource};
    let source = Type::Volume(VolumeSource { volume_id: volume_id.to_owned() });
    request.volume_content_source = Some(csi::VolumeContentSource { r#type: Some(source) });
    request
}

pub fn with_kind(mut request: csi::CreateVolumeRequest, kind: &str) -> csi::CreateVolumeRequest {
    request.parameters = BTreeMap::from([("kind".to_owned(), kind.to_owned())]);
    request
}

pub fn mount(fs_type: &str) -> csi::VolumeCapability {
    with_mode(
        AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..Default::default() }),
        Mode::SingleNodeWriter,
    )
}

pub fn block() -> csi::VolumeCapability {
    with_mode(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)
}

pub fn shared(mut capability: csi::VolumeCapability) -> csi::VolumeCapability {
    capability.access_mode = Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() });
    capability
}

fn with_mode(access: AccessType, mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}
