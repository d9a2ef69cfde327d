//! The agent gives the files of a pod's volume to the pod's group if the driver cannot do so.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{Driver, Pod, PodVolume};
use edge_csi_tests::wait;

use super::cluster::{Cluster, claim, of_claim, persistent_volume, pod};
use super::fixture::Fixture;
use super::{DRIVER, check_removed, fixture, may_mount, mounted, reboots, start_agent};

const GROUP: u32 = 4711;

/// The number of files in the test of a power cut.
const FILES: usize = 4000;

fn driver() -> Kind {
    let lifecycle_modes = vec!["Persistent".into()];
    let fs_group_policy = "File".into();
    Kind::Driver(Driver { name: DRIVER.into(), lifecycle_modes, fs_group_policy, ..Driver::default() })
}

fn grouped(name: &str, group: u32, on_root_mismatch: bool, volume: PodVolume) -> Kind {
    let Kind::Pod(pod) = pod(name, [volume]) else { panic!() };
    Kind::Pod(Pod { fs_group: Some(group), fs_group_on_root_mismatch: on_root_mismatch, ..pod })
}

fn private(path: &Path) {
    fs::write(path, "private").unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn group_and_mode(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.gid(), found.mode() & 0o7777)
}

async fn cluster_of(node: &mut Fixture, pods: Vec<Kind>) -> Cluster {
    let volume = node.volume("pvc-1").await;
    let pv = persistent_volume("pv-1", volume.id.as_str());
    let objects = [driver(), claim("data", "pv-1", 0), Kind::PersistentVolume(pv)];
    let cluster = Cluster::start(node.cluster.hub_url(), 7, objects.into_iter().chain(pods).collect());
    start_agent(node);
    cluster
}

#[tokio::test]
async fn files_get_the_pods_group_before_the_volume_is_reported() {
    if !may_mount("files_get_the_pods_group_before_the_volume_is_reported") {
        return;
    }
    let mut node = fixture().await;
    let first = pod("web-0", [of_claim("data")]);
    let cluster = cluster_of(&mut node, vec![first.clone()]).await;

    // A pod without a group leaves a file, and a symbolic link to a path outside the volume.
    let place = mounted(&node, "web-0", "pv-1").await;
    let outside = node.cluster.path("outside");
    private(&outside);
    fs::create_dir(place.join("sub")).unwrap();
    private(&place.join("sub/file"));
    symlink(&outside, place.join("sub/link")).unwrap();
    cluster.volume_reported("web-0", |volume| volume.published).await;
    assert_eq!(group_and_mode(&place.join("sub/file")), (0, 0o600));

    // The next pod has a group, and its volume is reported once all files belong to the group.
    let second = grouped("web-1", GROUP, true, of_claim("data"));
    cluster.change(vec![second], &[first]);
    check_removed(&node, "web-0").await;
    cluster.volume_reported("web-1", |volume| volume.published && volume.reason.is_empty()).await;
    let place = mounted(&node, "web-1", "pv-1").await;
    assert_eq!(group_and_mode(&place.join("sub/file")), (GROUP, 0o660));
    assert_eq!(group_and_mode(&place).0, GROUP);
    assert_eq!(group_and_mode(&place).1 & 0o2770, 0o2770);
    assert_eq!(group_and_mode(&outside), (0, 0o600), "the link leads nowhere");

    // With OnRootMismatch, a root that belongs to the group ends the job. The other pods get what their policy and mode
    // require.
    let new = place.join("sub/new");
    private(&new);
    cluster.change(vec![grouped("web-2", GROUP, true, of_claim("data"))], &[]);
    cluster.volume_reported("web-2", |volume| volume.published).await;
    assert_eq!(group_and_mode(&new).1, 0o600);
    let reads = PodVolume { read_only: true, ..of_claim("data") };
    cluster.change(vec![grouped("web-3", 9, false, reads)], &[]);
    cluster.volume_reported("web-3", |volume| volume.published).await;
    assert_eq!(group_and_mode(&new).1, 0o600);
    let always = grouped("web-4", GROUP, false, of_claim("data"));
    cluster.change(vec![always], &[]);
    cluster.volume_reported("web-4", |volume| volume.published).await;
    assert_eq!(group_and_mode(&new), (GROUP, 0o660));

    // A restart of the agent changes no file of pods that run.
    private(&new);
    node.cluster.agent.as_mut().unwrap().kill();
    start_agent(&mut node);
    let statuses = cluster.statuses();
    wait::until("it reports again", async || (cluster.statuses() > statuses).then_some(())).await;
    cluster.volume_reported("web-4", |volume| volume.published && volume.reason.is_empty()).await;
    assert_eq!(group_and_mode(&new).1, 0o600);

    // A boot changes files, as with kubelet.
    let reported = cluster.statuses();
    reboots(&mut node, "22222222-2222-4222-8222-222222222222");
    start_agent(&mut node);
    node.cluster.start_driver(&[]).unwrap();
    let place = mounted(&node, "web-4", "pv-1").await;
    wait::until("the file is the group's again", async || {
        (group_and_mode(&place.join("sub/new")) == (GROUP, 0o660)).then_some(())
    })
    .await;
    wait::until("it reports after the boot", async || (cluster.statuses() > reported).then_some(())).await;
    cluster.volume_reported("web-4", |volume| volume.published && volume.reason.is_empty()).await;
}

#[tokio::test]
async fn an_interrupted_fs_group_job_is_completed() {
    if !may_mount("an_interrupted_fs_group_job_is_completed") {
        return;
    }
    let mut node = fixture().await;
    let first = pod("web-0", [of_claim("data")]);
    let cluster = cluster_of(&mut node, vec![first.clone()]).await;
    let place = mounted(&node, "web-0", "pv-1").await;
    for number in 0..FILES {
        private(&place.join(number.to_string()));
    }
    let second = grouped("web-1", GROUP, true, of_claim("data"));
    cluster.change(vec![second], &[first]);
    let place = mounted(&node, "web-1", "pv-1").await;
    let given = |place: &Path| {
        (0..FILES).filter(|number| group_and_mode(&place.join(number.to_string())) == (GROUP, 0o660)).count()
    };
    wait::until("it has begun", async || (given(&place) > 0).then_some(())).await;
    let statuses_before = cluster.statuses();
    reboots(&mut node, "22222222-2222-4222-8222-222222222222");
    start_agent(&mut node);
    node.cluster.start_driver(&[]).unwrap();
    let place = mounted(&node, "web-1", "pv-1").await;
    wait::until("it reports after the boot", async || (cluster.statuses() > statuses_before).then_some(()))
        .await;
    cluster.volume_reported("web-1", |volume| volume.published && volume.reason.is_empty()).await;
    assert_eq!((given(&place), group_and_mode(&place).0), (FILES, GROUP));

    // An fsGroup job delays no unmount.
    cluster.change(vec![], &[pod("web-1", [])]);
    node.nothing_mounted().await;
}
