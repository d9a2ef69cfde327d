//! Peers that do not read.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::HubSettings;
use edge_transport::advanced::frame::{self, Frame, Kind, Part};
use edge_transport::link::{Lane, Listener as _, memory};
use edge_transport::{Peer, Reason};
use futures_util::SinkExt;
use session_common::raw::{Raw, hello};
use session_common::{Echo, collect, echo, net, net_with, peer_id, service_name};
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn peer_that_does_not_read_affects_only_its_callers() {
    let mut settings = HubSettings::default();
    settings.queue_bytes = 1024 * 1024;
    let net = net_with(|builder| builder.settings(settings));
    let cloud = net.caller("cloud").await;
    let (_good, _) = net.edge("good").await;
    let _stuck = Raw::admitted(&net, "stuck", 1).await;
    let mut calls = Vec::new();
    for _ in 0..128 {
        calls.push(
            cloud
                .call(peer_id("stuck"), echo(vec![0; 64 * 1024]).remaining(Duration::from_secs(1)))
                .await
                .unwrap(),
        );
    }
    let (messages, _) = collect(cloud.call(peer_id("good"), echo("x")).await.unwrap()).await;
    assert_eq!(messages.len(), 1);
    assert!(net.hub.stats().queued_bytes <= 1024 * 1024 + 64 * 128);
    let mut overloaded = 0;
    for call in calls {
        match collect(call).await.1 {
            Err(Reason::Overloaded) => overloaded += 1,
            other => assert_eq!(other, Err(Reason::Deadline)),
        }
    }
    assert!(overloaded > 0, "1 MiB is allowed, 8 MiB were sent");
    assert_eq!(net.hub.stats().overloaded, overloaded);
}

#[tokio::test(start_paused = true)]
async fn pings_without_reading_use_no_memory() {
    let net = net();
    let mut raw = Raw::admitted(&net, "edge-1", 1).await;
    for nonce in 0..20_000 {
        raw.send(Kind::Ping { nonce }).await;
    }
    raw.call(1, "unknown", None).await;
    let (mut pongs, mut last) = (0, 0);
    loop {
        match raw.receive().await.unwrap().kind {
            Kind::Pong { nonce } => (pongs, last) = (pongs + 1, nonce),
            Kind::Call(..) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..500).contains(&pongs), "{pongs} pongs queued");
    assert!(last > 10_000, "the last pong answers a late ping, not {last}");
}

/// A peer that pings and never reads, with more frames queued than its link accepts, and its open calls.
async fn stuck(net: &session_common::Net, name: &str) -> (Raw, Vec<edge_transport::ReplyStream>) {
    let raw = Raw::admitted(net, name, 1).await;
    let cloud = net.caller(&format!("caller-of-{name}")).await;
    let mut calls = Vec::new();
    for _ in 0..200 {
        calls.push(cloud.call(peer_id(name), echo(vec![0; 16 * 1024])).await.unwrap());
    }
    while net.hub.stats().queued_bytes == 0 {
        tokio::task::yield_now().await;
    }
    (raw, calls)
}

/// Pings every second until the hub closes the link.
async fn ping_until_cut(raw: &mut Raw) {
    while raw.link.send(frame::encode(Frame::link(Kind::Ping { nonce: 1 }), Lane::Control)).await.is_ok() {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn closes_replaced_links_of_peers_that_do_not_read() {
    let net = net();
    let (mut old, calls) = stuck(&net, "edge-1").await;
    let before = Instant::now();
    let _new = Raw::admitted(&net, "edge-1", 2).await;
    timeout(Duration::from_secs(60), ping_until_cut(&mut old)).await.unwrap();
    assert!(before.elapsed() <= Duration::from_secs(4), "{:?}", before.elapsed());
    for call in calls {
        assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    }
}

#[tokio::test(start_paused = true)]
async fn closes_stalled_peers_and_ends_their_calls() {
    let net = net();
    let (mut raw, calls) = stuck(&net, "edge-1").await;
    let before = Instant::now();
    timeout(Duration::from_secs(60), ping_until_cut(&mut raw)).await.unwrap();
    assert!((9..16).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    for call in calls {
        assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    }
    assert_eq!((net.hub.stats().queued_bytes, net.hub.stats().open_calls), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn stalled_peers_leave_queue_space_for_others() {
    let mut settings = HubSettings::default();
    (settings.total_queue_bytes, settings.queue_bytes) = (1024 * 1024, 1024 * 1024);
    let net = net_with(|builder| builder.settings(settings));
    let (_good, _) = net.edge("good").await;
    let mut all = Vec::new();
    for name in ["stuck-1", "stuck-2", "stuck-3"] {
        all.push(stuck(&net, name).await);
    }
    let cloud = net.caller("cloud").await;
    let (messages, end) = collect(cloud.call(peer_id("good"), echo(vec![1; 48 * 1024])).await.unwrap()).await;
    assert_eq!((messages.len(), end), (1, Ok(Bytes::new())));
}

#[tokio::test(start_paused = true)]
async fn credit_cannot_disconnect_a_slow_target() {
    let mut settings = HubSettings::default();
    (settings.queue_frames, settings.max_calls) = (100, 10);
    let net = net_with(|builder| builder.settings(settings));
    let _slow = Raw::admitted(&net, "slow", 1).await;
    let mut mallory = Raw::admitted(&net, "mallory", 1).await;
    mallory.call(1, "slow", None).await;
    for _ in 0..1000 {
        mallory.send_frame(Frame::call(None, None, 1, Part::Credit { bytes: 1 })).await;
    }
    assert_eq!(mallory.failure().await, (1, Reason::Overloaded));
    assert!(net.hub.peers().iter().any(|info| info.peer == peer_id("slow")));
}

/// A caller asks for more than the uplink of a node carries, with credit without end. The answer to another caller is sent
/// after what the link already has, and little is queued.
#[tokio::test(start_paused = true)]
async fn streams_of_one_caller_delay_the_answer_to_another_by_little() {
    let (mut listener, dialer) = memory::listen("hub", 1 << 20);
    let service = Echo::default();
    let node = Peer::builder(peer_id("node")).dialer(Box::new(dialer));
    let _node = node.service(service_name("echo"), service.clone()).start().unwrap();
    let mut hub = Raw { link: listener.accept().await.unwrap().await.unwrap() };
    assert!(matches!(hub.receive().await.unwrap().kind, Kind::Hello(_)));
    hub.send(Kind::Hello(hello("hub", 1, 1, 1))).await;
    for number in 1..=20 {
        let mut request = echo("stream:1000:40000");
        request.credit = 1 << 62;
        let source = Some(peer_id("hostile"));
        hub.send_frame(Frame::call(source, None, number, Part::Request(request))).await;
    }
    sleep(Duration::from_secs(1)).await;
    let sent = service.sent.load(std::sync::atomic::Ordering::SeqCst);
    assert!(sent < 300, "{sent} messages are sent or queued: 64 in the link and at most 8 of each stream");
    let mut request = echo("x");
    request.credit = 1000;
    hub.send_frame(Frame::call(Some(peer_id("near")), None, 99, Part::Request(request))).await;
    let mut before = 0;
    while !matches!(hub.receive().await.unwrap().kind, Kind::Call(99, Part::Reply(_))) {
        before += 1;
    }
    assert!(before < 80, "{before} frames before the answer: 64 are in the link, and 7 are next to it");
}
