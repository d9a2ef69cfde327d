//! A caller at several hubs.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::Presence;
use edge_transport::link::{DialOptions, Dialer, ListenOptions, memory};
use edge_transport::{
    Hub, HubSet, Peer, PeerId, PeerState, ReplySender, Request, Service, ServiceName, StartError,
};
use tokio::time::{Instant, timeout};

/// The longest wait of a test; only a failure takes so long.
const BOUND: Duration = Duration::from_secs(60);

fn caller() -> edge_transport::peer::PeerBuilder {
    Peer::builder(PeerId::new("proxy").unwrap())
}

/// Waits until the states of the set are as expected.
async fn until(hubs: &HubSet, what: &str, is_so: impl Fn(&[(String, PeerState)]) -> bool) {
    let reached = async {
        while !is_so(&hubs.states()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(BOUND, reached).await.is_ok(), "not {what}: {:?}", hubs.states());
}

fn refused(hub: &Hub) -> u64 {
    let stats = hub.stats();
    stats.rejected + stats.fenced
}

fn connected(states: &[(String, PeerState)]) -> usize {
    states.iter().filter(|(_, state)| state.is_connected()).count()
}

#[tokio::test(start_paused = true)]
async fn second_address_of_a_connected_hub_is_not_dialed() {
    let (first, dial_first) = memory::listen("first", 1 << 20);
    let (second, dial_second) = memory::listen("second", 1 << 20);
    let hub = Hub::builder().listener(first).listener(second).allow_unauthenticated().start().unwrap();
    let hubs = caller().dialer(Box::new(dial_first)).dialer(Box::new(dial_second));
    let hubs = hubs.start_at_each_hub().unwrap();
    until(&hubs, "one peer", |states| states.len() == 1 && connected(states) == 1).await;
    assert_eq!(hub.peers().len(), 1);
    let before = refused(&hub);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!((refused(&hub), connected(&hubs.states())), (before, 1));
    hubs.close().await;
}

#[tokio::test]
async fn a_name_means_its_addresses() {
    let listen = ListenOptions::default();
    let hub = Hub::builder().listen("ws://127.0.0.1:0".parse().unwrap(), listen).await.unwrap();
    let hub = hub.allow_unauthenticated().start().unwrap();
    let port = hub.addresses()[0].rsplit(':').next().unwrap().to_owned();
    let address = format!("ws://localhost:{port}").parse().unwrap();
    let hubs = caller().dial(address, DialOptions::default()).unwrap().start_at_each_hub().unwrap();
    until(&hubs, "connected", |states| connected(states) == 1).await;
    let at = format!("ws://127.0.0.1:{port} (localhost)");
    assert!(hubs.states().iter().any(|(address, state)| *address == at && state.is_connected()));
    assert!(hubs.is_connected());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_be_resolved_is_shown_with_the_cause() {
    let address = "ws://no-such-host.invalid:1".parse().unwrap();
    let hubs = caller().dial(address, DialOptions::default()).unwrap().start_at_each_hub().unwrap();
    let cause = |states: &[(String, PeerState)]| match states {
        [(name, PeerState::Connecting { last_error: Some(cause), .. })] => {
            name == "ws://no-such-host.invalid:1" && cause.contains("resolve")
        }
        _ => false,
    };
    until(&hubs, "the cause", cause).await;
    assert!(hubs.peers().is_empty() && !hubs.is_connected());
}

#[tokio::test]
async fn a_set_checks_the_settings_of_its_peers() {
    let error = caller().start_at_each_hub().unwrap_err();
    assert!(matches!(error, StartError::NoDialer), "{error}");
    let (_listener, dialer) = memory::listen("hub", 1 << 20);
    let error = caller().dialer(Box::new(dialer)).max_frame(1).start_at_each_hub().unwrap_err();
    assert!(matches!(error, StartError::TooLow { .. }), "{error}");
}

/// Answers every call.
struct Answers;

#[async_trait::async_trait]
impl Service for Answers {
    async fn call(&self, _: PeerId, request: Request, replies: ReplySender) {
        let _ = replies.send_and_finish(request.body, Bytes::new()).await;
    }
}

fn hub(name: &str) -> (Hub, Arc<dyn Dialer>) {
    let (listener, dialer) = memory::listen(name, 1 << 20);
    (Hub::builder().listener(listener).allow_unauthenticated().start().unwrap(), dialer)
}

fn node(name: &str, hubs: impl IntoIterator<Item = Arc<dyn Dialer>>) -> Peer {
    let dialers = hubs.into_iter().map(|dialer| Box::new(dialer) as Box<dyn Dialer>);
    let node = Peer::builder(PeerId::new(name).unwrap()).equal_dialers(dialers);
    node.service(ServiceName::new("echo").unwrap(), Answers).start().unwrap()
}

/// A node has connected to its next hub when its session at the one that drains ends, which is not a loss.
#[tokio::test(start_paused = true)]
async fn a_node_leaves_a_draining_hub_without_a_pause() {
    let (first, dial_first) = hub("first");
    let (second, dial_second) = hub("second");
    let node = node("edge-1", [Arc::clone(&dial_first), dial_second]);
    node.connected().await.unwrap();
    let (from, to) = if first.peers().is_empty() { (&second, &first) } else { (&first, &second) };
    let (mut arrives, mut leaves) = (to.presence(), from.presence());
    let began = Instant::now();
    let drained = tokio::spawn({
        let from = from.clone();
        async move { from.drain("an update").await }
    });
    assert!(matches!(timeout(BOUND, arrives.recv()).await.unwrap(), Ok(Presence::Up(_))));
    assert!(began.elapsed() < Duration::from_millis(50), "without a pause: {:?}", began.elapsed());
    let left = timeout(BOUND, leaves.recv()).await.unwrap();
    assert!(matches!(left, Ok(Presence::Down { drained: true, .. })), "{left:?}");
    timeout(Duration::from_secs(1), drained).await.unwrap().unwrap();
    assert_eq!(to.peers().len(), 1);
}

/// A node without another hub keeps its link until its calls have ended, and a hub without calls ends at once.
#[tokio::test(start_paused = true)]
async fn a_node_with_one_hub_does_not_delay_its_end() {
    let (only, dialer) = hub("only");
    let node = node("edge-1", [dialer]);
    node.connected().await.unwrap();
    timeout(Duration::from_secs(1), only.drain("an update")).await.unwrap();
    assert!(!node.state().is_connected());
}

#[tokio::test(start_paused = true)]
async fn a_share_of_the_nodes_moves_to_another_hub() {
    let (first, dial_first) = hub("first");
    let mut nodes: Vec<_> =
        (0..100).map(|number| node(&format!("edge-{number}"), [dial_first.clone()])).collect();
    let (second, dial_second) = hub("second");
    nodes.extend((100..200).map(|number| {
        let both = Peer::builder(PeerId::new(format!("edge-{number}")).unwrap());
        let both = both.dialer(Box::new(dial_first.clone())).dialer(Box::new(dial_second.clone()));
        both.failback_interval(Duration::ZERO)
            .service(ServiceName::new("echo").unwrap(), Answers)
            .start()
            .unwrap()
    }));
    for node in &nodes {
        timeout(BOUND, node.connected()).await.unwrap().unwrap();
    }
    assert_eq!((first.peers().len(), second.peers().len()), (200, 0));
    assert_eq!(first.rebalance(0.5, "an operator").await, 100);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (stayed, moved) = (first.peers().len(), second.peers().len());
    assert_eq!(stayed + moved, 200, "nodes without another hub are connected again");
    assert!((25..=75).contains(&moved), "{moved}: about half of those that have another hub");
    assert_eq!(first.rebalance(f64::NAN, "an operator").await, 0);
}
