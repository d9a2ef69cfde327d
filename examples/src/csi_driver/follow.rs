//! Which nodes there are, as the hub tells it.

use std::collections::BTreeSet;
use std::sync::Arc;

use csi_proxy::session_relay::SERVICE;
use csi_proxy::{NodeId, NodeSockets, TopologyRouter};
use edge_transport::presence::{Change, Watch};
use edge_transport::{Peer, PeerId, ServiceName};
use tokio::sync::Notify;

use super::roster::Roster;
use crate::process::Fatal;

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
pub(super) async fn follow(peer: Peer, mut follower: Follower) -> Result<(), Fatal> {
    let service = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
    let mut watch = Watch::new(peer, service);
    if let Follower::Fixed { node, .. } = &follower {
        watch = watch.only(PeerId::new(node.as_str()));
    }
    while let Some(changes) = watch.next().await {
        follower.expect(&changes);
        for change in &changes {
            follower.take(change).await;
        }
    }
    Ok(())
}

impl Follower {
    /// Keeps in one go what is about to be taken in.
    fn expect(&mut self, changes: &[Change]) {
        if let Self::Sockets { roster, only, .. } = self {
            let nodes = changes.iter().filter_map(|change| match change {
                Change::Up { peer, .. } => node_of(peer).filter(|node| only.is_empty() || only.contains(node)),
                _ => None,
            });
            roster.add(nodes);
        }
    }

    /// Takes one change in.
    async fn take(&mut self, change: &Change) {
        match change {
            Change::Up { peer, .. } => {
                if let Some(node) = node_of(peer) {
                    self.up(node).await;
                }
            }
            Change::Down { peer, .. } => {
                if let Some(node) = node_of(peer) {
                    self.down(&node);
                }
            }
            Change::Current => self.current(),
            _ => {}
        }
    }

    async fn up(&mut self, up: NodeId) {
        match self {
            Self::Fixed { node, there, online } => {
                if up == *node {
                    *there = true;
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.arrived(&up),
            Self::Sockets { sockets, only, there, .. } => {
                if !only.is_empty() && !only.contains(&up) {
                    return;
                }
                match sockets.serve(&up).await {
                    Ok(()) => drop(there.insert(up)),
                    Err(error) => tracing::error!("{error}"),
                }
            }
        }
    }

    fn down(&mut self, down: &NodeId) {
        match self {
            Self::Fixed { node, there, .. } => *there &= down != node,
            Self::Topology(route) => route.left(down),
            Self::Sockets { there, .. } => drop(there.remove(down)),
        }
    }

    /// The list is complete.
    fn current(&self) {
        match self {
            // It may have come before this could ask who is there, and a call in vain before that.
            Self::Fixed { there, online, .. } => {
                if *there {
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.current(),
            Self::Sockets { sockets, there, .. } => there.iter().for_each(|node| sockets.online(node)),
        }
    }
}

/// A peer whose name is no node's is none.
fn node_of(peer: &PeerId) -> Option<NodeId> {
    NodeId::new(peer.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use edge_transport::link::memory;
    use edge_transport::{Hub, IncomingRequest, ReplySender, Service, SessionId};
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
        let [node, other] = ["edge-1", "edge-2"].map(|name| PeerId::new(name).unwrap());
        let session = SessionId { instance: 1, number: 1 };
        let up = |peer: &PeerId| Change::Up { peer: peer.clone(), session };
        let down = |peer: &PeerId| Change::Down { peer: peer.clone(), session };
        for (change, expected) in [
            (Change::Current, false),
            (up(&other), false),
            (up(&node), true),
            (Change::Current, true),
            (down(&other), false),
            (Change::Current, true),
            (down(&node), false),
            (Change::Current, false),
            (up(&node), true),
        ] {
            follower.take(&change).await;
            assert_eq!(online.notified().now_or_never().is_some(), expected, "{change:?}");
        }
    }

    #[tokio::test]
    async fn a_fixed_route_hears_of_its_node_from_the_hub() {
        let (listener, dialer) = memory::listen("hub", 1 << 20);
        let _hub =
            Hub::builder().listener(Box::new(listener)).allow_unauthenticated().presence().start().unwrap();
        let peer = |name: &str| Peer::builder(PeerId::new(name).unwrap()).dialer(Box::new(dialer.clone()));
        let proxy = peer("proxy").start().unwrap();
        let (follower, online) = fixed();
        let following = tokio::spawn(follow(proxy, follower));
        let service = ServiceName::new(SERVICE).unwrap();
        let _nodes =
            ["edge-2", "edge-1"].map(|name| peer(name).service(service.clone(), Silent).start().unwrap());
        timeout(Duration::from_secs(60), online.notified()).await.unwrap();
        following.abort();
    }
}
