//! One execution an operation, with an agent that is a process and can be killed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::Duration;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, create_volume, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::stand::Stand;
use edge_csi_tests::wait;
use rustix::process::Signal;
use tonic::{Code, Status};

fn signal_driver(stand: &Stand, signal: Signal) {
    stand.driver.as_ref().unwrap().signal(signal);
}

async fn create(stand: &Stand, name: &str, patience: Duration) -> Result<String, Status> {
    let request = within(patience, create_volume(name));
    let answer = controller(&stand.proxy_socket()).create_volume(request).await?;
    Ok(answer.into_inner().volume.unwrap().volume_id)
}

/// Asks with less patience than the driver needs, until the agent has it: who asks again for what is under way changes nothing.
async fn too_late(stand: &Stand, name: &str) {
    wait::until("the agent has the call", async || {
        let status = create(stand, name, Duration::from_millis(300)).await.unwrap_err();
        // The client's own clock may be the first to say so.
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
        stand.agent.as_ref().unwrap().log().contains("CreateVolume").then_some(())
    })
    .await;
}

/// Asks until it is answered, as a sidecar does, which never sees a final code on its way.
async fn retried(stand: &Stand, name: &str) -> String {
    wait::until("the retry succeeds", async || match create(stand, name, Duration::from_secs(60)).await {
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
async fn an_answer_that_came_too_late_is_given_to_the_retry() {
    let stand = Stand::start(LinkKind::Uds).await;
    let agent = stand.agent.as_ref().unwrap();
    signal_driver(&stand, Signal::STOP);
    too_late(&stand, "pvc-late").await;
    too_late(&stand, "pvc-late").await;
    signal_driver(&stand, Signal::CONT);
    stand.driver_answered("CreateVolume").await;
    let id = create(&stand, "pvc-late", Duration::from_secs(60)).await.unwrap();
    assert!(!id.is_empty());
    agent.logged("replayed").await;
}

#[tokio::test]
async fn another_request_on_a_volume_that_the_driver_is_at_is_aborted() {
    let stand = Stand::start(LinkKind::Uds).await;
    signal_driver(&stand, Signal::STOP);
    too_late(&stand, "pvc-busy").await;
    let mut other = create_volume("pvc-busy");
    other.capacity_range = Some(csi::CapacityRange { required_bytes: 2 << 20, ..Default::default() });
    let request = within(Duration::from_secs(60), other);
    let status = controller(&stand.proxy_socket()).create_volume(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("pending"), "{status}");
    signal_driver(&stand, Signal::CONT);
}

/// The agent is killed while the driver is at it: the call ends without a final word, and the retry has it done.
#[tokio::test]
async fn an_operation_whose_agent_was_killed_is_done_by_the_retry() {
    let mut stand = Stand::start(LinkKind::Uds).await;
    signal_driver(&stand, Signal::STOP);
    too_late(&stand, "pvc-killed").await;
    stand.agent.as_mut().unwrap().kill();
    signal_driver(&stand, Signal::CONT);
    stand.start_agent(&[]);
    assert!(!retried(&stand, "pvc-killed").await.is_empty());
}
