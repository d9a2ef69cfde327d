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

/// Something that is done about a call. It may block.
pub type Action = Arc<dyn Fn(&Subject) -> io::Result<()> + Send + Sync>;

/// What is done with a call other than to hand it on.
#[derive(Clone)]
#[non_exhaustive]
pub enum Act {
    /// OK is answered, and nothing done.
    Lie,
    /// The driver does it, and an error is answered.
    FailAfter(Code),
    /// This is done, then the driver does it.
    First(Action),
    /// The driver does it, then this is done too.
    Also(Action),
    /// This is done, and the driver does not receive the call.
    Instead(Action),
}

impl Act {
    /// This is done, then the driver does it.
    pub fn first(action: impl Fn(&Subject) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::First(Arc::new(action))
    }

    /// The driver does it, then this is done too.
    pub fn also(action: impl Fn(&Subject) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::Also(Arc::new(action))
    }

    /// This is done, and the driver does not receive the call.
    pub fn instead(action: impl Fn(&Subject) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::Instead(Arc::new(action))
    }
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lie => "Lie",
            Self::FailAfter(_) => "FailAfter",
            Self::First(_) => "First",
            Self::Also(_) => "Also",
            Self::Instead(_) => "Instead",
        })
    }
}

#[derive(Default)]
struct Play {
    history: History,
    /// For the next calls of a method, whatever the volume.
    next: BTreeMap<Method, VecDeque<Act>>,
    /// For every call about a volume.
    always: BTreeMap<(Method, String), Act>,
}

#[derive(Clone)]
struct Relay {
    driver: Channel,
    play: Arc<Mutex<Play>>,
}

/// A socket on which a driver seems to be.
pub struct Interceptor {
    socket: PathBuf,
    play: Arc<Mutex<Play>>,
    task: JoinHandle<()>,
}

impl Interceptor {
    /// Listens on `socket` for the driver behind `driver`, which need not be there yet.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(socket: &Path, driver: &Path) -> Self {
        let play = Arc::new(Mutex::new(Play::default()));
        let relay = Relay { driver: channel(driver), play: Arc::clone(&play) };
        let listener = UnixListener::bind(socket).expect("a socket");
        let task = tokio::spawn(async move {
            let served = Server::builder()
                .add_service(IdentityServer::new(relay.clone()))
                .add_service(ControllerServer::new(relay.clone()))
                .add_service(NodeServer::new(relay))
                .serve_with_incoming(UnixListenerStream::new(listener));
            served.await.expect("the one between serves");
        });
        Self { socket: socket.to_owned(), play, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What is done about the next calls of a method, one after the other.
    pub fn next(&self, method: Method, acts: impl IntoIterator<Item = Act>) {
        self.play().next.entry(method).or_default().extend(acts);
    }

    /// What is done about every call of a method for a volume from now on.
    pub fn always(&self, method: Method, volume: &str, act: Act) {
        self.play().always.insert((method, volume.to_owned()), act);
    }

    /// Reads or changes the history.
    pub fn history<T>(&self, check: impl FnOnce(&mut History) -> T) -> T {
        check(&mut self.play().history)
    }

    /// How often a method was called.
    #[must_use]
    pub fn count(&self, method: Method) -> usize {
        self.play().history.count(method)
    }

    /// Fails if the caller ever did what it must not.
    ///
    /// # Panics
    /// If so.
    pub fn assert_lawful(&self) {
        let play = self.play();
        let breaches = play.history.breaches();
        assert!(breaches.is_empty(), "{breaches:#?}\nof {:#?}", play.history.calls());
    }

    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Between").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Drop for Interceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call. Its work continues when the caller disconnects, as in a driver.
    async fn pass<T: Default + Send + 'static>(
        &self,
        about: Option<(Method, Subject)>,
        hand_on: impl Future<Output = Result<Response<T>, Status>> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let Some((method, subject)) = about else { return hand_on.await };
        let (number, act) = {
            let mut play = self.play();
            let act = play.always.get(&(method, subject.volume.clone())).cloned();
            let act = act.or_else(|| play.next.get_mut(&method)?.pop_front());
            (play.history.begin(method, &subject), act)
        };
        let relay = self.clone();
        let call = tokio::spawn(async move {
            let lies = matches!(act, Some(Act::Lie));
            let answer = perform(act, subject, hand_on).await;
            let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
            relay.play().history.end(number, code, !lies);
            answer
        });
        call.await.unwrap_or_else(|cause| Err(Status::internal(cause.to_string())))
    }
}

async fn perform<T: Default>(
    act: Option<Act>,
    subject: Subject,
    hand_on: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Status> {
    match act {
        None => hand_on.await,
        Some(Act::Lie) => Ok(Response::new(T::default())),
        Some(Act::FailAfter(code)) => {
            hand_on.await?;
            Err(Status::new(code, "it was done, and reported as an error"))
        }
        Some(Act::First(action)) => {
            does(action, subject).await?;
            hand_on.await
        }
        Some(Act::Also(action)) => {
            let answer = hand_on.await?;
            does(action, subject).await?;
            Ok(answer)
        }
        Some(Act::Instead(action)) => {
            does(action, subject).await?;
            Ok(Response::new(T::default()))
        }
    }
}

async fn does(action: Action, subject: Subject) -> Result<(), Status> {
    let done = tokio::task::spawn_blocking(move || action(&subject)).await;
    done.map_err(io::Error::other)
        .and_then(std::convert::identity)
        .map_err(|cause| Status::internal(cause.to_string()))
}

/// A service that hands its calls on; of some it remembers what they are about.
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
