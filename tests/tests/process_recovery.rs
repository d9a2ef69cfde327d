//! Drills of the guide's page on recovery that concern callers, not failures.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::counting::{Counting, HELD, id_of};
use edge_csi_tests::csi::{channel, controller, create_volume, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::sidecar::{Sidecar, is_final};
use edge_csi_tests::volumes::namespace::{mounts_below, private};
use edge_csi_tests::wait;
use rustix::process::Signal;

/// Timeout longer than any call of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_next_provisioner_gets_the_volume_of_a_lost_create() {
    let driver = Counting::working(Duration::ZERO);
    let (mut cluster, _served) = TestCluster::start_with(LinkKind::Wss, &driver).await;

    let name = format!("{HELD}pvc");
    let leader = Sidecar::new(controller(&cluster.proxy_socket()), PATIENCE);
    let create = {
        let name = name.clone();
        tokio::spawn(async move { leader.create(&name).await.result })
    };
    wait::until("the driver executes it", async || {
        (driver.of("CreateVolume", &name).begun == 1).then_some(())
    })
    .await;
    // The host of the sidecar's pod is lost. Another pod runs the driver's proxy now.
    create.abort();
    cluster.proxy.as_mut().unwrap().kill();
    let other_socket = cluster.path("other.sock");
    let _other_proxy = cluster.additional_proxy("other-proxy", &other_socket, NODE, &[]).unwrap();
    ready(&other_socket).await;

    let next = Sidecar::new(controller(&other_socket), PATIENCE);
    let create = {
        let (next, name) = (next.clone(), name.clone());
        tokio::spawn(async move { next.create(&name).await.result })
    };
    cluster.agent.as_ref().unwrap().logged("joined the running operation").await;
    driver.release();
    assert_eq!(create.await.unwrap().unwrap(), id_of(&name));
    let executions = driver.of("CreateVolume", &name);
    assert_eq!((executions.begun, executions.ended), (1, 1));
    next.delete(&id_of(&name)).await.result.unwrap();
}

#[tokio::test]
async fn a_claim_deleted_during_its_create_leaves_no_volume() {
    let mut cluster = TestCluster::start(LinkKind::Wss).await;
    cluster.driver.as_ref().unwrap().signal(Signal::STOP);
    let create = async |patience| {
        let request = within(patience, create_volume("pvc-unwanted"));
        controller(&cluster.proxy_socket()).create_volume(request).await
    };
    wait::until("the agent has the call", async || {
        let late = create(Duration::from_millis(500)).await.unwrap_err();
        assert!(!is_final(&late), "{late}");
        cluster.agent.as_ref().unwrap().log().contains("CreateVolume").then_some(())
    })
    .await;
    // The claim is deleted, and the node is lost. The provisioner retries until a final code, which it does not get.
    cluster.agent.as_mut().unwrap().kill();
    for _ in 0..3 {
        let request = within(Duration::from_millis(500), create_volume("pvc-unwanted"));
        let away = controller(&cluster.proxy_socket()).create_volume(request).await.unwrap_err();
        assert!(!is_final(&away), "{away}");
    }
    cluster.driver.as_ref().unwrap().signal(Signal::CONT);
    cluster.start_agent(&[]).unwrap();

    let provisioner = Sidecar::new(controller(&cluster.proxy_socket()), PATIENCE);
    let id = provisioner.create("pvc-unwanted").await.result.unwrap();
    provisioner.delete(&id).await.result.unwrap();
    let request = csi::ListVolumesRequest::default();
    let left = controller(&cluster.proxy_socket()).list_volumes(request).await.unwrap().into_inner();
    assert!(left.entries.is_empty(), "{:?}", left.entries);
}

/// Needs root, to mount.
#[tokio::test]
async fn node_work_continues_while_the_link_is_cut() {
    let Some(_) = private() else { return };
    let mut cluster = TestCluster::empty(LinkKind::Wss);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    let shims = cluster.path("shim");
    cluster.start_agent(&["--kubelet-socket-dir", &shims.to_string_lossy()]).unwrap();
    cluster.start_proxy(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
    let socket = shims.join(format!("{DRIVER}.sock"));
    ready(&socket).await;
    let sidecar = Sidecar::new(controller(&cluster.proxy_socket()), PATIENCE);
    let id = sidecar.create("pvc-1").await.result.unwrap();
    let attached = sidecar.publish(&id, NODE).await.result.unwrap();

    cluster.hub = None;
    let (staging, target) = (cluster.path("staging"), cluster.path("pod"));
    std::fs::create_dir(&staging).unwrap();
    std::fs::create_dir(&target).unwrap();
    let target = target.join("mount");
    let (at, to) = (staging.to_string_lossy().into_owned(), target.to_string_lossy().into_owned());
    let volume_capability = create_volume("").volume_capabilities.pop();
    let mut node = NodeClient::new(channel(&socket));
    node.node_stage_volume(csi::NodeStageVolumeRequest {
        volume_id: id.clone(),
        publish_context: attached.publish_context.clone(),
        staging_target_path: at.clone(),
        volume_capability: volume_capability.clone(),
        ..Default::default()
    })
    .await
    .unwrap();
    node.node_publish_volume(csi::NodePublishVolumeRequest {
        volume_id: id.clone(),
        publish_context: attached.publish_context,
        staging_target_path: at.clone(),
        target_path: to.clone(),
        volume_capability,
        ..Default::default()
    })
    .await
    .unwrap();
    std::fs::write(target.join("written"), "with the link cut").unwrap();
    node.node_unpublish_volume(csi::NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: to })
        .await
        .unwrap();
    node.node_unstage_volume(csi::NodeUnstageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: at,
    })
    .await
    .unwrap();
    assert!(mounts_below(&staging).is_empty() && mounts_below(&target).is_empty());

    cluster.start_hub().await.unwrap();
    sidecar.unpublish(&id, NODE).await.result.unwrap();
    sidecar.delete(&id).await.result.unwrap();
}
