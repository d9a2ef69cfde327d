//! One execution per operation, with a counting driver on a real socket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::counting::{CountingDriver, call, create, delete};
use common::edge::{Answer, Edge, asked};
use common::{Act, Script, Stage, driver_name, framed, raw_call};
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proxy::advanced::call::MAX_SUBJECTS;
use csi_proxy::{
    Call, Code, Dispatcher, Driver, Fault, FaultyRelay, InjectedFault, MethodPath, Outcome, Relay as _,
    SocketAddress,
};
use prost::Message as _;
use tokio::sync::Notify;
use tonic::Status;

const CREATE: &str = "/csi.v1.Controller/CreateVolume";

fn volume_id(answer: Answer) -> String {
    let (messages, outcome) = answer.unwrap();
    assert!(outcome.is_ok(), "{outcome:?}");
    csi::CreateVolumeResponse::decode(messages[0].clone()).unwrap().volume.unwrap().volume_id
}

/// CreateVolume takes 40 s, the client waits 10 s and retries with backoff. The driver executes once, and the last
/// retry, after the work has ended, gets the kept answer.
#[tokio::test(start_paused = true)]
async fn retries_get_the_answer_of_one_execution() {
    let notice = Arc::new(Notify::new());
    let stage = Stage::start(Script { acts: vec![Act::Wait(Arc::clone(&notice))] }).await;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(40)).await;
        notice.notify_one();
    });
    let request = csi::CreateVolumeRequest { name: "pvc-1".to_owned(), ..Default::default() }.encode_to_vec();
    let mut codes = Vec::new();
    for pause in [1, 2, 8, 0] {
        let seen =
            raw_call(&stage.socket(), CREATE, &[("grpc-timeout", "10S")], framed(&request)).await.unwrap();
        codes.push(seen.code());
        if seen.code() == Some(0) {
            let answer = csi::CreateVolumeResponse::decode(&seen.body[5..]).unwrap();
            assert_eq!(answer.volume.unwrap().volume_id, "vol-pvc-1");
        }
        tokio::time::sleep(Duration::from_secs(pause)).await;
    }
    assert_eq!(codes, [Some(4), Some(4), Some(4), Some(0)]);
    assert_eq!(stage.seen().len(), 1, "executions");
    let seen = raw_call(&stage.socket(), CREATE, &[], framed(&request)).await.unwrap();
    assert_eq!((seen.code(), stage.seen().len()), (Some(0), 2), "handed out once; the next one is done");
}

/// Equal calls in any order are executed once, and every caller gets the answer.
#[tokio::test]
async fn duplicate_calls_are_executed_once() {
    let edge = Edge::holding();
    let names = ["a", "b", "c", "d"];
    let calls: Vec<_> = names.map(create).into_iter().collect();
    let mut asked = Vec::new();
    for round in 0..5 {
        for at in 0..names.len() {
            let call = calls[(at * 3 + round) % names.len()].clone();
            let name = names[(at * 3 + round) % names.len()];
            asked.push((name, edge.ask(call)));
        }
    }
    edge.until(|counts| counts.waiters == 20).await;
    edge.driver.release(100);
    for (name, answer) in asked {
        assert_eq!(volume_id(answer.await.unwrap()), format!("vol-{name}"));
    }
    assert!(edge.driver.all().values().all(|count| *count == 1), "{:?}", edge.driver.all());
}

