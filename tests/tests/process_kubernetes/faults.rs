//! The hub loses the node, or the disk takes nothing for a while.

use std::fs;
use std::path::PathBuf;

use edge_csi_examples::kubernetes::message::object::Kind;
use edge_csi_tests::{page, wait};

use super::cluster::{Cluster, claim, driver, of_claim, persistent_volume, pod};
use super::ground::Ground;
use super::{ground, may_mount, mounted, place, start_agent, vacated};

/// A node where one pod has its volume, and the hub knows it.
async fn node_with_a_pod() -> (Ground, Cluster) {
    let mut node = ground().await;
    let volume = node.volume("pvc-1").await;
    let pv = Kind::PersistentVolume(persistent_volume("pv-1", volume.id.as_str()));
    let objects = vec![driver(false), claim("data", "pv-1", 0), pv, pod("web-0", [of_claim("data")])];
    let cluster = Cluster::start(node.stand.hub_url(), 7, objects);
    start_agent(&mut node);
    mounted(&node, "web-0", "pv-1").await;
    cluster.told_of("web-0", |volume| volume.published && volume.reason.is_empty()).await;
    (node, cluster)
}

/// Nothing can be written to this file of the state directory until the directory goes that is in the way of its draft.
fn bar(node: &Ground, file: &str) -> PathBuf {
    let draft = node.stand.path("agent-state").join(format!("{file}.new"));
    fs::create_dir(&draft).unwrap();
    draft
}

/// A hub keeps what a node says of itself for as long as the node listens: for a Node that is made anew.
#[tokio::test]
async fn a_node_tells_how_it_is_after_each_watch_that_ended_though_nothing_has_changed() {
    if !may_mount("a_node_tells_how_it_is_after_each_watch_that_ended_though_nothing_has_changed") {
        return;
    }
    let (_node, cluster) = node_with_a_pod().await;
    for _ in 0..2 {
        let told = cluster.statuses();
        cluster.ends_the_watch();
        wait::until("it tells anew", async || (cluster.statuses() > told).then_some(())).await;
    }
    cluster.told_of("web-0", |volume| volume.published).await;
}

#[tokio::test]
async fn a_pod_that_the_disk_does_not_take_is_asked_for_again_and_stays_mounted_over_a_restart_without_the_hub()
 {
    if !may_mount("a_pod_that_the_disk_does_not_take_is_asked_for_again") {
        return;
    }
    let (mut node, mut cluster) = node_with_a_pod().await;
    let draft = bar(&node, "kubernetes-objects");
    cluster.change(vec![pod("web-1", [of_claim("data")])], &[]);
    node.stand.agent.as_ref().unwrap().logged("objects cannot be written").await;
    fs::remove_dir(draft).unwrap();
    mounted(&node, "web-1", "pv-1").await;
    let mounts = node.mounts();
    cluster.leave().await;
    node.stand.agent.as_mut().unwrap().kill();
    start_agent(&mut node);
    wait::until("both pods are in the first plan", async || {
        let address = page::address_in(&node.stand.agent.as_ref()?.log())?;
        let metrics = page::get(&address, "/metrics").await?;
        metrics.contains("edge_csi_pod_volumes 2").then_some(())
    })
    .await;
    assert_eq!(node.mounts(), mounts);
}

#[tokio::test]
async fn a_set_that_the_disk_does_not_take_is_tried_again_though_nothing_happens() {
    if !may_mount("a_set_that_the_disk_does_not_take_is_tried_again_though_nothing_happens") {
        return;
    }
    let (node, cluster) = node_with_a_pod().await;
    let draft = bar(&node, "desired-volumes");
    cluster.change(vec![pod("web-1", [of_claim("data")])], &[pod("web-0", [])]);
    // What is told of the pods is news of its own: after that nothing happens any more.
    wait::until("it is tried again", async || {
        let log = node.stand.agent.as_ref()?.log();
        (log.matches("cannot be wanted").count() >= 3).then_some(())
    })
    .await;
    assert_eq!(node.mounts_at(&place(&node, "web-0", "pv-1")), 1);
    fs::remove_dir(draft).unwrap();
    mounted(&node, "web-1", "pv-1").await;
    vacated(&node, "web-0").await;
}
