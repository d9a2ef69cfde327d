//! Sends a random secret in every secret field of the schema, and searches for it wherever it must not appear.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::method::{Method, Service};
use edge_csi_tests::cluster::{DRIVER, TestCluster};
use edge_csi_tests::csi::{channel, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::raw::Raw;
use edge_csi_tests::{page, wait};
use prost::Message;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};

/// The driver's reaction to a request with a secret.
#[derive(Debug, Clone)]
enum Act {
    /// Succeeds with an empty answer.
    Succeed,
    /// Succeeds with the request as the answer.
    Repeat,
    /// Fails with a message without the secret.
    Fail,
    /// Fails with the request in the message, the details and a trailer.
    FailAndRepeat,
    /// Answers with an HTML page that contains the request instead of gRPC.
    Page,
    /// Waits until the test releases the call, and succeeds with an empty answer.
    Wait(Arc<Notify>),
}

/// A driver that serves every method with bytes as messages.
#[derive(Debug, Clone)]
struct Driver {
    secret: String,
    act: Arc<Mutex<Act>>,
    /// The methods that were called with a secret.
    seen: Arc<Mutex<Vec<String>>>,
    finished: Arc<Notify>,
}

type Answers = Pin<Box<dyn tokio_stream::Stream<Item = Result<Bytes, Status>> + Send>>;

#[derive(Debug, Clone)]
struct Answering {
    driver: Driver,
    path: String,
}

impl tonic::server::ServerStreamingService<Bytes> for Answering {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answers>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let Self { driver, path } = self.clone();
        Box::pin(async move {
            let body = request.into_inner();
            let one = |message: Bytes| {
                let answers: Answers = Box::pin(tokio_stream::iter([Ok(message)]));
                Ok(Response::new(answers))
            };
            if !contains(&body, driver.secret.as_bytes()) {
                return one(usual(&path));
            }
            driver.seen.lock().unwrap().push(path);
            let act = driver.act.lock().unwrap().clone();
            match act {
                Act::Succeed | Act::Page => one(Bytes::new()),
                Act::Repeat => one(body),
                Act::Fail => Err(Status::internal("the disk is on fire")),
                Act::FailAndRepeat => {
                    let text = String::from_utf8_lossy(&body).into_owned();
                    let mut status = Status::with_details(Code::InvalidArgument, text, body);
                    let value = driver.secret.parse().unwrap();
                    status.metadata_mut().insert("x-echo", value);
                    Err(status)
                }
                Act::Wait(notice) => {
                    notice.notified().await;
                    driver.finished.notify_one();
                    one(Bytes::new())
                }
            }
        })
    }
}

/// The methods that sidecars call when they start.
fn usual(path: &str) -> Bytes {
    let message = if path.ends_with("GetPluginInfo") {
        let name = DRIVER.to_owned();
        csi::GetPluginInfoResponse { name, vendor_version: "1".to_owned(), ..Default::default() }
            .encode_to_vec()
    } else {
        Vec::new()
    };
    message.into()
}

impl tower::Service<tonic::codegen::http::Request<Body>> for Driver {
    type Response = tonic::codegen::http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::codegen::http::Request<Body>) -> Self::Future {
        let driver = self.clone();
        let path = request.uri().path().to_owned();
        let page = matches!(*self.act.lock().unwrap(), Act::Page) && !path.contains("Identity");
        Box::pin(async move {
            if page {
                let mut response = tonic::codegen::http::Response::new(Body::new(driver.secret.clone()));
                response.headers_mut().insert("content-type", "text/html".parse().unwrap());
                return Ok(response);
            }
            let mut grpc = tonic::server::Grpc::new(Raw);
            Ok(grpc.server_streaming(Answering { driver, path }, request).await)
        })
    }
}

impl tonic::server::NamedService for Driver {
    const NAME: &'static str = "any";
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    count(bytes, needle) > 0
}

/// Returns how often the needle occurs in the bytes.
fn count(bytes: &[u8], needle: &[u8]) -> usize {
    let (first, mut found, mut at) = (needle[0], 0, 0);
    while let Some(next) = bytes[at..].iter().position(|byte| *byte == first) {
        at += next;
        found += usize::from(bytes[at..].starts_with(needle));
        at += 1;
    }
    found
}

