//! What presence says of the nodes, for a relay that sends calls again.

use std::time::Instant;

use edge_transport::presence::{Change, Watch};
use edge_transport::{InvalidName, Peer, PeerId, PeerState, ServiceName};
use tokio::sync::watch;

use super::CSI_SERVICE;
use crate::call::{NodeId, NodeSession};
use crate::relay::Reachability;

/// Watches which nodes are connected to the hub, and reports it to a [`Reachability`]. It reports while it is waited for.
///
/// ```no_run
/// use csi_proxy::NodeWatch;
/// use csi_proxy::{DEFAULT_RECONNECT_GRACE, ClockTerms, Reachability, RetryRelay, SessionRelay};
///
/// # async fn relay(peer: edge_transport::Peer) -> Result<(), Box<dyn std::error::Error>> {
/// let reachability = Reachability::new(DEFAULT_RECONNECT_GRACE);
/// let mut nodes = NodeWatch::new(peer.clone(), reachability.clone())?;
/// tokio::spawn(async move { while nodes.next().await.is_some() {} });
/// let relay = RetryRelay::start(SessionRelay::new(peer), reachability, ClockTerms::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NodeWatch {
    watch: Watch,
    hub: watch::Receiver<PeerState>,
    /// The connection whose hub was reported last: its address, and since when.
    connection: Option<(String, Instant)>,
    reachability: Reachability,
}

impl NodeWatch {
    /// Will watch all nodes that offer [`CSI_SERVICE`] at the hub of this peer.
    ///
    /// # Errors
    /// None that can happen: the name of the service is a constant.
    pub fn new(peer: Peer, reachability: Reachability) -> Result<Self, InvalidName> {
        let hub = peer.watch();
        let watch = Watch::new(peer, ServiceName::new(CSI_SERVICE)?);
        Ok(Self { watch, hub, connection: None, reachability })
    }

    /// The same of this node alone. No call gets to another one then.
    #[must_use]
    pub fn only(mut self, node: &NodeId) -> Self {
        self.watch = self.watch.only(PeerId::try_from(node));
        self
    }

    /// The next changes, which have been reported by then; `None` once the peer is closed. Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Vec<Change>> {
        loop {
            let connection = match &*self.hub.borrow_and_update() {
                PeerState::Connected { address, since, .. } => Some((address.clone(), *since)),
                _ => None,
            };
            // The next connection may be there already, and be to another hub: what that has not listed yet is not lost.
            if connection.is_none() || connection != self.connection {
                self.reachability.hub_lost();
            }
            if connection.is_some() {
                self.reachability.hub_connected();
            }
            self.connection = connection;
            tokio::select! {
                // The hub first: what it has said before its loss counts no more after it.
                biased;
                Ok(()) = self.hub.changed() => {}
                changes = self.watch.next() => {
                    let changes = changes?;
                    for change in &changes {
                        self.report(change);
                    }
                    return Some(changes);
                }
            }
        }
    }

    fn report(&self, change: &Change) {
        let (peer, session, report): (_, _, fn(&Reachability, &NodeId, NodeSession)) = match change {
            Change::Up { peer, session } => (peer, session, Reachability::node_up),
            Change::Down { peer, session } => (peer, session, Reachability::node_down),
            Change::Current => return self.reachability.synced(),
            _ => return,
        };
        // A peer whose name is no node's is none.
        if let Ok(node) = NodeId::new(peer.as_str()) {
            report(&self.reachability, &node, (*session).into());
        }
    }
}
