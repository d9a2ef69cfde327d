//! Which nodes there are, as the hub tells it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::session_relay::SERVICE;
use csi_proxy::{NodeId, NodeSockets, TopologyRouter};
use edge_transport::presence::{Change, Watch};
use edge_transport::{Peer, PeerId, ServiceName};
use futures_util::{StreamExt as _, stream};
use tokio::sync::Notify;

use super::roster::Roster;
use crate::process::Fatal;

/// How long open calls may take when a node's socket is taken away.
const FAREWELL: Duration = Duration::from_secs(5);

/// Reports to the hub at once.
const REPORTS_AT_ONCE: usize = 16;

/// Who is to know which nodes there are.
#[derive(Debug)]
pub(super) enum Follower {
    /// The one node that all calls go to.
    Fixed {
        node: NodeId,
        there: bool,
        /// Told when the node is there: its driver may be asked again.
        online: Arc<Notify>,
    },
    /// A route that chooses among them.
    Topology(Arc<TopologyRouter>),
    /// A socket for each.
    Sockets {
        sockets: NodeSockets,
        roster: Roster,
        /// Those that may have one; empty for all.
        only: Vec<NodeId>,
        /// Those that have one and are there.
        there: BTreeSet<NodeId>,
    },
}

/// Follows, until the peer is closed.
pub(super) async fn follow(peer: Peer, driver: DriverName, mut follower: Follower) -> Result<(), Fatal> {
    let service = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
    let mut watch = Watch::new(peer, service);
    if let Follower::Fixed { node, .. } = &follower {
        watch = watch.only(PeerId::new(node.as_str()));
    }
    while let Some(changes) = watch.next().await {
        follower.expect(&changes);
        let mut reports = Vec::new();
        for change in changes {
            let said = follower.take(&driver, &change).await;
            if let (Change::Gone(peer), Some((done, words))) = (change, said) {
                reports.push((peer, done, words));
            }
        }
        // A list has all that are gone, and each report goes to the hub and back.
        let reports =
            stream::iter(reports).for_each_concurrent(REPORTS_AT_ONCE, async |(peer, done, words)| {
                if let Err(error) = watch.report(&peer, done, &words).await {
                    tracing::warn!(node = %peer, "{error}");
                }
            });
        reports.await;
    }
    Ok(())
}

impl Follower {
    /// Keeps in one go what is about to be taken in.
    fn expect(&mut self, changes: &[Change]) {
        if let Self::Sockets { roster, only, .. } = self {
            let nodes = changes.iter().filter_map(|change| match change {
                Change::Up(peer) => node_of(peer).filter(|node| only.is_empty() || only.contains(node)),
                _ => None,
            });
            roster.add(nodes);
        }
    }

    /// Takes one change in. What is said of a node that is gone for good, and whether nothing of it is left, is for whoever
    /// declared it so.
    async fn take(&mut self, driver: &DriverName, change: &Change) -> Option<(bool, String)> {
        match (self, change) {
            (Self::Fixed { node, there, online }, Change::Up(peer)) if node_of(peer)? == *node => {
                *there = true;
                online.notify_one();
            }
            (Self::Fixed { node, there, .. }, Change::Down(peer)) if node_of(peer)? == *node => {
                *there = false;
            }
            // It may have come before this could ask who is there, and a call in vain before that.
            (Self::Fixed { there: true, online, .. }, Change::Current) => online.notify_one(),
            (Self::Fixed { .. }, Change::Gone(_)) => {
                return Some((
                    true,
                    format!(
                        "driver {driver}: nothing is kept of nodes here; what Kubernetes has of it stays"
                    ),
                ));
            }
            (Self::Topology(route), Change::Up(peer)) => route.arrived(&node_of(peer)?),
            (Self::Topology(route), Change::Down(peer)) => route.left(&node_of(peer)?),
            (Self::Topology(route), Change::Current) => route.current(),
            (Self::Topology(route), Change::Gone(peer)) => {
                let node = node_of(peer)?;
                return Some(match route.forget(&node).await {
                    Ok(rows) => {
                        // It is told each time that the hub is asked anew.
                        if rows > 0 {
                            tracing::warn!(%node, rows, "the node is gone for good; what it had is forgotten");
                        }
                        (true, format!("driver {driver}: {rows} rows released"))
                    }
                    Err(refusal) => {
                        let message = refusal.outcome(driver).message;
                        tracing::error!(%node, message, "what a node had that is gone cannot be forgotten");
                        (false, format!("driver {driver}: cannot be released: {message}"))
                    }
                });
            }
            (Self::Sockets { sockets, only, there, .. }, Change::Up(peer)) => {
                let node = node_of(peer).filter(|node| only.is_empty() || only.contains(node))?;
                match sockets.serve(&node).await {
                    Ok(()) => drop(there.insert(node)),
                    Err(error) => tracing::error!("{error}"),
                }
            }
            (Self::Sockets { there, .. }, Change::Down(peer)) => drop(there.remove(&node_of(peer)?)),
            (Self::Sockets { sockets, there, .. }, Change::Current) => {
                for node in there.iter() {
                    sockets.online(node);
                }
            }
            (Self::Sockets { sockets, roster, .. }, Change::Gone(peer)) => {
                let node = node_of(peer)?;
                roster.remove(&node);
                let had = sockets.release(&node, FAREWELL).await;
                if had {
                    tracing::warn!(%node, "the node is gone for good; its socket is taken away");
                }
                return Some((
                    true,
                    format!("driver {driver}: {}", if had { "socket removed" } else { "no socket" }),
                ));
            }
            _ => {}
        }
        None
    }
}

