//! What sidecars ask when they start, with and without the driver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use common::log::Log;
use common::{
    Script, Stage, connect, controller_capabilities, driver_name, framed, node, plugin_capabilities, raw_call,
};
use csi_proto::csi::v1 as csi;
use csi_proxy::startup::{DirectoryFacts, FactsStore, FaultyFacts, Kept, MAX_RECORD, MemoryFacts, Subject};
use csi_proxy::{
    Call, Code, Dispatcher, DriverName, Endpoint, EndpointSettings, Outcome, Relay, RelayError, Replies,
    Router, SocketAddress,
};

const CAPABILITIES: &str = "/csi.v1.Identity/GetPluginCapabilities";

#[tokio::test]
async fn with_the_driver_off_sidecars_can_start() {
    let mut settings = EndpointSettings::default();
    settings.first_answer = Duration::from_millis(30);
    let stage = Stage::without_driver(settings).await;
    let mut identity = stage.identity().await;
    let probe = identity.probe(csi::ProbeRequest::default()).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(false));
    let info = identity.get_plugin_info(csi::GetPluginInfoRequest::default()).await.unwrap().into_inner();
    assert_eq!((&*info.name, &*info.vendor_version), ("csi-hostpath", "unknown"));
    let seen = raw_call(&stage.socket(), CAPABILITIES, &[], framed(&[])).await.unwrap();
    assert_eq!(seen.code(), Some(14), "never an empty list: {seen:?}");
}

/// A driver that fails every call.
struct Fails(&'static str);

#[async_trait::async_trait]
impl Relay for Fails {
    async fn relay(&self, _: Call) -> Result<Replies, RelayError> {
        Ok(Replies::outcome(Outcome::from_driver(Code::FAILED_PRECONDITION, self.0)))
    }
}

#[tokio::test]
async fn what_a_driver_says_of_its_failure_may_hold_a_password_and_is_not_logged() {
    let (log, _logging) = Log::start(tracing::Level::TRACE);
    let directory = tempfile::tempdir().unwrap();
    let address = SocketAddress::new(directory.path().join("csi.sock").to_str().unwrap()).unwrap();
    let relay = Fails("login at https://user:canary@array refused");
    let endpoint = Endpoint::new(driver_name(), Router::fixed(node()), relay);
    let _serving = endpoint.serve(address).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(20), async {
        while !log.text().contains("the driver cannot be reached") {
            tokio::task::yield_now().await;
        }
    });
    told.await.expect("nothing logged");
    assert!(!log.text().contains("canary"), "{}", log.text());
}

#[tokio::test]
async fn an_early_question_waits_for_the_driver_and_gets_its_masked_answer() {
    let mut stage = Stage::without_driver(EndpointSettings::default()).await;
    let socket = stage.socket();
    let asked = tokio::spawn(async move { raw_call(&socket, CAPABILITIES, &[], framed(&[])).await.unwrap() });
    stage.start_driver(Script::default());
    stage.serving.as_ref().unwrap().refresh();
    assert_eq!(asked.await.unwrap().body, framed(&plugin_capabilities(&[1, 2])));
    let path = "/csi.v1.Controller/ControllerGetCapabilities";
    let seen = raw_call(&stage.socket(), path, &[], framed(&[])).await.unwrap();
    assert_eq!(seen.body, framed(&controller_capabilities(&[1, 2])));
    let path = "/csi.v1.GroupController/GroupControllerGetCapabilities";
    assert_eq!(raw_call(&stage.socket(), path, &[], framed(&[])).await.unwrap().code(), Some(12));
    let info = stage.identity().await.get_plugin_info(csi::GetPluginInfoRequest::default()).await.unwrap();
    assert_eq!(info.into_inner().vendor_version, "1.2.3");
}

/// The questions and their answers, as bytes or as codes.
async fn all_answers(stage: &Stage) -> Vec<(Vec<u8>, Option<u32>)> {
    let mut answers = Vec::new();
    for path in [
        CAPABILITIES,
        "/csi.v1.Controller/ControllerGetCapabilities",
        "/csi.v1.GroupController/GroupControllerGetCapabilities",
        "/csi.v1.Node/NodeGetCapabilities",
        // Last, since it never waits.
        "/csi.v1.Identity/GetPluginInfo",
    ] {
        let seen = raw_call(&stage.socket(), path, &[], framed(&[])).await.unwrap();
        answers.push((seen.body.clone(), seen.code()));
    }
    answers
}

fn kept_in(store: impl FactsStore + 'static) -> EndpointSettings {
    let mut settings = EndpointSettings::default();
    settings.facts = Some(Arc::new(store));
    settings
}

fn ours() -> Subject {
    Subject { driver: driver_name(), node: Some(node()) }
}

