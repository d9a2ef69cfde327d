//! A driver without volumes, which counts its calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_server::{Controller, ControllerServer};
use csi_proto::csi::v1::identity_server::{Identity, IdentityServer};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::cluster::DRIVER;

/// What the name or id of a volume begins with for which every CreateVolume ends with `FAILED_PRECONDITION`.
pub const REFUSED: &str = "refused-";

/// The prefix of the volume names with which calls do not end before [`Counting::release`].
pub const HELD: &str = "held-";

/// What an operation is about: the method, and the name (CreateVolume) or id of the volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Operation {
    /// The method, such as `CreateVolume`.
    pub method: &'static str,
    /// The volume.
    pub volume: String,
}

/// How often an operation was carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Executions {
    /// Times that it was begun.
    pub begun: u64,
    /// Times that it ended.
    pub ended: u64,
    /// Most at once.
    pub at_once: u64,
}

#[derive(Debug, Default)]
struct State {
    executions: BTreeMap<Operation, Executions>,
}

/// The driver. Clones are the same driver.
#[derive(Debug, Clone)]
pub struct Counting {
    state: Arc<Mutex<State>>,
    released: Arc<watch::Sender<bool>>,
    work: Duration,
}

/// A driver that serves. Ends when dropped; its work continues.
#[derive(Debug)]
pub struct Served(JoinHandle<()>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Counting {
    /// A driver with operations that take this long.
    #[must_use]
    pub fn working(work: Duration) -> Self {
        Self { state: Arc::default(), released: Arc::new(watch::Sender::new(false)), work }
    }

    /// Serves on a socket, which must not be there.
    ///
    /// # Panics
    /// If the socket cannot be made.
    #[must_use]
    pub fn serve(&self, socket: &Path) -> Served {
        let listener = UnixListener::bind(socket).unwrap_or_else(|cause| panic!("{socket:?}: {cause}"));
        let server = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        Served(tokio::spawn(async move {
            let _ = server.await;
        }))
    }

    /// Ends the held operations, and future ones at once.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Holds future operations again.
    pub fn hold(&self) {
        self.released.send_replace(false);
    }

    /// Every operation, and how often it was carried out.
    #[must_use]
    pub fn executions(&self) -> BTreeMap<Operation, Executions> {
        self.state().executions.clone()
    }

    /// How often one operation was carried out.
    #[must_use]
    pub fn of(&self, method: &'static str, volume: &str) -> Executions {
        let operation = Operation { method, volume: volume.to_owned() };
        self.state().executions.get(&operation).copied().unwrap_or_default()
    }

    /// Forgets the counts, so that a long run does not keep them all.
    pub fn forget(&self, volume: &str) {
        let id = id_of(volume);
        self.state().executions.retain(|operation, _| operation.volume != volume && operation.volume != id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an operation in a task of its own: no caller's leaving ends it.
    async fn carry_out(&self, method: &'static str, volume: &str) -> Result<(), Status> {
        let (driver, operation) = (self.clone(), Operation { method, volume: volume.to_owned() });
        let work = tokio::spawn(async move {
            {
                let mut state = driver.state();
                let executions = state.executions.entry(operation.clone()).or_default();
                executions.begun += 1;
                executions.at_once = executions.at_once.max(executions.begun - executions.ended);
            }
            if operation.volume.contains(HELD) {
                // An error means that the sender was dropped.
                let _ = driver.released.subscribe().wait_for(|released| *released).await;
            }
            tokio::time::sleep(driver.work).await;
            if let Some(executions) = driver.state().executions.get_mut(&operation) {
                executions.ended += 1;
            }
        });
        work.await.map_err(|cause| Status::internal(cause.to_string()))
    }
}

/// The id that a volume gets.
#[must_use]
pub fn id_of(name: &str) -> String {
    format!("vol-{name}")
}

/// What the driver says of a volume that it refuses.
#[must_use]
pub fn refusal(name: &str) -> String {
    format!("the driver does not want {name}")
}

fn unknown<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the counting driver does not know this call"))
}

#[async_trait]
impl Identity for Counting {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (DRIVER.to_owned(), "1.0.0".to_owned());
        Ok(Response::new(csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        use csi::plugin_capability::{Service, Type, service};
        let controller = Service { r#type: service::Type::ControllerService.into() };
        let capabilities = vec![csi::PluginCapability { r#type: Some(Type::Service(controller)) }];
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}

#[async_trait]
impl Controller for Counting {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let name = request.into_inner().name;
        self.carry_out("CreateVolume", &name).await?;
        if name.starts_with(REFUSED) {
            return Err(Status::failed_precondition(refusal(&name)));
        }
        let volume = csi::Volume { volume_id: id_of(&name), capacity_bytes: 1 << 20, ..Default::default() };
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        self.carry_out("DeleteVolume", &request.get_ref().volume_id).await?;
        Ok(Response::new(csi::DeleteVolumeResponse::default()))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        self.carry_out("ControllerPublishVolume", &request.get_ref().volume_id).await?;
        Ok(Response::new(csi::ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        self.carry_out("ControllerUnpublishVolume", &request.get_ref().volume_id).await?;
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse::default()))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        use csi::controller_service_capability::{Rpc, Type, rpc};
        let capability = |r#type: rpc::Type| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: r#type.into() })),
        };
        let capabilities = [rpc::Type::CreateDeleteVolume, rpc::Type::PublishUnpublishVolume].map(capability);
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        unknown()
    }

    async fn list_volumes(
        &self,
        _: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        unknown()
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerListVolumeHealthResponse>, Status> {
        unknown()
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeHealthResponse>, Status> {
        unknown()
    }

    async fn get_capacity(
        &self,
        _: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        unknown()
    }

    async fn create_snapshot(
        &self,
        _: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        unknown()
    }

    async fn delete_snapshot(
        &self,
        _: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        unknown()
    }

    async fn list_snapshots(
        &self,
        _: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        unknown()
    }

    async fn get_snapshot(
        &self,
        _: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        unknown()
    }

    async fn controller_expand_volume(
        &self,
        _: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        unknown()
    }

    async fn controller_get_volume(
        &self,
        _: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        unknown()
    }

    async fn controller_modify_volume(
        &self,
        _: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        unknown()
    }
}
