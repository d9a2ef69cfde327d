//! Results of calls other than stage and publish.

use csi_proto::Method;
use csi_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use csi_proto::csi::v1::volume_health::VolumeHealthEntry;
use csi_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerUnpublishVolumeRequest,
    NodeExpandVolumeResponse, NodeGetCapabilitiesResponse, NodeGetVolumeHealthResponse,
    NodeGetVolumeStatsRequest, NodeServiceCapability, VolumeHealth, node_service_capability,
};
use volume_manager::advanced::driver::{CallError, CallOutcome, Operation};
use volume_manager::driver::{HealthStatus, Usage, VolumeCondition};

use super::scripted::{Reply, node_capabilities};
use super::{Place, path, stage, volume};

/// An OK with less than the requested size is passed through, and an OK without a size is an error.
#[tokio::test(start_paused = true)]
async fn expanded_size_is_the_drivers() {
    let place = Place::new();
    let scripted = place.start().with_controller();
    let expand = Operation::ControllerExpand { required_bytes: 100 };
    for (capacity_bytes, grown) in [(100, true), (128, true), (99, true), (0, false), (-1, false)] {
        let answer = ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true };
        scripted.once(Method::ControllerExpandVolume, Reply::ok(&answer));
        let ended = place.driver.call(&volume("v"), &expand).await;
        match ended {
            Ok(CallOutcome::Expanded { capacity_bytes: found, node_expansion_required: true }) => {
                assert_eq!((i64::try_from(found), grown), (Ok(capacity_bytes), true));
            }
            Err(CallError::Answer { reason, .. }) => {
                assert!(!grown && reason.contains("100 were required"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    let request: ControllerExpandVolumeRequest = scripted.last(Method::ControllerExpandVolume);
    assert_eq!(request.capacity_range.map(|range| (range.required_bytes, range.limit_bytes)), Some((100, 0)));
    assert!(request.volume_capability.is_some());
}

#[tokio::test(start_paused = true)]
async fn node_expand_without_size_succeeds() {
    let place = Place::new();
    let scripted = place.start();
    let (volume_path, staging_path) = (path("/target/1"), path("/staging/1"));
    let expand = Operation::NodeExpand { required_bytes: 100, volume_path, staging_path };
    for (capacity_bytes, expected) in [(0, 0), (100, 100), (90, 90)] {
        scripted.once(Method::NodeExpandVolume, Reply::ok(&NodeExpandVolumeResponse { capacity_bytes }));
        let ended = place.driver.call(&volume("v"), &expand).await;
        let expected = CallOutcome::Expanded { capacity_bytes: expected, node_expansion_required: false };
        assert_eq!(ended, Ok(expected));
    }
}

/// Drivers for spec versions before 1.13 return a condition in a field that the schema no longer has.
#[tokio::test(start_paused = true)]
async fn the_condition_of_an_older_driver_is_read_with_its_stats() {
    let place = Place::new();
    let scripted = place.start();
    let rpc = |number| NodeServiceCapability {
        r#type: Some(node_service_capability::Type::Rpc(node_service_capability::Rpc { r#type: number })),
    };
    let capabilities = vec![rpc(1), rpc(2), rpc(4)];
    scripted.always(Method::NodeGetCapabilities, Reply::ok(&NodeGetCapabilitiesResponse { capabilities }));
    // usage { available 6, total 10, used 4, BYTES }, volume_condition { abnormal, "bad" }
    const ANSWER: &[u8] = b"\0\0\0\0\x13\x0a\x08\x08\x06\x10\x0a\x18\x04\x20\x01\x12\x07\x08\x01\x12\x03bad";
    scripted.always(Method::NodeGetVolumeStats, Reply::Bytes(ANSWER));
    let stats = Operation::Stats { volume_path: path("/target/1"), staging_path: path("/staging/1") };
    let ended = place.driver.call(&volume("v"), &stats).await;
    let Ok(CallOutcome::Stats(stats)) = ended else { panic!("{ended:?}") };
    assert_eq!(stats.bytes, Some(Usage { total: 10, used: 4, available: 6 }));
    assert_eq!(stats.inodes, None);
    assert_eq!(stats.condition, Some(VolumeCondition { abnormal: true, message: "bad".into() }));
    let request: NodeGetVolumeStatsRequest = scripted.last(Method::NodeGetVolumeStats);
    assert_eq!(
        (request.volume_path.as_str(), request.staging_target_path.as_str()),
        ("/target/1", "/staging/1")
    );
}

#[tokio::test(start_paused = true)]
async fn the_health_of_a_newer_driver_is_a_list_of_what_is_wrong() {
    let place = Place::new();
    let scripted = place.start();
    scripted.always(Method::NodeGetCapabilities, node_capabilities([NodeRpc::GetVolumeHealth]));
    let entry =
        |status, reason: &str| VolumeHealthEntry { status, reason: reason.into(), message: "m\n".into() };
    let health_statuses = vec![entry(2, "PathDown"), entry(99, "Later")];
    let volume_health = Some(VolumeHealth { volume_id: "v".into(), health_statuses });
    scripted.always(Method::NodeGetVolumeHealth, Reply::ok(&NodeGetVolumeHealthResponse { volume_health }));
    let health = Operation::Health { volume_path: None, staging_path: path("/staging/1") };
    let ended = place.driver.call(&volume("v"), &health).await;
    let Ok(CallOutcome::Health(issues)) = ended else { panic!("{ended:?}") };
    let found: Vec<_> = issues.iter().map(|issue| (issue.status, issue.reason.as_str())).collect();
    assert_eq!(found, [(HealthStatus::Inaccessible, "PathDown"), (HealthStatus::Unknown, "Later")]);
    assert_eq!(issues[0].message, "m ");
}

#[tokio::test(start_paused = true)]
async fn detaches_from_the_attached_node_only() {
    let place = Place::new();
    let scripted = place.start().with_controller();
    for (node_id, sent) in [(None, "node-1"), (Some("old-node".to_owned()), "old-node")] {
        let detach = Operation::ControllerUnpublish { node_id };
        assert_eq!(place.driver.call(&volume("v"), &detach).await, Ok(CallOutcome::Done));
        let request: ControllerUnpublishVolumeRequest = scripted.last(Method::ControllerUnpublishVolume);
        assert_eq!(request.node_id, sent);
    }
    scripted.forget_calls();
    let detach = Operation::ControllerUnpublish { node_id: Some(String::new()) };
    let error = place.driver.call(&volume("v"), &detach).await.expect_err("all nodes");
    assert!(!error.was_sent() && scripted.calls().is_empty(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_cannot_do_is_not_asked_of_it() {
    let place = Place::new();
    let scripted = place.start();
    scripted.always(Method::NodeGetCapabilities, node_capabilities([]));
    place.driver.connection().await.expect("a connection");
    scripted.forget_calls();
    let (target, staging) = (|| path("/target/1"), || path("/staging/1"));
    for operation in [
        Operation::ControllerPublish,
        stage(),
        Operation::ControllerExpand { required_bytes: 1 },
        Operation::NodeExpand { required_bytes: 1, volume_path: target(), staging_path: staging() },
        Operation::Stats { volume_path: target(), staging_path: staging() },
        Operation::Health { volume_path: None, staging_path: staging() },
    ] {
        let error = place.driver.call(&volume("v"), &operation).await.expect_err("not there");
        assert!(matches!(error, CallError::Request { .. }) && !error.was_sent(), "{error}");
    }
    assert_eq!(scripted.calls(), []);
    // Downward calls are always sent: a driver that lost a capability must still respond for its existing volumes.
    let unstage = Operation::NodeUnstage { staging_path: staging() };
    assert_eq!(place.driver.call(&volume("v"), &unstage).await, Ok(CallOutcome::Done));
}
