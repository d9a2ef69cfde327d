//! The driver behind gRPC: every call runs to its end on a thread that may block, even if its caller disconnects.

use std::sync::Arc;

use csi::controller_server::{Controller, ControllerServer};
use csi::group_controller_server::{GroupController, GroupControllerServer};
use csi::identity_server::{Identity, IdentityServer};
use csi::node_server::{Node, NodeServer};
use csi_proto::csi::v1 as csi;
use tokio::sync::Semaphore;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::driver::Driver;
use super::error::CallError;

/// Maximum number of concurrent calls; further calls wait.
pub const MAX_CALLS: usize = 64;

/// All services of one driver.
#[derive(Debug, Clone)]
pub struct Service {
    driver: Arc<Driver>,
    permits: Arc<Semaphore>,
}

impl Service {
    /// Creates the services of a driver.
    pub fn new(driver: Driver) -> Self {
        Self { driver: Arc::new(driver), permits: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    /// Returns the services for a tonic server.
    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(GroupControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()))
    }

    /// Waits until no call runs, including calls with a disconnected caller.
    pub async fn idle(&self) {
        let all = u32::try_from(MAX_CALLS).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.permits.acquire_many(all).await;
    }

    async fn call<Q, A>(
        &self,
        method: &'static str,
        request: Request<Q>,
        work: fn(&Driver, Q) -> Result<A, CallError>,
    ) -> Result<Response<A>, Status>
    where
        Q: Send + 'static,
        A: Send + 'static,
    {
        let permit = self
            .permits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Status::unavailable("the driver is shutting down"))?;
        let driver = self.driver.clone();
        let request = request.into_inner();
        let done = tokio::task::spawn_blocking(move || {
            // Released by the operation and not by the caller, which may disconnect first.
            let _permit = permit;
            work(&driver, request)
        });
        match done.await {
            Ok(Ok(answer)) => {
                tracing::debug!(method, "done");
                Ok(Response::new(answer))
            }
            Ok(Err(error)) => {
                tracing::info!(method, code = ?error.code(), %error, "refused");
                Err(error.into())
            }
            Err(error) => {
                tracing::error!(method, %error, "a call panicked");
                Err(Status::internal(format!("{method} failed inside the driver; see the driver's log")))
            }
        }
    }
}

// Every call of a service has the same form.
macro_rules! calls {
    ($service:ident { $($method:ident($request:ident) -> $response:ident;)* }) => {
        #[tonic::async_trait]
        impl $service for Service {
            $(async fn $method(&self, request: Request<csi::$request>) -> Result<Response<csi::$response>, Status> {
                self.call(stringify!($method), request, Driver::$method).await
            })*
        }
    };
}

calls!(Identity {
    get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse;
    get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
    probe(ProbeRequest) -> ProbeResponse;
});

calls!(Controller {
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
    controller_unpublish_volume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse;
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
    list_volumes(ListVolumesRequest) -> ListVolumesResponse;
    controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
    controller_get_volume_health(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse;
    get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    controller_get_capabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse;
    create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
    controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
    controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
});

calls!(GroupController {
    group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest) -> GroupControllerGetCapabilitiesResponse;
    create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest) -> CreateVolumeGroupSnapshotResponse;
    delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest) -> DeleteVolumeGroupSnapshotResponse;
    get_volume_group_snapshot(GetVolumeGroupSnapshotRequest) -> GetVolumeGroupSnapshotResponse;
});

calls!(Node {
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
    node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse;
});
