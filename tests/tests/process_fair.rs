//! A call that hangs delays no other call. `cargo xtask perf hung` measures the delay.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::Duration;

use edge_csi_tests::cluster::{NODE, TestCluster};
use edge_csi_tests::counting::Counting;
use edge_csi_tests::csi::controller;
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::sidecar::Sidecar;
use edge_csi_tests::wait;
use tokio::task::JoinSet;

/// Timeout of a sidecar's call, longer than any call should take here.
const CALL: Duration = Duration::from_secs(120);

async fn one_hangs_over(over: LinkKind) {
    let driver = Counting::working(Duration::ZERO);
    let (cluster, _served) = TestCluster::start_with(over, &driver).await;
    let sidecar = Sidecar::new(controller(&cluster.proxy_socket()), CALL);

    let hung = tokio::spawn({
        let sidecar = sidecar.clone();
        async move { sidecar.publish("held-a", NODE).await }
    });
    wait::until("the driver hangs", async || {
        (driver.of("ControllerPublishVolume", "held-a").begun == 1).then_some(())
    })
    .await;
    // More callers than any queue of the relay has room for.
    let mut others = JoinSet::new();
    for number in 0..100 {
        let sidecar = sidecar.clone();
        others.spawn(async move {
            let id = format!("vol-{number}");
            let published = sidecar.publish(&id, NODE).await;
            let unpublished = sidecar.unpublish(&id, NODE).await;
            (
                published.result.is_ok() && unpublished.result.is_ok(),
                published.attempts + unpublished.attempts,
            )
        });
    }
    let others = wait::within("the others end while one hangs", others.join_all()).await;
    assert!(others.iter().all(|other| *other == (true, 2)), "{others:?}");
    assert!(!hung.is_finished());
    assert_eq!(driver.of("ControllerPublishVolume", "held-a").ended, 0);
    driver.release();
    wait::within("the one that hung", hung).await.unwrap().result.unwrap();
}

/// One ControllerPublish hangs, 100 calls for other volumes do not.
#[tokio::test]
async fn a_hanging_publish_delays_no_other_volume_over_a_websocket() {
    one_hangs_over(LinkKind::Wss).await;
}

/// Over QUIC.
#[tokio::test]
async fn a_hanging_publish_delays_no_other_volume_over_quic() {
    one_hangs_over(LinkKind::Quic).await;
}

/// A thousand CreateVolumes at once, as a provisioner with as many workers makes them: the relay refuses none.
#[tokio::test]
async fn a_thousand_calls_at_once_begin_at_the_driver() {
    const CALLS: usize = 1000;
    let driver = Counting::working(Duration::from_millis(200));
    let (cluster, _served) = TestCluster::start_with(LinkKind::Wss, &driver).await;
    let sidecar = Sidecar::new(controller(&cluster.proxy_socket()), CALL);

    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let sidecar = sidecar.clone();
        calls.spawn(async move {
            let created = sidecar.create(&format!("burst-{number}")).await;
            (created.result.is_ok(), created.attempts)
        });
    }
    let calls = wait::within("the calls end", calls.join_all()).await;
    let first = calls.iter().filter(|call| **call == (true, 1)).count();
    assert_eq!(first, CALLS, "calls that succeed at the first attempt");
}
