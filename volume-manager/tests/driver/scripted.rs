//! A scripted storage driver with byte-exact answers, which records its calls.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{BufMut, Bytes, BytesMut};
use csi_proto::Method;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use csi_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proto::csi::v1::{
    ControllerGetCapabilitiesResponse, GetPluginCapabilitiesResponse, GetPluginInfoResponse,
    NodeGetCapabilitiesResponse, NodeGetInfoResponse, PluginCapability, ProbeResponse,
};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

pub(crate) const NAME: &str = "scripted.csi.example.org";

/// The response to a call.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// OK, with this message.
    Message(Bytes),
    /// An error, in the header alone as most servers send it.
    Status(i32, &'static str),
    /// An error, in trailers after an empty header.
    LateStatus(i32, &'static str),
    /// OK, with these bytes in place of a framed message.
    Bytes(&'static [u8]),
    /// A message, then the end of the stream without trailers.
    NoStatus,
    /// A status that is not a number.
    BadStatus,
    /// An HTTP status other than 200.
    Http(u16),
    /// The beginning of a message, then nothing.
    Half,
    /// No response.
    Never,
    /// A stream reset with this reason.
    Reset(h2::Reason),
}

impl Reply {
    pub(crate) fn ok(message: &impl Message) -> Self {
        Self::Message(message.encode_to_vec().into())
    }
}

struct State {
    always: BTreeMap<Method, Reply>,
    once: BTreeMap<Method, VecDeque<Reply>>,
    calls: Vec<(Method, Bytes)>,
    connections: usize,
}

/// A running driver. Dropping it is like SIGKILL: its connections break, and the socket file stays.
pub(crate) struct Scripted {
    state: Arc<Mutex<State>>,
    calls: watch::Receiver<usize>,
    leaving: watch::Sender<bool>,
    task: AbortHandle,
}

impl Scripted {
    /// Starts a driver that stages and supports all node RPCs, without any effect.
    pub(crate) fn start(socket: &Path) -> Self {
        let node = [NodeRpc::StageUnstageVolume, NodeRpc::GetVolumeStats, NodeRpc::ExpandVolume];
        let always = BTreeMap::from([
            (Method::Probe, Reply::ok(&ProbeResponse { ready: Some(true) })),
            (Method::GetPluginInfo, info(NAME)),
            (Method::GetPluginCapabilities, Reply::ok(&GetPluginCapabilitiesResponse::default())),
            (Method::NodeGetCapabilities, node_capabilities(node)),
            (Method::NodeGetInfo, node_info("node-1", 0)),
        ]);
        let state = State { always, once: BTreeMap::new(), calls: Vec::new(), connections: 0 };
        let state = Arc::new(Mutex::new(state));
        let listener = UnixListener::bind(socket).expect("a socket");
        let (counting, calls) = watch::channel(0);
        let leaving = watch::Sender::new(false);
        let task = tokio::spawn(listen(listener, state.clone(), counting, leaving.clone())).abort_handle();
        Self { state, calls, leaving, task }
    }

    /// Starts a driver in place of a dead one.
    pub(crate) fn restart(socket: &Path) -> Self {
        std::fs::remove_file(socket).expect("the dead one's socket");
        Self::start(socket)
    }

    /// Adds the controller service, which attaches volumes.
    pub(crate) fn with_controller(self) -> Self {
        let plugin: GetPluginCapabilitiesResponse =
            [PluginCapability::service(Service::ControllerService)].into_iter().collect();
        let controller: ControllerGetCapabilitiesResponse =
            [ControllerRpc::PublishUnpublishVolume, ControllerRpc::ExpandVolume].into_iter().collect();
        self.always(Method::GetPluginCapabilities, Reply::ok(&plugin));
        self.always(Method::ControllerGetCapabilities, Reply::ok(&controller));
        self
    }

    pub(crate) fn always(&self, method: Method, reply: Reply) {
        self.state().always.insert(method, reply);
    }

    pub(crate) fn once(&self, method: Method, reply: Reply) {
        self.state().once.entry(method).or_default().push_back(reply);
    }

    /// Returns the received calls, in order.
    pub(crate) fn calls(&self) -> Vec<Method> {
        self.state().calls.iter().map(|(method, _)| *method).collect()
    }

    pub(crate) fn forget_calls(&self) {
        self.state().calls.clear();
    }

    /// Returns the last request of a method.
    pub(crate) fn last<T: Message + Default>(&self, method: Method) -> T {
        let state = self.state();
        let (_, body) = state.calls.iter().rfind(|(called, _)| *called == method).expect("a call");
        T::decode(&body[5..]).expect("a message")
    }

    pub(crate) fn connections(&self) -> usize {
        self.state().connections
    }

    /// Waits for the next unseen call of a method.
    pub(crate) async fn called(&self, method: Method) {
        let mut calls = self.calls.clone();
        calls.wait_for(|_| self.calls().contains(&method)).await.expect("the driver runs");
    }

    /// Accepts no more calls on the current connections, and ends the pending ones.
    pub(crate) fn leave(&self) {
        self.leaving.send_replace(true);
        self.leaving.send_replace(false);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn info(name: &str) -> Reply {
    let vendor_version = "1.0".into();
    Reply::ok(&GetPluginInfoResponse { name: name.into(), vendor_version, ..Default::default() })
}

pub(crate) fn node_capabilities(capabilities: impl IntoIterator<Item = NodeRpc>) -> Reply {
    Reply::ok(&capabilities.into_iter().collect::<NodeGetCapabilitiesResponse>())
}

pub(crate) fn node_info(node_id: &str, max_volumes_per_node: i64) -> Reply {
    let node_id = node_id.into();
    Reply::ok(&NodeGetInfoResponse { node_id, max_volumes_per_node, accessible_topology: None })
}

async fn listen(
    listener: UnixListener,
    state: Arc<Mutex<State>>,
    calls: watch::Sender<usize>,
    leaving: watch::Sender<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        state.lock().expect("no panic").connections += 1;
        connections.spawn(serve(stream, state.clone(), calls.clone(), leaving.subscribe()));
    }
}

async fn serve(
    stream: UnixStream,
    state: Arc<Mutex<State>>,
    calls: watch::Sender<usize>,
    mut leaving: watch::Receiver<bool>,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut answers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                answers.spawn(answer(request, respond, state.clone(), calls.clone()));
            }
            Some(_) = answers.join_next() => {}
            Ok(()) = leaving.changed() => connection.graceful_shutdown(),
        }
    }
}

