//! An agent renews its certificate through its hub before it ends, keeps it over a restart, and uses no certificate that a
//! hub should not have sent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use edge_csi_common::certificates::SERVICE;
use edge_csi_common::certificates::message::{Answer, Request};
use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::certificates::{ClusterCertificates, Files};
use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::process::Process;
use edge_csi_tests::{page, port, wait};
use edge_transport::hub::{Hub, Rules};
use edge_transport::tls::ServerTls;
use edge_transport::{PeerId, ReplySender, Service, ServiceName};
use prost::Message;
use tempfile::TempDir;

/// The time that the first certificate is still valid: long enough for a renewal, and less than a third of its validity.
const LEFT: Duration = Duration::from_secs(12);
const AGE: Duration = Duration::from_secs(120);

/// The answer of a hub to a request.
type Sign = fn(&ClusterCertificates, &[u8]) -> Answer;

/// Signs what nodes send, or answers something else.
#[derive(Clone)]
struct Signer {
    certificates: Arc<ClusterCertificates>,
    asked: Arc<Mutex<Vec<Bytes>>>,
    answer: Sign,
}

#[async_trait]
impl Service for Signer {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        assert_eq!(source.as_str(), NODE);
        let request = Request::decode(request.body).unwrap().certificate_request;
        self.asked.lock().unwrap().push(request.clone());
        let answer = (self.answer)(&self.certificates, &request);
        let _ = replies.send_and_finish(answer.encode_to_vec().into(), Bytes::new()).await;
    }
}

fn signed(certificates: &ClusterCertificates, request: &[u8]) -> Answer {
    let chain = certificates.authority().sign_request(request, NODE, Duration::from_secs(3600));
    Answer { chain, ..Answer::default() }
}

/// A hub in this process, and the files of an agent.
struct Fixture {
    directory: TempDir,
    port: u16,
    files: Files,
    signer: Signer,
    hub: Hub,
}

impl Fixture {
    async fn start(answer: Sign) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let certificates = Arc::new(ClusterCertificates::new(directory.path()));
        let own = &certificates.hub;
        let tls = ServerTls::from_files(&own.certificate, &own.key, &own.authority).unwrap();
        let port = port::free();
        let address = format!("wss://127.0.0.1:{port}").parse().unwrap();
        let builder = Hub::builder().listen(address, &tls).await.unwrap();
        let files = certificates.authority().issue_until(&[NODE], AGE, LEFT);
        let signer = Signer { certificates, asked: Arc::default(), answer };
        let service = ServiceName::new(SERVICE).unwrap();
        let hub = builder.service(service, Rules::nodes_only(), signer.clone());
        Self { directory, port, files, signer, hub: hub.start().unwrap() }
    }

    fn renewed(&self) -> PathBuf {
        self.directory.path().join("state/renewed.pem")
    }

    fn agent(&self, name: &str) -> Process {
        let arguments = Arguments::new()
            .pair("--nodeid", NODE)
            .pair("--hub", format!("wss://127.0.0.1:{}", self.port))
            .pair("--state-dir", self.directory.path().join("state"))
            .pair("--http-endpoint", "127.0.0.1:0")
            .dialer(&self.files)
            .serving(DRIVER, &self.directory.path().join("driver.sock"));
        Process::start(self.directory.path(), name, "edge-agent", arguments.flag("-v"))
    }

    async fn is_connected(&self) {
        let connected = || self.hub.peers().iter().any(|peer| peer.peer.as_str() == NODE);
        wait::until("the agent is connected", async || connected().then_some(())).await;
    }
}

async fn shows(agent: &Process, text: &str) {
    wait::until(&format!("the page has: {text}"), async || {
        page::of(agent, "/").await.contains(text).then_some(())
    })
    .await;
}

#[tokio::test]
async fn agent_renews_its_certificate_and_keeps_it_over_a_restart() {
    let fixture = Fixture::start(signed).await;
    let end = SystemTime::now() + LEFT;
    let agent = fixture.agent("agent");
    agent.logged("the certificate was renewed").await;
    let mode = fs::metadata(fixture.renewed()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the key is private");
    let text = fs::read_to_string(fixture.renewed()).unwrap();
    assert!(text.contains("BEGIN PRIVATE KEY") && text.contains("BEGIN CERTIFICATE"));
    assert!(!fs::read_to_string(&fixture.files.key).unwrap().contains(&text[..100]), "a new key");
    shows(&agent, "renewed by the agent, ends in 0 h 59 min").await;
    agent.logged("switching to a new link").await;

    // The old certificate ends, and the session of the new one does not.
    wait::until("the old certificate ends", async || (SystemTime::now() > end).then_some(())).await;
    fixture.is_connected().await;
    let expired = fixture.hub.stats().unauthenticated;
    assert_eq!(expired, 0, "the agent was connected with its new certificate in time");
    assert_eq!(fixture.signer.asked.lock().unwrap().len(), 1, "one request");

    agent.stop().unwrap();
    let again = fixture.agent("agent-2");
    fixture.is_connected().await;
    shows(&again, "renewed by the agent").await;

    // A newer certificate of the operator is used at the next check.
    let newer = fixture.signer.certificates.issue(&[NODE]);
    newer.install_as(&fixture.files);
    shows(&again, "from --tls-cert").await;
    again.stop().unwrap();
}

/// A hostile hub cannot make a node lose its certificate: another authority, another name, an end that is earlier.
#[tokio::test]
async fn agent_uses_no_other_certificate_than_its_own() {
    let answers: [(Sign, &str); 4] = [
        (
            |_, request| {
                let directory = tempfile::tempdir().unwrap();
                let other = ClusterCertificates::new(directory.path());
                signed(&other, request)
            },
            "not of the authority of the present one",
        ),
        (
            |certificates, request| {
                let chain =
                    certificates.authority().sign_request(request, "edge-2", Duration::from_secs(3600));
                Answer { chain, ..Answer::default() }
            },
            "expected only",
        ),
        (
            |certificates, request| {
                let chain = certificates.authority().sign_request(request, NODE, Duration::from_secs(1));
                Answer { chain, ..Answer::default() }
            },
            "does not end later",
        ),
        (
            |_, _| Answer { reason: "the signer is away".to_owned(), again: true, ..Answer::default() },
            "the hub gave no certificate: the signer is away",
        ),
    ];
    for (answer, reason) in answers {
        let fixture = Fixture::start(answer).await;
        let agent = fixture.agent("agent");
        agent.logged(reason).await;
        shows(&agent, "certificate not renewed").await;
        shows(&agent, "from --tls-cert").await;
        assert!(!fixture.renewed().exists(), "{reason}");
        fixture.is_connected().await;
        agent.stop().unwrap();
    }
}
