//! Reports the presence of nodes at all hubs to a retrying relay.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use csi_proto::DriverName;
use edge_transport::presence::{Change, Watch};
use edge_transport::{HubSet, InvalidName, Peer, PeerId, PeerState, ServiceName};
use futures_util::FutureExt as _;
use futures_util::future::{OptionFuture, select_all};
use tokio::sync::watch;
use tokio::time::{self, sleep_until};

use super::service_of;
use crate::call::{NodeId, NodeSession};
use crate::relay::retry::{HubId, HubPresence, NodeChange};
use crate::relay::{Reachability, SessionRelay};

/// The interval of the checks of contested nodes: that of the pings of a link on which a call waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Maximum number of contested nodes that are checked at once: a watch can be restricted to so many.
const MAX_CHECKED: usize = 64;

/// Watches which nodes are connected to which hub, and reports them to a [`Reachability`] while [`Self::next`] is
/// polled.
///
/// [`RetryRelay::over`](crate::RetryRelay::over) polls one in a task. Create one only to see the changes too.
#[derive(Debug)]
pub struct NodeWatch {
    hubs: HubSet,
    /// Whether the set of hubs may still change.
    may_change: bool,
    watches: Vec<HubWatch>,
    service: ServiceName,
    only: Option<PeerId>,
    reachability: Reachability,
    table: Arc<PeerTable>,
    /// When to have the contested nodes checked next, if there are any.
    check_at: Option<time::Instant>,
}

/// The peers at the hubs.
#[derive(Debug, Default)]
pub(super) struct PeerTable(RwLock<BTreeMap<HubId, Peer>>);

impl PeerTable {
    pub(super) fn get(&self, hub: HubId) -> Option<Peer> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&hub).cloned()
    }

    fn remove(&self, watch: &HubWatch) {
        self.write().remove(&watch.hub.id());
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<HubId, Peer>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeWatch {
    /// Watches all nodes at these hubs, or at the hub of one peer, that offer [`CSI_SERVICE`](super::CSI_SERVICE), and whose
    /// driver of this name the peer may call.
    ///
    /// # Errors
    /// Never: a driver's name is a valid part of a service's name.
    pub fn new(
        hubs: impl Into<HubSet>,
        driver: &DriverName,
        reachability: Reachability,
    ) -> Result<Self, InvalidName> {
        let service = service_of(driver)?;
        let mut watch = Self {
            hubs: hubs.into(),
            may_change: true,
            watches: Vec::new(),
            service,
            only: None,
            reachability,
            table: Arc::default(),
            check_at: None,
        };
        watch.follow_hubs();
        Ok(watch)
    }

    /// Restricts the watch to one node. Calls to other nodes fail as for an unknown node.
    #[must_use]
    pub fn only(mut self, node: &NodeId) -> Self {
        self.only = PeerId::try_from(node).ok();
        for watch in std::mem::take(&mut self.watches) {
            self.table.remove(&watch);
        }
        self.follow_hubs();
        self
    }

    /// A relay that sends each call to the hub at which its node is, as this watch reports.
    #[must_use]
    pub fn relay(&self) -> SessionRelay {
        SessionRelay::at_hub_of_node(Arc::clone(&self.table), self.reachability.clone())
    }

    /// Returns the next changes after reporting them; `None` once all peers are closed and no other follows. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<NodeChange>> {
        loop {
            if self.watches.is_empty() && !self.may_change {
                return None;
            }
            let Self { hubs, may_change, watches, check_at, .. } = self;
            let check = OptionFuture::from(check_at.map(sleep_until));
            let reported = async {
                if watches.is_empty() {
                    return pending().await;
                }
                // Each hub is the first in turn, so that none keeps the others from being read.
                watches.rotate_left(1);
                let (changes, index, _) =
                    select_all(watches.iter_mut().map(|watch| watch.next().boxed())).await;
                (index, changes)
            };
            tokio::select! {
                // What is rare comes first. A random order would turn the watches in some runs and not in others.
                biased;
                more = hubs.changed(), if *may_change => {
                    *may_change = more;
                    self.follow_hubs();
                }
                Some(()) = check => self.check_contested(),
                (index, changes) = reported => match changes {
                    Some(changes) if changes.is_empty() => {}
                    Some(changes) => {
                        if changes.iter().any(|change| matches!(change, NodeChange::Contested(_))) {
                            self.check_at = Some(time::Instant::now());
                        }
                        return Some(changes);
                    }
                    None => {
                        let closed = self.watches.remove(index);
                        self.table.remove(&closed);
                    }
                },
            }
        }
    }

    /// Makes each hub check whether the contested nodes are alive there, again and again until one of two is not: an agent that
    /// lost its power counts as connected for minutes, and may have connected to another hub as another instance.
    fn check_contested(&mut self) {
        let contested = self.reachability.contested();
        let nodes: Vec<_> = contested.iter().take(MAX_CHECKED).flat_map(PeerId::try_from).collect();
        self.check_at = (!nodes.is_empty()).then(|| time::Instant::now() + CHECK_INTERVAL);
        for watch in &mut self.watches {
            watch.check = (!nodes.is_empty())
                .then(|| Watch::new(watch.peer.clone(), self.service.clone()).only(nodes.clone()));
        }
    }

    /// Watches new hubs, and stops watching those that the set has no more.
    fn follow_hubs(&mut self) {
        let peers = self.hubs.peers();
        let (stay, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.watches)
            .into_iter()
            .partition(|watch| peers.iter().any(|peer| peer.is(&watch.peer)));
        self.watches = stay;
        for watch in left {
            self.table.remove(&watch);
        }
        for peer in peers {
            if self.watches.iter().all(|watch| !watch.peer.is(&peer)) {
                let watch =
                    HubWatch::new(&peer, &self.service, self.only.as_ref(), self.reachability.add_hub());
                self.table.write().insert(watch.hub.id(), peer);
                self.watches.push(watch);
            }
        }
    }
}

