//! A node with volumes, as processes. The driver of the node mounts a set that arrives over the hub, and the volumes
//! stay mounted without the hub, over crashes and reboots. The tests need root to mount; without it, each test logs
//! that it did not run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod fixture;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use edge_csi_tests::cluster::{DRIVER, NODE, Role};
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{page, wait};
use fixture::{Fixture, key};
use prost_reflect::{DynamicMessage, ReflectMessage};
use volume_manager::advanced::message::answer::Kind;
use volume_manager::advanced::message::query;
use volume_manager::advanced::message::refusal::Reason;
use volume_manager::driver::{Attach, DriverPolicy, SecretReference, SecretReferences};

/// Returns whether this process may mount, and logs a line if not.
fn may_mount(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "{test}: not run, since mounting needs root");
    }
    root
}

/// The certificate expires, and the machine reboots: the volumes are restored, and a new certificate restores the link.
#[tokio::test]
async fn a_reboot_with_an_expired_certificate_restores() {
    if !may_mount("a_reboot_with_an_expired_certificate_restores") {
        return;
    }
    let mut node = Fixture::over(LinkKind::Wss);
    let expired = node.cluster.certificates().authority().issue_for_years(&[NODE], 2000..2001);
    let renewed = node.cluster.certificates().authority().issue_for_years(&[NODE], 2001..4000);
    let files = node.cluster.certificates().agent.clone();
    node.cluster.hub_options(&["--allow", "cloud=*:@volumes"]);
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    node.start_agent(&[]);
    let volume = node.volume("pvc-1").await;
    let set = node.set(1, &[(&volume, &["pod-1"])]);
    node.taken(&set).await;
    node.published(&volume).await;
    let target = node.target("pod-1");
    fs::write(target.join("hello"), "from the pod").unwrap();

    node.cluster.agent.as_mut().unwrap().kill();
    node.cluster.driver.as_mut().unwrap().kill();
    node.unmount_all();
    node.boots("22222222-2222-4222-8222-222222222222");
    expired.install_as(&files);
    node.start_agent(&[]);
    node.cluster.start_driver(&[]).unwrap();
    node.published(&volume).await;
    assert_eq!(fs::read_to_string(target.join("hello")).unwrap(), "from the pod");
    let ready = page::of(node.cluster.agent.as_ref().unwrap(), "/readyz").await;
    assert!(ready.contains(" 503 ") && ready.contains("expired"), "{ready}");

    renewed.install_as(&files);
    node.cluster.ready(Role::Agent).await.unwrap();
}

/// The machine reboots with a clock in 2001, an expired certificate and no hub: the volumes are restored, and kubelet's
/// socket answers.
#[tokio::test]
#[ignore = "needs root and Debian's faketime"]
async fn a_reboot_with_a_clock_in_2001_and_no_hub_restores() {
    let mut node = Fixture::over(LinkKind::Wss);
    let expired = node.cluster.certificates().authority().issue_for_years(&[NODE], 1999..2000);
    node.cluster.hub_options(&["--allow", "cloud=*:@volumes"]);
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    let sockets = node.cluster.path("kubelet-sockets");
    let options = ["--kubelet-socket-dir", &sockets.to_string_lossy()];
    node.start_agent(&options);
    let volume = node.volume("pvc-1").await;
    let set = node.set(1, &[(&volume, &["pod-1"])]);
    node.taken(&set).await;
    node.published(&volume).await;
    let target = node.target("pod-1");
    fs::write(target.join("hello"), "from the pod").unwrap();

    node.cluster.agent.as_mut().unwrap().kill();
    node.cluster.driver.as_mut().unwrap().kill();
    node.cluster.hub = None;
    node.unmount_all();
    node.boots("22222222-2222-4222-8222-222222222222");
    expired.install_as(&node.cluster.certificates().agent.clone());
    let in_2001 = node.cluster.path("agent-in-2001");
    let agent = node.cluster.programs.agent.display();
    // The monotonic clock stays, as on a machine whose clock chip has lost its battery.
    let script = format!(
        "#!/bin/sh\nexport FAKETIME_DONT_FAKE_MONOTONIC=1\nexec faketime '2001-02-03 04:05:06' {agent} \"$@\"\n"
    );
    fs::write(&in_2001, script).unwrap();
    fs::set_permissions(&in_2001, fs::Permissions::from_mode(0o700)).unwrap();
    node.cluster.programs.agent = in_2001;
    node.start_agent(&options);
    node.cluster.start_driver(&[]).unwrap();
    node.published(&volume).await;
    assert_eq!(fs::read_to_string(target.join("hello")).unwrap(), "from the pod");
    ready(&sockets.join(format!("{DRIVER}.sock"))).await;
    let agent = node.cluster.agent.as_ref().unwrap();
    assert!(agent.log().contains("2001-02-03T"), "{}", agent.tail());
    let page = page::of(agent, "/readyz").await;
    assert!(page.contains(" 503 ") && page.contains("expired"), "{page}");
}

