//! Queued operations on one volume, with a slow driver on a real socket.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::counting::call;
use common::edge::{Answer, Edge, asked};
use common::{Act, Script, Stage, driver_name, framed, raw_call};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Call, Code, Fault, Outcome};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Starts a snapshot of the volume.
async fn snapshots(edge: &Edge) -> JoinHandle<Answer> {
    let asked = edge.ask(snapshot());
    edge.driver.wait_for_executions("CreateSnapshot v", 1).await;
    asked
}

fn snapshot() -> Call {
    let (source_volume_id, name) = ("v".to_owned(), "s".to_owned());
    call("CreateSnapshot", &csi::CreateSnapshotRequest { source_volume_id, name, ..Default::default() })
}

fn detach(node: &str) -> Call {
    let (volume_id, node_id) = ("v".to_owned(), node.to_owned());
    let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
    call("ControllerUnpublishVolume", &request)
}

fn attach(node: &str) -> Call {
    let (volume_id, node_id) = ("v".to_owned(), node.to_owned());
    let request = csi::ControllerPublishVolumeRequest { volume_id, node_id, ..Default::default() };
    call("ControllerPublishVolume", &request)
}

fn is_ok(answer: Result<Answer, tokio::task::JoinError>) -> bool {
    answer.unwrap().is_ok_and(|(_, outcome)| outcome.is_ok())
}

const DETACH: &str = "ControllerUnpublishVolume v";
const ATTACH: &str = "ControllerPublishVolume v";

/// Kubernetes moves a pod while its volume is copied: the attach does not overtake the detach before it, and no retry
/// is needed.
#[tokio::test]
async fn attach_and_detach_wait_in_order() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    let attaches = edge.ask(attach("n2"));
    edge.until(|counts| counts.waiting == 2).await;
    edge.driver.release(1);
    edge.driver.wait_for_executions(DETACH, 1).await;
    assert_eq!(edge.driver.executions(ATTACH), 0);
    edge.driver.release(2);
    assert!(is_ok(snapshots.await) && is_ok(detaches.await) && is_ok(attaches.await));
    assert_eq!(edge.dispatcher.operation_counts().running, 0);
    assert_eq!(edge.dispatcher.operation_counts().waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn opposite_operations_alternate() {
    let edge = Edge::holding();
    let leave = edge.driver.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            leave.release(1);
        }
    });
    let again_and_again = |call: fn(&str) -> Call| {
        let dispatcher = edge.dispatcher.clone();
        tokio::spawn(async move {
            for _ in 0..4 {
                assert!(asked(&dispatcher, call("n")).await.unwrap().1.is_ok());
            }
        })
    };
    let (attaches, detaches) = (again_and_again(attach), again_and_again(detach));
    attaches.await.unwrap();
    detaches.await.unwrap();
    assert_eq!((edge.driver.executions(ATTACH), edge.driver.executions(DETACH)), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn pending_is_reported_before_the_deadline() {
    let notice = Arc::new(Notify::new());
    let stage = Stage::start(Script { acts: vec![Act::Wait(Arc::clone(&notice))] }).await;
    let (socket, path) = (stage.socket(), "/csi.v1.Controller/CreateVolume");
    let request = |capacity: i64| {
        let capacity_range = Some(csi::CapacityRange { required_bytes: capacity, ..Default::default() });
        let request =
            csi::CreateVolumeRequest { name: "pvc".to_owned(), capacity_range, ..Default::default() };
        framed(&request.encode_to_vec())
    };
    let running = tokio::spawn({
        let (socket, request) = (socket.clone(), request(1));
        async move { raw_call(&socket, path, &[], request).await.unwrap().code() }
    });
    common::in_time(async {
        while stage.seen().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for timeout in ["10S", "2S", "1S", "400m"] {
        let seen = raw_call(&socket, path, &[("grpc-timeout", timeout)], request(2)).await.unwrap();
        assert_eq!(seen.code(), Some(10), "with {timeout}");
    }
    notice.notify_one();
    assert_eq!(running.await.unwrap(), Some(0));
    assert_eq!(stage.seen().len(), 1, "executions");
}

#[tokio::test]
async fn call_of_a_leaving_caller_does_not_begin() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    detaches.abort();
    edge.until(|counts| counts.waiting == 0).await;
    edge.driver.release(10);
    assert!(is_ok(snapshots.await));
    assert!(asked(&edge.dispatcher, attach("n2")).await.unwrap().1.is_ok());
    assert_eq!(edge.driver.executions(DETACH), 0);
}

#[tokio::test]
async fn queued_repeat_outlives_the_first_caller() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let first = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    let again = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 2).await;
    first.abort();
    edge.until(|counts| counts.waiting == 1).await;
    edge.driver.release(2);
    assert!(is_ok(snapshots.await) && is_ok(again.await));
    assert_eq!(edge.driver.executions(DETACH), 1);
}

#[tokio::test]
async fn removed_driver_leaves_no_queued_calls() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    edge.dispatcher.unregister(&driver_name());
    edge.driver.release(1);
    assert!(is_ok(snapshots.await), "the running operation completes");
    let fault = detaches.await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::DriverNotRegistered { .. }), "{fault:?}");
    assert_eq!(edge.dispatcher.operation_counts().running, 0);
    assert_eq!(edge.dispatcher.operation_counts().waiters, 0);
}

#[tokio::test]
async fn drain_waits_for_running_and_fails_queued_calls() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    let dispatcher = edge.dispatcher.clone();
    let drained = tokio::spawn(async move { dispatcher.drain(Duration::from_secs(60)).await });
    let fault = detaches.await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::Draining { .. }), "{fault:?}");
    edge.driver.release(1);
    assert!(is_ok(snapshots.await));
    drained.await.unwrap();
    assert_eq!(edge.driver.executions(DETACH), 0);
}

#[tokio::test]
async fn zero_wait_refuses_at_once() {
    let mut edge = Edge::holding();
    edge.dispatcher = edge.dispatcher.with_volume_wait(Duration::ZERO);
    let snapshots = snapshots(&edge).await;
    let fault = asked(&edge.dispatcher, detach("n1")).await.unwrap_err();
    assert_eq!(Outcome::from(fault).code, Code::ABORTED);
    edge.driver.release(1);
    assert!(is_ok(snapshots.await));
}
