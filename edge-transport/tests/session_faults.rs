//! Peers and a hub over links with injected faults.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failing test panics and prints its seed"
)]

mod session_common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edge_transport::advanced::PeerSettings;
use edge_transport::link::faulty::{self, Faults, Handle, Plan};
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::{Peer, Reason};
use session_common::{Echo, collect, echo, net, peer_id, service_name};
use tokio::time::{Instant, timeout};

/// A dialer whose links have faults, each by the plan for its number.
#[derive(Clone)]
struct Faulty {
    inner: Arc<dyn Dialer>,
    plan: Arc<dyn Fn(u64) -> Plan + Send + Sync>,
    dials: Arc<AtomicU64>,
    last: Arc<Mutex<Option<Handle>>>,
}

impl Faulty {
    fn new(inner: Arc<dyn Dialer>, plan: impl Fn(u64) -> Plan + Send + Sync + 'static) -> Self {
        Self { inner, plan: Arc::new(plan), dials: Arc::default(), last: Arc::default() }
    }
}

#[async_trait::async_trait]
impl Dialer for Faulty {
    async fn dial(&self) -> Result<Link, LinkError> {
        let number = self.dials.fetch_add(1, Ordering::SeqCst);
        let (link, handle) = faulty::wrap(self.inner.dial().await?, (self.plan)(number));
        *self.last.lock().unwrap() = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        "faulty"
    }
}

fn edge(dialer: Faulty) -> (Peer, Echo) {
    let echo = Echo::default();
    let builder =
        Peer::builder(peer_id("edge-1")).dialer(Box::new(dialer)).service(service_name("echo"), echo.clone());
    (builder.start().unwrap(), echo)
}

#[tokio::test(start_paused = true)]
async fn calls_end_and_start_at_most_once_over_cut_links() {
    let net = net();
    let faults = |number: u64, salt: u64| Faults::default().with_cut_after(2 + (number * 7 + salt) % 23);
    let dialer = Faulty::new(net.dialer.clone(), move |number| {
        Plan::new(number).with_sending(faults(number, 3)).with_receiving(faults(number, 11))
    });
    let (_edge, service) = edge(dialer.clone());
    let cloud = net.caller("cloud").await;
    let (mut good, mut offline, mut lost) = (0, 0, 0);
    for index in 0..400 {
        let body = if index % 3 == 0 { "stream:5:100" } else { "x" };
        let before = Instant::now();
        match collect(cloud.call(peer_id("edge-1"), echo(body)).await.unwrap()).await.1 {
            Ok(_) => good += 1,
            Err(Reason::PeerOffline) => offline += 1,
            Err(Reason::LinkLost) => lost += 1,
            Err(other) => panic!("{other}"),
        }
        // If only one direction is cut, the liveness timeout detects it.
        assert!(before.elapsed() <= Duration::from_secs(22), "{:?}", before.elapsed());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(good > 250 && lost > 20, "{good} good, {offline} offline, {lost} lost");
    assert!(dialer.dials.load(Ordering::SeqCst) > 10);
    let begun = service.finished.load(Ordering::SeqCst);
    assert!((good..=good + lost).contains(&begun), "{begun} begun, {good} good, {lost} lost");
    assert_eq!(net.hub.stats().open_calls, 0);
}

#[tokio::test(start_paused = true)]
async fn calls_end_by_their_deadline_over_corrupting_links() {
    let faults = Faults::default().with_drop(30).with_duplicate(30).with_corrupt(30).with_reorder(3);
    for seed in 0..10 {
        eprintln!("seed {seed}");
        let net = net();
        let dialer = Faulty::new(net.dialer.clone(), move |number| {
            Plan::new(seed * 1000 + number).with_sending(faults).with_receiving(faults)
        });
        let (_edge, _) = edge(dialer);
        let cloud = net.caller("cloud").await;
        for index in 0..100 {
            let body = if index % 3 == 0 { "stream:20:100" } else { "x" };
            let request = echo(body).remaining(Duration::from_secs(1));
            let replies = cloud.call(peer_id("edge-1"), request).await.unwrap();
            // The faults decide how the call ends, but it must end.
            let _ = timeout(Duration::from_millis(1010), collect(replies)).await.unwrap();
        }
        // The cancel of the last call may still be in flight.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(net.hub.stats().open_calls, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn both_ends_detect_and_replace_half_open_links() {
    let net = net();
    let dialer = Faulty::new(net.dialer.clone(), Plan::new);
    let (edge, service) = edge(dialer.clone());
    edge.connected().await.unwrap();
    let mut settings = PeerSettings::default();
    settings.session.ping_interval = Duration::from_secs(2);
    let cloud = net.caller_with("cloud", settings).await;
    let call = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    let before = Instant::now();
    dialer.last.lock().unwrap().as_ref().unwrap().half_open();
    service.release.notify_one();
    assert_eq!(collect(call).await.1, Err(Reason::LinkLost));
    assert!(before.elapsed() <= Duration::from_secs(11), "{:?}", before.elapsed());
    edge.connected().await.unwrap();
    net.wait_for_peer("edge-1").await;
    assert!(collect(cloud.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok());
    assert_eq!(dialer.dials.load(Ordering::SeqCst), 2);
    assert_eq!(service.finished.load(Ordering::SeqCst), 2);
}