#[tokio::test]
async fn retry_joins_despite_map_order_and_secrets() {
    let edge = Edge::holding();
    // As Go writes them: `parameters` (4) in any order, and `secrets` (5) that were rotated.
    let entry = |number: u8, key: &str, value: &str| {
        let inner =
            [&[10, u8::try_from(key.len()).unwrap()], key.as_bytes(), &[18, 1], value.as_bytes()].concat();
        [&[number << 3 | 2, u8::try_from(inner.len()).unwrap()][..], &inner].concat()
    };
    let request = |parts: &[Vec<u8>]| Bytes::from([b"\x0a\x05pvc-1".to_vec(), parts.concat()].concat());
    let mut first = create("pvc-1");
    first.body = request(&[entry(4, "a", "1"), entry(4, "b", "2"), entry(5, "key", "x")]);
    let mut second = create("pvc-1");
    second.body = request(&[entry(4, "b", "2"), entry(5, "key", "y"), entry(4, "a", "1")]);
    let answers = [edge.ask(first), edge.ask(second)];
    edge.until(|counts| counts.waiters == 2).await;
    edge.driver.release(2);
    for answer in answers {
        assert_eq!(volume_id(answer.await.unwrap()), "vol-pvc-1");
    }
    assert_eq!(edge.driver.executions("CreateVolume pvc-1"), 1);
}

#[tokio::test(start_paused = true)]
async fn queued_request_is_aborted_and_runs_on_retry() {
    let edge = Edge::holding();
    let expand = csi::ControllerExpandVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    let expand = || call("ControllerExpandVolume", &expand);
    let deleting = edge.ask(delete("v"));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    let fault = asked(&edge.dispatcher, expand()).await.unwrap_err();
    assert_eq!(fault, Fault::OperationPending { driver: driver_name(), running: "DeleteVolume".to_owned() });
    assert_eq!(Outcome::from(fault).code, Code::ABORTED);
    edge.driver.release(2);
    assert!(deleting.await.unwrap().unwrap().1.is_ok());
    assert!(asked(&edge.dispatcher, expand()).await.unwrap().1.is_ok());
    assert_eq!(edge.driver.executions("ControllerExpandVolume v"), 1);
}

#[tokio::test]
async fn read_only_and_unknown_calls_always_reach_the_driver() {
    let edge = Edge::holding();
    let validate = csi::ValidateVolumeCapabilitiesRequest { volume_id: "v".to_owned(), ..Default::default() };
    let running = edge.ask(delete("v"));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    let mut asked = vec![running];
    for what in ["ValidateVolumeCapabilities", "LaterVersion"] {
        for _ in 0..2 {
            asked.push(edge.ask(call(what, &validate)));
        }
        edge.driver.wait_for_executions(&format!("{what} v"), 2).await;
    }
    edge.driver.release(10);
    for answer in asked {
        assert!(answer.await.unwrap().unwrap().1.is_ok());
    }
}

/// A driver may read the volume of such a request, and would execute it beside the running operation.
#[tokio::test]
async fn request_without_readable_subjects_is_not_run() {
    let edge = Edge::holding();
    let running = edge.ask(delete("v"));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    let expand = csi::ControllerExpandVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    let volumes = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec!["v".to_owned(); MAX_SUBJECTS + 1],
        ..Default::default()
    };
    let (mut group, mut many) = (call("ControllerExpandVolume", &expand), call("CreateSnapshot", &volumes));
    // Field 99 is an empty group.
    group.body = [&*group.body, b"\x9b\x06\x9c\x06"].concat().into();
    many.method = MethodPath::new("/csi.v1.GroupController/CreateVolumeGroupSnapshot").unwrap();
    for (call, expected) in [
        (group, "the request is not a protobuf message without groups"),
        (many, "source_volume_ids has more than 1024 entries"),
    ] {
        let (messages, outcome) = common::in_time(asked(&edge.dispatcher, call)).await.unwrap();
        assert_eq!((messages.len(), outcome.code, &*outcome.message), (0, Code::INVALID_ARGUMENT, expected));
    }
    assert_eq!(edge.driver.all().len(), 1, "{:?}", edge.driver.all());
    edge.driver.release(1);
    assert!(running.await.unwrap().is_ok());
}

