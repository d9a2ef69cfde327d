//! Links that connect, disconnect and misbehave.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod session_common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::Presence;
use edge_transport::advanced::frame::{self, Frame, Kind, Part, Reply};
use edge_transport::advanced::{HubSettings, PeerSettings};
use edge_transport::link::{Dialer, Lane, Link, LinkError};
use edge_transport::{CallError, Hub, Peer, PeerState, Reason};
use futures_util::{SinkExt, StreamExt};
use session_common::cuttable::Cuttable;
use session_common::raw::{Raw, frame_request, hello};
use session_common::{Echo, collect, echo, listen, net, net_with, peer_id, service_name};
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn lost_link_ends_its_calls_at_once() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let mut edge = Raw::admitted(&net, "edge-1", 1).await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    assert!(matches!(edge.receive().await.unwrap().kind, Kind::Call(_, Part::Request(_))));
    drop(edge);
    let before = Instant::now();
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    assert!(before.elapsed() < Duration::from_millis(10));
    assert_eq!(net.hub.stats().open_calls, 0);
}

#[tokio::test(start_paused = true)]
async fn target_is_notified_of_a_lost_requester() {
    let net = net();
    let mut cloud = Raw::admitted(&net, "cloud", 1).await;
    let mut edge = Raw::admitted(&net, "edge-1", 1).await;
    cloud.call(1, "edge-1", None).await;
    assert!(matches!(edge.receive().await.unwrap().kind, Kind::Call(_, Part::Request(_))));
    drop(cloud);
    let stop = edge.receive().await.unwrap();
    assert_eq!(stop.kind, Kind::Call(1, Part::Cancel));
}

#[tokio::test(start_paused = true)]
async fn reconnects_within_a_second_with_the_next_session() {
    let net = net();
    let cuttable = Cuttable::new(net.dialer.clone());
    let cloud = Peer::builder(peer_id("cloud")).dialer(Box::new(cuttable.clone())).start().unwrap();
    let (_edge, _) = net.edge("edge-1").await;
    cloud.connected().await.unwrap();
    let session = || net.hub.peers().into_iter().find(|info| info.peer == peer_id("cloud")).unwrap().session;
    let first = session();
    let before = Instant::now();
    cuttable.cut();
    let mut watch = cloud.watch();
    watch.wait_for(|state| !state.is_connected()).await.unwrap();
    let error = cloud.call(peer_id("edge-1"), echo("x")).await.unwrap_err();
    assert!(matches!(error, CallError::NotConnected { .. }), "the call does not wait: {error}");
    cloud.connected().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!((session().instance, session().number), (first.instance, first.number + 1));
    assert_eq!(collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.0.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_without_hub_fail_at_once() {
    let (listener, dialer) = listen();
    drop(listener);
    let peer = Peer::builder(peer_id("cloud")).dialer(Box::new(dialer)).start().unwrap();
    let mut watch = peer.watch();
    watch.wait_for(|state| matches!(state, PeerState::Connecting { attempts: 2.., .. })).await.unwrap();
    let error = peer.call(peer_id("edge-1"), echo("x")).await.unwrap_err();
    assert!(
        matches!(&error, CallError::NotConnected { last_error: Some(cause), .. } if cause.contains("listener was dropped")),
        "{error}"
    );
    peer.close().await;
    assert_eq!(peer.call(peer_id("edge-1"), echo("x")).await.unwrap_err(), CallError::Closed);
}

#[tokio::test(start_paused = true)]
async fn refuses_incompatible_versions_with_both_ranges() {
    let net = net();
    let mut raw = Raw::dial(&net).await;
    raw.send(Kind::Hello(hello("edge-1", 1, 2, 3))).await;
    let reason = raw.refusal().await;
    assert!(reason.contains("this end supports 1, the other end 2 to 3"), "{reason}");
    let mut newer = Raw::dial(&net).await;
    newer.send(Kind::Hello(hello("edge-1", 1, 1, 9))).await;
    assert!(
        matches!(newer.receive().await.unwrap().kind, Kind::Hello(_)),
        "a newer peer that still supports version 1 is admitted"
    );
}

#[tokio::test(start_paused = true)]
async fn hello_has_a_deadline() {
    let net = net();
    let before = Instant::now();
    let mut raw = Raw::dial(&net).await;
    assert!(raw.refusal().await.contains("no hello within"));
    assert_eq!(before.elapsed().as_secs(), 5);
    assert_eq!(net.hub.stats().failed_handshakes, 1);
}

#[tokio::test(start_paused = true)]
async fn refuses_a_first_frame_other_than_hello() {
    let net = net();
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x01", b"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
        let mut raw = Raw::dial(&net).await;
        raw.send_bytes(bytes).await;
        assert!(raw.refusal().await.contains("protocol error"), "{bytes:?}");
    }
    let mut raw = Raw::dial(&net).await;
    raw.send(Kind::Ping { nonce: 1 }).await;
    assert!(raw.refusal().await.contains("not a hello"));
}

#[tokio::test(start_paused = true)]
async fn refuses_links_without_credentials_by_default() {
    let (listener, dialer) = listen();
    let hub = Hub::builder().listener(listener).start().unwrap();
    let net = session_common::Net { hub, dialer };
    let mut raw = Raw::dial(&net).await;
    raw.send(Kind::Hello(hello("edge-1", 1, 1, 1))).await;
    assert!(raw.refusal().await.contains("has no credentials"));
    assert_eq!(net.hub.stats().unauthenticated, 1);
}

#[tokio::test(start_paused = true)]
async fn spoofed_source_ends_only_its_call() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let mut raw = Raw::admitted(&net, "mallory", 1).await;
    raw.call(1, "edge-1", Some("cloud")).await;
    assert_eq!(raw.failure().await, (1, Reason::Forbidden));
    assert_eq!(net.hub.stats().spoofed, 1);
    raw.call(2, "unknown", Some("mallory")).await;
    assert_eq!(raw.failure().await, (2, Reason::PeerOffline), "the link stays open");
}

