//! Callers that leave while the driver does not answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::counting::{CountingDriver, call, create};
use common::silent::SilentDriver;
use common::{driver_name, in_time};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Call, Dispatcher, Fault, MethodPath, Relay as _, Reply};

fn list() -> Call {
    call("ListVolumes", &csi::ListVolumesRequest::default())
}

fn stream() -> Call {
    let mut call = list();
    call.method = MethodPath::new("/csi.v1.SnapshotMetadata/GetMetadataAllocated").unwrap();
    call
}

/// The one slot is free again, although the driver never ends the stream.
#[tokio::test]
async fn stream_of_a_left_caller_ends_at_the_driver() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = SilentDriver::serve(directory.path());
    let dispatcher = Dispatcher::new().with_max_in_flight(1).with_driver(driver_name(), address);
    for count in 1..4 {
        let mut replies = in_time(dispatcher.relay(stream())).await.unwrap();
        let first = in_time(replies.next()).await;
        assert!(matches!(&first, Some(Reply::Message(message)) if &**message == b"first"), "{first:?}");
        let refused = dispatcher.relay(stream()).await.unwrap_err();
        assert!(matches!(refused, Fault::Overloaded { max: 1, .. }), "{refused:?}");
        drop(replies);
        driver.cancelled(count).await;
    }
}

#[tokio::test]
async fn read_only_call_of_a_left_caller_ends_at_the_driver() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = SilentDriver::serve(directory.path());
    let dispatcher = Dispatcher::new().with_max_in_flight(1).with_driver(driver_name(), address);
    for count in 1..4 {
        let asked = tokio::spawn({
            let dispatcher = dispatcher.clone();
            async move { dispatcher.relay(list()).await.map(drop) }
        });
        driver.received(count).await;
        asked.abort();
        driver.cancelled(count).await;
    }
}

/// A call that may change something outlives its caller, and the slots of remote callers with it. Those of the node and of
/// other drivers are free.
#[tokio::test]
async fn calls_without_a_caller_count_as_those_of_their_caller() {
    let directory = tempfile::tempdir().unwrap();
    let (silent, hanging) = SilentDriver::serve(directory.path());
    let (_, working) = CountingDriver::free(directory.path());
    let dispatcher = Dispatcher::new().with_max_in_flight(4).with_driver(driver_name(), hanging);
    let dispatcher = dispatcher.with_driver("other".parse().unwrap(), working);
    let ask = |mut call: Call, remote| {
        call.remote = remote;
        let dispatcher = dispatcher.clone();
        tokio::spawn(async move { dispatcher.relay(call).await.map(drop) })
    };
    for (count, name) in [(1, "a"), (2, "b")] {
        let asked = ask(create(name), true);
        silent.received(count).await;
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
    }
    let refused = in_time(ask(create("c"), true)).await.unwrap().unwrap_err();
    assert!(matches!(refused, Fault::Overloaded { max: 2, .. }), "{refused:?}");
    drop(ask(create("d"), false));
    silent.received(3).await;
    let mut other = create("e");
    other.driver = "other".parse().unwrap();
    in_time(ask(other, true)).await.unwrap().unwrap();
    assert_eq!(silent.cancelled_now(), 0, "none was cancelled");
}
