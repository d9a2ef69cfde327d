//! A failure of the relay is answered at once, with a clear message and a code after which the sidecars retry.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::path::Path;
use std::time::{Duration, Instant};

use csi_proto::csi::v1 as csi;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, identity, probe_returns, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use rustix::process::Signal;
use tonic::{Code, Status};

/// Time limit of an answer with a fault. It is long since test machines are slow, and still far below any deadline.
const AT_ONCE: Duration = Duration::from_secs(5);
/// A proxy that has just started waits for its hub and its node as for one that was just lost.
const SHORT_GRACE: [&str; 2] = ["--reconnect-grace", "1s"];

async fn refused(socket: &Path, name: &str) -> Status {
    let began = Instant::now();
    let call = controller(socket);
    let answer =
        wait::within("an answer", async { call.clone().create_volume(create_volume(name)).await }).await;
    let status = answer.unwrap_err();
    assert!(began.elapsed() < AT_ONCE, "{:?} until {status}", began.elapsed());
    status
}

#[tokio::test]
async fn an_unknown_node_is_unavailable_and_named() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let socket = cluster.path("other.sock");
    let _proxy = cluster.additional_proxy("proxy-2", &socket, "edge-nowhere", &SHORT_GRACE).unwrap();
    probe_returns(&socket, false).await;
    let status = refused(&socket, "pvc-1").await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("edge-nowhere"), "{status}");
    // Start-up calls are answered although no node is connected.
    let info = identity(&socket).get_plugin_info(csi::GetPluginInfoRequest {}).await.unwrap();
    assert_eq!(info.into_inner().name, DRIVER);
}

#[tokio::test]
async fn a_driver_that_is_not_registered_is_unavailable_and_named() {
    let mut cluster = TestCluster::start(LinkKind::Uds).await;
    cluster.agent = None;
    let agent = ["--nodeid", NODE, "--hub", cluster.hub_url()].map(String::from);
    let agent = agent.into_iter().chain([
        "--driver".to_owned(),
        format!("other.csi.edge=unix://{}", cluster.path("x.sock").display()),
    ]);
    cluster.agent = Some(Process::start(cluster.directory(), "agent-2", "edge-agent", agent));
    let status = wait::until("the answer names the driver", async || {
        let status = refused(&cluster.proxy_socket(), "pvc-1").await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        status.message().contains(DRIVER).then_some(status)
    })
    .await;
    assert!(status.message().contains("registered"), "{status}");
}

#[tokio::test]
async fn a_missing_driver_socket_is_unavailable_until_it_appears() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&SHORT_GRACE).unwrap();
    probe_returns(&cluster.proxy_socket(), false).await;
    let socket = cluster.driver_socket();
    let status = wait::until("the answer names the socket", async || {
        let status = refused(&cluster.proxy_socket(), "pvc-1").await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        status.message().contains(&*socket.to_string_lossy()).then_some(status)
    })
    .await;
    assert!(!status.message().is_empty());
    cluster.start_driver(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
    controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();
}

/// Starts a CreateVolume that has reached the agent while the driver is frozen.
async fn stuck_call(cluster: &TestCluster) -> tokio::task::JoinHandle<Result<(), Status>> {
    cluster.driver.as_ref().unwrap().signal(Signal::STOP);
    let client = controller(&cluster.proxy_socket());
    let call = tokio::spawn(async move {
        let request = within(Duration::from_secs(120), create_volume("pvc-stuck"));
        client.clone().create_volume(request).await.map(drop)
    });
    cluster.agent.as_ref().unwrap().logged("CreateVolume").await;
    call
}

async fn succeeds(call: tokio::task::JoinHandle<Result<(), Status>>) {
    wait::within("the call is answered", call).await.unwrap().unwrap();
}

async fn ends_unavailable(call: tokio::task::JoinHandle<Result<(), Status>>) {
    let began = Instant::now();
    let status = wait::within("the call ends", call).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(began.elapsed() < AT_ONCE, "{:?} until {status}", began.elapsed());
}