async fn answer(
    request: http::Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    state: Arc<Mutex<State>>,
    calls: watch::Sender<usize>,
) {
    let method = Method::from_path(request.uri().path()).expect("a known method");
    assert_eq!(request.uri().authority().map(http::uri::Authority::as_str), Some("localhost"));
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let mut stream = request.into_body();
    let mut body = BytesMut::new();
    while let Some(chunk) = stream.data().await {
        let Ok(chunk) = chunk else { return };
        stream.flow_control().release_capacity(chunk.len()).expect("capacity");
        body.extend_from_slice(&chunk);
    }
    let reply = {
        let mut state = state.lock().expect("no panic");
        state.calls.push((method, body.freeze()));
        let once = state.once.get_mut(&method).and_then(VecDeque::pop_front);
        // The four node calls return an empty message.
        once.or_else(|| state.always.get(&method).cloned()).unwrap_or(Reply::Message(Bytes::new()))
    };
    calls.send_modify(|calls| *calls += 1);
    send(reply, &mut respond).await;
}

/// Sends the scripted reply. The caller may have disconnected, which is not an error.
async fn send(reply: Reply, respond: &mut SendResponse<Bytes>) {
    let ok = || {
        let mut head = Response::new(());
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        head
    };
    let framed = |message: &[u8]| {
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).expect("a short message"));
        body.extend_from_slice(message);
        body.freeze()
    };
    let status = |code: &str, message: &str| {
        let mut fields = HeaderMap::new();
        fields.insert("grpc-status", HeaderValue::from_str(code).expect("a status"));
        fields.insert("grpc-message", HeaderValue::from_str(message).expect("a message"));
        fields
    };
    let whole = |respond: &mut SendResponse<Bytes>, body: Bytes, fields: Option<HeaderMap>| {
        let mut stream = respond.send_response(ok(), false)?;
        stream.send_data(body, fields.is_none())?;
        fields.map_or(Ok(()), |fields| stream.send_trailers(fields))
    };
    let alone = |respond: &mut SendResponse<Bytes>, code: u16, fields: HeaderMap| {
        let mut head = ok();
        *head.status_mut() = http::StatusCode::from_u16(code).expect("a status");
        *head.headers_mut() = fields;
        respond.send_response(head, true).map(drop)
    };
    let _: Result<(), h2::Error> = match reply {
        Reply::Message(message) => whole(respond, framed(&message), Some(status("0", ""))),
        Reply::Bytes(bytes) => whole(respond, Bytes::from_static(bytes), Some(status("0", ""))),
        Reply::NoStatus => whole(respond, framed(&[]), None),
        Reply::BadStatus => whole(respond, framed(&[]), Some(status("OK", ""))),
        // Without an empty DATA frame in between, since a connection accepts only a hundred of them.
        Reply::LateStatus(code, message) => respond
            .send_response(ok(), false)
            .and_then(|mut stream| stream.send_trailers(status(&code.to_string(), message))),
        Reply::Status(code, message) => alone(respond, 200, status(&code.to_string(), message)),
        Reply::Http(code) => alone(respond, code, HeaderMap::new()),
        Reply::Reset(reason) => {
            respond.send_reset(reason);
            Ok(())
        }
        Reply::Half => {
            let stream = respond.send_response(ok(), false);
            if let Ok(mut stream) = stream {
                let _ = stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 1]), false);
                std::future::pending::<()>().await;
            }
            Ok(())
        }
        Reply::Never => std::future::pending().await,
    };
}
