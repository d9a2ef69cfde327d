//! A hub as a process, and nodes that ask it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use edge_csi_common::certificates;
use edge_csi_common::certificates::message::Answer;
use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::kubernetes::message::{Object, Request, StatusResult, Update, Watch, object, request};
use edge_transport::link::{Address, DialOptions};
use edge_transport::peer::PeerBuilder;
use edge_transport::{
    Failure, Peer, PeerId, PeerState, ReplyEvent, ReplySender, ReplyStream, Service, ServiceName,
};
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};

/// The longest wait for anything; only a failure takes so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A running `edge-hub`; killed when the test ends, which fails if the hub has panicked.
pub(super) struct Hub {
    child: Child,
    socket: PathBuf,
    http: String,
    log: Arc<Mutex<String>>,
    /// Sends the address of the page; closed at the end of the log.
    page: mpsc::Receiver<String>,
}

impl Hub {
    /// Starts one and waits until it listens.
    pub(super) fn start(directory: &Path, kubeconfig: &Path) -> Self {
        Self::start_with(directory, kubeconfig, &[])
    }

    /// Starts one with more options.
    pub(super) fn start_with(directory: &Path, kubeconfig: &Path, options: &[&str]) -> Self {
        let socket = directory.join("hub.sock");
        let mut child = Command::new(env!("CARGO_BIN_EXE_edge-hub"))
            .args([
                "-vv",
                "--listen",
                &format!("unix://{}", socket.display()),
                "--http-endpoint",
                "127.0.0.1:0",
                "--kubeconfig",
            ])
            .arg(kubeconfig)
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&log);
        let (sender, page) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, port)) =
                    line.split_once("127.0.0.1:").filter(|_| line.contains("status page"))
                {
                    let _ = sender.send(format!("127.0.0.1:{}", port.trim()));
                }
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut hub = Self { child, socket, http: String::new(), log, page };
        hub.http = hub.page.recv_timeout(PATIENCE).unwrap();
        hub
    }

    /// Waits until `/readyz` says so.
    pub(super) async fn ready(&self) {
        let ready = async {
            while !self.http("/readyz").await.starts_with("HTTP/1.1 200") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, ready).await.unwrap();
    }

    /// What a path of `--http-endpoint` answers.
    pub(super) async fn http(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let answered = async {
            let mut stream = tokio::net::TcpStream::connect(&self.http).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::time::timeout(PATIENCE, answered).await.unwrap()
    }

    /// What it has logged, as much as it and its libraries log at all, once these words are in it.
    pub(super) async fn log_with(&self, words: &str) -> String {
        let logged = async {
            while !self.log.lock().unwrap().contains(words) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, logged).await.unwrap();
        self.log.lock().unwrap().clone()
    }

    /// Where it listens.
    pub(super) fn address(&self) -> Address {
        format!("unix://{}", self.socket.display()).parse().unwrap()
    }

    /// SIGTERM, and its exit code.
    pub(super) fn end(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.has_ended(), "the hub does not end");
        self.child.wait().unwrap().code()
    }

    /// Waits for the end of the log, when the process has ended.
    fn has_ended(&self) -> bool {
        self.page.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let has_ended = self.has_ended();
        let log = self.log.lock().unwrap();
        if std::thread::panicking() {
            eprintln!("{log}");
        } else {
            assert!(has_ended, "the hub is killed, and its log does not end:\n{log}");
            assert!(!log.contains("panicked at"), "the hub has panicked:\n{log}");
        }
    }
}

/// Makes a peer a node in the eyes of the hub's policy.
struct Nothing;

#[async_trait]
impl Service for Nothing {
    async fn call(&self, _: PeerId, _: edge_transport::Request, _: ReplySender) {}
}

/// A node.
pub(super) struct Node {
    peer: Peer,
}

impl Node {
    /// One that is connected.
    pub(super) async fn connect(hub: &Hub, name: &str) -> Self {
        let service = ServiceName::new("csi").unwrap();
        Self::start(dialling(&hub.address(), name).service(service, Nothing)).await
    }

    /// A peer without services, which is not a node.
    pub(super) async fn proxy(hub: &Hub, name: &str) -> Self {
        Self::start(dialling(&hub.address(), name)).await
    }

    async fn start(builder: PeerBuilder) -> Self {
        let peer = builder.start().unwrap();
        tokio::time::timeout(PATIENCE, peer.connected()).await.unwrap().unwrap();
        Self { peer }
    }

    /// Why a peer of this name is not let in.
    pub(super) async fn is_refused(hub: &Address, name: &str) -> String {
        let peer = dialling(hub, name).start().unwrap();
        let mut state = peer.watch();
        let refused = state.wait_for(|state| {
            assert!(!state.is_connected(), "the name was taken");
            matches!(state, PeerState::Connecting { last_error: Some(_), .. })
        });
        let refused = tokio::time::timeout(PATIENCE, refused).await.unwrap().unwrap().clone();
        let PeerState::Connecting { last_error, .. } = refused else { panic!("{refused:?}") };
        last_error.unwrap()
    }

    pub(super) async fn leave(self) {
        tokio::time::timeout(PATIENCE, self.peer.close()).await.unwrap();
    }

