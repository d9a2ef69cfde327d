//! A scripted driver on raw bytes, and an endpoint in front of it.

#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "every test file uses a part of it"
)]

pub mod counting;
pub mod edge;
pub mod log;
pub mod silent;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Dispatcher, DriverName, Endpoint, NodeId, Router, Serving, SocketAddress, StartupView};
use prost::Message as _;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Uri};
use tonic::{Request, Response, Status};

pub async fn connect(socket: std::path::PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    tonic::transport::Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
        .unwrap()
}

/// Passes messages as bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// The action of the driver for one call.
#[derive(Debug, Clone)]
pub enum Act {
    /// Answers with these messages and this status.
    Answer(Vec<Bytes>, Status),
    /// Answers after the notification.
    Wait(Arc<tokio::sync::Notify>),
}

/// The actions of the driver in turn, then its default answers.
#[derive(Debug, Clone, Default)]
pub struct Script {
    pub acts: Vec<Act>,
}

#[derive(Debug, Clone, Default)]
struct MockDriver {
    acts: Arc<Mutex<VecDeque<Act>>>,
    seen: Arc<Mutex<Vec<(String, Bytes)>>>,
    finished: Arc<tokio::sync::Notify>,
    headers: Arc<Mutex<Vec<http::HeaderMap>>>,
}

impl MockDriver {
    fn usual(path: &str, body: &Bytes) -> Bytes {
        let bytes = match path.rsplit('/').next().unwrap() {
            "GetPluginInfo" => csi::GetPluginInfoResponse {
                name: "csi-hostpath".to_owned(),
                vendor_version: "1.2.3".to_owned(),
                ..Default::default()
            }
            .encode_to_vec(),
            "CreateVolume" => {
                let request = csi::CreateVolumeRequest::decode(body.clone()).unwrap();
                let volume = csi::Volume { volume_id: format!("vol-{}", request.name), ..Default::default() };
                csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec()
            }
            "GetPluginCapabilities" => plugin_capabilities(&[1, 2, 77]),
            "ControllerGetCapabilities" => controller_capabilities(&[1, 2, 99]),
            _ => Vec::new(),
        };
        bytes.into()
    }
}

pub fn plugin_capabilities(types: &[i32]) -> Vec<u8> {
    use csi::plugin_capability::{Service, Type};
    let capability =
        |r#type: &i32| csi::PluginCapability { r#type: Some(Type::Service(Service { r#type: *r#type })) };
    csi::GetPluginCapabilitiesResponse { capabilities: types.iter().map(capability).collect() }
        .encode_to_vec()
}

pub fn controller_capabilities(types: &[i32]) -> Vec<u8> {
    use csi::controller_service_capability::{Rpc, Type};
    let capability =
        |r#type: &i32| csi::ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *r#type })) };
    csi::ControllerGetCapabilitiesResponse { capabilities: types.iter().map(capability).collect() }
        .encode_to_vec()
}

type Answers = Pin<Box<dyn tokio_stream::Stream<Item = Result<Bytes, Status>> + Send>>;

impl tonic::server::ServerStreamingService<Bytes> for Call {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answers>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let Self { driver, path } = self.clone();
        Box::pin(async move {
            let body = request.into_inner();
            // The start-up calls of the endpoint are not part of a script.
            let background = path.contains("Identity") || path.contains("GetCapabilities");
            let act = if background { None } else { driver.acts.lock().unwrap().pop_front() };
            if !background {
                driver.seen.lock().unwrap().push((path.clone(), body.clone()));
            }
            let (messages, status) = match act {
                None => (vec![MockDriver::usual(&path, &body)], Status::ok("")),
                Some(Act::Answer(messages, status)) => (messages, status),
                Some(Act::Wait(notice)) => {
                    notice.notified().await;
                    driver.finished.notify_one();
                    (vec![MockDriver::usual(&path, &body)], Status::ok(""))
                }
            };
            if messages.is_empty() {
                return Err(status);
            }
            let end = (status.code() != tonic::Code::Ok).then_some(Err(status));
            let answers: Answers = Box::pin(tokio_stream::iter(messages.into_iter().map(Ok).chain(end)));
            Ok(Response::new(answers))
        })
    }
}

#[derive(Debug, Clone)]
struct Call {
    driver: MockDriver,
    path: String,
}

impl tower::Service<http::Request<tonic::body::Body>> for MockDriver {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let call = Call { driver: self.clone(), path: request.uri().path().to_owned() };
        if !call.path.contains("Identity") && !call.path.contains("GetCapabilities") {
            self.headers.lock().unwrap().push(request.headers().clone());
        }
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(64 << 20);
            Ok(grpc.server_streaming(call, request).await)
        })
    }
}

impl tonic::server::NamedService for MockDriver {
    const NAME: &'static str = "any";
}

/// A driver, an endpoint in front of it, and the directory of their sockets.
pub struct Stage {
    directory: TempDir,
    driver: MockDriver,
    pub serving: Option<Serving>,
    pub startup: StartupView,
    pub dispatcher: Dispatcher,
}

