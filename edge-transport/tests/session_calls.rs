//! Calls between peers through a hub, over memory links.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::{HubSettings, PeerSettings};
use edge_transport::{Hub, Peer, PeerId, Reason, ReplySender, Request, Service, StartError};
use session_common::cuttable::Cuttable;
use session_common::{collect, echo, listen, net, peer_id, service_name};

#[tokio::test(start_paused = true)]
async fn unary_call_returns_message_and_closing() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let request = echo("hello").metadata("meta").remaining(Duration::from_secs(5));
    let (messages, end) = collect(cloud.call(peer_id("edge-1"), request).await.unwrap()).await;
    assert_eq!(messages, [Bytes::from("hello")]);
    assert_eq!(end, Ok(Bytes::from("meta")));
}

#[tokio::test(start_paused = true)]
async fn stream_arrives_whole_and_in_order() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let (messages, end) =
        collect(cloud.call(peer_id("edge-1"), echo("stream:500:4000")).await.unwrap()).await;
    assert_eq!(end, Ok(Bytes::from("done")));
    let numbers: Vec<u64> =
        messages.iter().map(|message| u64::from_be_bytes(message[4000..].try_into().unwrap())).collect();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn offline_target_fails_the_call_at_once() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let before = tokio::time::Instant::now();
    let (_, end) = collect(cloud.call(peer_id("unknown"), echo("x")).await.unwrap()).await;
    assert_eq!(end, Err(Reason::PeerOffline));
    assert!(before.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_get_their_own_replies() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..256_u32 {
        let cloud = cloud.clone();
        calls.spawn(async move {
            for round in 0..4_u32 {
                let body = format!("{index}/{round}");
                let (messages, end) =
                    collect(cloud.call(peer_id("edge-1"), echo(body.clone())).await.unwrap()).await;
                assert_eq!((messages, end), (vec![Bytes::from(body)], Ok(Bytes::new())));
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert_eq!(net.hub.stats().open_calls, 0);
    assert_eq!(net.hub.stats().calls, 1024);
}

#[tokio::test(start_paused = true)]
async fn peers_call_each_other_and_themselves() {
    let net = net();
    let (left, _) = net.edge("left").await;
    let (right, _) = net.edge("right").await;
    for (from, to) in [(&left, "right"), (&right, "left"), (&left, "left")] {
        let (messages, _) = collect(from.call(peer_id(to), echo("x")).await.unwrap()).await;
        assert_eq!(messages, [Bytes::from("x")]);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reader_blocks_the_service() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let mut replies = cloud.call(peer_id("edge-1"), echo("stream:1000:16384")).await.unwrap();
    // Without a reader everything becomes idle; then time jumps.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let sent = service.sent.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(sent, 16, "256 KiB of credit are 15.9 messages of 16 KiB, and the last may overdraw");
    // Once it reads, the reader gets everything; another call was never blocked.
    let (other, _) = collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
    assert_eq!(other.len(), 1);
    assert!(replies.next().await.unwrap().is_ok());
    let (messages, end) = collect(replies).await;
    assert_eq!((messages.len(), end), (999, Ok(Bytes::from("done"))));
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_the_wait_and_not_the_work() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let before = tokio::time::Instant::now();
    let request = echo("never").remaining(Duration::from_secs(2));
    let (_, end) = collect(cloud.call(peer_id("edge-1"), request).await.unwrap()).await;
    assert_eq!(end, Err(Reason::Deadline));
    assert_eq!(before.elapsed().as_secs(), 2);
    assert_eq!(service.finished.load(std::sync::atomic::Ordering::SeqCst), 0);
    service.release.notify_one();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(service.finished.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!(net.hub.stats().open_calls, 0);
}

#[tokio::test(start_paused = true)]
async fn cancel_frees_the_call_while_the_service_continues() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let replies = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    assert_eq!(net.hub.stats().open_calls, 1);
    drop(replies);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(net.hub.stats().open_calls, 0);
    service.release.notify_one();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(service.finished.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn services_continue_without_link_and_after_close() {
    for closed in [false, true] {
        let net = net();
        let (edge, service) = net.edge("edge-1").await;
        let cloud = net.caller("cloud").await;
        let _replies = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
        service.started.notified().await;
        net.hub.close().await;
        if closed {
            edge.close().await;
        }
        service.release.notify_one();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(service.finished.load(std::sync::atomic::Ordering::SeqCst), 1, "closed: {closed}");
    }
}

/// Answers with the id of the task that it runs in.
struct WhichTask;

#[async_trait::async_trait]
impl Service for WhichTask {
    async fn call(&self, _source: PeerId, _request: Request, replies: ReplySender) {
        let _ = replies.send_and_finish(tokio::task::id().to_string().into(), Bytes::new()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_task_serves_all_calls_of_a_peer() {
    let net = net();
    let dialer = Box::new(net.dialer.clone());
    let edge = Peer::builder(peer_id("edge-1")).dialer(dialer).service(service_name("echo"), WhichTask);
    let edge = edge.start().unwrap();
    edge.connected().await.unwrap();
    let cloud = net.caller("cloud").await;
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let (answer, _) = collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
        tasks.extend(answer);
    }
    assert_eq!(tasks.len(), 2);
    assert_eq!(tasks[0], tasks[1], "a task for each call costs each call a wake-up");
}

#[tokio::test(start_paused = true)]
async fn reports_services_that_end_without_reply() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    for (body, reason) in
        [("drop", Reason::ServiceLost), ("panic", Reason::ServiceLost), ("fail", Reason::Overloaded)]
    {
        let (_, end) = collect(cloud.call(peer_id("edge-1"), echo(body)).await.unwrap()).await;
        assert_eq!(end, Err(reason), "{body}");
    }
    let request = Request::new(service_name("other"), Bytes::new());
    let (_, end) = collect(cloud.call(peer_id("edge-1"), request).await.unwrap()).await;
    assert_eq!(end, Err(Reason::NoSuchService));
}

#[tokio::test(start_paused = true)]
async fn refuses_too_large_requests_and_replies() {
    let net = net();
    let (_edge, _) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let max = 8 * 1024 * 1024 - 1024;
    let (messages, _) = collect(cloud.call(peer_id("edge-1"), echo(vec![1; max])).await.unwrap()).await;
    assert_eq!(messages[0].len(), max);
    let error = cloud.call(peer_id("edge-1"), echo(vec![1; max + 1])).await.unwrap_err();
    assert_eq!(error, edge_transport::CallError::TooLarge { found: max + 1, max });
    let (_, end) =
        collect(cloud.call(peer_id("edge-1"), echo(format!("stream:1:{max}"))).await.unwrap()).await;
    assert_eq!(end, Err(Reason::TooLarge), "8 bytes too many");
    let (messages, _) = collect(cloud.call(peer_id("edge-1"), echo("after")).await.unwrap()).await;
    assert_eq!(messages, [Bytes::from("after")], "other calls are not affected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn loses_no_wake_up_on_several_threads() {
    let net = net();
    let (_left, _) = net.edge("left").await;
    let (_right, _) = net.edge("right").await;
    let cloud = net.caller("cloud").await;
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..32_u32 {
        let cloud = cloud.clone();
        calls.spawn(async move {
            for round in 0..50_u32 {
                let body =
                    if round % 10 == 0 { "stream:40:9000".to_owned() } else { format!("{index}/{round}") };
                let target = if index % 2 == 0 { "left" } else { "right" };
                let replies = cloud.call(peer_id(target), echo(body)).await.unwrap();
                let (messages, end) =
                    tokio::time::timeout(Duration::from_secs(20), collect(replies)).await.unwrap();
                assert_eq!((messages.len(), end.is_ok()), (if round % 10 == 0 { 40 } else { 1 }, true));
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    net.hub.close().await;
}

#[tokio::test(start_paused = true)]
async fn refuses_calls_over_the_inbound_limits() {
    let mut settings = PeerSettings::default();
    // One caller may have three of five calls.
    settings.session.max_inbound_calls = 5;
    settings.session.max_inbound_bytes = 1000;
    let net = net();
    let echo_service = session_common::Echo::default();
    let edge = Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(net.dialer.clone()))
        .service(service_name("echo"), echo_service.clone())
        .settings(settings)
        .start()
        .unwrap();
    edge.connected().await.unwrap();
    let cloud = net.caller("cloud").await;
    let mut body = b"never:".to_vec();
    body.resize(600, b'.');
    let mut first = cloud.call(peer_id("edge-1"), echo(body.clone())).await.unwrap();
    echo_service.started.notified().await;
    let (_, end) = collect(cloud.call(peer_id("edge-1"), echo(body)).await.unwrap()).await;
    assert_eq!(end, Err(Reason::Overloaded), "1200 bytes");
    let _others = (
        cloud.call(peer_id("edge-1"), echo("never")).await.unwrap(),
        cloud.call(peer_id("edge-1"), echo("never")).await.unwrap(),
    );
    let (_, end) = collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
    assert_eq!(end, Err(Reason::Overloaded), "a fourth call");
    let replica = net.caller("cloud/replica").await;
    let (_, end) = collect(replica.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
    assert_eq!(end, Err(Reason::Overloaded), "a fourth call, in a name that the same certificate proves");
    let other = net.caller("other").await;
    let (messages, _) = collect(other.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
    assert_eq!(messages.len(), 1, "another caller has room");
    echo_service.release.notify_one();
    assert!(first.next().await.unwrap().is_ok());
    let (messages, _) = collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
    assert_eq!(messages.len(), 1);
}

/// A caller that does not read what it asks for does not fill the memory of the target.
#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_credit_have_limited_memory() {
    let mut settings = PeerSettings::default();
    settings.session.max_inbound_bytes = 100_000;
    let net = net();
    let edge = Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(net.dialer.clone()))
        .service(service_name("echo"), session_common::Echo::default())
        .settings(settings)
        .start()
        .unwrap();
    edge.connected().await.unwrap();
    let caller = async |name: &str| {
        let mut settings = PeerSettings::default();
        settings.session.credit = 1;
        let dialer = Box::new(net.dialer.clone());
        let peer = Peer::builder(peer_id(name)).dialer(dialer).settings(settings).start().unwrap();
        peer.connected().await.unwrap();
        peer
    };
    // The first message overdraws the credit, and the second waits until the first is read.
    let unread = async |caller: &Peer| caller.call(peer_id("edge-1"), echo("stream:2:40000")).await.unwrap();
    let (hostile, genuine) = (caller("hostile").await, caller("genuine").await);
    let first = unread(&hostile).await;
    let second = unread(&hostile).await;
    let replica = caller("hostile/replica").await;
    let third = unread(&replica).await;
    for more in [second, third] {
        let (messages, end) = collect(more).await;
        assert_eq!((messages.len(), end), (1, Err(Reason::Overloaded)));
    }
    let (messages, end) = collect(unread(&genuine).await).await;
    assert_eq!((messages.len(), end.is_ok()), (2, true));
    let (messages, end) = collect(first).await;
    assert_eq!((messages.len(), end.is_ok()), (2, true), "what waited is sent");
    let (messages, _) = collect(unread(&hostile).await).await;
    assert_eq!(messages.len(), 2, "nothing waits any more");
}

/// A caller asks for more than the link of the target carries. Answers that wait for the link have limited memory too.
#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_the_link_have_limited_memory() {
    let mut settings = PeerSettings::default();
    settings.session.max_inbound_bytes = 100_000;
    let net = net();
    let path = Cuttable::new(net.dialer.clone());
    let edge = Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(path.clone()))
        .service(service_name("echo"), session_common::Echo::default())
        .settings(settings)
        .start()
        .unwrap();
    edge.connected().await.unwrap();
    let hostile = net.caller("hostile").await;
    path.stall();
    let mut calls = Vec::new();
    for _ in 0..20 {
        calls.push(hostile.call(peer_id("edge-1"), echo("stream:1:40000")).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    path.heal();
    let (mut answered, mut refused) = (0, 0);
    for call in calls {
        match collect(call).await.1 {
            Ok(_) => answered += 1,
            Err(reason) => {
                assert_eq!(reason, Reason::Overloaded);
                refused += 1;
            }
        }
    }
    assert!(
        // 100 kB may be queued and as many wait; the link has taken one or two.
        (1..=8).contains(&answered),
        "{answered} answers of 40 kB were kept, {refused} not"
    );
}

#[tokio::test(start_paused = true)]
async fn deadline_beyond_the_clock_means_none() {
    let net = net();
    let cloud = net.caller("cloud").await;
    let for_ever = echo("x").remaining(Duration::MAX);
    assert_eq!(
        collect(cloud.call(peer_id("edge-1"), for_ever).await.unwrap()).await.1,
        Err(Reason::PeerOffline)
    );
}

#[tokio::test]
async fn rejects_a_zero_ping_interval() {
    for interval in [Duration::ZERO, Duration::from_micros(999)] {
        let (listener, dialer) = listen();
        let (mut settings, mut bounds) = (PeerSettings::default(), HubSettings::default());
        settings.session.ping_interval = interval;
        bounds.session.ping_interval = interval;
        let refused = Peer::builder(peer_id("edge-1")).dialer(Box::new(dialer)).settings(settings).start();
        assert!(matches!(refused, Err(StartError::TooLow { found: 0, min: 1, .. })), "{refused:?}");
        let refused = Hub::builder().listener(listener).settings(bounds).start();
        assert!(matches!(refused, Err(StartError::TooLow { found: 0, min: 1, .. })), "{refused:?}");
    }
}
