//! CSI clients on a unix socket, as in the sidecars.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::identity_client::IdentityClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::wait;

/// Returns a channel to a socket that need not exist yet.
pub fn channel(socket: &Path) -> Channel {
    let path: PathBuf = socket.to_owned();
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }))
}

/// Returns a client of the Identity service.
#[must_use]
pub fn identity(socket: &Path) -> IdentityClient<Channel> {
    IdentityClient::new(channel(socket))
}

/// Returns a client of the Controller service.
#[must_use]
pub fn controller(socket: &Path) -> ControllerClient<Channel> {
    ControllerClient::new(channel(socket))
}

/// Returns a CreateVolume request that every driver with directory volumes can serve.
#[must_use]
pub fn create_volume(name: &str) -> csi::CreateVolumeRequest {
    let mount = csi::volume_capability::MountVolume::default();
    let mode = csi::volume_capability::access_mode::Mode::SingleNodeWriter.into();
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![csi::VolumeCapability {
            access_mode: Some(csi::volume_capability::AccessMode { mode }),
            access_type: Some(csi::volume_capability::AccessType::Mount(mount)),
        }],
        ..Default::default()
    }
}

/// Returns a CreateVolume request for a node, which has its own name in the topology segment with this key.
#[must_use]
pub fn create_volume_on(node: &str, key: &str, name: &str) -> csi::CreateVolumeRequest {
    let segment = csi::Topology { segments: [(key.to_owned(), node.to_owned())].into() };
    let requirement = csi::TopologyRequirement { requisite: vec![segment.clone()], preferred: vec![segment] };
    csi::CreateVolumeRequest { accessibility_requirements: Some(requirement), ..create_volume(name) }
}

/// Returns a DeleteVolume request.
#[must_use]
pub fn delete_volume(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() }
}

/// Returns a request with this timeout.
pub fn within<T>(time: Duration, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(time);
    request
}

/// Waits until Probe on a socket returns ready.
///
/// # Panics
/// If Probe does not within [`wait::SOON`].
pub async fn ready(socket: &Path) {
    probe_returns(socket, true).await;
}

/// Waits until Probe on a socket returns OK with this readiness.
///
/// # Panics
/// If Probe does not within [`wait::SOON`].
pub async fn probe_returns(socket: &Path, ready: bool) {
    let client = identity(socket);
    let what = format!("Probe on {} returns ready={ready}", socket.display());
    wait::until(&what, async || {
        let answer = client.clone().probe(within(Duration::from_secs(5), csi::ProbeRequest {})).await.ok()?;
        (answer.into_inner().ready.unwrap_or(true) == ready).then_some(())
    })
    .await;
}