/// Returns a random secret, so that no other text equals it.
fn random_secret() -> String {
    let mut bytes = [0; 12];
    File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes.iter().fold("canary".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns the forms in which a log may show the bytes.
fn forms(secret: &str) -> [Vec<u8>; 3] {
    let list = secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    let hex = secret.bytes().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    [secret.as_bytes().to_vec(), list.into_bytes(), hex.into_bytes()]
}

/// Returns a request of this method that contains only secrets: a map with one entry, as in the whole schema.
fn request(method: Method, secret: &str) -> Option<Vec<u8>> {
    let field = method.secrets_field()?;
    let text = |number: u32, text: &[u8]| {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut bytes);
        prost::encoding::encode_varint(text.len() as u64, &mut bytes);
        bytes.extend_from_slice(text);
        bytes
    };
    let entry = [text(1, b"password"), text(2, secret.as_bytes())].concat();
    Some(text(field.number, &entry))
}

/// Makes a call on a socket, reads all messages, and returns the result.
async fn call(socket: &Path, path: &str, body: Vec<u8>, time: Duration) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel(socket));
    grpc.ready().await.map_err(|cause| Status::unavailable(cause.to_string()))?;
    let request = within(time, Bytes::from(body));
    let mut answers = grpc.server_streaming(request, path.parse().unwrap(), Raw).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

/// A cluster with its driver in this process.
struct Search {
    cluster: TestCluster,
    driver: Driver,
    secret: String,
}

impl Search {
    async fn start(over: LinkKind) -> Self {
        let mut cluster = TestCluster::empty(over);
        let secret = random_secret();
        let driver = Driver {
            secret: secret.clone(),
            act: Arc::new(Mutex::new(Act::Succeed)),
            seen: Arc::default(),
            finished: Arc::default(),
        };
        let incoming = UnixListenerStream::new(UnixListener::bind(cluster.driver_socket()).unwrap());
        let server = tonic::transport::Server::builder();
        tokio::spawn(server.serve_with_incoming(driver.clone(), incoming));
        let common = ["--log-format", "json"];
        if over == LinkKind::Uds {
            cluster.hub_options(&common);
        }
        cluster.start_hub().await.unwrap();
        let sockets = cluster.path("kubelet").to_string_lossy().into_owned();
        cluster.start_agent(&[&common[..], &["--kubelet-socket-dir", &sockets]].concat()).unwrap();
        let state = cluster.path("proxy-state").to_string_lossy().into_owned();
        cluster.start_proxy(&[&common[..], &["--state-dir", &state]].concat()).unwrap();
        let search_socket = cluster.proxy_socket();
        edge_csi_tests::csi::ready(&search_socket).await;
        Self { cluster, driver, secret }
    }

    fn act(&self, act: Act) {
        *self.driver.act.lock().unwrap() = act;
    }

    /// Calls every method with secret fields, and returns the result of each.
    async fn every_method(&self) -> Vec<(Method, Result<(), Status>)> {
        let mut ends = Vec::new();
        for method in Method::ALL {
            let Some(body) = request(*method, &self.secret) else { continue };
            if method.service() == Service::Node {
                let refused =
                    call(&self.cluster.proxy_socket(), method.path(), body.clone(), wait::SOON).await;
                assert_eq!(refused.unwrap_err().code(), Code::Unimplemented, "{method:?} at the proxy");
                // The proxy refuses Node calls; they are made on the node.
                let socket = self.cluster.path("kubelet").join(format!("{DRIVER}.sock"));
                ends.push((*method, call(&socket, method.path(), body, wait::SOON).await));
            } else {
                let end = call(&self.cluster.proxy_socket(), method.path(), body, wait::SOON).await;
                ends.push((*method, end));
            }
        }
        ends
    }

