//! Operations behind a session: an answer counts as delivered when the session has taken it, and not before.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::counting::{CountingDriver, create};
use common::{driver_name, in_time};
use csi_proxy::session_relay::SERVICE;
use csi_proxy::{Call, Dispatcher, Fault, MethodPath, Relay as _, RelayError, SessionRelay, SessionService};
use edge_transport::link::memory;
use edge_transport::{Hub, Peer, PeerId, ServiceName};

struct Net {
    _hub: Hub,
    _far: Peer,
    _directory: tempfile::TempDir,
    relay: SessionRelay,
    dispatcher: Dispatcher,
    driver: CountingDriver,
}

async fn net() -> Net {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::holding(directory.path());
    let dispatcher = Dispatcher::new().with_driver(driver_name(), address);
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let hub = Hub::builder().listener(Box::new(listener)).allow_unauthenticated().start().unwrap();
    let near = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(dialer.clone())).start().unwrap();
    let service = ServiceName::new(SERVICE).unwrap();
    let far = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(Box::new(dialer));
    let far = far.service(service, SessionService::new(dispatcher.clone())).start().unwrap();
    near.connected().await.unwrap();
    far.connected().await.unwrap();
    let relay = SessionRelay::new(near);
    Net { _hub: hub, _far: far, _directory: directory, relay, dispatcher, driver }
}

impl Net {
    async fn asked(&self, call: Call) -> Result<bool, Fault> {
        let replies = self.relay.relay(call).await.map_err(RelayError::into_fault)?;
        Ok(replies.collect().await.1.is_ok())
    }

    /// Something that goes the whole way behind all that went before it.
    async fn round_trip(&self) {
        let mut call = create("unknown");
        call.method = MethodPath::new("/csi.v9.Later/Thing").unwrap();
        call.driver = "no-such-driver".parse().unwrap();
        assert!(matches!(self.asked(call).await, Err(Fault::DriverNotRegistered { .. })));
    }

    async fn until_kept(&self, answers: usize) {
        in_time(async {
            while self.dispatcher.operation_counts().kept != answers {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_that_the_session_can_give_nobody_is_there_for_the_retry() {
    let net = net().await;
    let (relay, call) = (net.relay.clone(), create("pvc-1"));
    let asked = tokio::spawn(async move { relay.relay(call).await.map(drop) });
    net.driver.was_told("CreateVolume pvc-1", 1).await;
    asked.abort();
    assert!(asked.await.is_err());
    net.round_trip().await;
    net.driver.let_go(1);
    net.until_kept(1).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
    net.until_kept(0).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_callers_time_is_there_for_the_retry() {
    let net = net().await;
    let call = create("pvc-1").with_remaining(Duration::from_secs(10));
    assert_eq!(net.asked(call).await, Err(Fault::Deadline { waited: Duration::from_secs(10) }));
    tokio::time::sleep(Duration::from_secs(1)).await;
    net.driver.let_go(1);
    net.until_kept(1).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
}
