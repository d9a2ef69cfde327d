//! Operations that wait for another one on their volume, with a driver on a real socket that is slow.

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

/// A snapshot of the volume is being made.
async fn snapshots(edge: &Edge) -> JoinHandle<Answer> {
    let asked = edge.ask(snapshot());
    edge.driver.was_told("CreateSnapshot v", 1).await;
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

/// What Kubernetes does when a pod moves while its volume is copied: the detachment is not overtaken by the attachment that comes
/// after it, and nobody has to ask twice.
#[tokio::test]
async fn a_detachment_waits_for_a_snapshot_and_the_next_attachment_for_the_detachment() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    let attaches = edge.ask(attach("n2"));
    edge.until(|counts| counts.waiting == 2).await;
    edge.driver.let_go(1);
    edge.driver.was_told(DETACH, 1).await;
    assert_eq!(edge.driver.executions(ATTACH), 0);
    edge.driver.let_go(2);
    assert!(is_ok(snapshots.await) && is_ok(detaches.await) && is_ok(attaches.await));
    assert_eq!(edge.dispatcher.operation_counts().running, 0);
    assert_eq!(edge.dispatcher.operation_counts().waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn two_that_want_the_opposite_of_a_slow_driver_take_turns() {
    let edge = Edge::holding();
    let leave = edge.driver.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            leave.let_go(1);
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
async fn a_caller_hears_that_another_operation_is_pending_before_its_time_is_over() {
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
async fn a_caller_that_has_gone_while_it_waited_has_nothing_begun() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    detaches.abort();
    edge.until(|counts| counts.waiting == 0).await;
    edge.driver.let_go(10);
    assert!(is_ok(snapshots.await));
    assert!(asked(&edge.dispatcher, attach("n2")).await.unwrap().1.is_ok());
    assert_eq!(edge.driver.executions(DETACH), 0);
}

#[tokio::test]
async fn a_repeat_joins_who_waits_and_goes_on_waiting_when_that_one_has_gone() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let first = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    let again = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 2).await;
    first.abort();
    edge.until(|counts| counts.waiting == 1).await;
    edge.driver.let_go(2);
    assert!(is_ok(snapshots.await) && is_ok(again.await));
    assert_eq!(edge.driver.executions(DETACH), 1);
}

#[tokio::test]
async fn a_driver_that_is_taken_away_meanwhile_leaves_nothing_of_what_waited() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    edge.dispatcher.unregister(&driver_name());
    edge.driver.let_go(1);
    assert!(is_ok(snapshots.await), "what ran goes on to its end");
    let fault = detaches.await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::DriverNotRegistered { .. }), "{fault:?}");
    assert_eq!(edge.dispatcher.operation_counts().running, 0);
    assert_eq!(edge.dispatcher.operation_counts().waiters, 0);
}

#[tokio::test]
async fn a_drain_waits_for_what_runs_and_sends_away_what_has_not_begun() {
    let edge = Edge::holding();
    let snapshots = snapshots(&edge).await;
    let detaches = edge.ask(detach("n1"));
    edge.until(|counts| counts.waiting == 1).await;
    let dispatcher = edge.dispatcher.clone();
    let drained = tokio::spawn(async move { dispatcher.drain(Duration::from_secs(60)).await });
    let fault = detaches.await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::Draining { .. }), "{fault:?}");
    edge.driver.let_go(1);
    assert!(is_ok(snapshots.await));
    drained.await.unwrap();
    assert_eq!(edge.driver.executions(DETACH), 0);
}

#[tokio::test]
async fn without_patience_another_operation_is_refused_at_once() {
    let mut edge = Edge::holding();
    edge.dispatcher = edge.dispatcher.with_volume_wait(Duration::ZERO);
    let snapshots = snapshots(&edge).await;
    let fault = asked(&edge.dispatcher, detach("n1")).await.unwrap_err();
    assert_eq!(Outcome::from(fault).code, Code::ABORTED);
    edge.driver.let_go(1);
    assert!(is_ok(snapshots.await));
}
