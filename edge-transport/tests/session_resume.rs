//! Calls that outlive their link, their hub, and the peers around them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails and speaks by them")]

mod session_common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edge_transport::hub::Hub;
use edge_transport::link::memory::{self, MemoryDialer};
use edge_transport::link::uds::{self, UdsDialer};
use edge_transport::link::{Dialer, Limits, Link, LinkError};
use edge_transport::{Epoch, Peer, PeerSettings, Reason};
use session_common::cuttable::Cuttable;
use session_common::{Echo, collect, echo, net, peer_id, service_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

/// Forwards a unix socket. Of the first connection it lets so many bytes through in one direction, then cuts it; later ones stay whole.
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
                    // Whichever ends first takes the other with it.
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

fn impatient() -> PeerSettings {
    let mut settings = PeerSettings::default();
    settings.retry_first = Duration::from_millis(1);
    settings.retry_cap = Duration::from_millis(1);
    settings.connect_wait = Duration::from_secs(20);
    settings
}

fn peer(name: &str, path: &Path, service: Option<&Echo>) -> Peer {
    let dialer = UdsDialer::new(path, Limits::default()).unwrap();
    let mut builder = Peer::builder(peer_id(name)).dialer(Box::new(dialer)).settings(impatient());
    if let Some(service) = service {
        builder = builder.service(service_name("echo"), service.clone());
    }
    builder.start().unwrap()
}

/// One call over links of which one is cut. Returns how many bytes went each way on that link.
async fn one_call(dir: &Path, name: u64, at_edge: bool, cut: Option<(Direction, u64)>) -> [u64; 2] {
    let front = dir.join(format!("{name}.sock"));
    let cutter = Cutter::new(front, dir.join("hub.sock"), cut);
    let hub = dir.join("hub.sock");
    let (edge_path, cloud_path) = if at_edge { (&cutter.path, &hub) } else { (&hub, &cutter.path) };
    let service = Echo::default();
    let edge = peer(&format!("edge-{name}"), edge_path, Some(&service));
    let cloud = peer(&format!("cloud-{name}"), cloud_path, None);
    edge.connected().await.unwrap();
    let end = loop {
        let request = echo(&format!("edge-{name}"), "x".repeat(30)).metadata("closing").repeatable();
        match collect(cloud.call(request).await.unwrap()).await {
            // The cut came before the call.
            (messages, Err(Reason::PeerOffline)) => assert!(messages.is_empty()),
            end => break end,
        }
    };
    assert_eq!(end, (vec!["x".repeat(30).into()], Ok("closing".into())), "{at_edge} {cut:?}");
    assert_eq!(service.finished.load(Ordering::SeqCst), 1, "{at_edge} {cut:?}");
    let passed = [0, 1].map(|way: usize| cutter.passed[way].load(Ordering::SeqCst));
    edge.close().await;
    cloud.close().await;
    passed
}

/// Anchors (f) 5: cut at every byte offset of request and answer, on the requester's link and on the target's.
#[tokio::test]
async fn a_link_cut_after_any_byte_costs_no_answer_and_no_second_execution() {
    let dir = tempfile::tempdir().unwrap();
    let listener = uds::bind(dir.path().join("hub.sock"), Limits::default()).unwrap();
    let hub = Hub::builder().listener(Box::new(listener)).start().unwrap();
    let mut name = 0;
    for at_edge in [true, false] {
        let whole = one_call(dir.path(), name, at_edge, None).await;
        for (direction, bytes) in [Direction::Up, Direction::Down].into_iter().zip(whole) {
            assert!(bytes > 50, "{bytes} bytes {direction:?}");
            for offset in 0..=bytes {
                name += 1;
                one_call(dir.path(), name, at_edge, Some((direction, offset))).await;
            }
        }
        name += 1;
    }
    hub.close().await;
    assert_eq!(hub.stats().malformed, 0);
}

fn edge_with(dialer: impl Dialer + 'static, epoch: u64, service: &Echo) -> Peer {
    Peer::builder(peer_id("edge-1"))
        .epoch(Epoch::new(epoch))
        .dialer(Box::new(dialer))
        .service(service_name("echo"), service.clone())
        .start()
        .unwrap()
}

/// Dials whatever hub is there now.
#[derive(Clone)]
struct Whichever(Arc<std::sync::Mutex<MemoryDialer>>);

#[async_trait::async_trait]
impl Dialer for Whichever {
    async fn dial(&self) -> Result<Link, LinkError> {
        let dialer = self.0.lock().unwrap().clone();
        dialer.dial().await
    }

    fn address(&self) -> &str {
        "whichever"
    }
}

fn hub() -> (Hub, MemoryDialer) {
    let (listener, dialer) = memory::listen("hub", 16 * 1024 * 1024);
    (Hub::builder().listener(Box::new(listener)).allow_unauthenticated().start().unwrap(), dialer)
}

/// Anchors (f) 7, the hub's part: it remembers nothing, and need not.
#[tokio::test(start_paused = true)]
async fn a_call_outlives_the_hub() {
    let (first, dialer) = hub();
    let dialer = Whichever(Arc::new(std::sync::Mutex::new(dialer)));
    let service = Echo::default();
    let _edge = edge_with(dialer.clone(), 1, &service);
    let cloud = Peer::builder(peer_id("cloud")).dialer(Box::new(dialer.clone())).start().unwrap();
    cloud.connected().await.unwrap();
    let mut calls = vec![cloud.call(echo("edge-1", "never")).await.unwrap()];
    service.started.notified().await;
    calls.push(cloud.call(echo("edge-1", "stream:400:10000")).await.unwrap());
    assert!(calls[1].next().await.unwrap().is_ok());
    first.close().await;
    service.release.notify_one();
    sleep(Duration::from_secs(5)).await;
    let (_second, next) = hub();
    *dialer.0.lock().unwrap() = next;
    assert_eq!(collect(calls.pop().unwrap()).await.0.len(), 399);
    assert!(collect(calls.pop().unwrap()).await.1.is_ok());
    assert_eq!(service.finished.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_of_the_target_only_what_may_be_repeated_is_sent_again() {
    let net = net();
    let dialer = Cuttable::new(net.dialer.clone());
    let (old, new) = (Echo::default(), Echo::default());
    let edge = edge_with(dialer.clone(), 1, &old);
    let cloud = net.caller("cloud").await;
    let once = cloud.call(echo("edge-1", "never")).await.unwrap();
    old.started.notified().await;
    let again = cloud.call(echo("edge-1", "never").repeatable()).await.unwrap();
    old.started.notified().await;
    dialer.cut();
    edge.close().await;
    let _edge = edge_with(dialer, 2, &new);
    assert_eq!(collect(once).await.1, Err(Reason::LinkLost), "the earlier life may have carried it out");
    new.started.notified().await;
    new.release.notify_one();
    assert!(collect(again).await.1.is_ok());
    assert_eq!(new.finished.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_target_stays_away_ends_with_its_window() {
    let net = net();
    let service = Echo::default();
    let edge = edge_with(net.dialer.clone(), 1, &service);
    let cloud = net.caller("cloud").await;
    edge.connected().await.unwrap();
    let call = cloud.call(echo("edge-1", "never")).await.unwrap();
    let bounded = echo("edge-1", "never").remaining(Duration::from_secs(8));
    let bounded = cloud.call(bounded).await.unwrap();
    service.started.notified().await;
    let before = Instant::now();
    edge.close().await;
    assert_eq!(collect(bounded).await.1, Err(Reason::Deadline));
    assert_eq!(before.elapsed().as_secs(), 8);
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    assert_eq!(before.elapsed().as_secs(), 30);
    let late = cloud.call(echo("edge-1", "x")).await.unwrap();
    assert_eq!(collect(late).await.1, Err(Reason::PeerOffline), "new calls are refused at once");
}

#[tokio::test(start_paused = true)]
async fn a_service_is_told_when_its_requester_has_been_away_for_too_long() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    // More than its credit, so that the service waits for it.
    let mut call = cloud.call(echo("edge-1", "stream:1000:10000")).await.unwrap();
    assert!(call.next().await.unwrap().is_ok());
    let before = Instant::now();
    cloud.close().await;
    while service.finished.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_secs(1)).await;
    }
    assert!((30..=31).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    assert!(service.sent.load(Ordering::SeqCst) < 100);
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_beyond_the_bound_is_not_kept_and_its_call_says_so() {
    let net = net();
    let dialer = Cuttable::new(net.dialer.clone());
    let service = Echo::default();
    let mut settings = PeerSettings::default();
    settings.session.max_kept = 50_000;
    let _edge = Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(dialer.clone()))
        .service(service_name("echo"), service.clone())
        .settings(settings)
        .start()
        .unwrap();
    let cloud = net.caller("cloud").await;
    net.edge_is_there("edge-1").await;
    let small = cloud.call(echo("edge-1", "stream:4:10000")).await.unwrap();
    let large = cloud.call(echo("edge-1", "stream:40:10000")).await.unwrap();
    while service.sent.load(Ordering::SeqCst) < 20 {
        sleep(Duration::from_millis(1)).await;
    }
    dialer.cut();
    assert_eq!(collect(large).await.1, Err(Reason::LinkLost));
    assert!(collect(small).await.1.is_ok());
}

/// Anchors (e) 17: a peer or a hub that does not resume is a peer or a hub all the same.
#[tokio::test(start_paused = true)]
async fn without_resumption_at_one_end_calls_end_with_their_link() {
    let without = || {
        let mut settings = PeerSettings::default();
        settings.session.resume_window = Duration::ZERO;
        settings
    };
    for (edge_resumes, cloud_resumes) in [(false, true), (true, false)] {
        let net = net();
        let dialer = Cuttable::new(net.dialer.clone());
        let service = Echo::default();
        let settings = |resumes| if resumes { PeerSettings::default() } else { without() };
        let _edge = Peer::builder(peer_id("edge-1"))
            .dialer(Box::new(dialer.clone()))
            .service(service_name("echo"), service.clone())
            .settings(settings(edge_resumes))
            .start()
            .unwrap();
        net.edge_is_there("edge-1").await;
        let cloud = net.caller_with("cloud", settings(cloud_resumes)).await;
        assert!(collect(cloud.call(echo("edge-1", "x")).await.unwrap()).await.1.is_ok());
        let call = cloud.call(echo("edge-1", "never")).await.unwrap();
        service.started.notified().await;
        let before = Instant::now();
        dialer.cut();
        assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_keeps_its_bounds_while_its_own_peer_has_no_link() {
    let net = net();
    let (_edge, service) = net.edge("edge-1").await;
    let cloud = net.caller("cloud").await;
    let bounded = echo("edge-1", "never").remaining(Duration::from_secs(8));
    let calls = [bounded, echo("edge-1", "never")].map(|request| {
        let cloud = cloud.clone();
        tokio::spawn(async move { collect(cloud.call(request).await.unwrap()).await.1 })
    });
    service.started.notified().await;
    service.started.notified().await;
    let before = Instant::now();
    net.hub.close().await;
    let [bounded, open] = calls;
    assert_eq!(bounded.await.unwrap(), Err(Reason::Deadline));
    assert_eq!(before.elapsed().as_secs(), 8);
    assert_eq!(open.await.unwrap(), Err(Reason::LinkLost));
    assert_eq!(before.elapsed().as_secs(), 30);
}
