//! The start-up calls of sidecars, with and without the driver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::log::Log;
use common::{
    Script, Stage, connect, controller_capabilities, driver_name, framed, node, plugin_capabilities, raw_call,
};
use csi_proto::csi::v1 as csi;
use csi_proxy::advanced::driver_info::{Info, MAX_RECORD};
use csi_proxy::advanced::routing::FaultyStore;
use csi_proxy::{
    Call, Code, Dispatcher, DriverInfoStore, DriverName, Endpoint, Fault, MemoryStore, Outcome, Relay,
    Replies, Router, SocketAddress, StoreError,
};

const CAPABILITIES: &str = "/csi.v1.Identity/GetPluginCapabilities";

#[tokio::test]
async fn sidecars_start_while_driver_is_offline() {
    let briefly = |endpoint: Endpoint| endpoint.with_startup_timeout(Duration::from_millis(30));
    let stage = Stage::without_driver_with(briefly).await;
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
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        Ok(Replies::outcome(Outcome::from_driver(Code::FAILED_PRECONDITION, self.0)))
    }
}

/// The standby of two proxies has sidecars wait, on the connection on which it answers them later.
#[tokio::test]
async fn standby_answers_until_it_is_activated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    let address = SocketAddress::new(path.to_str().unwrap()).unwrap();
    let serving = Endpoint::standby(driver_name()).serve(address).await.unwrap();
    let channel = connect(path.clone()).await;
    let mut identity = csi::identity_client::IdentityClient::new(channel.clone());
    let mut controller = csi::controller_client::ControllerClient::new(channel);
    let probe = identity.probe(csi::ProbeRequest::default()).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(false));
    let info = identity.get_plugin_info(csi::GetPluginInfoRequest::default()).await.unwrap().into_inner();
    assert_eq!(info.name, "csi-hostpath");
    let capabilities = csi::GetPluginCapabilitiesRequest::default();
    let status = identity.get_plugin_capabilities(capabilities).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    let status = controller.create_volume(csi::CreateVolumeRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    assert!(status.message().contains("waits until it is the active one"), "{status:?}");
    serving.refresh();
    serving.online();

    let endpoint = |text| Endpoint::new(driver_name(), Router::fixed(node()), Fails(text));
    serving.activate(endpoint("first")).await;
    serving.activate(endpoint("second")).await;
    let status = controller.create_volume(csi::CreateVolumeRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::FailedPrecondition, "first"));
    assert!(matches!(serving.shutdown(Duration::from_secs(20)).await, csi_proxy::Drained::All));
    assert!(!path.exists());
}

#[tokio::test]
async fn driver_messages_are_not_logged() {
    let (log, _logging) = Log::start(tracing::Level::TRACE);
    let directory = tempfile::tempdir().unwrap();
    let address = SocketAddress::new(directory.path().join("csi.sock").to_str().unwrap()).unwrap();
    let relay = Fails("login at https://user:canary@array refused");
    let endpoint = Endpoint::new(driver_name(), Router::fixed(node()), relay);
    let _serving = endpoint.serve(address).await.unwrap();
    let logged = tokio::time::timeout(Duration::from_secs(20), async {
        while !log.text().contains("driver unreachable") {
            tokio::task::yield_now().await;
        }
    });
    logged.await.expect("nothing logged");
    assert!(!log.text().contains("canary"), "{}", log.text());
}

#[tokio::test]
async fn early_call_waits_for_the_masked_answer() {
    let mut stage = Stage::without_driver().await;
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

/// The answers to start-up calls, as body and code.
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

fn kept_in(store: impl DriverInfoStore + Clone + 'static) -> impl Fn(Endpoint) -> Endpoint {
    move |endpoint| endpoint.with_driver_info(store.clone())
}

/// The stored record of the node.
async fn kept(store: &impl DriverInfoStore) -> Option<bytes::Bytes> {
    let kept = store.load().await.unwrap();
    kept.into_iter().find(|(kept, _)| *kept == node()).map(|(_, record)| record)
}

/// Runs an endpoint with its driver online until everything is cached.
async fn learn(kept: impl FnOnce(Endpoint) -> Endpoint) -> Vec<(Vec<u8>, Option<u32>)> {
    let first = Stage::with(Script::default(), kept).await;
    let answers = all_answers(&first).await;
    first.serving.unwrap().shutdown(Duration::from_secs(5)).await;
    answers
}

/// While the edge is offline, a restarted proxy answers as before, and reports that the driver is not ready and how
/// old the answers are.
#[tokio::test]
async fn stored_answers_survive_a_restart() {
    let store = MemoryStore::default();
    let settings = kept_in(store.clone());
    let before = learn(&settings).await;
    assert_eq!(before[0].0, framed(&plugin_capabilities(&[1, 2])));

    // The edge was offline for a day.
    let (info, as_of) = Info::decode(&kept(&store).await.unwrap()).unwrap();
    let day = Duration::from_secs(24 * 3600);
    store.save(&node(), Some(info.encode(as_of - day))).await.unwrap();
    let second =
        Stage::without_driver_with(|endpoint| settings(endpoint).with_startup_timeout(Duration::ZERO)).await;
    assert_eq!(all_answers(&second).await, before);
    let probe = second.identity().await.probe(csi::ProbeRequest::default()).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(false));
    let status = second.startup.status();
    assert!(status.complete && !status.ready && status.reached != Some(true), "{status:?}");
    assert!(status.age.unwrap() >= day, "{status:?}");
}