/// A changed boot id without mounts simulates the reboot.
#[tokio::test]
async fn a_volume_of_a_set_survives_crash_and_reboot() {
    if !may_mount("a_volume_of_a_set_survives_crash_and_reboot") {
        return;
    }
    let mut node = Fixture::new();
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    node.start_agent(&[]);
    let volume = node.volume("pvc-1").await;

    // The volume is mounted.
    let set = node.set(3, &[(&volume, &["pod-1"])]);
    let taken = node.taken(&set).await;
    assert_eq!((taken.revision, taken.wanted, taken.refused.len()), (3, 1, 0));
    node.published(&volume).await;
    let target = node.target("pod-1");
    fs::write(target.join("hello"), "from the pod").unwrap();
    assert_eq!((node.mounts_at(&target), node.attached_nodes(&volume).await), (1, 1));
    let mounts = node.mounts();
    assert_eq!(mounts.len(), 2, "the staging and the target: {mounts:?}");

    // The state of the volume is reported.
    let explained = node.printed(&["explain", volume.id.as_str()]);
    assert!(explained.contains("is PUBLISHED") && explained.contains("consumers: pod-1"), "{explained}");
    assert_eq!(node.printed(&["explain", &volume.to_string()]).lines().count(), 1);
    let unknown = node.command(&["explain", "absent"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("this node has no volume absent"),
        "{unknown:?}"
    );
    let answers = node.ask(query()).await;
    let [Kind::Reports(reports)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((reports.revision, reports.volumes.len()), (3, 1));
    let report = &reports.volumes[0];
    assert_eq!((report.volume_id.as_str(), report.state.as_str()), (volume.id.as_str(), "PUBLISHED"));
    assert!(report.consumers[0].wanted && report.consumers[0].published, "{report:?}");

    // The same set again is accepted, and an older or another one is refused.
    let again = node.taken(&set).await;
    assert_eq!((again.revision, again.wanted, again.released), (3, 0, 0));
    for other in [node.set(3, &[]), node.set(2, &[])] {
        let refusal = node.refused(other.encode()).await;
        assert_eq!((refusal.reason(), refusal.revision), (Reason::Stale, 3), "{refusal:?}");
    }
    assert_eq!(node.refused(vec![1, 2, 3]).await.reason(), Reason::Invalid);

    // The hub is killed, the agent crashes and restarts.
    node.cluster.hub = None;
    node.cluster.agent.as_mut().unwrap().kill();
    let output = node.command(&["volumes"]);
    let (table, note) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && table.contains(volume.id.as_str()), "{output:?}");
    assert!(note.contains("no agent uses"), "{note}");
    assert_eq!(node.mounts(), mounts);
    node.start_agent(&[]);
    node.published(&volume).await;
    assert_eq!(node.mounts(), mounts, "nothing was mounted anew");

    // The machine reboots, without a hub.
    node.cluster.agent.as_mut().unwrap().kill();
    node.cluster.driver.as_mut().unwrap().kill();
    node.unmount_all();
    node.boots("22222222-2222-4222-8222-222222222222");
    assert!(!target.join("hello").exists());
    node.start_agent(&[]);
    node.cluster.start_driver(&[]).unwrap();
    wait::until("the volume is back", async || target.join("hello").exists().then_some(())).await;
    node.published(&volume).await;
    assert_eq!((node.mounts_at(&target), node.mounts().len()), (1, 2));
    assert_eq!(fs::read_to_string(target.join("hello")).unwrap(), "from the pod");

    // The driver is replaced, and a second consumer arrives with the hub.
    node.cluster.driver.as_mut().unwrap().kill();
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    let both = node.set(4, &[(&volume, &["pod-1", "pod-2"])]);
    assert_eq!(node.taken(&both).await.wanted, 1);
    node.published(&volume).await;
    assert_eq!(fs::read_to_string(node.target("pod-2").join("hello")).unwrap(), "from the pod");
    assert_eq!(node.mounts().len(), 3);

    // The volume is removed from the node, and leaves only its data in the driver.
    let none = node.set(5, &[]);
    assert_eq!(node.taken(&none).await.released, 2);
    node.nothing_mounted().await;
    node.forgotten().await;
    assert!(!target.exists() && !node.target("pod-2").exists());
    let left: Vec<_> = node
        .below("volumes")
        .into_iter()
        .filter(|path| path.ends_with("staging") || !path.is_dir())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(node.attached_nodes(&volume).await, 0);

    // An accepted set survives a crash.
    node.cluster.agent.as_mut().unwrap().kill();
    assert_eq!(node.printed(&["volumes"]).lines().count(), 1);
    node.start_agent(&[]);
    let old = node.refused(both.encode()).await;
    assert_eq!((old.reason(), old.revision), (Reason::Stale, 5), "{old:?}");
    assert!(node.mounts().is_empty());
}

#[tokio::test]
async fn volumes_wait_for_their_driver_while_calls_are_relayed() {
    if !may_mount("volumes_wait_for_their_driver_while_calls_are_relayed") {
        return;
    }
    let mut node = Fixture::new();
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    let pods = node.cluster.path("pods").to_string_lossy().into_owned();
    node.start_agent(&["--allowed-target-dir", &pods]);
    node.cluster.start_proxy(&[]).unwrap();
    let proxy = node.cluster.proxy_socket();
    ready(&proxy).await;
    let made = controller(&proxy).create_volume(create_volume("pvc-1")).await.unwrap().into_inner();
    let volume = key(&made.volume.unwrap().volume_id);

    // A target elsewhere refuses the whole set.
    let mut astray = node.set(1, &[(&volume, &["pod-1"])]).encode();
    let (from, to) = (pods.as_bytes(), pods.replace("pods", "dops"));
    let at = astray.windows(from.len()).position(|window| window == from).unwrap();
    astray[at..at + from.len()].copy_from_slice(to.as_bytes());
    let refusal = node.refused(astray).await;
    assert_eq!((refusal.reason(), refusal.revision), (Reason::Invalid, 0), "{refusal:?}");
    assert!(refusal.message.contains("--allowed-target-dir"), "{refusal:?}");

    node.cluster.driver.as_mut().unwrap().kill();
    let set = node.set(1, &[(&volume, &["pod-1"])]);
    assert_eq!(node.taken(&set).await.wanted, 1);
    wait::until("it waits for the driver", async || {
        let explained = node.printed(&["explain", volume.id.as_str()]);
        explained.contains("waiting for its driver").then_some(())
    })
    .await;
    node.cluster.start_driver(&[]).unwrap();
    node.published(&volume).await;
    assert!(node.target("pod-1").is_dir() && node.mounts_at(&node.target("pod-1")) == 1);

    // The relayed calls continue meanwhile.
    controller(&proxy).create_volume(create_volume("pvc-2")).await.unwrap();
    let agent = node.cluster.agent.as_ref().unwrap();
    let page = wait::until("the page shows the volume", async || {
        let page = http(&agent.log(), "/").await?;
        page.contains("1 PUBLISHED").then_some(page)
    })
    .await;
    assert!(page.contains("desired revision") && page.contains(DRIVER), "{page}");
    let metrics = wait::until("the metrics count the volume", async || {
        let metrics = http(&agent.log(), "/metrics").await?;
        metrics.contains("volume_manager_volumes{state=\"PUBLISHED\"} 1").then_some(metrics)
    })
    .await;
    assert!(metrics.lines().any(|line| line == "edge_csi_desired_revision 1"), "{metrics}");

    let none = node.set(2, &[]);
    node.taken(&none).await;
    node.nothing_mounted().await;
    node.forgotten().await;
    assert_eq!(node.attached_nodes(&volume).await, 0);

    // The set declares that the driver needs no attach, so the volume is published without one.
    let mut unattached = node.set(3, &[(&volume, &["pod-1"])]);
    let mut policy = DriverPolicy::default();
    policy.attach_required = false;
    unattached.policies.insert(volume.driver.clone(), policy);
    node.taken(&unattached).await;
    node.published(&volume).await;
    assert_eq!(node.attached_nodes(&volume).await, 0);
}

#[tokio::test]
async fn follows_the_attachment_and_reads_the_secret_from_a_file() {
    if !may_mount("follows_the_attachment_and_reads_the_secret_from_a_file") {
        return;
    }
    let mut node = Fixture::new();
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    let secrets = node.cluster.path("secrets");
    fs::create_dir_all(secrets.join("default/key")).unwrap();
    let secrets_dir = secrets.to_string_lossy().into_owned();
    node.start_agent(&["--secrets-dir", &secrets_dir]);
    let volume = node.volume("pvc-1").await;
    let awaited = |node: &Fixture, revision: u64, attached: bool| {
        let mut set = node.set(revision, &[(&volume, &["pod-1"])]);
        let key = SecretReference::new("default", "key").unwrap();
        let references = SecretReferences { node_stage: Some(key), ..SecretReferences::default() };
        let spec =
            set.volumes[0].spec.to_builder().attach(Attach::Awaited).secrets(references).build().unwrap();
        set.volumes[0].spec = Arc::new(spec);
        set.attached.extend(attached.then(|| volume.clone()));
        set
    };
    let explained = async |node: &Fixture, expected: &str| {
        wait::until(&format!("it is explained by {expected:?}"), async || {
            node.printed(&["explain", volume.id.as_str()]).contains(expected).then_some(())
        })
        .await;
    };

    let set = awaited(&node, 1, false);
    node.taken(&set).await;
    explained(&node, "waiting for the external attach").await;

    // The attacher in the cloud attaches the volume. The secret is refused, since other users may read its file.
    let attach = node.attach_as_others_do(&volume).await;
    assert_eq!(node.attached_nodes(&volume).await, 1, "{attach:?}");
    let value = secrets.join("default/key/password");
    fs::write(&value, "hunter2").unwrap();
    fs::set_permissions(&value, fs::Permissions::from_mode(0o644)).unwrap();
    let set = awaited(&node, 2, true);
    node.taken(&set).await;
    explained(&node, "its mode is 0644").await;
    fs::set_permissions(&value, fs::Permissions::from_mode(0o600)).unwrap();
    node.published(&volume).await;
    assert!(!node.cluster.agent.as_ref().unwrap().log().contains("hunter2"));
    for path in node.below("agent-state") {
        let bytes = fs::read(&path).unwrap_or_default();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{path:?}");
    }

    // The volume is unmounted before the detach, and the node does not detach.
    let set = awaited(&node, 3, false);
    node.taken(&set).await;
    node.nothing_mounted().await;
    explained(&node, "waiting for the external attach").await;
    assert_eq!(node.attached_nodes(&volume).await, 1);
    let set = awaited(&node, 4, true);
    node.taken(&set).await;
    node.published(&volume).await;
    let none = node.set(5, &[]);
    node.taken(&none).await;
    node.nothing_mounted().await;
}

/// Returns the answer of the status page of the process with this log.
async fn http(log: &str, path: &str) -> Option<String> {
    page::get(&page::address_in(log)?, path).await
}

#[tokio::test]
async fn the_commands_report_an_empty_node() {
    let mut node = Fixture::new();
    let absent = node.command(&["volumes"]);
    assert_eq!(absent.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&absent.stderr).contains("no directory"), "{absent:?}");
    node.cluster.start_driver(&[]).unwrap();
    node.cluster.start_hub().await.unwrap();
    node.cluster.start_agent(&[]).unwrap();
    node.cluster.agent.as_ref().unwrap().logged("connected to the hub").await;
    let without = node.command(&["explain", "v1"]);
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stderr).contains("start it with --staging-dir"), "{without:?}");
    node.cluster.agent.as_mut().unwrap().kill();
    assert_eq!(node.printed(&["volumes"]).lines().count(), 1, "the table of no volumes");
    fs::remove_file(node.cluster.path("agent-state/agent.redb")).unwrap();
    let never = node.command(&["volumes"]);
    assert!(String::from_utf8_lossy(&never.stderr).contains("has no records of volumes"), "{never:?}");
}

#[test]
fn the_published_schema_reads_every_field() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../volume-manager/proto"));
    let files = protox::compile(["edge_csi/volumes/v1/volumes.proto"], [root]).unwrap();
    let pool = prost_reflect::DescriptorPool::from_file_descriptor_set(files).unwrap();
    let descriptor = pool.get_message_by_name("edge_csi.volumes.v1.Request").unwrap();
    let node = Fixture::new();
    let mut set = node.set(7, &[(&key("v1"), &["pod-1"])]);
    set.policies.insert(key("v1").driver, DriverPolicy::default());
    let read = DynamicMessage::decode(descriptor, &set.encode()[..]).unwrap();
    assert_eq!(read.descriptor().name(), "Request");
    assert_eq!(read.unknown_fields().count(), 0);
    let text = format!("{read}");
    for expected in
        ["revision:7", "volume_id:\"v1\"", "access_mode:SINGLE_NODE_MULTI_WRITER", "id:\"pod-1\"", DRIVER]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
