//! The hub loses the node, or the disk is full for a while.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{PersistentVolume, StatusNumber, StatusResult};
use edge_csi_tests::{page, wait};
use rustix::mount::MountFlags;

use super::cluster::{Cluster, attachment, claim, driver, of_claim, persistent_volume, pod};
use super::fixture::Fixture;
use super::{fixture, may_mount, mounted, place, start_agent};

/// Starts a node with one pod whose volume is published and reported to the hub.
async fn node_with_a_pod(mut node: Fixture) -> (Fixture, Cluster) {
    let volume = node.volume("pvc-1").await;
    let pv = Kind::PersistentVolume(persistent_volume("pv-1", volume.id.as_str()));
    let objects = vec![driver(false), claim("data", "pv-1", 0), pv, pod("web-0", [of_claim("data")])];
    let cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    start_agent(&mut node);
    mounted(&node, "web-0", "pv-1").await;
    cluster.volume_reported("web-0", |volume| volume.published && volume.reason.is_empty()).await;
    (node, cluster)
}

/// The state directory of the agent, on a small separate disk.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(node: &Fixture) -> Self {
        let directory = node.cluster.path("agent-state");
        fs::create_dir(&directory).unwrap();
        let options = Some(c"size=8m,mode=700");
        rustix::mount::mount("tmpfs", &directory, "tmpfs", MountFlags::empty(), options).unwrap();
        Self(directory)
    }

    /// Fills the disk, so that only pages that a file already has can be written.
    fn fill(&self) {
        let mut filler = File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    fn clear(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

/// A volume with a record so large that it needs its own pages.
fn long(name: &str, handle: &str, bytes: usize) -> Kind {
    let volume_attributes = [("long".to_owned(), "x".repeat(bytes))].into();
    Kind::PersistentVolume(PersistentVolume { volume_attributes, ..persistent_volume(name, handle) })
}

/// A hub keeps the status of a node only as long as the node watches, for a Node object that is created again.
#[tokio::test]
async fn a_node_reports_its_status_after_each_ended_watch() {
    if !may_mount("a_node_reports_its_status_after_each_ended_watch") {
        return;
    }
    let (_node, cluster) = node_with_a_pod(fixture().await).await;
    for _ in 0..2 {
        let reported = cluster.statuses();
        cluster.ends_the_watch();
        wait::until("it reports again", async || (cluster.statuses() > reported).then_some(())).await;
    }
    cluster.volume_reported("web-0", |volume| volume.published).await;
}

/// The numbers of statuses keep a hub that the node has left from writing an older one.
#[tokio::test]
async fn statuses_are_in_order_over_lost_answers_and_starts() {
    if !may_mount("statuses_are_in_order_over_lost_answers_and_starts") {
        return;
    }
    let (mut node, cluster) = node_with_a_pod(fixture().await).await;
    let reports = async |what: &str, is: &dyn Fn(&StatusNumber) -> bool| {
        cluster.ends_the_watch();
        cluster.reported(what, |status| status.number.as_ref().is_some_and(is)).await.number.unwrap()
    };
    let first = reports("it has been answered", &|number| !number.unanswered).await;
    assert_eq!(first.start, 1);
    assert!(cluster.always_reported(|status| status.number.as_ref().unwrap().instance == first.instance));

    cluster.answers(None);
    let lost = reports("there is a later one", &|number| number.number > first.number).await;
    cluster.answers(Some(StatusResult::default()));
    cluster.reported("it had no answer", |status| status.number.as_ref().unwrap().unanswered).await;
    let written = reports("it has been answered again", &|number| !number.unanswered).await;
    assert!(written.number > lost.number && !lost.unanswered);

    node.cluster.agent.as_mut().unwrap().kill();
    start_agent(&mut node);
    let second = |number: &StatusNumber| (number.instance, number.start) == (first.instance, 2);
    let started =
        cluster.reported("it has started again", |status| status.number.is_some_and(|it| second(&it)));
    assert!(started.await.number.unwrap().unanswered);

    // The hub has seen a later one than this state directory knows of: the directory was restored.
    let (failure, superseded) = ("is older than".to_owned(), true);
    cluster.answers(Some(StatusResult { failure, superseded, ..StatusResult::default() }));
    let renewed = reports("it has a new instance", &|number| number.instance != first.instance).await;
    assert!(renewed.start == 1 && renewed.unanswered);
}

#[tokio::test]
async fn a_pod_that_could_not_be_stored_is_retried() {
    if !may_mount("a_pod_that_could_not_be_stored_is_retried") {
        return;
    }
    let node = fixture().await;
    let disk = SmallDisk::mount(&node);
    let (mut node, mut cluster) = node_with_a_pod(node).await;
    disk.fill();
    cluster.change(vec![pod("web-1", [of_claim("data")]), long("pv-2", "unclaimed", 300_000)], &[]);
    node.cluster.agent.as_ref().unwrap().logged("cannot write the node's objects").await;
    assert_eq!(node.mounts_at(&place(&node, "web-1", "pv-1")), 0);
    disk.clear();
    mounted(&node, "web-1", "pv-1").await;
    let mounts = node.mounts();
    cluster.stop_hub().await;
    node.cluster.agent.as_mut().unwrap().kill();
    start_agent(&mut node);
    wait::until("both pods are in the first plan", async || {
        let address = page::address_in(&node.cluster.agent.as_ref()?.log())?;
        let metrics = page::get(&address, "/metrics").await?;
        metrics.contains("edge_csi_pod_volumes 2").then_some(())
    })
    .await;
    assert_eq!(node.mounts(), mounts);
}

#[tokio::test]
async fn a_set_that_could_not_be_stored_is_retried() {
    if !may_mount("a_set_that_could_not_be_stored_is_retried") {
        return;
    }
    let mut node = fixture().await;
    let disk = SmallDisk::mount(&node);
    let volume = node.volume("pvc-1").await;
    node.attach_as_others_do(&volume).await;
    // The set contains the attachment once the hub has written that the volume is in use, without another event.
    let Kind::Attachment(mut attachment) = attachment("pv-1", true) else { panic!("an attachment") };
    attachment.metadata.insert("long".to_owned(), "x".repeat(60_000));
    let pv = Kind::PersistentVolume(persistent_volume("pv-1", volume.id.as_str()));
    let mut objects = vec![driver(true), claim("data", "pv-1", 0), pv, pod("web-0", [of_claim("data")])];
    objects.push(Kind::Attachment(attachment));
    let cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    cluster.fails("not yet");
    start_agent(&mut node);
    cluster.reported("its volume is in use", |status| !status.volumes_in_use.is_empty()).await;
    node.cluster.agent.as_ref().unwrap().logged("the desired set of the pods' volumes is updated").await;
    disk.fill();
    cluster.fails("");
    wait::until("it is tried again", async || {
        let log = node.cluster.agent.as_ref()?.log();
        (log.matches("cannot update the desired set").count() >= 3).then_some(())
    })
    .await;
    assert_eq!(node.mounts_at(&place(&node, "web-0", "pv-1")), 0);
    disk.clear();
    mounted(&node, "web-0", "pv-1").await;
}
