//! Several ways to a hub: which one is used, and when another is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails and speaks by them")]

mod session_common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edge_transport::hub::Hub;
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::memory::{self, MemoryDialer};
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::{Peer, PeerState, Reason};
use session_common::{Echo, collect, echo, peer_id, service_name};
use tokio::time::{Instant, sleep};

const MAX_FRAME: usize = 16 * 1024 * 1024;

/// A way to the hub that can be blocked: then nobody answers on it, as on a network that drops UDP.
#[derive(Clone)]
struct Road {
    name: &'static str,
    inner: MemoryDialer,
    blocked: Arc<AtomicBool>,
    /// What the hub says on a new link does not come until it is healed.
    stalls: Arc<AtomicBool>,
    last: Arc<Mutex<Option<Handle>>>,
}

#[async_trait::async_trait]
impl Dialer for Road {
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

/// A hub with two ways to it; the first is blocked.
fn hub() -> (Hub, [Road; 2]) {
    let [(first, first_dialer), (second, second_dialer)] =
        ["first", "second"].map(|name| memory::listen(name, MAX_FRAME));
    let hub = Hub::builder()
        .listener(Box::new(first))
        .listener(Box::new(second))
        .allow_unauthenticated()
        .start()
        .unwrap();
    let road = |name, inner, blocked| Road {
        name,
        inner,
        blocked: Arc::new(AtomicBool::new(blocked)),
        stalls: Arc::default(),
        last: Arc::default(),
    };
    (hub, [road("first", first_dialer, true), road("second", second_dialer, false)])
}

fn edge(roads: &[Road; 2], service: &Echo) -> Peer {
    let mut builder = Peer::builder(peer_id("edge-1")).service(service_name("echo"), service.clone());
    for road in roads {
        builder = builder.dialer(Box::new(road.clone()));
    }
    builder.start().unwrap()
}

async fn cloud(road: &Road) -> Peer {
    let peer = Peer::builder(peer_id("cloud")).dialer(Box::new(road.clone())).start().unwrap();
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
async fn a_road_that_swallows_packets_costs_a_moment_and_not_its_timeout() {
    let (_hub, roads) = hub();
    let before = Instant::now();
    let edge = edge(&roads, &Echo::default());
    edge.connected().await.unwrap();
    assert_eq!(address(&edge).as_deref(), Some("second"));
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn when_the_better_road_is_free_again_it_is_used_and_open_calls_end() {
    let (hub, roads) = hub();
    let service = Echo::default();
    let edge = edge(&roads, &service);
    edge.connected().await.unwrap();
    let cloud = cloud(&roads[1]).await;
    let waiting = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    sleep(Duration::from_secs(90)).await;
    assert_eq!(address(&edge).as_deref(), Some("second"), "the first is still blocked");
    roads[0].blocked.store(false, Ordering::SeqCst);
    let mut switched = edge.watch();
    let is_first =
        |state: &PeerState| matches!(state, PeerState::Connected { address, .. } if address == "first");
    switched.wait_for(is_first).await.unwrap();
    assert_eq!(collect(waiting).await.1, Err(Reason::LinkLost));
    assert!(collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok());
    assert_eq!(hub.stats().open_calls, 0);
}

#[tokio::test(start_paused = true)]
async fn calls_made_while_the_road_changes_wait_for_it() {
    let (_hub, roads) = hub();
    let cloud = {
        let mut builder = Peer::builder(peer_id("cloud"));
        for road in &roads {
            builder = builder.dialer(Box::new(road.clone()));
        }
        builder.start().unwrap()
    };
    cloud.connected().await.unwrap();
    let edge = Peer::builder(peer_id("edge-1"))
        .dialer(Box::new(roads[1].clone()))
        .service(service_name("echo"), Echo::default())
        .start()
        .unwrap();
    edge.connected().await.unwrap();
    roads[0].stalls.store(true, Ordering::SeqCst);
    roads[0].blocked.store(false, Ordering::SeqCst);
    while roads[0].last.lock().unwrap().is_none() {
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(address(&cloud).as_deref(), Some("second"), "the better road has not said hello");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let cloud = cloud.clone();
        calls.spawn(async move {
            collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok()
        });
    }
    sleep(Duration::from_secs(2)).await;
    assert!(calls.try_join_next().is_none(), "nothing goes over a road that has not said hello");
    roads[0].last.lock().unwrap().as_ref().unwrap().heal();
    assert!(calls.join_all().await.into_iter().all(|answered| answered));
    assert_eq!(address(&cloud).as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn a_road_that_is_lost_is_replaced_by_another_at_once() {
    let (_hub, roads) = hub();
    roads[0].blocked.store(false, Ordering::SeqCst);
    let service = Echo::default();
    let edge = edge(&roads, &service);
    edge.connected().await.unwrap();
    assert_eq!(address(&edge).as_deref(), Some("first"));
    let cloud = cloud(&roads[1]).await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    roads[0].blocked.store(true, Ordering::SeqCst);
    roads[0].last.lock().unwrap().as_ref().unwrap().cut(Direction::Both);
    let before = Instant::now();
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    let mut replaced = edge.watch();
    let is_second =
        |state: &PeerState| matches!(state, PeerState::Connected { address, .. } if address == "second");
    replaced.wait_for(is_second).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
}
