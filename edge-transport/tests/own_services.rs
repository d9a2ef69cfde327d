//! Services of the hub itself: callers, limits, lost links and drains.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::time::Duration;

use edge_transport::hub::{HubBuilder, Rules};
use edge_transport::{Peer, Reason, ReplyStream, Request};
use session_common::{Echo, Net, collect, net_with, peer_id, service_name};
use tokio::time::{Instant, sleep};

/// A hub with one echo service for nodes and one for operators.
fn with_services(builder: HubBuilder) -> HubBuilder {
    let operators = Rules::callers([peer_id("operator")]);
    let builder = builder.service(service_name("of-nodes"), Rules::nodes_only(), Echo::default());
    builder.service(service_name("of-operators"), operators, Echo::default())
}

async fn ask(peer: &Peer, target: &str, service: &str) -> Result<(), Reason> {
    let request = Request::new(service_name(service), "a question");
    collect(peer.call(peer_id(target), request).await.unwrap()).await.1.map(drop)
}

#[tokio::test(start_paused = true)]
async fn service_policy_replaces_the_policy_of_the_hub() {
    let callers = Rules::callers(["proxy", "operator"].map(peer_id));
    let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
    let policies: [&dyn Fn(HubBuilder) -> HubBuilder; 3] = [
        &|builder| builder.policy(Rules::clients_only()),
        &|builder| builder.policy(callers.clone()),
        &|builder| builder.policy(rules.clone()),
    ];
    for policy in policies {
        let net = net_with(|builder| policy(with_services(builder)));
        let (node, _) = net.edge("edge-1").await;
        let (_other, _) = net.edge("edge-2").await;
        let (proxy, operator) = (net.caller("proxy").await, net.caller("operator/1").await);
        for (peer, target, service, expected) in [
            (&node, "hub", "of-nodes", Ok(())),
            (&node, "hub", "of-operators", Err(Reason::Forbidden)),
            (&node, "edge-2", "echo", Err(Reason::Forbidden)),
            (&node, "edge-2", "of-nodes", Err(Reason::Forbidden)),
            (&node, "hub", "echo", Err(Reason::NoSuchService)),
            (&proxy, "hub", "of-nodes", Err(Reason::Forbidden)),
            (&proxy, "hub", "of-operators", Err(Reason::Forbidden)),
            (&proxy, "edge-1", "echo", Ok(())),
            (&operator, "hub", "of-operators", Ok(())),
            (&operator, "hub", "of-nodes", Err(Reason::Forbidden)),
        ] {
            assert_eq!(ask(peer, target, service).await, expected, "{} {target} {service}", peer.name());
        }
    }
}

/// Waits until this number of calls is open, all of them to the hub itself, in paused time.
async fn has_open(net: &Net, calls: usize) {
    let reached = async {
        while (net.hub.stats().open_calls, net.hub.stats().local_calls) != (calls, calls) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(in_time.is_ok(), "{} calls are open, not {calls}", net.hub.stats().open_calls);
}

async fn never(peer: &Peer) -> ReplyStream {
    let request = Request::new(service_name("watch"), "never");
    peer.call(peer.hub().unwrap(), request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn limits_open_calls_to_the_hub_per_peer() {
    const PEERS: usize = 80;
    let watched = Echo::default();
    let watch = watched.clone();
    let net = net_with(|builder| builder.service(service_name("watch"), Rules::nodes_only(), watch));
    let bound = edge_transport::advanced::HubSettings::default().max_local_calls;
    let settings = edge_transport::advanced::PeerSettings::default();
    assert!(
        PEERS * bound > settings.session.max_inbound_calls,
        "more than the default inbound limit of a peer"
    );
    let (mut nodes, mut open) = (Vec::new(), Vec::new());
    for number in 0..PEERS {
        let (node, _) = net.edge(&format!("edge-{number}")).await;
        for _ in 0..bound {
            open.push(never(&node).await);
        }
        let further = collect(never(&node).await).await.1;
        assert_eq!(further, Err(Reason::Overloaded), "{number}");
        // Calls to other peers are still allowed.
        assert_eq!(ask(&node, "edge-0", "echo").await, Ok(()));
        nodes.push(node);
    }
    has_open(&net, PEERS * bound).await;
    // Each ended call frees one slot; calls are released in order of arrival.
    watched.release.notify_one();
    has_open(&net, PEERS * bound - 1).await;
    open.push(never(&nodes[0]).await);
    has_open(&net, PEERS * bound).await;
    assert_eq!(collect(never(&nodes[0]).await).await.1, Err(Reason::Overloaded));
    open.clear();
    has_open(&net, 0).await;
    net.hub.close().await;
}

#[tokio::test(start_paused = true)]
async fn drains_at_once_after_services_have_ended_calls() {
    let watched = Echo::default();
    let watch = watched.clone();
    let net = net_with(|builder| builder.service(service_name("watch"), Rules::nodes_only(), watch));
    let (node, _) = net.edge("edge-1").await;
    let open = never(&node).await;
    watched.started.notified().await;
    watched.release.notify_one();
    let began = Instant::now();
    net.hub.drain("the end").await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(collect(open).await.0, ["never"]);
}
