//! A proxy between a node and a driver: it forwards every call, records it, and intercepts calls on request.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::controller_server::{Controller, ControllerServer};
use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::identity_server::{Identity, IdentityServer};
use csi_proto::csi::v1::node_client::NodeClient;
use csi_proto::csi::v1::node_server::{Node, NodeServer};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

use super::history::{History, Subject};
use crate::csi::channel;

/// A function that runs for an intercepted call. The function may block.
pub type Action = Arc<dyn Fn(&Subject) -> io::Result<()> + Send + Sync>;

/// A change to a call that the interceptor would otherwise forward.
#[derive(Clone)]
#[non_exhaustive]
pub enum Interception {
    /// Answers OK without the driver.
    FalseOk,
    /// Forwards the call, and replaces an OK by an error of this code.
    FailAfter(Code),
    /// Runs the action, and forwards the call if the action succeeded.
    Before(Action),
    /// Forwards the call, and runs the action if the call succeeded.
    After(Action),
    /// Runs the action, and answers OK without the driver if the action succeeded.
    Instead(Action),
}

impl Interception {
    /// Returns [`Self::Before`] with this action.
    pub fn before(action: impl Fn(&Subject) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::Before(Arc::new(action))
    }

    /// Returns [`Self::After`] with this action.
    pub fn after(action: impl Fn(&Subject) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::After(Arc::new(action))
    }

    /// Returns [`Self::Instead`] with this action.
    pub fn instead(action: impl Fn(&Subject) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::Instead(Arc::new(action))
    }
}

impl fmt::Debug for Interception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FalseOk => "FalseOk",
            Self::FailAfter(_) => "FailAfter",
            Self::Before(_) => "Before",
            Self::After(_) => "After",
            Self::Instead(_) => "Instead",
        })
    }
}

#[derive(Default)]
struct State {
    history: History,
    /// The interceptions of the next calls of a method, for any volume.
    next: BTreeMap<Method, VecDeque<Interception>>,
    /// The interceptions of every call of a method for a volume.
    always: BTreeMap<(Method, String), Interception>,
}

#[derive(Clone)]
struct Relay {
    driver: Channel,
    state: Arc<Mutex<State>>,
}

/// A server on a socket that replaces the driver's socket.
pub struct Interceptor {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Interceptor {
    /// Listens on `socket`, and forwards to the socket `driver`, which need not exist yet.
    ///
    /// # Panics
    /// If `socket` cannot be listened on.
    #[must_use]
    pub fn start(socket: &Path, driver: &Path) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let relay = Relay { driver: channel(driver), state: Arc::clone(&state) };
        let listener = UnixListener::bind(socket).expect("a socket");
        let task = tokio::spawn(async move {
            let served = Server::builder()
                .add_service(IdentityServer::new(relay.clone()))
                .add_service(ControllerServer::new(relay.clone()))
                .add_service(NodeServer::new(relay))
                .serve_with_incoming(UnixListenerStream::new(listener));
            served.await.expect("the interceptor serves");
        });
        Self { socket: socket.to_owned(), state, task }
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Intercepts the next calls of a method, one interception for each call.
    pub fn next(&self, method: Method, interceptions: impl IntoIterator<Item = Interception>) {
        self.state().next.entry(method).or_default().extend(interceptions);
    }

    /// Intercepts every call of a method for a volume from now on.
    pub fn always(&self, method: Method, volume: &str, interception: Interception) {
        self.state().always.insert((method, volume.to_owned()), interception);
    }

    /// Reads or changes the history.
    pub fn history<T>(&self, check: impl FnOnce(&mut History) -> T) -> T {
        check(&mut self.state().history)
    }

    /// Returns how often a method was called.
    #[must_use]
    pub fn count(&self, method: Method) -> usize {
        self.state().history.count(method)
    }

