//! What a hub answers itself: who may ask, how much at once, over a cut and at its end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::time::Duration;

use edge_transport::hub::{HubBuilder, NodesCallNobody, OnlyNodes, Rules};
use edge_transport::{Peer, Reason, ReplyStream, Request};
use session_common::{Echo, Net, collect, net_with, peer_id, service_name};
use tokio::time::{Instant, sleep};

/// A hub that answers nodes and operators, each by an echo of their own.
fn answering(builder: HubBuilder) -> HubBuilder {
    let operators = Rules::callers([peer_id("operator")]);
    let builder = builder.service(service_name("of-nodes"), OnlyNodes, Echo::default());
    builder.service(service_name("of-operators"), operators, Echo::default())
}

async fn ask(peer: &Peer, target: &str, service: &str) -> Result<(), Reason> {
    let request = Request::new(service_name(service), "a question");
    collect(peer.call(peer_id(target), request).await.unwrap()).await.1.map(drop)
}

#[tokio::test(start_paused = true)]
async fn nodes_call_nobody_but_the_services_of_the_hub_that_are_for_them_and_others_do_not_call_those() {
    let callers = Rules::callers(["proxy", "operator"].map(peer_id));
    let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
    let policies: [&dyn Fn(HubBuilder) -> HubBuilder; 3] = [
        &|builder| builder.policy(NodesCallNobody),
        &|builder| builder.policy(callers.clone()),
        &|builder| builder.policy(rules.clone()),
    ];
    for policy in policies {
        let net = net_with(|builder| policy(answering(builder)));
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

/// Waits until so many calls are open, all of them to the hub itself, in the paused time of a test.
async fn has_open(net: &Net, calls: usize) {
    let so = async {
        while (net.hub.stats().open_calls, net.hub.stats().own_calls) != (calls, calls) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), so).await;
    assert!(in_time.is_ok(), "{} calls are open, not {calls}", net.hub.stats().open_calls);
}

async fn never(peer: &Peer) -> ReplyStream {
    let request = Request::new(service_name("watch"), "never");
    peer.call(peer.hub().unwrap(), request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_peer_may_have_a_bounded_number_of_calls_open_to_the_hub_and_takes_no_place_of_others() {
    const PEERS: usize = 80;
    let watched = Echo::default();
    let watch = watched.clone();
    let net = net_with(|builder| builder.service(service_name("watch"), OnlyNodes, watch));
    let bound = edge_transport::HubSettings::default().max_own_calls;
    let settings = edge_transport::PeerSettings::default();
    assert!(PEERS * bound > settings.session.max_serving, "more than a peer answers unless it is told to");
    let (mut nodes, mut open) = (Vec::new(), Vec::new());
    for number in 0..PEERS {
        let (node, _) = net.edge(&format!("edge-{number}")).await;
        for _ in 0..bound {
            open.push(never(&node).await);
        }
        let further = collect(never(&node).await).await.1;
        assert_eq!(further, Err(Reason::Overloaded), "{number}");
        // It may still call others.
        assert_eq!(ask(&node, "edge-0", "echo").await, Ok(()));
        nodes.push(node);
    }
    has_open(&net, PEERS * bound).await;
    // One that ends makes room for one; the first that came is the first to be released.
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
async fn a_hub_whose_services_have_ended_what_was_open_drains_at_once_and_says_what_they_said() {
    let watched = Echo::default();
    let watch = watched.clone();
    let net = net_with(|builder| builder.service(service_name("watch"), OnlyNodes, watch));
    let (node, _) = net.edge("edge-1").await;
    let open = never(&node).await;
    watched.started.notified().await;
    watched.release.notify_one();
    let began = Instant::now();
    net.hub.drain("the end").await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(collect(open).await.0, ["never"]);
}
