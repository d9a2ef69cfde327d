//! Which nodes there are, as the hub tells it.

use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::session_relay::SERVICE;
use csi_proxy::{NodeId, NodeSockets, TopologyRouter};
use edge_transport::presence::{Change, Watch};
use edge_transport::{Peer, PeerId, ServiceName};

use super::roster::Roster;
use crate::process::Fatal;

/// How long open calls may take when a node's socket is taken away.
const FAREWELL: Duration = Duration::from_secs(5);

/// Who is to know which nodes there are.
#[derive(Debug)]
pub(super) enum Follower {
    /// A route that chooses among them.
    Topology(Arc<TopologyRouter>),
    /// A socket for each.
    Sockets {
        sockets: NodeSockets,
        roster: Roster,
        /// Those that may have one; empty for all.
        only: Vec<NodeId>,
    },
}

/// Follows, until the peer is closed.
pub(super) async fn follow(peer: Peer, driver: DriverName, mut follower: Follower) -> Result<(), Fatal> {
    let service = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
    let mut watch = Watch::new(peer, service);
    while let Some(changes) = watch.next().await {
        follower.expect(&changes);
        for change in changes {
            let Some((done, words)) = follower.take(&driver, &change).await else { continue };
            if let Change::Gone(peer) = &change
                && let Err(error) = watch.report(peer, done, &words).await
            {
                tracing::warn!(node = %peer, "{error}");
            }
        }
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
            (Self::Topology(route), Change::Up(peer)) => route.arrived(&node_of(peer)?),
            (Self::Topology(route), Change::Down(peer)) => route.left(&node_of(peer)?),
            (Self::Topology(route), Change::Current) => route.current(),
            (Self::Topology(route), Change::Gone(peer)) => {
                let node = node_of(peer)?;
                return Some(match route.forget(&node).await {
                    Ok(rows) => {
                        tracing::warn!(%node, rows, "the node is gone for good; what it had is forgotten");
                        (true, format!("driver {driver}: {rows} rows released"))
                    }
                    Err(refusal) => {
                        let message = refusal.outcome(driver).message;
                        tracing::error!(%node, message, "what a node had that is gone cannot be forgotten");
                        (false, format!("driver {driver}: cannot be released: {message}"))
                    }
                });
            }
            (Self::Sockets { sockets, only, .. }, Change::Up(peer)) => {
                let node = node_of(peer).filter(|node| only.is_empty() || only.contains(node))?;
                if let Err(error) = sockets.serve(&node).await {
                    tracing::error!("{error}");
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