/// A life of an endpoint with its driver on, in which everything is learnt.
async fn learn(settings: &EndpointSettings) -> Vec<(Vec<u8>, Option<u32>)> {
    let first = Stage::with_settings(Script::default(), settings.clone()).await;
    let answers = all_answers(&first).await;
    first.serving.unwrap().shutdown(Duration::from_secs(5)).await;
    answers
}

/// Anchors (f) 15, without the ten minutes: with the edge off, a proxy that starts anew answers as before, and says that the
/// driver is not ready and how old the answers are.
#[tokio::test]
async fn after_a_restart_with_the_driver_off_every_answer_is_as_before_and_its_age_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let store = DirectoryFacts::new(directory.path().join("facts"));
    let mut settings = kept_in(store.clone());
    let before = learn(&settings).await;
    assert_eq!(before[0].0, framed(&plugin_capabilities(&[1, 2])));

    // The edge has been off for a day.
    let mut kept = store.load(&ours()).unwrap().unwrap();
    let day = Duration::from_secs(24 * 3600);
    kept.as_of -= day;
    store.keep(&ours(), &kept).unwrap();
    settings.first_answer = Duration::ZERO;
    let second = Stage::without_driver(settings).await;
    assert_eq!(all_answers(&second).await, before);
    let probe = second.identity().await.probe(csi::ProbeRequest::default()).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(false));
    let status = second.startup.status();
    assert!(status.complete && !status.ready && status.reached != Some(true), "{status:?}");
    assert!(status.age.unwrap() >= day, "{status:?}");
}

#[tokio::test]
async fn what_was_kept_of_another_driver_or_node_is_not_used() {
    let store = MemoryFacts::default();
    let mut settings = kept_in(store.clone());
    learn(&settings).await;
    settings.first_answer = Duration::ZERO;
    let directory = tempfile::tempdir().unwrap();
    for (driver, node) in [("other", "edge-1"), ("csi-hostpath", "edge-2")] {
        let socket = directory.path().join(format!("{driver}-{node}.sock"));
        let address = SocketAddress::new(socket.to_str().unwrap()).unwrap();
        let router = Router::fixed(node.parse().unwrap());
        let relay = Dispatcher::new();
        let driver = DriverName::new(driver).unwrap();
        let endpoint = Endpoint::with_settings(driver.clone(), router, relay, settings.clone());
        let serving = endpoint.serve(address).await.unwrap();
        let mut identity = csi::identity_client::IdentityClient::new(connect(socket.clone()).await);
        let info = identity.get_plugin_info(csi::GetPluginInfoRequest::default()).await.unwrap().into_inner();
        assert_eq!((info.name, &*info.vendor_version), (driver.to_string(), "unknown"));
        let seen = raw_call(&socket, CAPABILITIES, &[], framed(&[])).await.unwrap();
        assert_eq!(seen.code(), Some(14), "another driver's or node's capabilities: {seen:?}");
        serving.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_used_costs_a_question_and_not_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let store = DirectoryFacts::new(directory.path());
    let settings = kept_in(store.clone());
    let before = learn(&settings).await;
    let file = directory.path().join("csi-hostpath@edge-1.facts");
    let good = std::fs::read(&file).unwrap();
    let mut foreign = good.clone();
    foreign[4] = 200;
    for bytes in [&b"junk"[..], &good[..good.len() / 2], &foreign, &vec![7; 10 * MAX_RECORD]] {
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(learn(&settings).await, before, "learnt again");
        assert_eq!(std::fs::read(directory.path().join("csi-hostpath@edge-1.facts.damaged")).unwrap(), bytes);
        assert_eq!(store.load(&ours()).unwrap().unwrap().facts, read(&good), "and kept again");
    }
}

fn read(record: &[u8]) -> csi_proxy::startup::Facts {
    Kept::decode(record, &ours()).unwrap().facts
}

#[tokio::test]
async fn a_disk_that_is_full_or_cannot_be_written_or_read_harms_no_answer_and_is_tried_again() {
    for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem] {
        let store = FaultyFacts::new(MemoryFacts::default());
        let settings = kept_in(store.clone());
        store.fail_keeps(kind);
        store.fail_loads(ErrorKind::PermissionDenied);
        let stage = Stage::with_settings(Script::default(), settings.clone()).await;
        let before = all_answers(&stage).await;
        store.fail_loads(None);
        assert!(store.failed() > 0 && store.load(&ours()).unwrap().is_none());
        store.fail_keeps(None);
        // The next round that reaches the driver.
        let serving = stage.serving.as_ref().unwrap();
        serving.refresh();
        let mut rounds = 0;
        while store.load(&ours()).unwrap().is_none() {
            rounds += 1;
            assert!(rounds < 10_000, "never kept");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.serving.unwrap().shutdown(Duration::from_secs(5)).await;
        assert_eq!(all_answers(&Stage::without_driver(settings).await).await, before);
    }
}
