//! What sidecars ask when they start, with and without the driver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Script, Stage, connect, controller_capabilities, framed, plugin_capabilities, raw_call};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Dispatcher, DriverName, Endpoint, EndpointSettings, MemoryRelay, Router, SocketAddress};

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

#[tokio::test]
async fn what_was_learnt_is_kept_for_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = EndpointSettings::default();
    settings.facts_file = Some(directory.path().join("facts"));
    let first = Stage::with_settings(Script::default(), settings.clone()).await;
    let path = "/csi.v1.GroupController/GroupControllerGetCapabilities";
    assert_eq!(raw_call(&first.socket(), path, &[], framed(&[])).await.unwrap().code(), Some(12));
    first.serving.unwrap().shutdown(Duration::from_secs(5)).await;

    settings.first_answer = Duration::ZERO;
    let second = Stage::without_driver(settings.clone()).await;
    let seen = raw_call(&second.socket(), CAPABILITIES, &[], framed(&[])).await.unwrap();
    assert_eq!(seen.body, framed(&plugin_capabilities(&[1, 2])));

    for (driver, node) in [("other", "edge-1"), ("csi-hostpath", "edge-2")] {
        let socket = directory.path().join(format!("{driver}-{node}.sock"));
        let address = SocketAddress::new(socket.to_str().unwrap()).unwrap();
        let router = Router::fixed(node.parse().unwrap());
        let relay = MemoryRelay::new(Dispatcher::new());
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