/// A peer whose name is no node's is none.
fn node_of(peer: &PeerId) -> Option<NodeId> {
    NodeId::new(peer.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use edge_transport::link::memory;
    use edge_transport::{Hub, IncomingRequest, ReplySender, Service};
    use futures_util::FutureExt as _;
    use tokio::time::timeout;

    use super::*;

    struct Silent;

    #[async_trait]
    impl Service for Silent {
        async fn call(&self, _: IncomingRequest, _: ReplySender) {}
    }

    fn fixed() -> (Follower, Arc<Notify>) {
        let online = Arc::new(Notify::new());
        let node = NodeId::new("edge-1").unwrap();
        (Follower::Fixed { node, there: false, online: Arc::clone(&online) }, online)
    }

    #[tokio::test]
    async fn a_fixed_route_asks_its_driver_when_the_node_comes_and_after_each_list_that_has_it() {
        let (mut follower, online) = fixed();
        let driver = DriverName::new("a.b").unwrap();
        let [node, other] = ["edge-1", "edge-2"].map(|name| PeerId::new(name).unwrap());
        for (change, expected) in [
            (Change::Current, false),
            (Change::Up(other.clone()), false),
            (Change::Up(node.clone()), true),
            (Change::Current, true),
            (Change::Down(other), false),
            (Change::Current, true),
            (Change::Down(node.clone()), false),
            (Change::Current, false),
            (Change::Up(node.clone()), true),
        ] {
            assert_eq!(follower.take(&driver, &change).await, None);
            assert_eq!(online.notified().now_or_never().is_some(), expected, "{change:?}");
        }
        let (done, words) = follower.take(&driver, &Change::Gone(node)).await.unwrap();
        assert!(done && words.contains("a.b"), "whoever declared it must not wait for an answer: {words}");
    }

    #[tokio::test]
    async fn a_fixed_route_hears_of_its_node_from_the_hub_and_of_no_other() {
        let (listener, dialer) = memory::listen("hub", 1 << 20);
        let hub =
            Hub::builder().listener(Box::new(listener)).allow_unauthenticated().presence().start().unwrap();
        let peer = |name: &str| Peer::builder(PeerId::new(name).unwrap()).dialer(Box::new(dialer.clone()));
        let proxy = peer("proxy").start().unwrap();
        let (follower, online) = fixed();
        let following = tokio::spawn(follow(proxy, DriverName::new("a.b").unwrap(), follower));
        let service = ServiceName::new(SERVICE).unwrap();
        let nodes =
            ["edge-2", "edge-1"].map(|name| peer(name).service(service.clone(), Silent).start().unwrap());
        timeout(Duration::from_secs(60), online.notified()).await.unwrap();
        let [one, other] = nodes.each_ref().map(Peer::name);
        assert_eq!(hub.watchers_of(one), []);
        assert_eq!(hub.watchers_of(other).len(), 1);
        following.abort();
    }
}
