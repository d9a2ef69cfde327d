//! CSI clients as the sidecars are: gRPC on a unix socket.

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

/// A channel to a socket that may not be there yet.
pub fn channel(socket: &Path) -> Channel {
    let path: PathBuf = socket.to_owned();
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }))
}

/// A client of the Identity service.
#[must_use]
pub fn identity(socket: &Path) -> IdentityClient<Channel> {
    IdentityClient::new(channel(socket))
}

/// A client of the Controller service.
#[must_use]
pub fn controller(socket: &Path) -> ControllerClient<Channel> {
    ControllerClient::new(channel(socket))
}

/// A CreateVolume that every driver with directory volumes can do.
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

/// The same with the time that the sidecar gives it.
pub fn within<T>(time: Duration, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(time);
    request
}

/// Waits until the plugin behind a socket says that it is ready.
///
/// # Panics
/// If it does not in time.
pub async fn ready(socket: &Path) {
    probe_says(socket, true).await;
}

/// Waits until Probe answers OK with this readiness.
///
/// # Panics
/// If it does not in time.
pub async fn probe_says(socket: &Path, ready: bool) {
    let client = identity(socket);
    let what = format!("Probe on {} answers ready={ready}", socket.display());
    wait::until(&what, async || {
        let answer = client.clone().probe(within(Duration::from_secs(5), csi::ProbeRequest {})).await.ok()?;
        (answer.into_inner().ready.unwrap_or(true) == ready).then_some(())
    })
    .await;
}