#[tokio::test]
async fn ignores_stored_info_of_another_node() {
    let store = MemoryStore::default();
    let settings = kept_in(store.clone());
    learn(&settings).await;
    let directory = tempfile::tempdir().unwrap();
    for (driver, node) in [("csi-hostpath", "edge-2"), ("csi-hostpath", "edge-10")] {
        let socket = directory.path().join(format!("{driver}-{node}.sock"));
        let address = SocketAddress::new(socket.to_str().unwrap()).unwrap();
        let router = Router::fixed(node.parse().unwrap());
        let relay = Dispatcher::new();
        let driver = DriverName::new(driver).unwrap();
        let endpoint = settings(Endpoint::new(driver.clone(), router, relay));
        let serving = endpoint.with_startup_timeout(Duration::ZERO).serve(address).await.unwrap();
        let mut identity = csi::identity_client::IdentityClient::new(connect(socket.clone()).await);
        let info = identity.get_plugin_info(csi::GetPluginInfoRequest::default()).await.unwrap().into_inner();
        assert_eq!((info.name, &*info.vendor_version), (driver.to_string(), "unknown"));
        let seen = raw_call(&socket, CAPABILITIES, &[], framed(&[])).await.unwrap();
        assert_eq!(seen.code(), Some(14), "another driver's or node's capabilities: {seen:?}");
        serving.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn unusable_record_is_refreshed() {
    let store = MemoryStore::default();
    let settings = kept_in(store.clone());
    let before = learn(&settings).await;
    let good = kept(&store).await.unwrap();
    for bytes in [&b"junk"[..], &good[..good.len() / 2], b"", &vec![7; 10 * MAX_RECORD]] {
        store.save(&node(), Some(bytes.to_vec().into())).await.unwrap();
        assert_eq!(learn(&settings).await, before, "learnt again");
        let again = kept(&store).await.unwrap();
        assert_eq!(Info::decode(&again).unwrap().0, Info::decode(&good).unwrap().0, "and kept again");
    }
}

#[tokio::test]
async fn failing_store_does_not_affect_answers() {
    let (store, handle) = FaultyStore::new(MemoryStore::default());
    let settings = kept_in(store.clone());
    handle.cut_after(0);
    handle.refuse_loads(true);
    let stage = Stage::with(Script::default(), &settings).await;
    let before = all_answers(&stage).await;
    handle.refuse_loads(false);
    common::in_time(async {
        while handle.failures() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(kept(&store).await, None);
    handle.cut_after(None);
    // The next round that reaches the driver.
    let serving = stage.serving.as_ref().unwrap();
    serving.refresh();
    let saved = async {
        while kept(&store).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    common::in_time(saved).await;
    stage.serving.unwrap().shutdown(Duration::from_secs(5)).await;
    assert_eq!(all_answers(&Stage::without_driver_with(settings).await).await, before);
}

/// A store whose writes never complete.
#[derive(Debug, Clone)]
struct Hangs;

#[async_trait::async_trait]
impl DriverInfoStore for Hangs {
    async fn load(&self) -> Result<Vec<(csi_proxy::NodeId, bytes::Bytes)>, StoreError> {
        Ok(Vec::new())
    }

    async fn save(&self, _: &csi_proxy::NodeId, _: Option<bytes::Bytes>) -> Result<(), StoreError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn hanging_store_does_not_block_refreshes() {
    let stage = Stage::with(Script::default(), kept_in(Hangs)).await;
    let answers = all_answers(&stage).await;
    let ready = async {
        while !stage.startup.status().ready {
            tokio::task::yield_now().await;
        }
    };
    common::in_time(ready).await;
    assert_eq!(all_answers(&stage).await, answers);
}
