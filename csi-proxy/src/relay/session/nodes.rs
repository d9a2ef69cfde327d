//! Reports the presence of nodes to a retrying relay.

use std::time::Instant;

use csi_proto::DriverName;
use edge_transport::presence::{Change, Watch};
use edge_transport::{InvalidName, Peer, PeerId, PeerState};
use tokio::sync::watch;

use super::service_of;
use crate::call::{NodeId, NodeSession};
use crate::relay::Reachability;

/// Watches which nodes are connected to the hub, and reports them to a [`Reachability`] while [`Self::next`] is
/// polled.
///
/// [`RetryRelay::over`](crate::RetryRelay::over) polls one in a task. Create one only to see the changes too.
#[derive(Debug)]
pub struct NodeWatch {
    watch: Watch,
    hub: watch::Receiver<PeerState>,
    /// The last reported connection: its address and start.
    connection: Option<(String, Instant)>,
    reachability: Reachability,
}

impl NodeWatch {
    /// Watches all nodes at the hub of this peer that offer [`CSI_SERVICE`](super::CSI_SERVICE), and whose driver of this
    /// name the peer may call.
    ///
    /// # Errors
    /// Never: a driver's name is a valid part of a service's name.
    pub fn new(peer: Peer, driver: &DriverName, reachability: Reachability) -> Result<Self, InvalidName> {
        let hub = peer.watch();
        let watch = Watch::new(peer, service_of(driver)?);
        Ok(Self { watch, hub, connection: None, reachability })
    }

    /// Restricts the watch to one node. Calls to other nodes fail as for an unknown node.
    #[must_use]
    pub fn only(mut self, node: &NodeId) -> Self {
        self.watch = self.watch.only(PeerId::try_from(node));
        self
    }

    /// Returns the next changes after reporting them; `None` once the peer is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<Change>> {
        loop {
            let connection = match &*self.hub.borrow_and_update() {
                PeerState::Connected { address, since, .. } => Some((address.clone(), *since)),
                _ => None,
            };
            // A connection to another hub may follow at once: nodes that this hub has not listed yet are not lost.
            if connection.is_none() || connection != self.connection {
                self.reachability.hub_lost();
            }
            if connection.is_some() {
                self.reachability.hub_connected();
            }
            self.connection = connection;
            tokio::select! {
                // The state of the hub is polled before its reports: after a loss, earlier reports are outdated.
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
            Change::Synced => return self.reachability.synced(),
            Change::Failed { cause } => return self.reachability.list_failed(cause),
            _ => return,
        };
        // A peer whose name is not a valid node name is ignored.
        if let Ok(node) = NodeId::new(peer.as_str()) {
            report(&self.reachability, &node, (*session).into());
        }
    }
}
