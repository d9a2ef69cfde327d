//! SIGTERM and SIGINT end every binary in good order and in bounded time; the quickstart leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_csi_tests::cluster::TestCluster;
use edge_csi_tests::csi::{controller, create_volume, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use rustix::process::Signal;
use tonic::Code;

#[tokio::test]
async fn sigterm_ends_each_binary_with_0_and_removes_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut cluster = TestCluster::start(LinkKind::Uds).await;
        let sockets = [cluster.proxy_socket(), cluster.path("hub.sock"), cluster.driver_socket()];
        for process in [&mut cluster.proxy, &mut cluster.agent, &mut cluster.hub, &mut cluster.driver] {
            let process = process.as_mut().unwrap();
            process.signal(signal);
            let status = process.ended().await;
            assert!(status.success(), "{process:?} ended with {status}: {}", process.log());
        }
        for socket in sockets {
            assert!(!socket.exists(), "{} is left", socket.display());
        }
    }
}

#[tokio::test]
async fn a_proxy_that_ends_lets_the_open_call_finish() {
    let mut cluster = TestCluster::start(LinkKind::Uds).await;
    cluster.driver.as_ref().unwrap().signal(Signal::STOP);
    let client = controller(&cluster.proxy_socket());
    let call = tokio::spawn(async move {
        client.clone().create_volume(within(Duration::from_secs(60), create_volume("pvc-last"))).await
    });
    cluster.agent.as_ref().unwrap().logged("CreateVolume").await;
    let proxy = cluster.proxy.as_mut().unwrap();
    proxy.signal(Signal::TERM);
    proxy.logged("SIGTERM").await;
    cluster.driver.as_ref().unwrap().signal(Signal::CONT);
    wait::within("the call ends", call).await.unwrap().unwrap();
    assert!(cluster.proxy.as_mut().unwrap().ended().await.success());
}

#[tokio::test]
async fn an_ending_agent_finishes_work_without_a_waiter() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    // The proxy may still query the driver's capabilities, which keeps the session open for up to 10 s.
    cluster.start_agent(&["--drain-timeout", "60s"]).unwrap();
    cluster.start_proxy(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
    cluster.driver.as_ref().unwrap().signal(Signal::STOP);
    let client = controller(&cluster.proxy_socket());
    let agent = cluster.agent.as_mut().unwrap();
    wait::until("the agent has the call", async || {
        let request = within(Duration::from_millis(300), create_volume("pvc-slow"));
        let late = client.clone().create_volume(request).await;
        assert!(late.is_err(), "{late:?}");
        agent.log().contains("CreateVolume").then_some(())
    })
    .await;
    agent.signal(Signal::TERM);
    agent.logged("SIGTERM").await;
    // Its session has ended, since no caller waits for an answer.
    wait::until("the node is offline", async || {
        let status = client.clone().create_volume(create_volume("pvc-other")).await.err()?;
        status.message().contains("offline").then_some(())
    })
    .await;
    cluster.driver.as_ref().unwrap().signal(Signal::CONT);
    let agent = cluster.agent.as_mut().unwrap();
    assert!(agent.ended().await.success(), "{}", agent.log());
    let log = agent.log();
    let call = log.lines().find(|line| line.contains("CreateVolume") && line.contains("dispatcher")).unwrap();
    let id = call.split("call=").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let answered = |line: &str| line.contains("dispatcher") && line.contains(id) && line.contains("answered");
    assert!(log.lines().any(answered), "{log}");
}

#[tokio::test]
async fn a_proxy_ends_open_calls_after_its_drain_timeout() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&["--drain-timeout", "200ms"]).unwrap();
    ready(&cluster.proxy_socket()).await;
    cluster.driver.as_ref().unwrap().signal(Signal::STOP);
    let mut client = controller(&cluster.proxy_socket());
    let call = tokio::spawn(async move { client.create_volume(create_volume("pvc-open")).await });
    cluster.agent.as_ref().unwrap().logged("CreateVolume").await;
    cluster.proxy.as_ref().unwrap().signal(Signal::TERM);
    let status = wait::within("the call ends", call).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("shutting down"), "{status}");
    assert!(cluster.proxy.as_mut().unwrap().ended().await.success());
}

#[tokio::test]
async fn a_hub_that_ends_first_does_not_wait_for_its_peers() {
    for over in [LinkKind::Wss, LinkKind::Quic] {
        let mut cluster = TestCluster::start(over).await;
        let hub = cluster.hub.as_mut().unwrap();
        hub.signal(Signal::TERM);
        assert!(hub.ended().await.success(), "{}", hub.log());
        for process in [&mut cluster.proxy, &mut cluster.agent] {
            assert!(process.as_mut().unwrap().runs());
        }
    }
}

/// A quickstart that puts its files below `place`.
fn quickstart(directory: &Path) -> (Process, PathBuf) {
    let place = directory.join("q");
    std::fs::create_dir(&place).unwrap();
    let arguments = ["--directory".as_ref(), place.as_os_str()];
    (Process::start(directory, "quickstart", "quickstart", arguments), place)
}

fn leaves_nothing(place: &Path) {
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(&*place.to_string_lossy()));
}

#[tokio::test]
async fn the_quickstart_succeeds_and_leaves_nothing_behind() {
    let directory = tempfile::Builder::new().prefix("edge-csi-").tempdir_in("/tmp").unwrap();
    let (mut process, place) = quickstart(directory.path());
    let status = process.ended().await;
    assert!(status.success(), "{status}: {}", process.log());
    leaves_nothing(&place);
}

#[tokio::test]
async fn an_interrupted_quickstart_fails_and_cleans_up() {
    let directory = tempfile::Builder::new().prefix("edge-csi-").tempdir_in("/tmp").unwrap();
    let (mut process, place) = quickstart(directory.path());
    // In the middle of the run: the first pod's directory is there.
    wait::until("a volume is being mounted for a pod", async || {
        let run = std::fs::read_dir(&place).ok()?.next()?.ok()?;
        run.path().join("kubelet/pods").exists().then_some(())
    })
    .await;
    process.signal(Signal::INT);
    let status = process.ended().await;
    assert_eq!(status.code(), Some(1), "{}", process.log());
    assert!(process.log().contains("SIGINT"), "{}", process.log());
    leaves_nothing(&place);
}
