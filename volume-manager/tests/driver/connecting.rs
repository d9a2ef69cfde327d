//! The calls that precede the first volume call.

use std::time::Duration;

use csi_proto::Method;
use csi_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proto::csi::v1::{
    GetPluginCapabilitiesResponse, NodeGetCapabilitiesResponse, NodeServiceCapability, PluginCapability,
    ProbeResponse, node_service_capability,
};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::time::{Instant, timeout};
use volume_manager::advanced::driver::{CallError, CallOutcome, ConnectError};

use super::scripted::{Reply, Scripted, info, node_capabilities, node_info};
use super::{Place, publish, stage, volume};

/// Regression in SwarmKit: it staged before it knew whether the driver supports staging.
#[tokio::test(start_paused = true)]
async fn all_that_the_first_call_depends_on_is_asked_before_it() {
    let place = Place::new();
    let scripted = place.start().with_controller();
    assert_eq!(place.driver.call(&volume("v"), &stage()).await, Ok(CallOutcome::Done));
    assert_eq!(
        scripted.calls(),
        [
            Method::Probe,
            Method::GetPluginInfo,
            Method::GetPluginCapabilities,
            Method::NodeGetCapabilities,
            Method::ControllerGetCapabilities,
            Method::NodeGetInfo,
            Method::NodeStageVolume
        ]
    );
}

/// A mount takes two calls on one connection. Kubelet makes 8 calls on 8 connections.
#[tokio::test(start_paused = true)]
async fn a_mount_on_a_warm_driver_is_two_calls_on_the_one_connection() {
    let place = Place::new();
    let scripted = place.start();
    place.driver.connection().await.expect("a connection");
    scripted.forget_calls();
    for mount in 1..=50 {
        let volume = volume(&format!("v{mount}"));
        assert_eq!(place.driver.call(&volume, &stage()).await, Ok(CallOutcome::Done));
        assert_eq!(place.driver.call(&volume, &publish()).await, Ok(CallOutcome::Done));
        assert_eq!(scripted.calls().len(), 2 * mount);
    }
    assert_eq!(scripted.connections(), 1);
}

/// A driver that is not ready for 30 s is awaited.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_ready_for_half_a_minute_is_waited_for() {
    let place = Place::new();
    let scripted = place.start();
    for _ in 0..30 {
        scripted.once(Method::Probe, Reply::ok(&ProbeResponse { ready: Some(false) }));
    }
    let started = Instant::now();
    place.driver.connection().await.expect("a connection");
    assert_eq!(started.elapsed().as_secs(), 30);
    assert_eq!(scripted.calls().iter().filter(|method| **method == Method::Probe).count(), 31);
}

#[tokio::test(start_paused = true)]
async fn connect_times_out_on_a_driver_that_is_not_ready() {
    let place = Place::new();
    let scripted = place.start();
    for bad in [
        Reply::ok(&ProbeResponse { ready: Some(false) }),
        Reply::Never,
        Reply::Status(14, "starting"),
        Reply::Status(13, "panic"),
    ] {
        scripted.always(Method::Probe, bad.clone());
        let started = Instant::now();
        let within = Duration::from_secs(60);
        let error = place.driver.connection().await.expect_err("not ready");
        assert!(matches!(error, ConnectError::NotReady { within: bound } if bound == within), "{bad:?}");
        assert!(started.elapsed() <= within, "{bad:?}: {:?}", started.elapsed());
    }
    scripted.always(Method::Probe, Reply::ok(&ProbeResponse { ready: None }));
    place.driver.connection().await.expect("a connection");
}

#[tokio::test(start_paused = true)]
async fn unhealthy_driver_fails_and_missing_probe_is_ready() {
    let place = Place::new();
    let scripted = place.start();
    scripted.always(Method::Probe, Reply::Status(9, "no%20kernel%20module"));
    let error = place.driver.connection().await.expect_err("unhealthy");
    assert!(matches!(error, ConnectError::Unhealthy { message } if message == "no kernel module"));
    scripted.always(Method::Probe, Reply::Status(12, ""));
    place.driver.connection().await.expect("a connection");
}

/// A wrong plugin on the socket gets no volume calls.
#[tokio::test(start_paused = true)]
async fn another_plugin_on_the_socket_is_never_asked_for_a_volume() {
    let place = Place::new();
    let scripted = place.start();
    for found in ["other.example.org", "", "Scripted.csi.example.org"] {
        scripted.always(Method::GetPluginInfo, info(found));
        let error = place.driver.connection().await.expect_err("another plugin");
        assert!(matches!(&error, ConnectError::WrongPlugin { found: name, .. } if name == found), "{error}");
        assert!(error.to_string().contains("wrong plugin on the socket"), "{error}");
    }
    assert!(!scripted.calls().contains(&Method::NodeStageVolume));
}

