//! Several paths to a hub: selection, failover and failback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edge_transport::hub::Hub;
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::memory;
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::{Peer, PeerState, Reason};
use session_common::{Echo, collect, echo, peer_id, service_name};
use tokio::time::{Instant, sleep};

const MAX_FRAME: usize = 16 * 1024 * 1024;

/// A path to the hub that can be blocked: dialing then gets no answer, as on a network that drops UDP.
#[derive(Clone)]
struct TestPath {
    name: &'static str,
    inner: Arc<dyn Dialer>,
    blocked: Arc<AtomicBool>,
    /// The hub's frames on a new link are held back until it is healed.
    stalls: Arc<AtomicBool>,
    last: Arc<Mutex<Option<Handle>>>,
}

#[async_trait::async_trait]
impl Dialer for TestPath {
    async fn dial(&self) -> Result<Link, LinkError> {
        if self.blocked.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let (link, handle) = faulty::wrap(self.inner.dial().await?, Plan::new(1));
        if self.stalls.load(Ordering::SeqCst) {
            handle.stall(Direction::Receiving);
        }
        *self.last.lock().unwrap() = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        self.name
    }
}

/// A hub with two paths to it; the first is blocked.
fn hub() -> (Hub, [TestPath; 2]) {
    let [(first, first_dialer), (second, second_dialer)] =
        ["first", "second"].map(|name| memory::listen(name, MAX_FRAME));
    let hub = Hub::builder()
        .listener(Box::new(first))
        .listener(Box::new(second))
        .allow_unauthenticated()
        .start()
        .unwrap();
    let path = |name, inner, blocked| TestPath {
        name,
        inner,
        blocked: Arc::new(AtomicBool::new(blocked)),
        stalls: Arc::default(),
        last: Arc::default(),
    };
    (hub, [path("first", first_dialer, true), path("second", second_dialer, false)])
}

fn edge(paths: &[TestPath; 2], service: &Echo) -> Peer {
    let mut builder = Peer::builder(peer_id("edge-1")).service(service_name("echo"), service.clone());
    for path in paths {
        builder = builder.dialer(Box::new(path.clone()));
    }
    builder.start().unwrap()
}

async fn cloud(path: &TestPath) -> Peer {
    let peer = Peer::builder(peer_id("cloud")).dialer(Box::new(path.clone())).start().unwrap();
    peer.connected().await.unwrap();
    peer
}

fn address(peer: &Peer) -> Option<String> {
    match peer.state() {
        PeerState::Connected { address, .. } => Some(address),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn path_that_drops_packets_costs_no_timeout() {
    let (_hub, paths) = hub();
    let before = Instant::now();
    let edge = edge(&paths, &Echo::default());
    edge.connected().await.unwrap();
    assert_eq!(address(&edge).as_deref(), Some("second"));
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fails_back_and_ends_open_calls() {
    let (hub, paths) = hub();
    let service = Echo::default();
    let edge = edge(&paths, &service);
    edge.connected().await.unwrap();
    let cloud = cloud(&paths[1]).await;
    let waiting = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    sleep(Duration::from_secs(90)).await;
    assert_eq!(address(&edge).as_deref(), Some("second"), "the first is still blocked");
    paths[0].blocked.store(false, Ordering::SeqCst);
    let mut switched = edge.watch();
    let is_first =
        |state: &PeerState| matches!(state, PeerState::Connected { address, .. } if address == "first");
    switched.wait_for(is_first).await.unwrap();
    assert_eq!(collect(waiting).await.1, Err(Reason::LinkLost));
    assert!(collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok());
    assert_eq!(hub.stats().open_calls, 0);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_during_failback() {
    let (_hub, paths) = hub();
    let cloud = {
        let mut builder = Peer::builder(peer_id("cloud"));
        for path in &paths {
            builder = builder.dialer(Box::new(path.clone()));
        }
        builder.start().unwrap()
    };
    cloud.connected().await.unwrap();
    let edge = Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(paths[1].clone()))
        .service(service_name("echo"), Echo::default())
        .start()
        .unwrap();
    edge.connected().await.unwrap();
    paths[0].stalls.store(true, Ordering::SeqCst);
    paths[0].blocked.store(false, Ordering::SeqCst);
    while paths[0].last.lock().unwrap().is_none() {
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(address(&cloud).as_deref(), Some("second"), "no hello on the preferred path yet");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let cloud = cloud.clone();
        calls.spawn(async move {
            collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok()
        });
    }
    sleep(Duration::from_secs(2)).await;
    assert!(calls.try_join_next().is_none(), "no call is sent before the hello");
    paths[0].last.lock().unwrap().as_ref().unwrap().heal();
    assert!(calls.join_all().await.into_iter().all(|answered| answered));
    assert_eq!(address(&cloud).as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn fails_over_at_once() {
    let (_hub, paths) = hub();
    paths[0].blocked.store(false, Ordering::SeqCst);
    let service = Echo::default();
    let edge = edge(&paths, &service);
    edge.connected().await.unwrap();
    assert_eq!(address(&edge).as_deref(), Some("first"));
    let cloud = cloud(&paths[1]).await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    paths[0].blocked.store(true, Ordering::SeqCst);
    paths[0].last.lock().unwrap().as_ref().unwrap().cut(Direction::Both);
    let before = Instant::now();
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    let mut replaced = edge.watch();
    let is_second =
        |state: &PeerState| matches!(state, PeerState::Connected { address, .. } if address == "second");
    replaced.wait_for(is_second).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
}

/// The old link serves until the new one is there, and an unreachable hub costs nothing.
#[tokio::test(start_paused = true)]
async fn redial_replaces_the_link_once_another_is_there() {
    let (_hub, paths) = hub();
    let service = Echo::default();
    let edge = edge(&paths, &service);
    edge.connected().await.unwrap();
    let cloud = cloud(&paths[1]).await;
    let session = |peer: &Peer| match peer.state() {
        PeerState::Connected { since, .. } => Some(since),
        _ => None,
    };
    let before = session(&edge).unwrap();

    paths[1].blocked.store(true, Ordering::SeqCst);
    edge.redial();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(session(&edge), Some(before), "the old link stays");
    assert!(collect(cloud.call(peer_id("edge-1"), echo("hi")).await.unwrap()).await.1.is_ok());

    paths[1].blocked.store(false, Ordering::SeqCst);
    let mut state = edge.watch();
    let new = state.wait_for(|state| matches!(state, PeerState::Connected { since, .. } if *since > before));
    tokio::time::timeout(Duration::from_secs(30), new).await.unwrap().unwrap();
    assert_eq!(address(&edge).as_deref(), Some("second"));
    let after = session(&edge);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(session(&edge), after, "one redial replaces one link");
    assert!(collect(cloud.call(peer_id("edge-1"), echo("hi")).await.unwrap()).await.1.is_ok());
}
