//! Drills of the guide's page on recovery that are about who asks, and not about what breaks.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::counting::{Counting, HELD, id_of};
use edge_csi_tests::csi::{channel, controller, create_volume, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::sidecar::{Sidecar, is_final};
use edge_csi_tests::stand::{DRIVER, NODE, Stand};
use edge_csi_tests::volumes::ground::{mounts_below, private};
use edge_csi_tests::wait;
use rustix::process::Signal;

/// More than any call of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_provisioner_that_loses_its_lease_in_mid_create_is_followed_by_one_that_gets_the_same_volume() {
    let driver = Counting::working(Duration::ZERO);
    let mut stand = Stand::empty(LinkKind::Wss);
    let _served = driver.serve(&stand.driver_socket());
    stand.start_hub().await;
    stand.start_agent(&[]);
    stand.start_proxy(&[]);
    ready(&stand.proxy_socket()).await;

    let name = format!("{HELD}pvc");
    let leader = Sidecar::new(controller(&stand.proxy_socket()), PATIENCE);
    let create = {
        let name = name.clone();
        tokio::spawn(async move { leader.create(&name).await.end })
    };
    wait::until("the driver is at it", async || (driver.of("CreateVolume", &name).begun == 1).then_some(()))
        .await;
    // The sidecar ends, and the pod with it: their host is gone. Another pod has the driver's proxy now.
    create.abort();
    stand.proxy.as_mut().unwrap().kill();
    let other_socket = stand.path("other.sock");
    let _other_proxy = stand.proxy_at("other-proxy", &other_socket, NODE, &[]);
    ready(&other_socket).await;

    let next = Sidecar::new(controller(&other_socket), PATIENCE);
    let create = {
        let (next, name) = (next.clone(), name.clone());
        tokio::spawn(async move { next.create(&name).await.end })
    };
    stand.agent.as_ref().unwrap().logged("joins the same operation").await;
    driver.release();
    assert_eq!(create.await.unwrap().unwrap(), id_of(&name));
    let executions = driver.of("CreateVolume", &name);
    assert_eq!((executions.begun, executions.ended), (1, 1));
    next.delete(&id_of(&name)).await.end.unwrap();
}

#[tokio::test]
async fn a_claim_that_is_deleted_while_its_create_is_uncertain_leaves_no_volume() {
    let mut stand = Stand::start(LinkKind::Wss).await;
    stand.driver.as_ref().unwrap().signal(Signal::STOP);
    let create = async |patience| {
        let request = within(patience, create_volume("pvc-unwanted"));
        controller(&stand.proxy_socket()).create_volume(request).await
    };
    wait::until("the agent has the call", async || {
        let late = create(Duration::from_millis(500)).await.unwrap_err();
        assert!(!is_final(&late), "{late}");
        stand.agent.as_ref().unwrap().log().contains("CreateVolume").then_some(())
    })
    .await;
    // Now the claim is deleted, and the node goes. The provisioner may stop asking only at a final word, and gets none.
    stand.agent.as_mut().unwrap().kill();
    for _ in 0..3 {
        let request = within(Duration::from_millis(500), create_volume("pvc-unwanted"));
        let away = controller(&stand.proxy_socket()).create_volume(request).await.unwrap_err();
        assert!(!is_final(&away), "{away}");
    }
    stand.driver.as_ref().unwrap().signal(Signal::CONT);
    stand.start_agent(&[]);

    let provisioner = Sidecar::new(controller(&stand.proxy_socket()), PATIENCE);
    let id = provisioner.create("pvc-unwanted").await.end.unwrap();
    provisioner.delete(&id).await.end.unwrap();
    let request = csi::ListVolumesRequest::default();
    let left = controller(&stand.proxy_socket()).list_volumes(request).await.unwrap().into_inner();
    assert!(left.entries.is_empty(), "{:?}", left.entries);
}

/// Needs root, to mount.
#[tokio::test]
async fn what_the_node_does_goes_on_while_the_link_is_cut() {
    let Some(_) = private("what_the_node_does_goes_on_while_the_link_is_cut") else { return };
    let mut stand = Stand::empty(LinkKind::Wss);
    stand.start_driver();
    stand.start_hub().await;
    let shims = stand.path("shim");
    stand.start_agent(&["--shim", &shims.to_string_lossy()]);
    stand.start_proxy(&[]);
    ready(&stand.proxy_socket()).await;
    let socket = shims.join(format!("{DRIVER}.sock"));
    ready(&socket).await;
    let sidecar = Sidecar::new(controller(&stand.proxy_socket()), PATIENCE);
    let id = sidecar.create("pvc-1").await.end.unwrap();
    let attached = sidecar.publish(&id, NODE).await.end.unwrap();

    stand.hub = None;
    let (staging, target) = (stand.path("staging"), stand.path("pod"));
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

    stand.start_hub().await;
    sidecar.unpublish(&id, NODE).await.end.unwrap();
    sidecar.delete(&id).await.end.unwrap();
}
