//! Each operation has one execution, with an agent that is a process and can be killed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::Duration;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::cluster::TestCluster;
use edge_csi_tests::csi::{controller, create_volume, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::wait;
use rustix::process::Signal;
use tonic::{Code, Status};

fn signal_driver(cluster: &TestCluster, signal: Signal) {
    cluster.driver.as_ref().unwrap().signal(signal);
}

async fn create(cluster: &TestCluster, name: &str, patience: Duration) -> Result<String, Status> {
    let request = within(patience, create_volume(name));
    let answer = controller(&cluster.proxy_socket()).create_volume(request).await?;
    Ok(answer.into_inner().volume.unwrap().volume_id)
}

/// Repeats a call with a shorter timeout than the driver needs, until the agent has the call.
async fn too_late(cluster: &TestCluster, name: &str) {
    wait::until("the agent has the call", async || {
        let status = create(cluster, name, Duration::from_millis(300)).await.unwrap_err();
        // The client's own timer may expire first.
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
        cluster.agent.as_ref().unwrap().log().contains("CreateVolume").then_some(())
    })
    .await;
}

/// Retries a call until it succeeds, as a sidecar does. No attempt may get a final code.
async fn retried(cluster: &TestCluster, name: &str) -> String {
    wait::until("the retry succeeds", async || match create(cluster, name, Duration::from_secs(60)).await {
        Ok(id) => Some(id),
        Err(status) => {
            let code = status.code();
            assert!(matches!(code, Code::Unavailable | Code::Aborted | Code::DeadlineExceeded), "{status}");
            None
        }
    })
    .await
}

#[tokio::test]
async fn the_retry_gets_a_late_answer() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let agent = cluster.agent.as_ref().unwrap();
    signal_driver(&cluster, Signal::STOP);
    too_late(&cluster, "pvc-late").await;
    too_late(&cluster, "pvc-late").await;
    signal_driver(&cluster, Signal::CONT);
    cluster.driver_answered("CreateVolume").await;
    let id = create(&cluster, "pvc-late", Duration::from_secs(60)).await.unwrap();
    assert!(!id.is_empty());
    agent.logged("replayed").await;
}

#[tokio::test]
async fn another_request_on_a_busy_volume_is_aborted() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    signal_driver(&cluster, Signal::STOP);
    too_late(&cluster, "pvc-busy").await;
    let mut other = create_volume("pvc-busy");
    other.capacity_range = Some(csi::CapacityRange { required_bytes: 2 << 20, ..Default::default() });
    let request = within(Duration::from_secs(60), other);
    let status = controller(&cluster.proxy_socket()).create_volume(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("pending"), "{status}");
    signal_driver(&cluster, Signal::CONT);
}

/// The agent is killed while the driver executes the call. The call ends without a final code, and the retry succeeds.
#[tokio::test]
async fn the_retry_completes_the_operation_of_a_killed_agent() {
    let mut cluster = TestCluster::start(LinkKind::Uds).await;
    signal_driver(&cluster, Signal::STOP);
    too_late(&cluster, "pvc-killed").await;
    cluster.agent.as_mut().unwrap().kill();
    signal_driver(&cluster, Signal::CONT);
    cluster.start_agent(&[]).unwrap();
    assert!(!retried(&cluster, "pvc-killed").await.is_empty());
}