/// A changed node id or changed capabilities are read after a reconnect.
#[tokio::test(start_paused = true)]
async fn reconnect_queries_the_driver_again() {
    let place = Place::new();
    let scripted = place.start();
    let first = place.driver.connection().await.expect("a connection");
    assert_eq!(first.facts().node_id.as_deref(), Some("node-1"));
    assert!(first.facts().capabilities.lifecycle().stage_unstage && !first.earlier_processes_ended());
    drop(scripted);
    first.closed().await;

    let scripted = Scripted::restart(&place.socket);
    scripted.always(Method::NodeGetInfo, node_info("node-2", 16));
    scripted.always(Method::NodeGetCapabilities, node_capabilities([NodeRpc::GetVolumeStats]));
    let second = place.driver.connection().await.expect("a connection");
    let facts = second.facts();
    assert_eq!((facts.node_id.as_deref(), facts.max_volumes), (Some("node-2"), Some(16)));
    assert!(!facts.capabilities.lifecycle().stage_unstage && facts.capabilities.node.volume_stats);
    // Both drivers run in this process, so nothing proves that calls of the first have ended.
    assert!(!second.earlier_processes_ended());
    let error = place.driver.call(&volume("v"), &stage()).await.expect_err("it stages no more");
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(!error.was_sent() && cause.contains("STAGE_UNSTAGE_VOLUME"), "{error}: {cause}");
    // The old connection stays closed.
    let error = first.call(&volume("v"), &stage()).await.expect_err("a dead connection");
    assert!(matches!(error, CallError::NotSent { .. }), "{error}");
    assert!(!scripted.calls().contains(&Method::NodeStageVolume));
}

/// Unknown capabilities are ignored. Krustlet treated any capability as stage and unstage.
#[tokio::test(start_paused = true)]
async fn capabilities_that_are_not_known_are_ignored() {
    let place = Place::new();
    let scripted = place.start();
    let capability = |number| NodeServiceCapability {
        r#type: Some(node_service_capability::Type::Rpc(node_service_capability::Rpc { r#type: number })),
    };
    let capabilities = vec![capability(99), NodeServiceCapability { r#type: None }, capability(3)];
    scripted.always(Method::NodeGetCapabilities, Reply::ok(&NodeGetCapabilitiesResponse { capabilities }));
    let connection = place.driver.connection().await.expect("a connection");
    let node = connection.facts().capabilities.node;
    assert!(node.expand && !node.stage_unstage && !node.volume_stats && !node.volume_mount_group);
}

#[tokio::test(start_paused = true)]
async fn unserved_controller_has_no_capabilities() {
    let place = Place::new();
    let scripted = place.start();
    let plugin: GetPluginCapabilitiesResponse =
        [PluginCapability::service(Service::ControllerService)].into_iter().collect();
    scripted.always(Method::GetPluginCapabilities, Reply::ok(&plugin));
    scripted.always(Method::ControllerGetCapabilities, Reply::Status(12, "unknown service"));
    scripted.always(Method::NodeGetInfo, Reply::Status(12, ""));
    let connection = place.driver.connection().await.expect("a connection");
    assert!(scripted.calls().contains(&Method::ControllerGetCapabilities));
    assert!(!connection.facts().capabilities.lifecycle().publish_unpublish);
    assert_eq!(connection.facts().node_id, None);
}

#[tokio::test(start_paused = true)]
async fn a_node_id_and_a_limit_are_checked() {
    let place = Place::new();
    let scripted = place.start();
    for bad in [String::new(), "n".repeat(257)] {
        scripted.always(Method::NodeGetInfo, node_info(&bad, 0));
        let error = place.driver.connection().await.expect_err("a bad id");
        assert!(error.to_string().contains("1 to 256 are allowed"), "{error}");
    }
    for (limit, taken) in [(39, Some(39)), (0, None), (-1, None)] {
        let place = Place::new();
        let scripted = place.start();
        scripted.always(Method::NodeGetInfo, node_info("n", limit));
        assert_eq!(place.driver.connection().await.expect("a connection").facts().max_volumes, taken);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_connect_can_be_retried() {
    let place = Place::new();
    let scripted = place.start();
    scripted.once(Method::GetPluginInfo, Reply::Never);
    let gave_up = timeout(Duration::from_secs(5), place.driver.connection()).await;
    assert!(gave_up.is_err());
    place.driver.connection().await.expect("a connection");
}

/// A missing socket, a socket without a server, and another program's socket return a clear error.
#[tokio::test(start_paused = true)]
async fn a_socket_without_a_driver_ends_in_an_error_that_says_so() {
    let place = Place::new();
    let error = place.driver.connection().await.expect_err("no socket");
    assert!(
        matches!(&error, ConnectError::Dial(source) if source.kind() == std::io::ErrorKind::NotFound),
        "{error}"
    );
    drop(UnixListener::bind(&place.socket).expect("a socket without a server"));
    let error = place.driver.connection().await.expect_err("no server");
    assert!(
        matches!(&error, ConnectError::Dial(source) if source.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error}"
    );

    std::fs::remove_file(&place.socket).expect("removed");
    let peer = UnixListener::bind(&place.socket).expect("a socket");
    for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 4096]] {
        let (asked, ()) = tokio::join!(place.driver.connection(), async {
            let (mut connection, _) = peer.accept().await.expect("a dial");
            // The client may have disconnected before everything was written.
            let _ = connection.write_all(answer).await;
        });
        assert!(asked.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_hung_up_on_in_time() {
    let place = Place::new();
    let _peer = UnixListener::bind(&place.socket).expect("a socket");
    let started = Instant::now();
    let error = place.driver.connection().await.expect_err("no answer");
    assert!(started.elapsed() <= Duration::from_secs(60), "{error}: {:?}", started.elapsed());
}