    /// Makes every method end with every kind of result.
    async fn every_end(&self) {
        let socket = self.cluster.proxy_socket();
        for act in [Act::Succeed, Act::Repeat] {
            self.act(act.clone());
            for (method, end) in self.every_method().await {
                assert!(end.is_ok(), "{method:?} {act:?}: {end:?}");
            }
        }
        let expected = [
            (Act::Fail, Code::Internal),
            (Act::FailAndRepeat, Code::InvalidArgument),
            (Act::Page, Code::Unavailable),
        ];
        for (act, code) in expected {
            self.act(act.clone());
            for (method, end) in self.every_method().await {
                let status = end.unwrap_err();
                assert_eq!(status.code(), code, "{method:?} {act:?}: {status}");
                // The caller gets the driver's message unchanged, even with the secret.
                let reported = status.message().contains(&self.secret);
                assert_eq!(reported, matches!(act, Act::FailAndRepeat), "{method:?} {act:?}: {status}");
            }
        }
        // Invalid protobuf, for a known method, an unknown one, and one with a stream as the answer.
        self.act(Act::FailAndRepeat);
        let garbage = self.secret.clone().into_bytes();
        for path in [
            "/csi.v1.Controller/CreateVolume",
            "/csi.v1.Controller/MethodOfALaterVersion",
            "/csi.v1.SnapshotMetadata/GetMetadataDelta",
        ] {
            let status = call(&socket, path, garbage.clone(), wait::SOON).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{path}: {status}");
        }
        // The caller's timeout expires before the driver answers.
        let notice = Arc::new(Notify::new());
        self.act(Act::Wait(Arc::clone(&notice)));
        let body = request(Method::CreateVolume, &self.secret).unwrap();
        // The timeout is long enough for the call to reach the driver, which counts it.
        let late = call(&socket, Method::CreateVolume.path(), body.clone(), Duration::from_secs(3)).await;
        // Either the caller's timer or the proxy's expires first.
        assert!(matches!(late.unwrap_err().code(), Code::Cancelled | Code::DeadlineExceeded));
        notice.notify_one();
        wait::within("the driver is done", self.driver.finished.notified()).await;
    }

    fn processes(&self) -> [(&'static str, &Process); 3] {
        [
            ("hub", self.cluster.hub.as_ref().unwrap()),
            ("agent", self.cluster.agent.as_ref().unwrap()),
            ("proxy", self.cluster.proxy.as_ref().unwrap()),
        ]
    }

    /// Returns every place that contains a form of the secret, and how often.
    async fn hits(&self) -> BTreeMap<String, usize> {
        let mut hits = BTreeMap::new();
        let mut check = |place: String, bytes: &[u8]| {
            let found: usize = forms(&self.secret).iter().map(|form| count(bytes, form)).sum();
            if found > 0 {
                hits.insert(place, found);
            }
        };
        let mut files = Vec::new();
        every_file(self.cluster.directory(), &mut files);
        assert!(files.len() >= 8, "{files:?}");
        for file in files {
            check(file.display().to_string(), &fs::read(&file).unwrap());
        }
        for (name, process) in self.processes() {
            for path in ["/metrics", "/", "/readyz"] {
                check(format!("{name} {path}"), page::of(process, path).await.as_bytes());
            }
        }
        hits
    }
}

/// The files below a directory.
fn every_file(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => every_file(&entry.path(), files),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

/// A random secret in each of the 22 secret fields, on calls that succeed, fail, time out, are answered with
/// garbage, and are not protobuf: no log at any level, no state directory, metric or page has it.
#[tokio::test]
async fn secrets_appear_in_no_log_state_metric_or_page() {
    let search = Search::start(LinkKind::Uds).await;
    let methods = Method::ALL.iter().filter(|method| method.secrets_field().is_some()).count();
    assert_eq!(methods, 22);

    search.every_end().await;
    // The agent refuses a CreateVolume that is not protobuf.
    assert_eq!(search.driver.seen.lock().unwrap().len(), 4 * 22 + 2 + 1, "the driver has seen the secrets");
    for (name, process) in search.processes() {
        assert!(process.log().lines().count() > 50, "{name} has hardly logged anything:\n{}", process.log());
    }
    let hits = search.hits().await;
    assert!(hits.is_empty(), "{} is in {hits:#?}", search.secret);
}

/// Core dumps: there are none, on a host where other processes leave them.
#[tokio::test]
async fn a_crash_of_hub_agent_or_proxy_leaves_no_core_dump() {
    use std::os::unix::process::ExitStatusExt;

    let limit = rustix::process::getrlimit(Resource::Core);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Core, most).unwrap();
    let mut search = Search::start(LinkKind::Uds).await;
    let mut other = std::process::Command::new("sleep")
        .arg("1000")
        .current_dir(search.cluster.directory())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(other.id()).unwrap()).unwrap();
    kill_process(pid, Signal::ABORT).unwrap();
    if !other.wait().unwrap().core_dumped() {
        let test = "a_crash_of_hub_agent_or_proxy_leaves_no_core_dump";
        let _ =
            writeln!(std::io::stderr(), "{test}: not run, since no process leaves a core dump on this host");
    }
    let TestCluster { hub, agent, proxy, .. } = &mut search.cluster;
    for process in [hub, agent, proxy].map(|process| process.as_mut().unwrap()) {
        process.signal(Signal::ABORT);
        let end = process.ended().await;
        assert_eq!(
            (end.signal(), end.core_dumped()),
            (Some(Signal::ABORT.as_raw()), false),
            "{process:?}: {end}"
        );
    }
}