#[tokio::test]
async fn request_without_an_id_runs_once_at_a_time() {
    let edge = Edge::holding();
    let asked = [edge.ask(delete("")), edge.ask(delete(""))];
    edge.until(|counts| counts.waiters == 2).await;
    edge.driver.wait_for_executions("DeleteVolume ", 1).await;
    edge.driver.release(1);
    for answer in asked {
        assert!(answer.await.unwrap().unwrap().1.is_ok());
    }
}

#[tokio::test]
async fn unclaimed_failure_is_replayed_unchanged() {
    let edge = Edge::holding();
    let mut status = Status::with_details(tonic::Code::FailedPrecondition, "größe", vec![1, 2, 3].into());
    status.metadata_mut().insert("vendor", "x".parse().unwrap());
    edge.driver.fail_next(status);
    let first = edge.ask(delete("v"));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    first.abort();
    edge.until(|counts| counts.waiters == 0).await;
    edge.driver.release(1);
    edge.until(|counts| counts.kept == 1).await;
    let (messages, outcome) = asked(&edge.dispatcher, delete("v")).await.unwrap();
    assert_eq!((messages.len(), outcome.code, &*outcome.message), (0, Code::FAILED_PRECONDITION, "größe"));
    assert_eq!(
        (&*outcome.details, outcome.trailers.iter().find(|(name, _)| *name == "vendor")),
        (&[1, 2, 3][..], Some(("vendor", &Bytes::from_static(b"x"))))
    );
    assert_eq!(edge.driver.executions("DeleteVolume v"), 1);
}

#[tokio::test]
async fn result_is_replayed_to_copies_only() {
    let edge = Edge::free();
    let call = create("pvc-1");
    for _ in 0..3 {
        assert_eq!(volume_id(asked(&edge.dispatcher, call.clone()).await), "vol-pvc-1");
        assert_eq!(edge.driver.executions("CreateVolume pvc-1"), 1);
    }
    assert_eq!(volume_id(asked(&edge.dispatcher, create("pvc-1")).await), "vol-pvc-1");
    assert_eq!(edge.driver.executions("CreateVolume pvc-1"), 2);
}

#[tokio::test]
async fn an_operation_that_lost_its_driver_runs_again() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (driver, address) = {
        let _there = elsewhere.enter();
        CountingDriver::holding(directory.path())
    };
    let dispatcher = Dispatcher::new().with_driver(driver_name(), address.clone());
    let ask = tokio::spawn({
        let dispatcher = dispatcher.clone();
        async move { asked(&dispatcher, create("pvc-1")).await }
    });
    driver.wait_for_executions("CreateVolume pvc-1", 1).await;
    elsewhere.shutdown_background();
    let fault = ask.await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::DriverLost { .. }), "{fault:?}");
    std::fs::remove_file(address.path()).unwrap();
    let (driver, _) = CountingDriver::free(directory.path());
    assert_eq!(volume_id(asked(&dispatcher, create("pvc-1")).await), "vol-pvc-1");
    assert_eq!(driver.executions("CreateVolume pvc-1"), 1);
}

#[tokio::test]
async fn call_for_a_missing_driver_leaves_no_state() {
    let directory = tempfile::tempdir().unwrap();
    let missing = SocketAddress::new(directory.path().join("none.sock").to_str().unwrap()).unwrap();
    let dispatcher = Dispatcher::new();
    assert!(matches!(asked(&dispatcher, delete("v")).await, Err(Fault::DriverNotRegistered { .. })));
    let dispatcher = dispatcher.with_driver(driver_name(), missing);
    assert!(matches!(asked(&dispatcher, delete("v")).await, Err(Fault::DriverSocketMissing { .. })));
    assert_eq!(dispatcher.operation_counts(), Default::default());
    dispatcher.drain(Duration::ZERO).await;
    assert!(matches!(asked(&dispatcher, delete("v")).await, Err(Fault::Draining { .. })));
}