#[tokio::test(start_paused = true)]
async fn refuses_replies_from_other_peers_than_the_target() {
    let net = net();
    let mut cloud = Raw::admitted(&net, "cloud", 1).await;
    let mut edge = Raw::admitted(&net, "edge-1", 1).await;
    let mut mallory = Raw::admitted(&net, "mallory", 1).await;
    cloud.call(1, "edge-1", None).await;
    edge.receive().await.unwrap();
    let reply = |text: &'static str| {
        let mut reply = Reply::new(1);
        reply.message = Some(Bytes::from_static(text.as_bytes()));
        reply.end = Some(frame::End::Finished(Bytes::new()));
        Frame::call(None, None, 1, Part::Reply(reply))
    };
    mallory.send_frame(reply("false")).await;
    while net.hub.stats().unknown_calls == 0 {
        tokio::task::yield_now().await;
    }
    edge.send_frame(reply("true")).await;
    let got = cloud.receive().await.unwrap();
    assert_eq!(got.source, Some(peer_id("edge-1")));
    assert!(
        matches!(got.kind, Kind::Call(_, Part::Reply(reply)) if reply.message == Some(Bytes::from("true")))
    );
}

#[tokio::test(start_paused = true)]
async fn newer_session_replaces_older_one() {
    let net = net();
    let mut presence = net.hub.presence();
    let mut old = Raw::admitted(&net, "edge-1", 7).await;
    for number in [6, 7] {
        let mut older = Raw::dial(&net).await;
        older.send(Kind::Hello(hello("edge-1", number, 1, 1))).await;
        assert!(older.refusal().await.contains("found the older session"), "{number}");
    }
    let newer = Raw::admitted(&net, "edge-1", 8).await;
    assert!(old.receive().await.is_none(), "the peer has left this link: the hub sends no reason on it");
    assert_eq!(net.hub.stats().fenced, 3);
    drop(newer);
    for number in [7, 8] {
        let up = presence.recv().await.unwrap();
        assert!(matches!(up, Presence::Up(info) if info.session.number == number));
    }
    let down = presence.recv().await.unwrap();
    assert!(matches!(down, Presence::Down { session, .. } if session.number == 8), "{down:?}");
    assert!(net.hub.peers().is_empty());
}