/// The watch at one hub.
#[derive(Debug)]
struct HubWatch {
    peer: Peer,
    watch: Watch,
    /// A watch of the contested nodes until its first report. Only its request matters: `watch` reports the result.
    check: Option<Watch>,
    state: watch::Receiver<PeerState>,
    /// The last reported connection: its address and start.
    connection: Option<(String, Instant)>,
    hub: HubPresence,
}

impl HubWatch {
    fn new(peer: &Peer, service: &ServiceName, only: Option<&PeerId>, hub: HubPresence) -> Self {
        let (state, watch) = (peer.watch(), Watch::new(peer.clone(), service.clone()));
        let watch = watch.only(only.cloned());
        Self { peer: peer.clone(), watch, check: None, state, connection: None, hub }
    }

    /// Returns the next changes after reporting them, which may be none; `None` once the peer is closed. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<NodeChange>> {
        let lost = self.report_connection();
        if !lost.is_empty() {
            return Some(lost);
        }
        tokio::select! {
            // The state of the hub is polled before its reports: after a loss, earlier reports are outdated.
            biased;
            Ok(()) = self.state.changed() => Some(Vec::new()),
            changes = self.watch.next() => {
                Some(changes?.iter().flat_map(|change| self.report(change)).collect())
            }
            Some(_) = OptionFuture::from(self.check.as_mut().map(Watch::next)) => {
                self.check = None;
                Some(Vec::new())
            }
        }
    }

    fn report_connection(&mut self) -> Vec<NodeChange> {
        let connection = match &*self.state.borrow_and_update() {
            PeerState::Connected { address, since, .. } => Some((address.clone(), *since)),
            _ => None,
        };
        let mut changes = Vec::new();
        // A connection to another hub may follow at once: nodes that this hub has not listed yet are not lost.
        if connection.is_none() || connection != self.connection {
            changes = self.hub.lost();
        }
        if connection.is_some() {
            self.hub.connected();
        }
        self.connection = connection;
        changes
    }

    fn report(&self, change: &Change) -> Vec<NodeChange> {
        let (peer, session, report): (_, _, fn(&HubPresence, &NodeId, NodeSession) -> _) = match change {
            Change::Up { peer, session } => (peer, session, HubPresence::node_up),
            Change::Down { peer, session, drained: false } => (peer, session, HubPresence::node_down),
            Change::Down { peer, session, drained: true } => (peer, session, HubPresence::node_drained),
            Change::Synced => return self.hub.synced(),
            Change::Failed { cause } => return self.hub.list_failed(cause),
            _ => return Vec::new(),
        };
        // A peer whose name is not a valid node name is ignored.
        NodeId::new(peer.as_str())
            .map_or_else(|_| Vec::new(), |node| report(&self.hub, &node, (*session).into()))
    }
}