/// Only the timeout of its method ends a call of the driver.
#[tokio::test(start_paused = true)]
async fn each_method_has_its_own_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::holding(directory.path());
    let dispatcher = Dispatcher::new();
    let registered = Driver::new(driver_name(), address)
        .with_method_timeout(Method::CreateVolume, Duration::from_secs(3600))
        .with_method_timeout(Method::ControllerExpandVolume, Duration::from_secs(60));
    dispatcher.register(registered);
    let expand = csi::ControllerExpandVolumeRequest { volume_id: "w".to_owned(), ..Default::default() };
    for (call, seconds) in
        [(create("v"), 3600), (delete("v"), 900), (call("ControllerExpandVolume", &expand), 60)]
    {
        let fault = asked(&dispatcher, call.clone()).await.unwrap_err();
        assert_eq!(fault, Fault::Deadline { waited: Duration::from_secs(seconds) }, "{}", call.method);
    }
    assert_eq!(driver.all().len(), 3);
    assert_eq!(dispatcher.operation_counts(), Default::default());
}

// One call id is one execution, whatever the bus does.

fn stage(volume: &str) -> Call {
    let request = csi::NodeStageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: "/s".to_owned(),
        ..Default::default()
    };
    let mut call = call("NodeStageVolume", &request);
    call.method = MethodPath::new("/csi.v1.Node/NodeStageVolume").unwrap();
    call
}

/// One call of each kind that may change something, and what the driver counts.
fn changes() -> [(Call, &'static str); 3] {
    let later = csi::ValidateVolumeCapabilitiesRequest { volume_id: "v".to_owned(), ..Default::default() };
    [
        (create("pvc-1"), "CreateVolume pvc-1"),
        (stage("v"), "NodeStageVolume v"),
        (call("LaterVersion", &later), "LaterVersion v"),
    ]
}

#[tokio::test]
async fn copies_that_arrive_at_once_are_one_execution() {
    for (call, what) in changes() {
        let edge = Edge::holding();
        let [first, second] = [edge.ask(call.clone()), edge.ask(call)];
        edge.driver.wait_for_executions(what, 1).await;
        edge.driver.release(9);
        for answer in [first, second] {
            let answer = answer.await.unwrap();
            assert!(matches!(answer, Ok(_) | Err(Fault::AlreadyBegun { .. })), "{what}: {answer:?}");
        }
        assert_eq!(edge.driver.executions(what), 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn copies_one_after_the_other_are_one_execution() {
    for (at, (call, what)) in changes().into_iter().enumerate() {
        let edge = Edge::free();
        let first = asked(&edge.dispatcher, call.clone()).await;
        tokio::time::advance(Duration::from_secs(59)).await;
        match asked(&edge.dispatcher, call.clone()).await {
            Err(Fault::AlreadyBegun { .. }) => assert_ne!(at, 0, "{what}"),
            copy => assert_eq!((at, &copy), (0, &first), "{what}"),
        }
        assert_eq!(edge.driver.executions(what), 1, "{what}");
        tokio::time::advance(Duration::from_secs(60)).await;
        let _ = asked(&edge.dispatcher, call).await;
        assert_eq!(edge.driver.executions(what), 2, "{what}: for 60 s");
    }
}

#[tokio::test]
async fn a_call_whose_answer_was_lost_is_one_execution() {
    for (call, what) in changes() {
        let edge = Edge::free();
        let lost = Fault::LinkLost { reason: "cut".to_owned() };
        let bus = FaultyRelay::new(edge.dispatcher.clone(), [InjectedFault::AnswerLost(lost)]);
        assert!(bus.relay(call.clone()).await.is_err());
        let again = bus.relay(call).await;
        assert_eq!(edge.driver.executions(what), 1, "{what}: {again:?}");
    }
}

/// The next call of the same operation is another call.
#[tokio::test]
async fn call_with_a_new_id_is_executed() {
    let edge = Edge::free();
    for count in 1..4 {
        assert!(asked(&edge.dispatcher, stage("v")).await.is_ok());
        assert_eq!(edge.driver.executions("NodeStageVolume v"), count);
    }
}