#[tokio::test]
async fn a_killed_driver_ends_its_call_and_a_new_one_serves() {
    let mut cluster = TestCluster::start(LinkKind::Uds).await;
    let call = stuck_call(&cluster).await;
    cluster.driver.as_mut().unwrap().kill();
    ends_unavailable(call).await;
    cluster.start_driver(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
    wait::until("the retry succeeds", async || {
        controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-stuck")).await.ok()
    })
    .await;
}

#[tokio::test]
async fn a_killed_agent_ends_its_call_and_the_retry_succeeds() {
    for over in [LinkKind::Uds, LinkKind::Ws] {
        let mut cluster = TestCluster::start(over).await;
        let call = stuck_call(&cluster).await;
        cluster.agent.as_mut().unwrap().kill();
        cluster.driver.as_ref().unwrap().signal(Signal::CONT);
        cluster.start_agent(&[]).unwrap();
        // Another instance of the agent does not know whether the driver still works on it.
        let status = wait::within("the call ends", call).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("may still be running"), "{status}");
        wait::until("the retry succeeds", async || {
            controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-stuck")).await.ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_outlives_the_hub_that_is_killed_under_it() {
    let mut cluster = TestCluster::start(LinkKind::Ws).await;
    let call = stuck_call(&cluster).await;
    cluster.hub.as_mut().unwrap().kill();
    cluster.driver.as_ref().unwrap().signal(Signal::CONT);
    cluster.start_hub().await.unwrap();
    succeeds(call).await;
}

#[tokio::test]
async fn the_socket_reports_not_ready_until_the_hub_starts() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&SHORT_GRACE).unwrap();
    let socket = cluster.proxy_socket();
    probe_returns(&socket, false).await;
    let info = identity(&socket).get_plugin_info(csi::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, DRIVER);
    let status = refused(&socket, "pvc-1").await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    cluster.start_hub().await.unwrap();
    ready(&socket).await;
    controller(&socket).create_volume(create_volume("pvc-1")).await.unwrap();
}

#[tokio::test]
async fn a_deadline_ends_the_wait_and_the_retry_finds_the_volume() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    cluster.driver.as_ref().unwrap().signal(Signal::STOP);
    let mut client = controller(&cluster.proxy_socket());
    let request = within(Duration::from_millis(300), create_volume("pvc-slow"));
    // tonic's client gives up by itself at the same time, with the code CANCELLED.
    let status = client.create_volume(request).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    cluster.driver.as_ref().unwrap().signal(Signal::CONT);
    wait::until("the retry finds the volume", async || {
        match client.clone().create_volume(create_volume("pvc-slow")).await {
            Ok(_) => Some(()),
            Err(status) if status.code() == Code::Aborted => None,
            Err(status) => panic!("{status}"),
        }
    })
    .await;
}

#[tokio::test]
async fn a_refusing_driver_socket_is_unavailable_and_named() {
    let mut cluster = TestCluster::start(LinkKind::Uds).await;
    // A killed driver does not remove its socket.
    cluster.driver.as_mut().unwrap().kill();
    assert!(cluster.driver_socket().exists());
    let status = refused(&cluster.proxy_socket(), "pvc-1").await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains(DRIVER) && status.message().contains("nothing listens"), "{status}");
}

#[tokio::test]
async fn a_second_agent_of_a_name_waits_until_the_first_ends() {
    let mut cluster = TestCluster::start(LinkKind::Uds).await;
    let driver = format!("{DRIVER}=unix://{}", cluster.driver_socket().display());
    let arguments = ["--nodeid", NODE, "--hub", cluster.hub_url(), "--driver", &driver, "-vv"];
    let second = Process::start(cluster.directory(), "agent-2", "edge-agent", arguments);
    second.logged("expected one process of that name, try again later").await;
    controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-0")).await.unwrap();
    assert!(!second.log().contains("connected to the hub"), "{}", second.log());
    cluster.agent.as_mut().unwrap().kill();
    second.logged("connected to the hub").await;
    wait::until("the second one serves", async || {
        controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.ok()
    })
    .await;
    assert!(second.log().contains("CreateVolume"));
}
