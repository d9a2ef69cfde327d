//! A proxy at several hubs, over real sessions.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::{driver_name, node};
use csi_proxy::advanced::reachability::NodeChange;
use csi_proxy::{
    Call, CallId, ClockTerms, Fault, MethodPath, NodeId, NodeWatch, Outcome, Reachability, Relay, Replies,
    RetryRelay, ServeCsi as _, SessionRelay, conformance,
};
use edge_transport::link::{Dialer, Link, LinkError, faulty, memory};
use edge_transport::{Hub, HubSet, Peer, PeerId};
use tokio::time::{Instant, timeout};

/// The longest wait of a test; only a failure takes so long.
const BOUND: Duration = Duration::from_secs(60);

/// Counts its calls and answers each with the name of the agent.
#[derive(Debug, Clone)]
struct Counter(&'static str, Arc<AtomicU64>);

#[async_trait]
impl Relay for Counter {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(Replies::unary(self.0, Outcome::ok()))
    }
}

/// The hub that listens at an address now.
type Listening = Arc<Mutex<Option<Arc<dyn Dialer>>>>;

/// Hubs that can be stopped and started again at their addresses.
struct Hubs {
    names: Vec<&'static str>,
    listeners: Vec<Listening>,
    hubs: Vec<Hub>,
}