    async fn call(&self, target: PeerId, service: &str, kind: request::Kind) -> ReplyStream {
        self.send(target, service, Request { request: Some(kind) }.encode_to_vec()).await
    }

    async fn send(&self, target: PeerId, service: &str, body: Vec<u8>) -> ReplyStream {
        let service = ServiceName::new(service).unwrap();
        let call = self.peer.call(target, edge_transport::Request::new(service, body));
        tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap()
    }

    /// The one answer of the hub to a request.
    pub(super) async fn ask<M: Message + Default>(&self, kind: request::Kind) -> Result<M, Failure> {
        self.ask_peer(&self.peer.hub().unwrap(), SERVICE, kind).await
    }

    /// What the hub itself says to a request to any of its services.
    pub(super) async fn ask_service(&self, service: &str) -> Result<StatusResult, Failure> {
        let nothing = request::Kind::Watch(Watch::default());
        self.ask_peer(&self.peer.hub().unwrap(), service, nothing).await
    }

    /// The hub's answer to a request for a certificate (PKCS #10 in DER).
    pub(super) async fn request_certificate(&self, request: &[u8]) -> Result<Answer, Failure> {
        let body = certificates::message::Request { certificate_request: request.to_vec().into() };
        let hub = self.peer.hub().unwrap();
        let mut replies = self.send(hub, certificates::SERVICE, body.encode_to_vec()).await;
        match tokio::time::timeout(PATIENCE, replies.next()).await.unwrap().unwrap()? {
            ReplyEvent::Message(bytes) => Ok(Answer::decode(bytes).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// The one answer of any peer.
    pub(super) async fn ask_peer<M: Message + Default>(
        &self,
        target: &PeerId,
        service: &str,
        kind: request::Kind,
    ) -> Result<M, Failure> {
        first(&mut self.call(target.clone(), service, kind).await).await
    }

    /// The hub's first answer to a request that stays open until the stream is dropped.
    pub(super) async fn keep(&self, kind: request::Kind) -> (StatusResult, ReplyStream) {
        let mut replies = self.call(self.peer.hub().unwrap(), SERVICE, kind).await;
        (first(&mut replies).await.unwrap(), replies)
    }

    /// Listens from what it has.
    pub(super) async fn listen(&self, objects: Objects) -> Listening {
        let versions = objects.versions.clone();
        let watch = Watch { source: objects.source, revision: objects.revision, versions };
        let replies = self.call(self.peer.hub().unwrap(), SERVICE, request::Kind::Watch(watch)).await;
        Listening { replies, objects }
    }
}

async fn first<M: Message + Default>(replies: &mut ReplyStream) -> Result<M, Failure> {
    match tokio::time::timeout(PATIENCE, replies.next()).await.unwrap().unwrap()? {
        ReplyEvent::Message(bytes) => Ok(M::decode(bytes).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn dialling(hub: &Address, name: &str) -> PeerBuilder {
    let dialer = hub.dialer(&DialOptions::default()).unwrap();
    Peer::builder(PeerId::new(name).unwrap()).dialer(dialer)
}

/// What a node knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Objects {
    source: u64,
    revision: u64,
    versions: BTreeMap<u32, u64>,
    pub(super) all: BTreeMap<(u8, String), object::Kind>,
}

impl Objects {
    pub(super) fn names(&self) -> Vec<&str> {
        self.all.keys().map(|(_, name)| name.as_str()).collect()
    }
}

/// A node that listens.
pub(super) struct Listening {
    replies: ReplyStream,
    pub(super) objects: Objects,
}

impl Listening {
    /// The next change; whether it was a whole set.
    pub(super) async fn change(&mut self) -> Result<bool, Failure> {
        let mut parts: Vec<Update> = Vec::new();
        while !parts.last().is_some_and(|part| part.complete) {
            match tokio::time::timeout(PATIENCE, self.replies.next()).await.unwrap().unwrap()? {
                ReplyEvent::Message(bytes) => parts.push(Update::decode(bytes).unwrap()),
                other => panic!("{other:?}"),
            }
        }
        let (whole, objects) = (parts[0].snapshot, &mut self.objects);
        if whole {
            objects.all.clear();
        }
        for part in parts {
            (objects.source, objects.revision) = (part.source, part.revision);
            objects.versions = part.versions;
            for object in part.changed {
                let (key, kind) = keyed(object);
                objects.all.insert(key, kind);
            }
            for key in part.removed {
                objects.all.remove(&(u8::try_from(key.kind).unwrap(), key.name));
            }
        }
        Ok(whole)
    }

    /// Takes changes until the objects are so.
    pub(super) async fn until(&mut self, so: impl Fn(&Objects) -> bool) {
        while !so(&self.objects) {
            self.change().await.unwrap();
        }
    }
}

fn keyed(object: Object) -> ((u8, String), object::Kind) {
    let kind = object.object.unwrap();
    let key = match &kind {
        object::Kind::Pod(pod) => (1, pod.name.clone()),
        object::Kind::Claim(claim) => (2, claim.name.clone()),
        object::Kind::PersistentVolume(volume) => (3, volume.name.clone()),
        object::Kind::Attachment(attachment) => (4, attachment.name.clone()),
        object::Kind::Driver(driver) => (5, driver.name.clone()),
    };
    (key, kind)
}
