//! A controller driver without real volumes, which counts its calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// The prefix of the volume names for which every CreateVolume ends with `FAILED_PRECONDITION`.
pub const REFUSED: &str = "refused-";

/// The prefix of the volume names whose calls do not end before [`Counting::release`].
pub const HELD: &str = "held-";

/// The method of an operation, and its volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Operation {
    /// The method, such as `CreateVolume`.
    pub method: &'static str,
    /// The name of the volume for CreateVolume, and the id of the volume for other methods.
    pub volume: String,
}

/// The counts of an operation's executions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Executions {
    /// The number of executions that began.
    pub begun: u64,
    /// The number of executions that ended.
    pub ended: u64,
    /// The maximum number of concurrent executions.
    pub max_concurrent: u64,
}

/// The executions of one method, of all volumes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Phase {
    /// When the first execution began.
    pub first: Instant,
    /// When the last execution ended, or began if none has ended.
    pub last: Instant,
    /// The number of running executions.
    pub open: u64,
    /// The maximum number of concurrent executions.
    pub max_concurrent: u64,
}

#[derive(Debug, Default)]
struct State {
    executions: BTreeMap<Operation, Executions>,
    phases: BTreeMap<&'static str, Phase>,
}

impl State {
    fn begin(&mut self, operation: &Operation) {
        let executions = self.executions.entry(operation.clone()).or_default();
        executions.begun += 1;
        executions.max_concurrent = executions.max_concurrent.max(executions.begun - executions.ended);
        let now = Instant::now();
        let new = Phase { first: now, last: now, open: 0, max_concurrent: 0 };
        let phase = self.phases.entry(operation.method).or_insert(new);
        phase.open += 1;
        phase.max_concurrent = phase.max_concurrent.max(phase.open);
    }

    fn end(&mut self, operation: &Operation) {
        if let Some(executions) = self.executions.get_mut(operation) {
            executions.ended += 1;
        }
        if let Some(phase) = self.phases.get_mut(operation.method) {
            phase.open -= 1;
            phase.last = Instant::now();
        }
    }
}

/// A driver that counts its calls. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Counting {
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    released: Arc<watch::Sender<bool>>,
    work: Duration,
}

/// A server of the driver. The server ends when dropped; begun operations continue.
#[derive(Debug)]
pub struct Served(JoinHandle<()>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Counting {
    /// Returns a driver whose operations take this long.
    #[must_use]
    pub fn working(work: Duration) -> Self {
        let released = Arc::new(watch::Sender::new(false));
        Self { name: DRIVER.into(), state: Arc::default(), released, work }
    }

    /// Replaces the driver's name, which is [`DRIVER`] by default.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Serves on a socket, which must not exist.
    ///
    /// # Panics
    /// If the socket cannot be listened on.
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

    /// Lets held operations end, and does not hold future ones.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Holds future operations again.
    pub fn hold(&self) {
        self.released.send_replace(false);
    }

    /// Returns the counts of every operation.
    #[must_use]
    pub fn executions(&self) -> BTreeMap<Operation, Executions> {
        self.state().executions.clone()
    }

    /// Returns the counts of one operation.
    #[must_use]
    pub fn of(&self, method: &'static str, volume: &str) -> Executions {
        let operation = Operation { method, volume: volume.to_owned() };
        self.state().executions.get(&operation).copied().unwrap_or_default()
    }

    /// Returns the executions of a method, if any began.
    #[must_use]
    pub fn phase(&self, method: &str) -> Option<Phase> {
        self.state().phases.get(method).copied()
    }

    /// Removes the counts of a volume, which bounds the memory of a long run.
    pub fn forget(&self, volume: &str) {
        let id = id_of(volume);
        self.state().executions.retain(|operation, _| operation.volume != volume && operation.volume != id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes an operation in a separate task, which continues when the caller disconnects.
    async fn execute(&self, method: &'static str, volume: &str) -> Result<(), Status> {
        let (driver, operation) = (self.clone(), Operation { method, volume: volume.to_owned() });
        let work = tokio::spawn(async move {
            driver.state().begin(&operation);
            if operation.volume.contains(HELD) {
                // An error means that the sender was dropped.
                let _ = driver.released.subscribe().wait_for(|released| *released).await;
            }
            tokio::time::sleep(driver.work).await;
            driver.state().end(&operation);
        });
        work.await.map_err(|cause| Status::internal(cause.to_string()))
    }
}

/// Returns the id of the volume with this name.
#[must_use]
pub fn id_of(name: &str) -> String {
    format!("vol-{name}")
}

/// Returns the message of the status for a refused volume.
#[must_use]
pub fn refusal(name: &str) -> String {
    format!("the driver refuses {name}")
}

fn unknown<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the counting driver does not implement this method"))
}

#[async_trait]
impl Identity for Counting {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (self.name.to_string(), "1.0.0".to_owned());
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
        self.execute("CreateVolume", &name).await?;
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
        self.execute("DeleteVolume", &request.get_ref().volume_id).await?;
        Ok(Response::new(csi::DeleteVolumeResponse::default()))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        self.execute("ControllerPublishVolume", &request.get_ref().volume_id).await?;
        Ok(Response::new(csi::ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        self.execute("ControllerUnpublishVolume", &request.get_ref().volume_id).await?;
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