/// Dials whichever hub listens at an address now.
#[derive(Clone)]
struct AtAddress(&'static str, Listening);

#[async_trait]
impl Dialer for AtAddress {
    async fn dial(&self) -> Result<Link, LinkError> {
        let dialer = self.1.lock().unwrap().clone();
        dialer.ok_or(LinkError::Lost)?.dial().await
    }

    fn address(&self) -> &str {
        self.0
    }
}

fn start(name: &str) -> (Hub, Arc<dyn Dialer>) {
    let (listener, dialer) = memory::listen(name, 16 << 20);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().presence();
    (hub.start().unwrap(), dialer)
}

impl Hubs {
    fn start(names: &[&'static str]) -> Self {
        let started = names.iter().map(|name| start(name));
        let (hubs, dialers): (Vec<_>, Vec<_>) = started.unzip();
        let listeners = dialers.into_iter().map(|dialer| Arc::new(Mutex::new(Some(dialer)))).collect();
        Self { names: names.to_vec(), listeners, hubs }
    }

    async fn stop(&self, hub: usize) {
        *self.listeners[hub].lock().unwrap() = None;
        self.hubs[hub].close().await;
    }

    fn restart(&mut self, hub: usize) {
        let (started, dialer) = start(self.names[hub]);
        self.hubs[hub] = started;
        *self.listeners[hub].lock().unwrap() = Some(dialer);
    }

    fn dialer(&self, hub: usize) -> Box<dyn Dialer> {
        Box::new(AtAddress(self.names[hub], Arc::clone(&self.listeners[hub])))
    }

    fn dialers(&self) -> Vec<Box<dyn Dialer>> {
        (0..self.names.len()).map(|hub| self.dialer(hub)).collect()
    }

    fn proxy(&self) -> HubSet {
        let proxy = Peer::builder(PeerId::new("proxy").unwrap()).dialers(self.dialers()).max_frame(8 << 20);
        proxy.start_at_each_hub().unwrap()
    }

    /// The agent of a node at one of the hubs.
    async fn agent(&self, hubs: &[usize], relay: impl Relay + 'static) -> Peer {
        let dialers = hubs.iter().map(|hub| self.dialer(*hub));
        let agent = Peer::builder(PeerId::new("edge-1").unwrap()).equal_dialers(dialers);
        let agent = agent.max_frame(8 << 20).serve_csi(relay).start().unwrap();
        timeout(BOUND, agent.connected()).await.unwrap().unwrap();
        agent
    }
}

fn call() -> Call {
    let method = MethodPath::new("/csi.v1.Controller/ControllerGetCapabilities").unwrap();
    Call::new(CallId::new(), node(), driver_name(), method, Bytes::new())
}

async fn answered_by(relay: &impl Relay) -> Result<Bytes, Fault> {
    let (messages, outcome) = timeout(BOUND, relay.relay(call())).await.unwrap()?.collect().await;
    match outcome.fault() {
        Some(fault) => Err(fault.clone()),
        None => Ok(messages.into_iter().next().unwrap_or_default()),
    }
}

async fn relay(hubs: HubSet) -> RetryRelay<SessionRelay> {
    RetryRelay::over(hubs, &driver_name(), ClockTerms::default()).await.unwrap()
}

struct AtThird(RetryRelay<SessionRelay>, #[allow(dead_code, reason = "kept alive")] (Hubs, Peer));

#[async_trait]
impl Relay for AtThird {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        self.0.relay(call).await
    }
}

/// Time is paused, since the calls that fail on purpose are retried after pauses.
#[tokio::test(start_paused = true)]
async fn a_relay_over_three_hubs_conforms() {
    let through = async |far: Arc<dyn Relay>| {
        let hubs = Hubs::start(&["a", "b", "c"]);
        let agent = Peer::builder(PeerId::new(conformance::NODE).unwrap()).dialer(hubs.dialer(2));
        let agent = agent.max_frame(8 << 20).serve_csi(far).start().unwrap();
        AtThird(relay(hubs.proxy()).await, (hubs, agent))
    };
    conformance::check(through).await.unwrap();
}

/// The hub of the node is stopped again and again; every call is answered once.
#[tokio::test(start_paused = true)]
async fn calls_follow_the_node_from_hub_to_hub() {
    let mut hubs = Hubs::start(&["a", "b", "c"]);
    let begun = Arc::new(AtomicU64::new(0));
    let agent = hubs.agent(&[0, 1, 2], Counter("edge-1", Arc::clone(&begun))).await;
    let relay = relay(hubs.proxy()).await;
    for round in 1..=6 {
        assert_eq!(answered_by(&relay).await, Ok("edge-1".into()), "round {round}");
        assert_eq!(begun.load(Ordering::Relaxed), round);
        let at = hubs.hubs.iter().position(|hub| hub.peers().iter().any(|info| info.peer == *agent.name()));
        let at = at.expect("the agent is at a hub");
        hubs.stop(at).await;
        hubs.restart(at);
    }
}

/// One hub of two is away permanently.
#[tokio::test]
async fn a_hub_that_is_away_keeps_no_call_from_the_others() {
    let hubs = Hubs::start(&["a", "b"]);
    hubs.stop(0).await;
    let _agent = hubs.agent(&[1], Counter("edge-1", Arc::default())).await;
    assert_eq!(answered_by(&relay(hubs.proxy()).await).await, Ok("edge-1".into()));
}

#[tokio::test(start_paused = true)]
async fn two_agents_of_one_name_at_two_hubs_get_no_call() {
    let hubs = Hubs::start(&["a", "b"]);
    let (first, second) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let agent = hubs.agent(&[0], Counter("first", Arc::clone(&first))).await;
    let reachability = Reachability::new(Duration::from_secs(5));
    let mut nodes = NodeWatch::new(hubs.proxy(), &driver_name(), reachability.clone()).unwrap();
    let relay = RetryRelay::start(nodes.relay(), reachability.clone(), ClockTerms::default()).await.unwrap();
    let (seen, mut changes) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(next) = nodes.next().await {
            next.into_iter().for_each(|change| drop(seen.send(change)));
        }
    });
    let mut until = async |wanted: NodeChange| {
        while timeout(BOUND, changes.recv()).await.unwrap().unwrap() != wanted {}
    };
    assert_eq!(answered_by(&relay).await, Ok("first".into()));
    let clone = hubs.agent(&[1], Counter("second", Arc::clone(&second))).await;
    until(NodeChange::Contested(node())).await;
    assert_eq!(reachability.contested(), [node()]);
    assert_eq!(answered_by(&relay).await, Err(Fault::TwoAgents { node: node() }));
    let counts = || (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
    assert_eq!(counts(), (1, 0));
    agent.close().await;
    let closed = Instant::now();
    while answered_by(&relay).await.is_err() {}
    assert!(closed.elapsed() >= Duration::from_secs(10), "{:?}", closed.elapsed());
    assert_eq!(counts(), (1, 1));
    drop(clone);
}

/// Dials links that are silent for minutes, and that break without a notification.
#[derive(Clone)]
struct Silent(AtAddress, Arc<Mutex<Option<faulty::Handle>>>);

#[async_trait]
impl Dialer for Silent {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (link, handle) = faulty::wrap(self.0.dial().await?, faulty::Plan::new(1));
        *self.1.lock().unwrap() = Some(handle);
        Ok(link.with_idle_ping(Duration::from_secs(300)))
    }

    fn address(&self) -> &str {
        self.0.address()
    }
}

