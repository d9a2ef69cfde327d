//! Outcomes of calls, and their classification.

use std::time::Duration;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1::ControllerPublishVolumeResponse;
use tokio::time::{Instant, timeout};
use volume_manager::advanced::driver::{CallError, CallOutcome, Operation};

use super::scripted::{Reply, Scripted};
use super::{Place, path, publish, stage, volume};

const METHOD: Method = Method::NodeStageVolume;

/// Every code is passed through, in every encoding, for each call.
#[tokio::test(start_paused = true)]
async fn passes_every_code_through_for_every_call() {
    let place = Place::new();
    let scripted = place.start().with_controller();
    let operations = [
        Operation::ControllerPublish,
        Operation::ControllerUnpublish { node_id: None },
        stage(),
        Operation::NodeUnstage { staging_path: path("/staging/1") },
        publish(),
        Operation::NodeUnpublish { target_path: path("/target/1") },
    ];
    for operation in &operations {
        let method = operation.method();
        for code in (1..=16).chain([99]) {
            for reply in [Reply::Status(code, "no%20luck"), Reply::LateStatus(code, "no luck")] {
                scripted.once(method, reply);
                let error = place.driver.call(&volume("v"), operation).await.expect_err("an error");
                assert_eq!(error, CallError::Status { method, code, message: "no luck".into() });
                assert_eq!((error.code(), error.was_sent(), error.method()), (Some(code), true, method));
            }
        }
    }
    assert_eq!(scripted.connections(), 1);
}

