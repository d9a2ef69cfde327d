//! Calls of other hosts leave room for the calls of the node.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::counting::{CountingDriver, MAX_STREAMS, call, create};
use common::silent::SilentDriver;
use common::{driver_name, in_time};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Call, Dispatcher, Fault, MethodPath, Relay as _, ServeCsi as _, SessionRelay};
use edge_transport::link::memory;
use edge_transport::{Hub, Peer, PeerId};

/// A call of kubelet through a socket on the node.
fn unpublish() -> Call {
    let (volume_id, target_path) = ("v".to_owned(), "/t".to_owned());
    let mut call = call("Any", &csi::NodeUnpublishVolumeRequest { volume_id, target_path });
    call.method = MethodPath::new("/csi.v1.Node/NodeUnpublishVolume").unwrap();
    call
}

/// A dispatcher at a peer, and the relay of another peer to it.
async fn over_a_hub(dispatcher: &Dispatcher) -> (Hub, Peer, SessionRelay) {
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().start().unwrap();
    let near = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(dialer.clone())).start().unwrap();
    let far = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(Box::new(dialer));
    let far = far.serve_csi(dispatcher.clone()).start().unwrap();
    near.connected().await.unwrap();
    far.connected().await.unwrap();
    (hub, far, SessionRelay::new(near))
}

/// The driver sends nothing after the first message, so that no message reveals that the caller has left.
#[tokio::test]
async fn stream_of_a_peer_that_left_ends_at_the_driver() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = SilentDriver::serve(directory.path());
    let dispatcher = Dispatcher::new().with_driver(driver_name(), address);
    let (_hub, _far, relay) = over_a_hub(&dispatcher).await;
    let mut stream = create("a");
    stream.method = MethodPath::new("/csi.v1.SnapshotMetadata/GetMetadataDelta").unwrap();
    let mut replies = in_time(relay.relay(stream)).await.unwrap();
    assert!(in_time(replies.next()).await.is_some());
    drop(replies);
    driver.cancelled(1).await;
}

/// The caller is another peer, and its calls hang.
#[tokio::test]
async fn calls_of_other_hosts_leave_half_of_the_slots_to_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::holding(directory.path());
    let dispatcher = Dispatcher::new().with_max_in_flight(4).with_driver(driver_name(), address);
    let (_hub, _far, relay) = over_a_hub(&dispatcher).await;
    let ask = |call: Call| {
        let relay = relay.clone();
        tokio::spawn(async move { relay.relay(call).await.map(drop) })
    };
    for name in ["1", "2"] {
        drop(ask(create(name)));
        driver.wait_for_executions(&format!("CreateVolume {name}"), 1).await;
    }
    let refused = in_time(ask(create("3"))).await.unwrap().unwrap_err();
    assert!(matches!(&refused, Fault::Overloaded { max: 2, .. }), "{refused:?}");
    let kubelet = tokio::spawn(async move { dispatcher.relay(unpublish()).await.map(drop) });
    driver.wait_for_executions("NodeUnpublishVolume v", 1).await;
    driver.release(3);
    in_time(kubelet).await.unwrap().unwrap();
}

#[tokio::test]
async fn calls_of_other_hosts_do_not_fill_the_connection_of_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::holding(directory.path());
    let dispatcher = Dispatcher::new().with_driver(driver_name(), address);
    for number in 0..MAX_STREAMS + 10 {
        let (dispatcher, mut call) = (dispatcher.clone(), create(&number.to_string()));
        call.remote = true;
        tokio::spawn(async move { dispatcher.relay(call).await.map(drop) });
    }
    in_time(async {
        while driver.all().len() < MAX_STREAMS as usize {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let kubelet = tokio::spawn(async move { dispatcher.relay(unpublish()).await.map(drop) });
    driver.wait_for_executions("NodeUnpublishVolume v", 1).await;
    driver.release(MAX_STREAMS as usize + 11);
    in_time(kubelet).await.unwrap().unwrap();
}
