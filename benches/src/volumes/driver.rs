//! A driver on a unix socket that mounts, and counts calls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use csi_proto::csi::v1::controller_server::{Controller, ControllerServer};
use csi_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use csi_proto::csi::v1::identity_server::{Identity, IdentityServer};
use csi_proto::csi::v1::node_server::{Node, NodeServer};
use csi_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use csi_proto::csi::v1::*;
use futures_util::StreamExt;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::backend::MountBackend;
use super::{DRIVER, Measured};

/// A driver that counts calls, and mounts immediately or after a delay. Clones share one state.
#[derive(Debug, Clone)]
pub struct CountingDriver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: MountBackend,
    attaches: bool,
    /// The delay of each answer.
    work: Duration,
    calls: AtomicU64,
    connections: AtomicU64,
}

impl CountingDriver {
    /// Creates a driver that stages and, if `attaches` is true, attaches. Each answer takes at least `work`.
    #[must_use]
    pub fn new(backend: MountBackend, attaches: bool, work: Duration) -> Self {
        let (calls, connections) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(Inner { backend, attaches, work, calls, connections }))
    }

    /// Returns the number of received calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of accepted connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Returns the mount backend.
    #[must_use]
    pub fn backend(&self) -> &MountBackend {
        &self.0.backend
    }

    /// Returns true if volumes must be attached.
    #[must_use]
    pub fn attaches(&self) -> bool {
        self.0.attaches
    }

    /// Serves on a new unix socket until the future is dropped.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be bound.
    pub async fn serve(self, socket: &Path) -> Measured<()> {
        let listener = UnixListenerStream::new(UnixListener::bind(socket)?);
        let inner = Arc::clone(&self.0);
        let incoming = listener.inspect(move |_| {
            inner.connections.fetch_add(1, Ordering::Relaxed);
        });
        let server = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self));
        Ok(server.serve_with_incoming(incoming).await?)
    }

    /// Counts a call, and waits as long as its answer takes.
    async fn begin(&self) {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        if !self.0.work.is_zero() {
            tokio::time::sleep(self.0.work).await;
        }
    }

    fn plugin_capabilities(&self) -> GetPluginCapabilitiesResponse {
        use plugin_capability::service::Type;
        let service = plugin_capability::Service { r#type: Type::ControllerService.into() };
        let controller = PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        let capabilities = self.0.attaches.then_some(controller).into_iter().collect();
        GetPluginCapabilitiesResponse { capabilities }
    }
}

/// Implements a CSI service: the listed methods return their expression, those after `not` return `UNIMPLEMENTED`.
macro_rules! service {
    (
        $service:ident {
            $($method:ident($driver:ident, $request:ident: $of:ty) -> $answer:ty { $body:expr })*
        } not {
            $($other:ident($other_of:ty) -> $other_answer:ty;)*
        }
    ) => {
        #[tonic::async_trait]
        impl $service for CountingDriver {
            $(async fn $method(&self, request: Request<$of>) -> Result<Response<$answer>, Status> {
                self.begin().await;
                let ($driver, $request) = (self, &request.get_ref());
                $body.map(Response::new)
            })*
            $(async fn $other(&self, _: Request<$other_of>) -> Result<Response<$other_answer>, Status> {
                self.begin().await;
                Err(Status::unimplemented("this driver does not implement the RPC"))
            })*
        }
    };
}

service! {
    Identity {
    get_plugin_info(_driver, _request: GetPluginInfoRequest) -> GetPluginInfoResponse {
        Ok(GetPluginInfoResponse { name: DRIVER.into(), vendor_version: "1".into(), ..Default::default() })
    }
    get_plugin_capabilities(driver, _request: GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse {
        Ok(driver.plugin_capabilities())
    }
    probe(_driver, _request: ProbeRequest) -> ProbeResponse { Ok(ProbeResponse { ready: None }) }
    } not {}
}

service! {
    Node {
    node_stage_volume(driver, request: NodeStageVolumeRequest) -> NodeStageVolumeResponse {
        or_internal(driver.0.backend.stage(&request.volume_id, Path::new(&request.staging_target_path)))
            .map(|()| NodeStageVolumeResponse {})
    }
    node_unstage_volume(driver, request: NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse {
        or_internal(driver.0.backend.unmount(Path::new(&request.staging_target_path), false))
            .map(|()| NodeUnstageVolumeResponse {})
    }
    node_publish_volume(driver, request: NodePublishVolumeRequest) -> NodePublishVolumeResponse {
        or_internal(driver.0.backend.publish(Path::new(&request.staging_target_path), Path::new(&request.target_path)))
            .map(|()| NodePublishVolumeResponse {})
    }
    node_unpublish_volume(driver, request: NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse {
        or_internal(driver.0.backend.unmount(Path::new(&request.target_path), true))
            .map(|()| NodeUnpublishVolumeResponse {})
    }
    node_get_capabilities(_driver, _request: NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse {
        Ok([NodeRpc::StageUnstageVolume].into_iter().collect())
    }
    node_get_info(_driver, _request: NodeGetInfoRequest) -> NodeGetInfoResponse {
        Ok(NodeGetInfoResponse { node_id: "edge-1".into(), ..Default::default() })
    }
    } not {
        node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
        node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
        node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
        node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    }
}

service! {
    Controller {
    controller_publish_volume(_driver, request: ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse {
        Ok(ControllerPublishVolumeResponse {
            publish_context: [("device".to_owned(), request.volume_id.clone())].into(),
        })
    }
    controller_unpublish_volume(
        _driver, _request: ControllerUnpublishVolumeRequest
    ) -> ControllerUnpublishVolumeResponse { Ok(ControllerUnpublishVolumeResponse {}) }
    controller_get_capabilities(
        _driver, _request: ControllerGetCapabilitiesRequest
    ) -> ControllerGetCapabilitiesResponse {
        Ok([ControllerRpc::PublishUnpublishVolume].into_iter().collect())
    }
    } not {
        create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
        delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
        list_volumes(ListVolumesRequest) -> ListVolumesResponse;
        controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
        controller_get_volume_health(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse;
        get_capacity(GetCapacityRequest) -> GetCapacityResponse;
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
        controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
        controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
        controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    }
}

fn or_internal(outcome: std::io::Result<()>) -> Result<(), Status> {
    outcome.map_err(|error| Status::internal(error.to_string()))
}
