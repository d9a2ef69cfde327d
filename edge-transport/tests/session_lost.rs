//! Calls whose link is lost: they end at both ends, with a correct reason.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod session_common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edge_transport::advanced::PeerSettings;
use edge_transport::hub::Hub;
use edge_transport::link::Dialer;
use edge_transport::{Peer, Reason};
use session_common::cuttable::Cuttable;
use session_common::{Echo, collect, echo, net, peer_id, service_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

/// Forwards a unix socket. Cuts the first connection after a number of bytes in one direction; later ones are not cut.
struct Cutter {
    path: PathBuf,
    passed: Arc<[AtomicU64; 2]>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Cutter {
    fn new(path: PathBuf, hub: PathBuf, cut: Option<(Direction, u64)>) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let passed = Arc::new([const { AtomicU64::new(0) }; 2]);
        let counts = Arc::clone(&passed);
        let task = tokio::spawn(async move {
            let mut cut = cut;
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = UnixStream::connect(&hub).await.unwrap();
                let (bounds, counts) = (cut.take(), Arc::clone(&counts));
                connections.spawn(async move {
                    let bound = |direction| match bounds {
                        Some((cut, bytes)) if cut == direction => bytes,
                        _ => u64::MAX,
                    };
                    let ((near_read, near_write), (far_read, far_write)) =
                        (near.into_split(), far.into_split());
                    // Both directions end with the first.
                    tokio::select! {
                        () = forward(near_read, far_write, bound(Direction::Up), &counts[0]) => {}
                        () = forward(far_read, near_write, bound(Direction::Down), &counts[1]) => {}
                    }
                });
            }
        });
        Self { path, passed, task }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut bound: u64,
    passed: &AtomicU64,
) {
    let mut buffer = [0; 4096];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        let taken = bound.min(read as u64);
        if to.write_all(&buffer[..taken as usize]).await.is_err() {
            return;
        }
        passed.fetch_add(taken, Ordering::SeqCst);
        bound -= taken;
        if taken < read as u64 || bound == 0 {
            return;
        }
    }
}

fn short_backoff() -> PeerSettings {
    let mut settings = PeerSettings::default();
    settings.backoff_initial = Duration::from_millis(1);
    settings.backoff_max = Duration::from_millis(1);
    settings
}

fn peer(name: &str, path: &Path, service: Option<&Echo>) -> Peer {
    let dialer = ends::dial_uds(path);
    let mut builder = Peer::builder(peer_id(name)).dialer(Box::new(dialer)).settings(short_backoff());
    if let Some(service) = service {
        builder = builder.service(service_name("echo"), service.clone());
    }
    builder.start().unwrap()
}

/// Repeats a call over links, one of them cut, until it succeeds. Returns the bytes in each direction on the cut link, and the
/// failures.
async fn calls(
    dir: &Path,
    name: u64,
    at_edge: bool,
    cut: Option<(Direction, u64)>,
) -> ([u64; 2], Vec<Reason>) {
    let front = dir.join(format!("{name}.sock"));
    let cutter = Cutter::new(front, dir.join("hub.sock"), cut);
    let hub = dir.join("hub.sock");
    let (edge_path, cloud_path) = if at_edge { (&cutter.path, &hub) } else { (&hub, &cutter.path) };
    let service = Echo::default();
    let edge = peer(&format!("edge-{name}"), edge_path, Some(&service));
    let cloud = peer(&format!("cloud-{name}"), cloud_path, None);
    edge.connected().await.unwrap();
    let mut failures = Vec::new();
    loop {
        let begun = service.finished.load(Ordering::SeqCst);
        cloud.connected().await.unwrap();
        let request = echo("x".repeat(30)).metadata("closing");
        let Ok(call) = cloud.call(peer_id(&format!("edge-{name}")), request).await else { continue };
        let (messages, end) = collect(call).await;
        let begun = service.finished.load(Ordering::SeqCst) - begun;
        match end {
            Ok(closing) => {
                assert_eq!((messages, closing), (vec!["x".repeat(30).into()], "closing".into()));
                assert!(begun >= 1, "{at_edge} {cut:?}");
                break;
            }
            Err(reason @ (Reason::PeerOffline | Reason::LinkLost)) => failures.push(reason),
            Err(other) => panic!("{at_edge} {cut:?}: {other}"),
        }
    }
    // Only failed calls that may have started count in addition to the successful one.
    let lost = failures.iter().filter(|reason| **reason == Reason::LinkLost).count();
    let begun = service.finished.load(Ordering::SeqCst);
    assert!((1..=1 + lost).contains(&begun), "{at_edge} {cut:?}: {begun} begun, {failures:?}");
    let passed = [0, 1].map(|way: usize| cutter.passed[way].load(Ordering::SeqCst));
    edge.close().await;
    cloud.close().await;
    (passed, failures)
}

