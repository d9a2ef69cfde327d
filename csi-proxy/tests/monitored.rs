//! A relay that monitors its caller.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::counting::{CountingDriver, create};
use common::log::Log;
use common::{driver_name, node};
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proxy::monitor::{Monitored, Monitors};
use csi_proxy::{Call, CallId, Code, Dispatcher, Fault, MethodPath, Outcome, Relay, Replies, Reply};
use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

/// Returns its answers in turn, then hangs.
#[derive(Default)]
struct Script(Mutex<VecDeque<Result<Replies, Fault>>>);

#[async_trait]
impl Relay for Script {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        let answer = self.0.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

fn ok() -> Result<Replies, Fault> {
    Ok(Replies::unary(Bytes::new(), Outcome::ok()))
}

fn relay(answers: impl IntoIterator<Item = Result<Replies, Fault>>) -> (Monitored<Script>, Monitors) {
    let monitors = Monitors::default();
    let script = Script(Mutex::new(answers.into_iter().collect()));
    (Monitored::new(script, monitors.clone()), monitors)
}

fn call(method: Method, body: &impl prost::Message) -> Call {
    let path = MethodPath::new(method.path()).unwrap();
    Call::new(CallId::new(), node(), driver_name(), path, body.encode_to_vec().into())
}

fn publish() -> Call {
    let request = csi::NodePublishVolumeRequest {
        volume_id: "v".to_owned(),
        target_path: "/t".to_owned(),
        volume_capability: Some(csi::VolumeCapability::default()),
        secrets: [("password".to_owned(), "canary".to_owned())].into(),
        ..Default::default()
    };
    call(Method::NodePublishVolume, &request)
}

fn unpublish() -> Call {
    let (volume_id, target_path) = ("v".to_owned(), "/t".to_owned());
    call(Method::NodeUnpublishVolume, &csi::NodeUnpublishVolumeRequest { volume_id, target_path })
}

fn unstage() -> Call {
    let (volume_id, staging_target_path) = ("v".to_owned(), "/s".to_owned());
    call(Method::NodeUnstageVolume, &csi::NodeUnstageVolumeRequest { volume_id, staging_target_path })
}

#[tokio::test]
async fn violation_is_logged_in_one_line() {
    let (log, _logging) = Log::start(tracing::Level::TRACE);
    let (relay, monitors) = relay([ok(), ok()]);
    drop(relay.relay(publish()).await.unwrap());
    let answer = relay.relay(unstage()).await.unwrap();
    assert_eq!(answer.collect().await, (vec![Bytes::new()], Outcome::ok()));
    assert_eq!(monitors.counts().violations, 1);
    let text = log.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{text}");
    for part in ["WARN", "unstage_while_published", "NodeUnstageVolume", "csi-hostpath", "volume=\"v\"", "/t"]
    {
        assert!(lines[0].contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("canary"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn violations_are_logged_once_in_10_s_per_driver_and_rule() {
    let (log, _logging) = Log::start(tracing::Level::WARN);
    let (relay, monitors) = relay((0..12).map(|_| ok()));
    let mut other = [publish(), unstage()];
    for call in &mut other {
        call.driver = "other".parse().unwrap();
    }
    drop(relay.relay(publish()).await.unwrap());
    for call in [unstage(), unstage(), unstage()].into_iter().chain(other) {
        drop(relay.relay(call).await.unwrap());
    }
    let lines = || log.text().lines().count();
    assert_eq!((lines(), monitors.counts().violations), (2, 4), "{}", log.text());
    let without_id = call(Method::NodeUnstageVolume, &csi::NodeUnstageVolumeRequest::default());
    drop(relay.relay(without_id).await.unwrap());
    assert!(lines() > 2 && log.text().contains("required_field"), "another rule: {}", log.text());
    let before = lines();
    drop(relay.relay(unstage()).await.unwrap());
    assert_eq!(lines(), before, "{}", log.text());
    tokio::time::advance(Duration::from_secs(10)).await;
    drop(relay.relay(unstage()).await.unwrap());
    drop(relay.relay(unstage()).await.unwrap());
    assert_eq!(lines(), before + 1, "{}", log.text());
}

#[tokio::test]
async fn cancelled_call_has_unknown_result() {
    let (relay, monitors) = relay([ok()]);
    drop(relay.relay(publish()).await.unwrap());
    let left = timeout(Duration::ZERO, relay.relay(unpublish())).await;
    assert!(left.is_err());
    assert_eq!(monitors.counts().open, 0, "it is over for its caller");
    let again = timeout(Duration::ZERO, relay.relay(unpublish())).await;
    assert!(again.is_err());
    assert_eq!(monitors.counts().violations, 0);
    let reversed = timeout(Duration::ZERO, relay.relay(publish())).await;
    assert!(reversed.is_err());
    assert_eq!(monitors.counts().violations, 1, "a call downward is repeated until it succeeds");
}

#[tokio::test(start_paused = true)]
async fn call_ends_for_its_caller_at_the_deadline() {
    let (relay, monitors) = relay([ok()]);
    drop(relay.relay(publish()).await.unwrap());
    let time = Duration::from_secs(10);
    let mut unpublishing = relay.relay(unpublish().with_remaining(time));
    assert!(timeout(time / 2, &mut unpublishing).await.is_err());
    assert_eq!(monitors.counts().open, 1);
    assert!(timeout(time, &mut unpublishing).await.is_err(), "the call is still open");
    assert_eq!(monitors.counts().open, 0);
    let again = timeout(Duration::ZERO, relay.relay(publish())).await;
    assert!(again.is_err());
    assert_eq!(
        monitors.counts().violations,
        1,
        "publish before a successful unpublish, not two concurrent calls"
    );
}

#[tokio::test]
async fn fault_of_the_relay_is_as_uncertain_as_its_code() {
    let lost = || Err(Fault::LinkLost { reason: "cut".to_owned() });
    let (relay, monitors) = relay([lost(), lost(), ok()]);
    assert!(relay.relay(publish()).await.is_err());
    assert!(relay.relay(unstage()).await.is_err());
    assert_eq!(monitors.counts().violations, 1, "it may be published");
    drop(relay.relay(unpublish()).await.unwrap());
    assert_eq!(monitors.counts().violations, 1);
}

#[tokio::test]
async fn streamed_answer_counts_by_its_end() {
    let parts = |code| {
        let end = Reply::End(Outcome::from_driver(code, ""));
        Ok(Replies::stream(stream::iter([Reply::Message(Bytes::new()), end])))
    };
    let message = stream::iter([Reply::Message(Bytes::new())]);
    let without_end = Ok(Replies::stream(message.chain(stream::pending())));
    let (relay, monitors) = relay([ok(), parts(Code::OK), ok(), without_end, ok()]);
    drop(relay.relay(publish()).await.unwrap());
    let unpublished = relay.relay(unpublish()).await.unwrap();
    assert_eq!(monitors.counts().open, 0);
    assert_eq!(unpublished.collect().await.1.code, Code::OK);
    drop(relay.relay(publish()).await.unwrap());
    assert_eq!(monitors.counts().violations, 0, "the end was read");
    let mut unpublishing = relay.relay(unpublish());
    assert!(timeout(Duration::ZERO, &mut unpublishing).await.is_err());
    assert_eq!(monitors.counts().open, 1);
    drop(unpublishing);
    drop(relay.relay(publish()).await.unwrap());
    assert_eq!(monitors.counts().violations, 1, "the end was not read");
}

#[tokio::test]
async fn another_copy_of_a_call_gets_its_result_again() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::free(directory.path());
    let dispatcher = Dispatcher::new().with_driver(driver_name(), address);
    let relay = Monitored::new(dispatcher, Monitors::default());
    let call = create("pvc-1");
    drop(relay.relay(call.clone()).await.unwrap());
    let answer = relay.relay(call).await.unwrap();
    assert_eq!(answer.collect().await.1.code, Code::OK);
    assert_eq!(driver.executions("CreateVolume pvc-1"), 1);
}