/// Broken, empty and garbled responses have no code, and count as sent.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_whole_has_no_code() {
    let place = Place::new();
    let scripted = place.start();
    for (reply, broken) in [
        (Reply::Http(503), true),
        (Reply::Http(404), true),
        (Reply::NoStatus, true),
        (Reply::BadStatus, true),
        (Reply::Reset(h2::Reason::INTERNAL_ERROR), true),
        (Reply::Reset(h2::Reason::CANCEL), true),
        (Reply::Status(0, ""), false),
        (Reply::Bytes(b""), false),
        (Reply::Bytes(b"\0\0\0"), false),
        (Reply::Bytes(b"\0\0\0\0\x01"), false),
        (Reply::Bytes(b"\0\0\0\0\0\0\0\0\0\0"), false),
        (Reply::Bytes(b"\x01\0\0\0\0"), false),
        (Reply::Bytes(b"\0\0\0\0\x01\xff"), false),
    ] {
        scripted.once(METHOD, reply.clone());
        let error = place.driver.call(&volume("v"), &stage()).await.expect_err("no answer");
        assert_eq!((error.code(), error.was_sent()), (None, true), "{reply:?}: {error}");
        assert_eq!(matches!(error, CallError::Broken { .. }), broken, "{reply:?}: {error}");
    }
    assert_eq!(place.driver.call(&volume("v"), &stage()).await, Ok(CallOutcome::Done));
    assert_eq!(scripted.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_driver_refuses_to_take_was_not_sent() {
    let place = Place::new();
    let scripted = place.start();
    scripted.once(METHOD, Reply::Reset(h2::Reason::REFUSED_STREAM));
    let error = place.driver.call(&volume("v"), &stage()).await.expect_err("refused");
    assert!(matches!(error, CallError::NotSent { .. }) && !error.was_sent(), "{error}");
}

/// The driver is killed during a call, and its socket is replaced.
#[tokio::test(start_paused = true)]
async fn driver_death_leaves_a_call_uncertain() {
    for reply in [Reply::Never, Reply::Half] {
        let place = Place::new();
        let scripted = place.start();
        scripted.once(METHOD, reply);
        let connection = place.driver.connection().await.expect("a connection");
        let (volume, stage) = (volume("v"), stage());
        let kill = async {
            scripted.called(METHOD).await;
            drop(scripted);
        };
        let (ended, ()) = tokio::join!(connection.call(&volume, &stage), kill);
        let error = ended.expect_err("the driver died");
        assert!(matches!(error, CallError::Broken { .. }), "{error}");
        assert_eq!((error.code(), error.was_sent()), (None, true));
        connection.closed().await;
        assert!(connection.is_closed() && place.driver.present().is_none());

        place.driver.connection().await.expect_err("no server");
        let _scripted = Scripted::restart(&place.socket);
        assert_eq!(place.driver.call(&volume, &stage).await, Ok(CallOutcome::Done));
    }
}

/// A hanging call ends at its deadline.
#[tokio::test(start_paused = true)]
async fn unanswered_call_ends_at_its_deadline() {
    let bound = Duration::from_secs(120);
    let place = Place::new();
    let scripted = place.start();
    let connection = place.driver.connection().await.expect("a connection");
    for reply in [Reply::Never, Reply::Half] {
        for operation in [stage(), publish()] {
            scripted.once(operation.method(), reply.clone());
            let volume = volume("v");
            let started = Instant::now();
            let slow = connection.call(&volume, &operation);
            let others = async {
                scripted.called(operation.method()).await;
                for _ in 0..100 {
                    assert_eq!(connection.call(&volume, &stage()).await, Ok(CallOutcome::Done));
                }
                started.elapsed()
            };
            let (ended, others) = tokio::join!(slow, others);
            let method = operation.method();
            assert_eq!(ended, Err(CallError::Timeout { method, bound }));
            assert!(others < bound && started.elapsed() < bound + Duration::from_millis(10));
            scripted.forget_calls();
        }
    }
    assert!(!connection.is_closed());
}

#[tokio::test(start_paused = true)]
async fn many_calls_are_under_way_at_once_on_one_connection() {
    let place = Place::new();
    let scripted = place.start();
    let connection = place.driver.connection().await.expect("a connection");
    scripted.forget_calls();
    scripted.always(METHOD, Reply::Never);
    let calls: Vec<_> = (0..100)
        .map(|index| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call(&volume(&format!("v{index}")), &stage()).await })
        })
        .collect();
    while scripted.calls().len() < 100 {
        tokio::task::yield_now().await;
    }
    assert!(calls.iter().all(|call| !call.is_finished()));
    for call in calls {
        let ended = call.await.expect("no panic");
        assert!(matches!(ended, Err(CallError::Timeout { .. })), "{ended:?}");
    }
    assert_eq!(scripted.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_the_connection_to_the_others() {
    let place = Place::new();
    let scripted = place.start();
    scripted.once(METHOD, Reply::Never);
    let dropped = timeout(Duration::from_secs(1), place.driver.call(&volume("v"), &stage())).await;
    assert!(dropped.is_err());
    assert_eq!(place.driver.call(&volume("v"), &stage()).await, Ok(CallOutcome::Done));
    assert_eq!(scripted.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_read_up_to_its_bound_and_no_further() {
    let place = Place::new();
    let scripted = place.start();
    for (bytes, read) in [(1 << 20, true), ((1 << 20) + 1, false), (1 << 22, false)] {
        // An unknown field of a length that makes the whole message as long as wanted.
        let mut message = vec![0x7a];
        prost::encode_length_delimiter(bytes, &mut message).expect("a length");
        let rest = bytes - message.len();
        message.truncate(1);
        prost::encode_length_delimiter(rest, &mut message).expect("a length");
        message.resize(bytes, 0);
        scripted.once(METHOD, Reply::Message(Bytes::from(message)));
        let ended = place.driver.call(&volume("v"), &stage()).await;
        match ended {
            Ok(CallOutcome::Done) => assert!(read, "{bytes}"),
            Err(CallError::Answer { ref reason, .. }) => {
                assert!(!read && reason.contains("at most 1048576"), "{bytes}: {reason}");
            }
            other => panic!("{bytes}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn messages_are_cut_and_publish_contexts_bounded() {
    let place = Place::new();
    let scripted = place.start().with_controller();
    let long: &'static str = Box::leak("x".repeat(100_000).into_boxed_str());
    scripted.once(METHOD, Reply::Status(13, long));
    let error = place.driver.call(&volume("v"), &stage()).await.expect_err("an error");
    assert!(matches!(&error, CallError::Status { message, .. } if message.len() <= 4096 + 3), "{error}");

    let attach = async |bytes: usize| {
        let publish_context = [("device".to_owned(), "d".repeat(bytes - 6))].into();
        let answer = ControllerPublishVolumeResponse { publish_context };
        scripted.once(Method::ControllerPublishVolume, Reply::ok(&answer));
        place.driver.call(&volume("v"), &Operation::ControllerPublish).await
    };
    let attached = attach(65_536).await.expect("attached");
    assert!(
        matches!(attached, CallOutcome::Attached { publish_context } if publish_context.contains_key("device"))
    );
    let error = attach(65_537).await.expect_err("too much");
    assert!(
        matches!(&error, CallError::Answer { reason, .. } if reason.contains("publish_context")),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn goaway_reconnects_while_running_calls_end() {
    let place = Place::new();
    let scripted = place.start();
    let first = place.driver.connection().await.expect("a connection");
    scripted.once(METHOD, Reply::Never);
    let hung = {
        let first = first.clone();
        tokio::spawn(async move { first.call(&volume("v"), &stage()).await })
    };
    scripted.called(METHOD).await;
    scripted.leave();
    // The driver's response may be slow, but a call that was not sent is known as such.
    let error = loop {
        match first.call(&volume("w"), &stage()).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(!error.was_sent() && first.is_closed(), "{error}");
    assert_eq!(place.driver.call(&volume("w"), &stage()).await, Ok(CallOutcome::Done));
    assert!(!hung.is_finished());
    assert!(matches!(hung.await.expect("no panic"), Err(CallError::Timeout { .. })));
}