/// Cuts at every byte offset of request and reply, on the requester's and on the target's link.
#[tokio::test]
async fn only_link_lost_leaves_the_start_of_a_call_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let listener = ends::uds(&dir.path().join("hub.sock")).await;
    let hub = Hub::builder().listener(listener).start().unwrap();
    let (mut name, mut lost) = (0, 0);
    for at_edge in [true, false] {
        let (whole, failures) = calls(dir.path(), name, at_edge, None).await;
        assert_eq!(failures, []);
        for (direction, bytes) in [Direction::Up, Direction::Down].into_iter().zip(whole) {
            assert!(bytes > 50, "{bytes} bytes {direction:?}");
            for offset in 0..=bytes {
                name += 1;
                lost += calls(dir.path(), name, at_edge, Some((direction, offset))).await.1.len();
            }
        }
        name += 1;
    }
    hub.close().await;
    assert_eq!(hub.stats().malformed, 0);
    assert!(lost > 50, "{lost} calls were lost; expected more than 50");
}

fn edge_with(dialer: impl Dialer + 'static, service: &Echo) -> Peer {
    Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(dialer))
        .service(service_name("echo"), service.clone())
        .start()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn lost_hub_ends_calls_at_both_ends_at_once() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let call = cloud.call(peer_id("edge-1"), echo("never").remaining(Duration::from_secs(60))).await.unwrap();
    service.started.notified().await;
    // More data than the credit of the call, so that the service waits.
    let mut stream = cloud.call(peer_id("edge-1"), echo("stream:1000:10000")).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    let before = Instant::now();
    net.hub.close().await;
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    assert_eq!(collect(stream).await.1, Err(Reason::LinkLost));
    while service.finished.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert!(service.sent.load(Ordering::SeqCst) < 100);
}

#[tokio::test(start_paused = true)]
async fn service_is_notified_at_once_of_a_lost_requester() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let mut call = cloud.call(peer_id("edge-1"), echo("stream:1000:10000")).await.unwrap();
    assert!(call.next().await.unwrap().is_ok());
    let before = Instant::now();
    cloud.close().await;
    while service.finished.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert!(service.sent.load(Ordering::SeqCst) < 100);
}

/// A call that lost its link continues, and its end does not end a call on the next link.
#[tokio::test(start_paused = true)]
async fn late_replies_do_not_reach_calls_of_the_next_link() {
    let net = net();
    let dialer = Cuttable::new(net.dialer.clone());
    let service = Echo::default();
    let _edge = edge_with(dialer.clone(), &service);
    net.wait_for_peer("edge-1").await;
    let cloud = net.caller("cloud").await;
    let first = cloud.call(peer_id("edge-1"), echo("never:first")).await.unwrap();
    service.started.notified().await;
    dialer.cut();
    assert_eq!(collect(first).await.1, Err(Reason::LinkLost));
    net.wait_for_peer("edge-1").await;
    let second = cloud.call(peer_id("edge-1"), echo("never:second")).await.unwrap();
    service.started.notified().await;
    // Calls are released in order.
    service.release.notify_one();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(service.finished.load(Ordering::SeqCst), 1);
    assert_eq!(net.hub.stats().open_calls, 1, "the second call is still open");
    service.release.notify_one();
    assert_eq!(collect(second).await.0, ["never:second"]);
}

#[tokio::test(start_paused = true)]
async fn request_reaches_only_its_session() {
    let net = net();
    let dialer = Cuttable::new(net.dialer.clone());
    let service = Echo::default();
    let edge = edge_with(dialer.clone(), &service);
    net.wait_for_peer("edge-1").await;
    let cloud = net.caller("cloud").await;
    let session =
        || net.hub.peers().into_iter().find(|info| info.peer == peer_id("edge-1")).map(|info| info.session);
    let newer_than = async |older| loop {
        match session() {
            Some(newer) if newer != older => return newer,
            _ => sleep(Duration::from_millis(1)).await,
        }
    };
    let ask =
        async |to| collect(cloud.call(peer_id("edge-1"), echo("x").to_session(to)).await.unwrap()).await.1;
    let first = session().unwrap();
    assert!(ask(first).await.is_ok());
    dialer.cut();
    let second = newer_than(first).await;
    assert_eq!(ask(first).await, Err(Reason::WrongSession));
    assert_eq!(second.instance, first.instance);
    assert!(ask(second).await.is_ok());
    edge.close().await;
    let _next = edge_with(dialer, &service);
    newer_than(second).await;
    assert_eq!(ask(second).await, Err(Reason::WrongSession), "another instance");
    assert_eq!(service.finished.load(Ordering::SeqCst), 2);
}