/// A node loses its power and comes back at another hub, while the first one still takes it for connected.
#[tokio::test(start_paused = true)]
async fn node_that_lost_its_power_is_not_contested_for_long() {
    let hubs = Hubs::start(&["a", "b"]);
    let silent = Silent(AtAddress(hubs.names[0], Arc::clone(&hubs.listeners[0])), Arc::default());
    let before = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(Box::new(silent.clone()));
    let before = before.max_frame(8 << 20).serve_csi(Counter("before", Arc::default())).start().unwrap();
    timeout(BOUND, before.connected()).await.unwrap().unwrap();
    let relay = relay(hubs.proxy()).await;
    assert_eq!(answered_by(&relay).await, Ok("before".into()));
    silent.1.lock().unwrap().as_ref().unwrap().half_open();
    let _after = hubs.agent(&[1], Counter("after", Arc::default())).await;
    let returned = Instant::now();
    while answered_by(&relay).await != Ok("after".into()) {
        // 10 s until the hub finds that the first one is dead, then 10 s without a call to either.
        assert!(returned.elapsed() <= Duration::from_secs(25), "{:?}", returned.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The set of hubs changes while the proxy runs.
#[tokio::test(start_paused = true)]
async fn hubs_of_a_name_are_found_while_the_proxy_runs() {
    /// A name with the addresses of the first hubs.
    struct Name(Vec<AtAddress>, Arc<AtomicU64>);

    #[async_trait]
    impl Dialer for Name {
        async fn dial(&self) -> Result<Link, LinkError> {
            Err(LinkError::Lost)
        }

        fn address(&self) -> &str {
            "hubs.example"
        }

        async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
            match self.1.load(Ordering::Relaxed) {
                0 => Err(LinkError::Lost),
                hubs => Ok(self.0[..hubs as usize].iter().map(|at| Box::new(at.clone()) as _).collect()),
            }
        }
    }

    let hubs = Hubs::start(&["a", "b"]);
    let addresses = [0, 1].map(|hub| AtAddress(hubs.names[hub], Arc::clone(&hubs.listeners[hub])));
    let known = Arc::new(AtomicU64::new(0));
    let name = Name(addresses.to_vec(), Arc::clone(&known));
    let proxy = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(name));
    let mut proxy = proxy.start_at_each_hub().unwrap();
    let relay = relay(proxy.clone()).await;
    let _agent = hubs.agent(&[1], Counter("edge-1", Arc::default())).await;
    let unresolved = answered_by(&relay).await.unwrap_err();
    assert!(matches!(unresolved, Fault::HubUnreachable { .. }), "{unresolved}");
    assert!(format!("{:?}", proxy.states()).contains("hubs.example"), "{:?}", proxy.states());
    for count in 1..=2 {
        known.store(count, Ordering::Relaxed);
        while proxy.peers().len() < count as usize {
            assert!(timeout(BOUND, proxy.changed()).await.unwrap());
        }
    }
    assert_eq!(answered_by(&relay).await, Ok("edge-1".into()));
    // A hub that is no longer listed keeps its link until that ends.
    known.store(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(answered_by(&relay).await, Ok("edge-1".into()));
    hubs.stop(1).await;
    while proxy.peers().len() > 1 {
        assert!(timeout(BOUND, proxy.changed()).await.unwrap());
    }
    proxy.close().await;
    let ended = async { while proxy.changed().await {} };
    timeout(BOUND, ended).await.expect("the set is closed");
}

/// All hubs are updated one after the other, under calls to all nodes.
#[tokio::test(start_paused = true)]
async fn a_roll_out_of_all_hubs_fails_no_call() {
    let mut hubs = Hubs::start(&["a", "b", "c"]);
    let begun = Arc::new(AtomicU64::new(0));
    let mut agents = Vec::new();
    for number in 0..8 {
        let dialers = (0..3).map(|hub| hubs.dialer(hub));
        let agent = Peer::builder(PeerId::new(format!("edge-{number}")).unwrap()).equal_dialers(dialers);
        let agent = agent.serve_csi(Counter("a node", Arc::clone(&begun))).start().unwrap();
        timeout(BOUND, agent.connected()).await.unwrap().unwrap();
        agents.push(agent);
    }
    let relay = relay(hubs.proxy()).await;
    let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let (relay, stop, ended) = (relay.clone(), Arc::clone(&stop), Arc::clone(&ended));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let mut call = call();
                    call.node = NodeId::new(format!("edge-{}", caller % 8)).unwrap();
                    let outcome = relay.relay(call).await.unwrap().collect().await.1;
                    assert!(outcome.fault().is_none(), "{outcome:?}");
                    ended.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    for hub in 0..3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let stopped = std::mem::take(&mut *hubs.listeners[hub].lock().unwrap());
        timeout(BOUND, hubs.hubs[hub].drain("an update")).await.unwrap();
        drop(stopped);
        assert!(hubs.hubs[hub].peers().is_empty());
        hubs.restart(hub);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(ended.load(Ordering::Relaxed) > 500);
}
