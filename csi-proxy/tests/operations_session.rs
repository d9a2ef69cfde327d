//! Operations behind a session: callers that leave, and later copies of their calls.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::counting::{CountingDriver, create, delete};
use common::{driver_name, in_time};
use csi_proxy::advanced::call::{CallNumber, Fence, GivenUp};
use csi_proxy::{
    Call, Dispatcher, Fault, MethodPath, OperationCounts, Relay as _, ServeCsi as _, SessionRelay, Term,
};
use edge_transport::link::memory;
use edge_transport::{Hub, Peer, PeerId};
use tokio::task::JoinHandle;
use tokio::time::sleep;

struct Net {
    _hub: Hub,
    _directory: tempfile::TempDir,
    _far: Peer,
    relay: SessionRelay,
    dispatcher: Dispatcher,
    driver: CountingDriver,
}

async fn net() -> Net {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::holding(directory.path());
    // The volume wait is longer than any other wait in these tests.
    let dispatcher =
        Dispatcher::new().with_volume_wait(Duration::from_secs(60)).with_driver(driver_name(), address);
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().start().unwrap();
    let near = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(dialer.clone())).start().unwrap();
    let far = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(Box::new(dialer));
    let far = far.serve_csi(dispatcher.clone()).start().unwrap();
    near.connected().await.unwrap();
    far.connected().await.unwrap();
    let relay = SessionRelay::new(near);
    Net { _hub: hub, _directory: directory, _far: far, relay, dispatcher, driver }
}

impl Net {
    async fn asked(&self, call: Call) -> Result<bool, Fault> {
        let replies = self.relay.relay(call).await?;
        Ok(replies.collect().await.1.is_ok())
    }

    fn ask(&self, call: Call) -> JoinHandle<Result<(), Fault>> {
        let relay = self.relay.clone();
        tokio::spawn(async move { relay.relay(call).await.map(drop) })
    }

    /// A caller sends a call, and leaves while the driver runs.
    async fn abandoned(&self, call: Call, what: &str) {
        let asked = self.ask(call);
        self.driver.wait_for_executions(what, 1).await;
        asked.abort();
        self.until(|counts| (counts.running, counts.waiters) == (1, 0)).await;
    }

    async fn until(&self, right: impl Fn(OperationCounts) -> bool) {
        in_time(async {
            while !right(self.dispatcher.operation_counts()) {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

fn fenced(call: Call, number: u64) -> Call {
    let number = CallNumber::new(number).unwrap();
    call.with_fence(Fence::new(Term::FIRST, number, CallNumber::FIRST, GivenUp::default()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn unclaimed_result_is_replayed_to_the_retry() {
    let net = net().await;
    net.abandoned(create("pvc-1"), "CreateVolume pvc-1").await;
    net.driver.release(1);
    net.until(|counts| counts.kept == 1).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
    net.driver.release(1);
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 2, "it is given once");
}

#[tokio::test(start_paused = true)]
async fn copy_joins_and_gets_the_result_again() {
    let net = net().await;
    let call = fenced(create("pvc-1"), 1);
    net.abandoned(call.clone(), "CreateVolume pvc-1").await;
    let again = net.ask(call.clone());
    net.until(|counts| counts.waiters == 1).await;
    net.driver.release(1);
    again.await.unwrap().unwrap();
    assert_eq!(net.asked(call.clone()).await, Ok(true), "the answer was lost");
    sleep(Duration::from_secs(60)).await;
    assert!(matches!(net.asked(call).await, Err(Fault::StaleCall { .. })));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
}

#[tokio::test(start_paused = true)]
async fn queued_call_of_a_leaving_caller_does_not_begin() {
    let net = net().await;
    let running = net.ask(delete("v"));
    net.driver.wait_for_executions("DeleteVolume v", 1).await;
    let mut grow = delete("v");
    grow.method = MethodPath::new("/csi.v1.Controller/ControllerExpandVolume").unwrap();
    let waits = net.ask(grow);
    net.until(|counts| counts.waiting == 1).await;
    waits.abort();
    net.until(|counts| counts.waiting == 0).await;
    net.driver.release(2);
    running.await.unwrap().unwrap();
    net.until(|counts| counts.running == 0).await;
    assert_eq!(net.driver.executions("ControllerExpandVolume v"), 0);
}

#[tokio::test(start_paused = true)]
async fn late_result_is_replayed_to_the_retry() {
    let net = net().await;
    let call = create("pvc-1").with_remaining(Duration::from_secs(10));
    assert_eq!(net.asked(call).await, Err(Fault::Deadline { waited: Duration::from_secs(10) }));
    sleep(Duration::from_secs(1)).await;
    net.driver.release(1);
    net.until(|counts| counts.kept == 1).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
}