    /// Asserts that the history has no breach.
    ///
    /// # Panics
    /// If the history has a breach.
    pub fn assert_lawful(&self) {
        let state = self.state();
        let breaches = state.history.breaches();
        assert!(breaches.is_empty(), "{breaches:#?}\nof {:#?}", state.history.calls());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interceptor").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Drop for Interceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards or intercepts one call. The call continues when the caller disconnects, as in a driver.
    async fn pass<T: Default + Send + 'static>(
        &self,
        about: Option<(Method, Subject)>,
        forward: impl Future<Output = Result<Response<T>, Status>> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let Some((method, subject)) = about else { return forward.await };
        let (number, interception) = {
            let mut state = self.state();
            let always = state.always.get(&(method, subject.volume.clone())).cloned();
            let interception = always.or_else(|| state.next.get_mut(&method)?.pop_front());
            (state.history.begin(method, &subject), interception)
        };
        let relay = self.clone();
        let call = tokio::spawn(async move {
            let is_false_ok = matches!(interception, Some(Interception::FalseOk));
            let answer = perform(interception, subject, forward).await;
            let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
            relay.state().history.end(number, code, !is_false_ok);
            answer
        });
        call.await.unwrap_or_else(|cause| Err(Status::internal(cause.to_string())))
    }
}

async fn perform<T: Default>(
    interception: Option<Interception>,
    subject: Subject,
    forward: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Status> {
    match interception {
        None => forward.await,
        Some(Interception::FalseOk) => Ok(Response::new(T::default())),
        Some(Interception::FailAfter(code)) => {
            forward.await?;
            Err(Status::new(code, "the call succeeded, and the interceptor returned an error"))
        }
        Some(Interception::Before(action)) => {
            run(action, subject).await?;
            forward.await
        }
        Some(Interception::After(action)) => {
            let answer = forward.await?;
            run(action, subject).await?;
            Ok(answer)
        }
        Some(Interception::Instead(action)) => {
            run(action, subject).await?;
            Ok(Response::new(T::default()))
        }
    }
}

async fn run(action: Action, subject: Subject) -> Result<(), Status> {
    let done = tokio::task::spawn_blocking(move || action(&subject)).await;
    done.map_err(io::Error::other)
        .and_then(std::convert::identity)
        .map_err(|cause| Status::internal(cause.to_string()))
}

/// Implements a service that forwards its calls. Methods with a subject are recorded and can be intercepted.
macro_rules! relay {
    (@about $request:ident) => {
        None
    };
    (@about $request:ident $method:ident [$volume:ident, $path:expr, $staging:expr]) => {{
        let $volume = &$request;
        Some((Method::$method, Subject::new(&$volume.volume_id, $path, $staging)))
    }};
    ($service:ident, $client:ident, {
        $($function:ident $request:ident $response:ident $($method:ident $subject:tt)?,)*
    }) => {
        #[tonic::async_trait]
        impl $service for Relay {
            $(async fn $function(
                &self,
                request: Request<csi::$request>,
            ) -> Result<Response<csi::$response>, Status> {
                let request = request.into_inner();
                let about = relay!(@about request $($method $subject)?);
                let mut client = $client::new(self.driver.clone());
                self.pass(about, async move { client.$function(request).await }).await
            })*
        }
    };
}

relay!(Identity, IdentityClient, {
    get_plugin_info GetPluginInfoRequest GetPluginInfoResponse,
    get_plugin_capabilities GetPluginCapabilitiesRequest GetPluginCapabilitiesResponse,
    probe ProbeRequest ProbeResponse,
});

relay!(Controller, ControllerClient, {
    create_volume CreateVolumeRequest CreateVolumeResponse,
    delete_volume DeleteVolumeRequest DeleteVolumeResponse,
    controller_publish_volume ControllerPublishVolumeRequest ControllerPublishVolumeResponse
        ControllerPublishVolume [r, "", ""],
    controller_unpublish_volume ControllerUnpublishVolumeRequest ControllerUnpublishVolumeResponse
        ControllerUnpublishVolume [r, "", ""],
    validate_volume_capabilities ValidateVolumeCapabilitiesRequest ValidateVolumeCapabilitiesResponse,
    list_volumes ListVolumesRequest ListVolumesResponse,
    controller_list_volume_health ControllerListVolumeHealthRequest ControllerListVolumeHealthResponse,
    controller_get_volume_health ControllerGetVolumeHealthRequest ControllerGetVolumeHealthResponse,
    get_capacity GetCapacityRequest GetCapacityResponse,
    controller_get_capabilities ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse,
    create_snapshot CreateSnapshotRequest CreateSnapshotResponse,
    delete_snapshot DeleteSnapshotRequest DeleteSnapshotResponse,
    list_snapshots ListSnapshotsRequest ListSnapshotsResponse,
    get_snapshot GetSnapshotRequest GetSnapshotResponse,
    controller_expand_volume ControllerExpandVolumeRequest ControllerExpandVolumeResponse,
    controller_get_volume ControllerGetVolumeRequest ControllerGetVolumeResponse,
    controller_modify_volume ControllerModifyVolumeRequest ControllerModifyVolumeResponse,
});

relay!(Node, NodeClient, {
    node_stage_volume NodeStageVolumeRequest NodeStageVolumeResponse
        NodeStageVolume [r, &r.staging_target_path, &r.staging_target_path],
    node_unstage_volume NodeUnstageVolumeRequest NodeUnstageVolumeResponse
        NodeUnstageVolume [r, &r.staging_target_path, &r.staging_target_path],
    node_publish_volume NodePublishVolumeRequest NodePublishVolumeResponse
        NodePublishVolume [r, &r.target_path, &r.staging_target_path],
    node_unpublish_volume NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse
        NodeUnpublishVolume [r, &r.target_path, ""],
    node_get_volume_stats NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse,
    node_get_volume_health NodeGetVolumeHealthRequest NodeGetVolumeHealthResponse,
    node_get_storage_health NodeGetStorageHealthRequest NodeGetStorageHealthResponse,
    node_expand_volume NodeExpandVolumeRequest NodeExpandVolumeResponse,
    node_get_capabilities NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse,
    node_get_info NodeGetInfoRequest NodeGetInfoResponse,
});
