//! The volume plugin of a node without kubelet, as processes. The pods of a simulated cluster get their volumes from
//! the driver of the node, and keep them without the hub, over crashes and reboots. The tests need root to mount;
//! without it, each test logs that it did not run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod cluster;
mod faults;
#[allow(dead_code, reason = "the tests of sets need more of it")]
#[path = "../process_volumes/fixture.rs"]
mod fixture;
mod groups;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use cluster::{Cluster, attachment, claim, driver, in_use, of_claim, persistent_volume, pod, versions};
use csi_proto::csi::v1 as csi;
use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{PersistentVolume, SecretName, StatusNumber, Watch};
use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::{page, wait};
use fixture::Fixture;
use volume_manager::advanced::message::refusal::Reason;
use volume_manager::advanced::store::{Table, open_tables};
use volume_manager::store::{Change, RecordKey, RecordKind};

/// Returns whether this process may mount, and logs a line if not.
fn may_mount(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "{test}: not run, since mounting needs root");
    }
    root
}

/// Starts a node with a driver. The simulated cluster is to be its hub.
async fn fixture() -> Fixture {
    let mut node = Fixture::new();
    node.cluster.start_driver(&[]).unwrap();
    ready(&node.cluster.driver_socket()).await;
    node
}

fn start_agent(node: &mut Fixture) {
    let kubelet = node.cluster.path("kubelet").to_string_lossy().into_owned();
    node.start_agent(&["--kubelet-dir", &kubelet]);
}

/// Returns the path of a pod's volume.
fn place(node: &Fixture, pod: &str, volume: &str) -> PathBuf {
    let volumes = node.cluster.path("kubelet/pods").join(format!("uid-of-{pod}")).join("volumes");
    volumes.join("kubernetes.io~csi").join(volume).join("mount")
}

async fn mounted(node: &Fixture, pod: &str, volume: &str) -> PathBuf {
    let place = place(node, pod, volume);
    wait::until(&format!("{pod} has its volume"), async || (node.mounts_at(&place) == 1).then_some(())).await;
    place
}

/// Waits until nothing is left of a pod, not even a directory.
async fn check_removed(node: &Fixture, pod: &str) {
    let directory = node.cluster.path("kubelet/pods").join(format!("uid-of-{pod}"));
    wait::until(&format!("nothing is left of {pod}"), async || (!directory.exists()).then_some(())).await;
}

fn reboots(node: &mut Fixture, boot: &str) {
    node.cluster.agent.as_mut().unwrap().kill();
    node.cluster.driver.as_mut().unwrap().kill();
    node.unmount_all();
    node.boots(boot);
}