/// Answers the hub's pings.
async fn answer_pings(mut raw: Raw) {
    while let Some(Ok(bytes)) = raw.link.next().await {
        if let Kind::Ping { nonce } = frame::decode(bytes, usize::MAX).unwrap().kind {
            raw.send(Kind::Pong { nonce }).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refuses_another_instance_of_a_live_peer() {
    let net = net();
    let first = tokio::spawn(answer_pings(Raw::admitted(&net, "edge-1", 1).await));
    let other = Peer::builder(peer_id("edge-1")).dialer(Box::new(net.dialer.clone())).start().unwrap();
    sleep(Duration::from_secs(3600)).await;
    assert!(!first.is_finished() && !other.state().is_connected());
    assert!(
        matches!(other.state(), PeerState::Connecting { attempts: 300.., last_error: Some(error), refusal }
            if refusal == Some(edge_transport::Refusal::NameInUse) && error.contains("another instance") && error.contains("try again")),
        "{:?}",
        other.state()
    );
    assert_eq!(net.hub.peers()[0].session.instance, 1);
    first.abort();
    timeout(Duration::from_secs(11), other.connected()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_instance_replaces_a_dead_one() {
    let net = net();
    let silent = Raw::admitted(&net, "edge-1", 1).await;
    let mut presence = net.hub.presence();
    let other = Peer::builder(peer_id("edge-1")).dialer(Box::new(net.dialer.clone())).start().unwrap();
    let before = Instant::now();
    other.connected().await.unwrap();
    assert!((10..=20).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    let down = presence.recv().await.unwrap();
    assert!(matches!(down, Presence::Down { session, .. } if session.instance == 1), "{down:?}");
    assert!(matches!(presence.recv().await.unwrap(), Presence::Up(info) if info.session.instance != 1));
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn counts_and_survives_garbage_on_open_links() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let mut raw = Raw::admitted(&net, "cloud", 1).await;
    for bytes in [&b"\x00"[..], b"\x05abc", b"\xff\xff\xff", b"\x02\xff\xff", b""] {
        raw.send_bytes(bytes).await;
    }
    raw.call(3, "unknown", None).await;
    assert_eq!(raw.failure().await, (3, Reason::PeerOffline));
    assert_eq!(net.hub.stats().malformed, 5);
}

#[tokio::test(start_paused = true)]
async fn request_with_an_invalid_target_is_answered() {
    let net = net();
    let mut raw = Raw::admitted(&net, "cloud", 1).await;
    let part = Part::Request(frame_request());
    let head = frame::encode(Frame::call(None, Some(peer_id("edge-1")), 7, part), Lane::Control).head;
    let mut invalid = head.to_vec();
    let at = invalid.windows(6).position(|bytes| bytes == b"edge-1").unwrap();
    invalid[at + 4] = b' ';
    raw.send_bytes(invalid.leak()).await;
    assert_eq!(raw.failure().await, (7, Reason::Protocol));
}

#[tokio::test(start_paused = true)]
async fn closes_dead_peers_and_keeps_idle_ones() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let mut edge = Raw::admitted(&net, "edge-1", 1).await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    edge.receive().await.unwrap();
    let before = Instant::now();
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    assert_eq!(before.elapsed().as_secs(), 10);
    sleep(Duration::from_secs(3600)).await;
    assert!(cloud.state().is_connected());
    assert_eq!(net.hub.peers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn peer_detects_a_dead_hub() {
    let (mut listener, dialer) = listen();
    let peer = Peer::builder(peer_id("cloud")).dialer(Box::new(dialer)).start().unwrap();
    let mut hub = edge_transport::link::Listener::accept(&mut listener).await.unwrap().await.unwrap();
    hub.next().await.unwrap().unwrap();
    hub.send(frame::encode(Frame::link(Kind::Hello(hello("hub", 1, 1, 1))), Lane::Control)).await.unwrap();
    peer.connected().await.unwrap();
    let before = Instant::now();
    let mut watch = peer.watch();
    watch.wait_for(|state| !state.is_connected()).await.unwrap();
    assert!((10_000..10_010).contains(&before.elapsed().as_millis()), "{:?}", before.elapsed());
    let mut again = edge_transport::link::Listener::accept(&mut listener).await.unwrap().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(11), "{:?}", before.elapsed());
    again.next().await.unwrap().unwrap();
    again.send(frame::encode(Frame::link(Kind::Hello(hello("hub", 1, 1, 1))), Lane::Control)).await.unwrap();
    peer.connected().await.unwrap();
    let before = Instant::now();
    drop(again);
    watch.wait_for(|state| !state.is_connected()).await.unwrap();
    assert!(before.elapsed() < Duration::from_millis(10), "a lost link is detected at once");
    assert!(
        matches!(peer.state(), PeerState::Connecting { last_error: Some(error), .. } if error.contains("connection lost"))
    );
}

#[tokio::test(start_paused = true)]
async fn policy_decides_which_calls_are_allowed() {
    struct OnlyCloud;
    impl edge_transport::hub::Policy for OnlyCloud {
        fn may_call(
            &self,
            requester: &edge_transport::hub::Requester<'_>,
            _: &edge_transport::PeerId,
            _: &edge_transport::ServiceName,
        ) -> bool {
            requester.peer.as_str() == "cloud"
        }
    }
    let net = net_with(|builder| builder.policy(OnlyCloud));
    let cloud = net.caller("cloud").await;
    let (edge, _) = net.edge("edge-1").await;
    assert!(collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok());
    assert_eq!(
        collect(edge.call(peer_id("cloud"), echo("x")).await.unwrap()).await.1,
        Err(Reason::Forbidden)
    );
}

#[tokio::test(start_paused = true)]
async fn uses_the_second_address_if_the_first_fails() {
    struct Never;
    #[async_trait::async_trait]
    impl Dialer for Never {
        async fn dial(&self) -> Result<Link, LinkError> {
            std::future::pending().await
        }
        fn address(&self) -> &str {
            "never"
        }
    }
    let net = net();
    let before = Instant::now();
    let echo_service = Echo::default();
    let cuttable = Cuttable::new(net.dialer.clone());
    let peer = Peer::builder(peer_id("edge-1"))
        .dialers([Box::new(Never) as Box<dyn Dialer>, Box::new(cuttable.clone())])
        .service(service_name("echo"), echo_service.clone())
        .start()
        .unwrap();
    peer.connected().await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 1);
    assert!(matches!(peer.state(), PeerState::Connected { address, .. } if address == "cuttable"));
    // After a short outage the address that worked is tried first.
    let before = Instant::now();
    cuttable.cut();
    let mut watch = peer.watch();
    watch.wait_for(|state| !state.is_connected()).await.unwrap();
    peer.connected().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!(echo_service.finished.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn link_with_lower_frame_limit_fails_only_calls() {
    let (listener, dialer) = edge_transport::link::memory::listen("hub", 100_000);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().start().unwrap();
    let net = session_common::Net { hub, dialer };
    let (_edge, _) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let before = net.hub.stats();
    assert_eq!(
        collect(cloud.call(peer_id("edge-1"), echo(vec![0; 200_000])).await.unwrap()).await.1,
        Err(Reason::TooLarge)
    );
    assert_eq!(
        collect(cloud.call(peer_id("edge-1"), echo("stream:1:200000")).await.unwrap()).await.1,
        Err(Reason::TooLarge)
    );
    assert!(collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok());
    assert_eq!(net.hub.stats().fenced, before.fenced);
    assert_eq!(net.hub.stats().open_calls, 0);
}

#[tokio::test]
async fn unix_sockets_authenticate_by_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    let listener = ends::uds(&path).await;
    let hub = Hub::builder().listener(listener).start().unwrap();
    let dialer = || ends::dial_uds(&path);
    let edge = Peer::builder(peer_id("edge-1"))
        .dialer(dialer())
        .service(service_name("echo"), Echo::default())
        .start()
        .unwrap();
    let cloud = Peer::builder(peer_id("cloud")).dialer(dialer()).start().unwrap();
    edge.connected().await.unwrap();
    cloud.connected().await.unwrap();
    let body = vec![3; 4 * 1024 * 1024];
    let (messages, end) = collect(cloud.call(peer_id("edge-1"), echo(body.clone())).await.unwrap()).await;
    assert_eq!((messages, end), (vec![Bytes::from(body)], Ok(Bytes::new())));
    hub.close().await;
}

#[tokio::test(start_paused = true)]
async fn limits_concurrent_handshakes() {
    let mut settings = HubSettings::default();
    settings.max_handshakes = 2;
    let net = net_with(|builder| builder.settings(settings));
    let (_first, _second) = (Raw::dial(&net).await, Raw::dial(&net).await);
    sleep(Duration::from_millis(1)).await;
    let before = Instant::now();
    let _good = Raw::admitted(&net, "edge-1", 1).await;
    assert_eq!(before.elapsed().as_secs(), 4, "the link waits for the hello deadline of the others");
    let before = Instant::now();
    let mut more = Vec::new();
    for index in 0..10 {
        more.push(Raw::admitted(&net, &format!("peer-{index}"), 1).await);
    }
    assert!(before.elapsed() < Duration::from_secs(1), "an admitted peer uses no slot");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_peer() {
    let net = net();
    let (edge, _) = net.edge("edge-1").await;
    let mut presence = net.hub.presence();
    let clone = edge.clone();
    drop(edge);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(net.hub.peers().len(), 1);
    drop(clone);
    assert!(
        matches!(presence.recv().await.unwrap(), Presence::Down { peer, .. } if peer == peer_id("edge-1"))
    );
}

#[tokio::test]
async fn rejects_invalid_settings_at_start() {
    assert_eq!(
        Hub::builder().start().unwrap_err().to_string(),
        "the hub has no listener; add one with `listen`"
    );
    let (listener, dialer) = listen();
    let mut settings = HubSettings::default();
    settings.session.max_frame = 100;
    let error = Hub::builder().listener(listener).settings(settings).start().unwrap_err();
    assert_eq!(error.to_string(), "setting session.max_frame is 100; it must be at least 4096");
    let error = Peer::builder(peer_id("cloud")).start().unwrap_err();
    assert_eq!(error.to_string(), "the peer has no hub address; add one with `dial`");
    let mut settings = PeerSettings::default();
    settings.session.credit = 0;
    let error =
        Peer::builder(peer_id("cloud")).dialer(Box::new(dialer)).settings(settings).start().unwrap_err();
    assert_eq!(error.to_string(), "setting session.credit is 0; it must be at least 1");
}

#[tokio::test(start_paused = true)]
async fn slow_handshakes_do_not_block_other_listeners() {
    let (flooded, flood) = listen();
    let (quiet, dialer) = listen();
    let mut settings = HubSettings::default();
    settings.max_handshakes = 1;
    let builder = Hub::builder().listener(Box::new(flooded)).listener(Box::new(quiet));
    let hub = builder.settings(settings).allow_unauthenticated().start().unwrap();
    let net = session_common::Net { hub, dialer };
    let _silent = (flood.dial().await.unwrap(), flood.dial().await.unwrap());
    sleep(Duration::from_millis(1)).await;
    let before = Instant::now();
    let _edge = Raw::admitted(&net, "edge-1", 1).await;
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
}