pub fn driver_name() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

pub fn node() -> NodeId {
    NodeId::new("edge-1").unwrap()
}

impl Stage {
    pub async fn start(script: Script) -> Self {
        Self::with(script, |endpoint| endpoint).await
    }

    /// With a configured endpoint.
    pub async fn with(script: Script, configure: impl FnOnce(Endpoint) -> Endpoint) -> Self {
        let mut stage = Self::without_driver_with(configure).await;
        stage.start_driver(script);
        stage
    }

    /// With an endpoint, without the socket of the driver.
    pub async fn without_driver() -> Self {
        Self::without_driver_with(|endpoint| endpoint).await
    }

    /// With a configured endpoint, without the socket of the driver.
    pub async fn without_driver_with(configure: impl FnOnce(Endpoint) -> Endpoint) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = |name: &str| SocketAddress::new(directory.path().join(name).to_str().unwrap()).unwrap();
        let dispatcher = Dispatcher::new().with_driver(driver_name(), address("driver.sock"));
        let router = Router::fixed(node());
        let endpoint = configure(Endpoint::new(driver_name(), router, dispatcher.clone()));
        let startup = endpoint.startup();
        let serving = Some(endpoint.serve(address("csi.sock")).await.unwrap());
        Self { directory, driver: MockDriver::default(), serving, startup, dispatcher }
    }

    pub fn start_driver(&mut self, script: Script) {
        self.driver.acts.lock().unwrap().extend(script.acts);
        let incoming = UnixListenerStream::new(UnixListener::bind(self.driver_socket()).unwrap());
        let driver = self.driver.clone();
        tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(driver, incoming));
    }

    pub fn driver_socket(&self) -> std::path::PathBuf {
        self.directory.path().join("driver.sock")
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("csi.sock")
    }

    pub async fn channel(&self) -> Channel {
        connect(self.socket()).await
    }

    pub async fn controller(&self) -> csi::controller_client::ControllerClient<Channel> {
        csi::controller_client::ControllerClient::new(self.channel().await)
    }

    pub async fn identity(&self) -> csi::identity_client::IdentityClient<Channel> {
        csi::identity_client::IdentityClient::new(self.channel().await)
    }

    /// The calls received by the driver, without the start-up calls of the endpoint.
    pub fn seen(&self) -> Vec<(String, Bytes)> {
        self.driver.seen.lock().unwrap().clone()
    }

    /// Waits until the driver has received at least this number of calls.
    pub async fn seen_at_least(&self, calls: usize) {
        in_time(async {
            while self.driver.seen.lock().unwrap().len() < calls {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Waits until the endpoint has removed its socket.
    pub async fn wait_until_socket_is_removed(&self) {
        in_time(async {
            while self.socket().exists() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub fn headers(&self) -> Vec<http::HeaderMap> {
        self.driver.headers.lock().unwrap().clone()
    }

    pub async fn finished(&self) {
        in_time(self.driver.finished.notified()).await;
    }
}

/// Fails rather than hangs.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(std::time::Duration::from_secs(20), future).await.expect("nothing within 20 s")
}

/// An answer as an HTTP/2 client sees it.
#[derive(Debug)]
pub struct Seen {
    pub status: http::StatusCode,
    pub headers: http::HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<http::HeaderMap>,
}

impl Seen {
    /// The value of `grpc-status`, in the headers or trailers.
    pub fn code(&self) -> Option<u32> {
        let trailers = self.trailers.as_ref().unwrap_or(&self.headers);
        trailers.get("grpc-status")?.to_str().ok()?.parse().ok()
    }

    /// The encoded value of `grpc-message`, in the headers or trailers.
    pub fn message(&self) -> &str {
        let trailers = self.trailers.as_ref().unwrap_or(&self.headers);
        trailers.get("grpc-message").map_or("", |value| value.to_str().unwrap())
    }
}

/// One message with its prefix.
pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.into()
}

/// A request without tonic, whose client generates codes itself.
pub async fn raw_call(
    socket: &std::path::Path,
    path: &str,
    headers: &[(&'static str, &str)],
    body: Bytes,
) -> Result<Seen, h2::Error> {
    let (sender, connection) = h2::client::handshake(UnixStream::connect(socket).await.unwrap()).await?;
    tokio::spawn(connection);
    let mut request = http::Request::post(format!("http://localhost{path}"));
    for (name, value) in [("te", "trailers"), ("content-type", "application/grpc")].iter().chain(headers) {
        request.headers_mut().unwrap().insert(*name, value.parse().unwrap());
    }
    let (response, mut stream) = sender.ready().await?.send_request(request.body(()).unwrap(), false)?;
    stream.send_data(body, true)?;
    let (head, mut stream) = response.await?.into_parts();
    let mut body = Vec::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk?;
        stream.flow_control().release_capacity(chunk.len())?;
        body.extend_from_slice(&chunk);
    }
    let trailers = stream.trailers().await?;
    Ok(Seen { status: head.status, headers: head.headers, body, trailers })
}