/// A changed boot id without mounts simulates the reboot, during which the hub is down.
#[tokio::test]
async fn pods_keep_their_volumes_over_crash_and_reboot() {
    if !may_mount("pods_keep_their_volumes_over_crash_and_reboot") {
        return;
    }
    let mut node = fixture().await;
    let volume = node.volume("pvc-1").await;
    let pv = Kind::PersistentVolume(persistent_volume("pv-1", volume.id.as_str()));
    let first = pod("web-0", [of_claim("data")]);
    let objects = vec![driver(false), claim("data", "pv-1", 0), pv.clone(), first.clone()];
    let mut cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    start_agent(&mut node);

    // Two pods share a volume. Each has it at the path that kubelet would use.
    let at_first = mounted(&node, "web-0", "pv-1").await;
    fs::write(at_first.join("hello"), "from web-0").unwrap();
    let second = pod("web-1", [of_claim("data")]);
    cluster.change(vec![second.clone()], &[]);
    let at_second = mounted(&node, "web-1", "pv-1").await;
    assert_eq!(fs::read_to_string(at_second.join("hello")).unwrap(), "from web-0");
    let status =
        cluster.volume_reported("web-1", |volume| volume.published && volume.reason.is_empty()).await;
    assert_eq!(status.pod_volumes.len(), 2);
    let [reported] = &status.drivers[..] else { panic!("{status:?}") };
    assert_eq!((reported.name.as_str(), reported.node_id.as_str(), reported.ready), (DRIVER, NODE, true));
    assert!(!reported.segments.is_empty(), "{reported:?}");
    assert_eq!(in_use(&status), [format!("kubernetes.io/csi/{DRIVER}^{}", volume.id).as_str()].into());

    let address = page::address_in(&node.cluster.agent.as_ref().unwrap().log()).unwrap();
    let metrics = page::get(&address, "/metrics").await.unwrap();
    for expected in
        ["edge_csi_kubernetes_followed 1", "edge_csi_kubernetes_objects 5", "edge_csi_pod_volumes 2"]
    {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }

    // The claim is expanded, after the controller expansion in the cloud.
    let size = csi::ControllerExpandVolumeRequest {
        volume_id: volume.id.to_string(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 8 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    controller(&node.cluster.driver_socket()).controller_expand_volume(size).await.unwrap();
    cluster.change(vec![claim("data", "pv-1", 8 << 20)], &[]);
    let status = cluster.reported("the claim is larger", |status| !status.expanded.is_empty()).await;
    assert_eq!((status.expanded[0].name.as_str(), status.expanded[0].bytes), ("data", 8 << 20));
    cluster.change(vec![claim("data", "pv-1", 0)], &[]);
    cluster.reported("nothing is to be larger", |status| status.expanded.is_empty()).await;

    // The reconnection after the change of the CSIDriver did not remove the driver from CSINode.
    let log = node.cluster.agent.as_ref().unwrap().log();
    assert_eq!(
        log.matches("policy changed, connecting again").count(),
        1,
        "once, and not for each first and last pod"
    );
    assert!(cluster.always_reported(|status| status.drivers.len() == 1));

    // No other source decides.
    let set = node.set(9, &[]);
    let refusal = node.refused(set.encode()).await;
    assert_eq!(refusal.reason(), Reason::Invalid, "{refusal:?}");
    assert!(refusal.message.contains("--kubelet-dir"), "{refusal:?}");

    // The first pod is deleted, and the other one keeps its volume.
    cluster.change(vec![], &[first]);
    check_removed(&node, "web-0").await;
    assert_eq!((node.mounts_at(&at_second), node.mounts().len()), (1, 2));

    // A claim that is no longer known removes no mount.
    cluster.change(vec![], &[claim("data", "", 0), pv.clone()]);
    cluster.volume_reported("web-1", |volume| volume.published && volume.reason.contains("not known")).await;
    assert_eq!(node.mounts_at(&at_second), 1);
    cluster.change(vec![claim("data", "pv-1", 0), pv.clone()], &[]);
    cluster.volume_reported("web-1", |volume| volume.published && volume.reason.is_empty()).await;

    // The agent crashes, and continues from its store.
    let mounts = node.mounts();
    node.cluster.agent.as_mut().unwrap().kill();
    start_agent(&mut node);
    wait::until("it asks from where it was", async || {
        cluster.asked_last().filter(|asked| *asked == Watch { source: 7, revision: 7, versions: versions(7) })
    })
    .await;
    node.published(&volume).await;
    assert_eq!(node.mounts(), mounts);

    // The machine reboots, without a hub.
    cluster.stop_hub().await;
    reboots(&mut node, "22222222-2222-4222-8222-222222222222");
    assert!(!at_second.join("hello").exists());
    start_agent(&mut node);
    node.cluster.start_driver(&[]).unwrap();
    mounted(&node, "web-1", "pv-1").await;
    assert_eq!(fs::read_to_string(at_second.join("hello")).unwrap(), "from web-0");

    // Meanwhile the pod was deleted, and another one uses its claim.
    let third = pod("web-2", [of_claim("data")]);
    let objects = vec![driver(false), claim("data", "pv-1", 0), pv, third.clone()];
    cluster = Cluster::start(node.cluster.hub_url(), 8, objects);
    let at_third = mounted(&node, "web-2", "pv-1").await;
    assert_eq!(fs::read_to_string(at_third.join("hello")).unwrap(), "from web-0");
    check_removed(&node, "web-1").await;
    let status = cluster.volume_reported("web-2", |volume| volume.published).await;
    assert_eq!(status.pod_volumes.len(), 1, "{status:?}");

    // The stored objects are damaged while the hub is down: no volume is unmounted.
    node.cluster.agent.as_mut().unwrap().kill();
    cluster.stop_hub().await;
    let state = node.cluster.path("agent-state");
    let tables =
        [Table::new("kubernetes-objects", RecordKind(3)), Table::new("desired-volumes", RecordKind(2))];
    let opened = open_tables(state.join("agent.redb"), &tables).unwrap();
    for (table, mut store) in tables.iter().zip(opened.stores) {
        let part = RecordKey::new(table.kind, "part 000000").unwrap();
        store.commit(&[Change::Put(part, b"torn".to_vec())]).unwrap();
    }
    start_agent(&mut node);
    node.cluster.agent.as_ref().unwrap().logged("the saved objects of the pods are damaged").await;
    node.published(&volume).await;
    assert_eq!(node.mounts_at(&at_third), 1);

    // The hub is back, with a pod with an unknown claim: still no volume is unmounted.
    cluster = Cluster::start(node.cluster.hub_url(), 9, vec![third.clone()]);
    node.cluster.agent.as_ref().unwrap().logged("volumes stay unchanged until the claim is known").await;
    assert_eq!(node.mounts_at(&at_third), 1);

    // The last pod is deleted, and only the data is left.
    cluster.change(vec![], &[third]);
    node.nothing_mounted().await;
    node.forgotten().await;
    check_removed(&node, "web-2").await;
    cluster.reported("nothing is in use", |status| status.volumes_in_use.is_empty()).await;
}

#[tokio::test]
async fn a_pod_gets_a_block_device_and_keeps_it_exclusively() {
    if !may_mount("a_pod_gets_a_block_device_and_keeps_it_exclusively") {
        return;
    }
    let mut node = fixture().await;
    let mut request = create_volume("pvc-1");
    request.capacity_range = None;
    let block = csi::volume_capability::AccessType::Block(csi::volume_capability::BlockVolume {});
    request.volume_capabilities[0].access_type = Some(block);
    let made = controller(&node.cluster.driver_socket()).create_volume(request).await.unwrap().into_inner();
    let pv = Kind::PersistentVolume(PersistentVolume {
        block: true,
        access_modes: vec!["ReadWriteOncePod".into()],
        ..persistent_volume("pv-1", &made.volume.unwrap().volume_id)
    });
    let (first, second) = (pod("web-0", [of_claim("data")]), pod("web-1", [of_claim("data")]));
    let objects = vec![driver(false), claim("data", "pv-1", 0), pv, first.clone()];
    let cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    start_agent(&mut node);
    cluster.volume_reported("web-0", |volume| volume.published).await;
    let place = |pod: &str| {
        let pod = node.cluster.path("kubelet/pods").join(format!("uid-of-{pod}"));
        pod.join("volumeDevices/kubernetes.io~csi/pv-1")
    };
    let write = |place: PathBuf| {
        assert!(fs::metadata(&place).unwrap().file_type().is_block_device());
        fs::File::options().write(true).open(place).unwrap().write_all(b"from web-0").unwrap();
    };
    write(place("web-0"));
    cluster.change(vec![second], &[]);
    cluster.volume_reported("web-1", |volume| volume.reason.contains("uid-of-web-0")).await;
    assert!(!place("web-1").exists());
    cluster.change(vec![], &[first]);
    check_removed(&node, "web-0").await;
    cluster.volume_reported("web-1", |volume| volume.published).await;
    let mut read = [0; 10];
    fs::File::open(place("web-1")).unwrap().read_exact(&mut read).unwrap();
    assert_eq!(&read, b"from web-0");
    cluster.change(vec![], &[pod("web-1", [])]);
    check_removed(&node, "web-1").await;
    node.forgotten().await;
}

/// The scheduler binds the next pod as soon as the first one is deleted on the API server, while the node still unmounts.
#[tokio::test]
async fn a_claim_for_one_pod_passes_to_the_next_one() {
    if !may_mount("a_claim_for_one_pod_passes_to_the_next_one") {
        return;
    }
    let mut node = fixture().await;
    let volume = node.volume("pvc-1").await;
    node.attach_as_others_do(&volume).await;
    let pv = Kind::PersistentVolume(PersistentVolume {
        access_modes: vec!["ReadWriteOncePod".into()],
        ..persistent_volume("pv-1", volume.id.as_str())
    });
    let (first, second) = (pod("web-0", [of_claim("data")]), pod("web-1", [of_claim("data")]));
    let objects = vec![driver(true), claim("data", "pv-1", 0), pv, first.clone(), attachment("pv-1", true)];
    let cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    start_agent(&mut node);
    let place = mounted(&node, "web-0", "pv-1").await;
    fs::write(place.join("hello"), "from web-0").unwrap();
    cluster.change(vec![second.clone()], &[first]);
    let place = mounted(&node, "web-1", "pv-1").await;
    assert_eq!(fs::read_to_string(place.join("hello")).unwrap(), "from web-0");
    cluster.volume_reported("web-1", |volume| volume.published).await;
    cluster.change(vec![], &[second]);
    node.nothing_mounted().await;
}

#[tokio::test]
async fn a_volume_waits_for_its_attachment_and_its_secret() {
    if !may_mount("a_volume_waits_for_its_attachment_and_its_secret") {
        return;
    }
    let mut node = fixture().await;
    let volume = node.volume("pvc-1").await;
    let name = SecretName { namespace: "default".into(), name: "key".into() };
    let pv = Kind::PersistentVolume(PersistentVolume {
        node_stage_secret: Some(name),
        ..persistent_volume("pv-1", volume.id.as_str())
    });
    let web = pod("web-0", [of_claim("data")]);
    let objects = vec![driver(true), claim("data", "pv-1", 0), pv, web.clone()];
    let mut cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    start_agent(&mut node);
    let named = format!("kubernetes.io/csi/{DRIVER}^{}", volume.id);
    let status = cluster.volume_reported("web-0", |volume| volume.reason.contains("VolumeAttachment")).await;
    assert_eq!(in_use(&status), [named.as_str()].into());

    // The volume is attached, as by the attacher in the cloud. The secret is missing, and is created later.
    node.attach_as_others_do(&volume).await;
    cluster.change(vec![attachment("pv-1", true)], &[]);
    let status = cluster
        .volume_reported("web-0", |volume| volume.reason.contains("secret default/key not found"))
        .await;
    let failure = status.pod_volumes[0].failure.clone().unwrap();
    assert_eq!((failure.reason.as_str(), failure.waits), ("FailedMount", false));
    let begin = "MountVolume.MountDevice failed for volume \"pv-1\" : ";
    assert!(failure.message.starts_with(begin), "{}", failure.message);
    cluster.secret("default/key", "hunter2");
    let place = mounted(&node, "web-0", "pv-1").await;
    fs::write(place.join("hello"), "from web-0").unwrap();
    cluster.volume_reported("web-0", |volume| volume.published && volume.failure.is_none()).await;
    assert!(!node.cluster.agent.as_ref().unwrap().log().contains("hunter2"));
    for path in node.below("agent-state") {
        let bytes = fs::read(&path).unwrap_or_default();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{path:?}");
    }

    // After a reboot without the hub the volume waits for its secret, which is reported.
    cluster.stop_hub().await;
    reboots(&mut node, "22222222-2222-4222-8222-222222222222");
    start_agent(&mut node);
    node.cluster.start_driver(&[]).unwrap();
    wait::until("it is explained by the hub that is away", async || {
        let explained = node.command(&["explain", volume.id.as_str()]).stdout;
        String::from_utf8_lossy(&explained).contains("the hub is not connected").then_some(())
    })
    .await;
    cluster.start_hub(node.cluster.hub_url());
    mounted(&node, "web-0", "pv-1").await;
    cluster.volume_reported("web-0", |volume| volume.published).await;

    // The attachment is deleted: the mounted volume stays, and is reported in use.
    cluster.change(vec![attachment("pv-1", false)], &[]);
    let asks = pod("web-1", [of_claim("data")]);
    cluster.change(vec![asks.clone()], &[]);
    mounted(&node, "web-1", "pv-1").await;
    assert_eq!(node.mounts_at(&place), 1);
    cluster.change(vec![], &[attachment("pv-1", false)]);
    let status = cluster.volume_reported("web-1", |volume| volume.published).await;
    assert_eq!(in_use(&status), [named.as_str()].into());
    assert_eq!(fs::read_to_string(place.join("hello")).unwrap(), "from web-0");

    // The volume is unmounted with the last pod, and may be detached.
    cluster.change(vec![], &[web, asks]);
    node.nothing_mounted().await;
    cluster.reported("nothing is in use", |status| status.volumes_in_use.is_empty()).await;
    assert_eq!(node.attached_nodes(&volume).await, 1, "the node does not undo the attach");
}

/// The attach/detach controller does not detach a volume that the Node reports in use, as with kubelet.
#[tokio::test]
async fn an_attached_volume_waits_for_volumes_in_use() {
    if !may_mount("an_attached_volume_waits_for_volumes_in_use") {
        return;
    }
    let mut node = fixture().await;
    let volume = node.volume("pvc-1").await;
    node.attach_as_others_do(&volume).await;
    let pv = Kind::PersistentVolume(persistent_volume("pv-1", volume.id.as_str()));
    let web = pod("web-0", [of_claim("data")]);
    let objects = vec![driver(true), claim("data", "pv-1", 0), pv, web.clone(), attachment("pv-1", true)];
    let mut cluster = Cluster::start(node.cluster.hub_url(), 7, objects);
    cluster.fails("the API server is away");
    start_agent(&mut node);
    let status =
        cluster.volume_reported("web-0", |volume| volume.reason.contains("status.volumesInUse")).await;
    assert_eq!(in_use(&status), [format!("kubernetes.io/csi/{DRIVER}^{}", volume.id).as_str()].into());
    assert!(node.mounts().is_empty());
    cluster.fails("");
    let place = mounted(&node, "web-0", "pv-1").await;
    fs::write(place.join("hello"), "from web-0").unwrap();
    cluster.volume_reported("web-0", |volume| volume.published).await;

    // The machine reboots, without a hub that writes anything.
    cluster.stop_hub().await;
    reboots(&mut node, "22222222-2222-4222-8222-222222222222");
    start_agent(&mut node);
    node.cluster.start_driver(&[]).unwrap();
    let place = mounted(&node, "web-0", "pv-1").await;
    assert_eq!(fs::read_to_string(place.join("hello")).unwrap(), "from web-0");

    let again = Cluster::start(node.cluster.hub_url(), 8, vec![driver(true)]);
    node.nothing_mounted().await;
    again.reported("nothing is in use", |status| status.volumes_in_use.is_empty()).await;
}

/// The drivers of a node whose kubelet keeps its CSINode to itself are reported until a hub has written them, and to the next
/// hub.
#[tokio::test]
async fn drivers_are_reported_for_the_csi_node() {
    let mut node = fixture().await;
    let mut cluster = Cluster::start(node.cluster.hub_url(), 7, Vec::new());
    cluster.fails("the API server is away");
    let sockets = node.cluster.path("kubelet-sockets").to_string_lossy().into_owned();
    node.cluster.start_agent(&["--kubelet-socket-dir", &sockets, "--csi-node"]).unwrap();
    node.cluster.agent.as_ref().unwrap().logged("the API server is away").await;
    cluster.fails("");
    node.cluster.agent.as_ref().unwrap().logged("the hub has written the CSINode").await;
    let first = cluster.reported("it has its driver", |status| status.drivers.len() == 1).await;
    let found = &first.drivers[0];
    assert_eq!((found.name.as_str(), found.node_id.as_str()), (DRIVER, NODE));
    assert_eq!(found.segments.values().collect::<Vec<_>>(), [NODE]);

    cluster.stop_hub().await;
    let other = Cluster::start(node.cluster.hub_url(), 8, Vec::new());
    let next = other.reported("it has its driver", |status| status.drivers == first.drivers).await;
    let place =
        |number: Option<StatusNumber>| number.map(|number| (number.instance, number.start, number.number));
    assert!(place(next.number) > place(first.number), "{next:?} {first:?}");
}
