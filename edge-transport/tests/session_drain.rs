//! Draining: open calls complete, new ones are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::frame::{Frame, Kind, Part};
use edge_transport::{CallError, Peer, PeerState, Reason};
use session_common::raw::{Raw, frame_request, hello};
use session_common::{Echo, collect, echo, listen, net, peer_id, service_name};
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn draining_peer_completes_calls_and_refuses_new_ones() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let (edge, service) = net.edge("edge-1").await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    let draining = tokio::spawn(async move { edge.drain("update").await });
    sleep(Duration::from_millis(10)).await;
    assert_eq!(
        collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1,
        Err(Reason::Draining)
    );
    assert!(!draining.is_finished());
    service.release.notify_one();
    assert_eq!(collect(call).await.1, Ok(Bytes::new()));
    timeout(Duration::from_secs(1), draining).await.unwrap().unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(
        collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1,
        Err(Reason::PeerOffline)
    );
}

#[tokio::test(start_paused = true)]
async fn draining_hub_completes_calls_then_closes() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let (_edge, service) = net.edge("edge-1").await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    let hub = net.hub.clone();
    let draining = tokio::spawn(async move { hub.drain("update").await });
    let mut watch = cloud.watch();
    watch.wait_for(|state| matches!(state, PeerState::Draining { .. })).await.unwrap();
    let error = cloud.call(peer_id("edge-1"), echo("x")).await.unwrap_err();
    assert!(matches!(&error, CallError::Draining { reason } if reason == "update"), "{error}");
    service.release.notify_one();
    assert_eq!(collect(call).await.1, Ok(Bytes::new()));
    timeout(Duration::from_secs(1), draining).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn drain_times_out_and_close_does_not_wait() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let (edge, service) = net.edge("edge-1").await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    let before = Instant::now();
    edge.drain("update").await;
    assert_eq!(before.elapsed().as_secs(), 30);
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    let before = Instant::now();
    net.hub.close().await;
    cloud.close().await;
    assert!(before.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_last_replies() {
    let (mut listener, dialer) = listen();
    let builder = Peer::builder(peer_id("edge-1")).dialer(Box::new(dialer));
    let edge = builder.service(service_name("echo"), Echo::default()).start().unwrap();
    let link = edge_transport::link::Listener::accept(&mut listener).await.unwrap().await.unwrap();
    let mut hub = Raw { link };
    hub.receive().await.unwrap();
    hub.send(Kind::Hello(hello("hub", 1, 1, 1))).await;
    for number in 1..=300 {
        let mut request = frame_request();
        request.credit = 1000;
        hub.send_frame(Frame::call(Some(peer_id("cloud")), None, number, Part::Request(request))).await;
    }
    let draining = tokio::spawn(async move { edge.drain("update").await });
    for _ in 0..5 {
        sleep(Duration::from_secs(1)).await;
        hub.send(Kind::Ping { nonce: 1 }).await;
    }
    let mut answers = 0;
    while let Some(frame) = hub.receive().await {
        answers += usize::from(matches!(frame.kind, Kind::Call(_, Part::Reply(_))));
    }
    assert_eq!(answers, 300);
    draining.await.unwrap();
}
