//! Routes each call of a driver on many nodes: new volumes by topology, all other calls by the id of their subject.

mod attach;
mod builder;
mod call;
mod capacity;
mod capacity_cache;
mod create;
mod decommission;
mod doubts;
mod limits;
mod list;
mod locate;
mod nodes;
mod own;
mod reach;
mod remove;
mod repair;
mod search;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use csi_proto::{DriverName, Method};
use futures_util::{StreamExt as _, stream};

use self::builder::Settings;
pub use self::builder::TopologyRouterBuilder;
pub(crate) use self::call::InboundCall;
use self::call::RoutedCall;
use self::capacity_cache::CapacityCache;
pub(crate) use self::create::with_topology;
use self::decommission::Quarantine;
pub use self::decommission::{DecommissionError, Decommissioned, MAX_DECOMMISSIONED};
use self::doubts::Doubts;
pub use self::repair::RepairError;
use super::claims::{ClaimConflict, Claims};
use super::durable::DurablePlacements;
use super::placements::Placements;
use super::refusal::Refusal;
use super::store::{PlacementStore, StoreError};
use crate::call::{BadRequest, NodeId, Outcome, Replies, Reply};
use crate::driver_info::{self, DriverInfo, DriverInfoStore, MAX_CONCURRENT_ROUNDS, Mode};
use crate::observe::Observation;
use crate::relay::Relay;

/// A topology route cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenRouteError {
    /// No node is configured.
    #[error("a topology route needs at least one node; name one, or turn discovery on")]
    NoNodes,
    /// The default node is not one of the nodes.
    #[error("the default node {node} is not one of the nodes; add it to them")]
    DefaultUnknown {
        /// The configured default node.
        node: NodeId,
    },
    /// The store cannot be read.
    #[error("cannot read the table of placements: {0}")]
    Store(#[from] StoreError),
}

/// The route of a driver on many nodes, each with its own volumes.
///
/// | Call | Goes to |
/// |---|---|
/// | `CreateVolume` | the node already selected for the name; else the node of its content source, which is searched if it is not known; else a node by topology |
/// | calls with the id of a volume, snapshot or group | the node that created it; an unknown id is searched on all nodes, without secrets |
/// | `DeleteVolume`, `DeleteSnapshot` and group with an unknown id | all nodes, without secrets; OK only if all nodes return OK. With secrets the id is searched first, and its node gets them |
/// | `ControllerPublishVolume`, `ControllerUnpublishVolume` | the node whose driver has the `node_id`; an empty one is all within the topology |
/// | lists | all nodes, without secrets; the recorded volumes of an unreachable node; a list of snapshots fails |
/// | `GetCapacity` | the nodes within the topology; an offline one has no capacity |
/// | start-up calls | answered from all nodes: the capabilities of most of them |
///
/// The selected node of a volume is durable in a [`PlacementStore`] before the call is sent. The node of a found
/// subject is durable before the answer is passed to the caller.
///
/// ```
/// use csi_proxy::{MemoryStore, Router, TopologyRouter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nodes = ["edge-1".parse()?, "edge-2".parse()?];
/// // In production, use a `RedbStore`.
/// let store = MemoryStore::default();
/// let route = TopologyRouter::builder("csi-hostpath".parse()?, nodes).open(store).await?;
/// let router = Router::topology(route);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TopologyRouter {
    driver: DriverName,
    settings: Settings,
    placements: Arc<DurablePlacements>,
    driver_info: Arc<DriverInfo>,
    quarantine: Arc<Quarantine>,
    capacity_cache: Mutex<CapacityCache>,
    doubts: Mutex<Doubts>,
}

/// A whole unary answer. It has a message if and only if its code is OK.
type Answer = (Option<Bytes>, Outcome);

impl TopologyRouter {
    async fn open(
        driver: DriverName,
        nodes: impl IntoIterator<Item = NodeId>,
        store: impl PlacementStore + DriverInfoStore + 'static,
        settings: Settings,
    ) -> Result<Self, OpenRouteError> {
        let mut names: BTreeSet<_> = nodes.into_iter().collect();
        if names.is_empty() && !settings.discovers {
            return Err(OpenRouteError::NoNodes);
        }
        if let Some(node) = settings.default_node.as_ref().filter(|node| !names.contains(*node)) {
            if !settings.discovers {
                return Err(OpenRouteError::DefaultUnknown { node: node.clone() });
            }
            names.insert(node.clone());
        }
        let store = Arc::new(store);
        let (placements, decommissioned) =
            DurablePlacements::open(Placements::default(), Arc::clone(&store) as _).await?;
        let (topology_key, discovers) = (settings.topology_key.clone(), settings.discovers);
        let shared_keys = settings.shared_topology_keys.iter().cloned();
        let mut claims = Claims::new(topology_key.clone(), shared_keys);
        let mut recorded = Vec::new();
        for (node, claim) in store.claims().await? {
            match claim {
                // The release was interrupted by a crash.
                Ok(_) if decommissioned.contains(&node) => store.set_claim(&node, None).await?,
                Ok(claim) => {
                    claims.apply(&node, Some(claim));
                    recorded.push(node);
                }
                Err(defect) => {
                    tracing::error!(%node, %defect, "what the node owns cannot be read; it is recorded again when the node reports it");
                    recorded.push(node);
                }
            }
        }
        let quarantine = Arc::new(Quarantine::new(decommissioned, &mut names));
        let mode = Mode::Together { topology_key, discovers };
        let driver_info = DriverInfo::with_claims(driver.clone(), mode, store, claims);
        for name in names {
            driver_info.change(|cache, now| cache.add(&name, now));
        }
        driver_info.load().await;
        for node in recorded.iter().filter(|node| !quarantine.contains(node)) {
            driver_info.change(|cache, now| cache.add_recorded(node, now));
        }
        let (capacity_cache, doubts) = Default::default();
        let route = Self { driver, settings, placements, driver_info, quarantine, capacity_cache, doubts };
        for (node, _) in route.decommissioned() {
            route.remove_node(&node).await;
        }
        Ok(route)
    }

    /// The number of nodes, and of those whose driver was reachable when last called.
    #[must_use]
    pub fn node_counts(&self) -> (usize, usize) {
        (self.names().len(), self.online().len())
    }

    /// The number of volumes, snapshots and groups in the table of placements.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.placements.read(Placements::rows)
    }

    /// The nodes that are quarantined because they report what belongs to another node, and why.
    #[must_use]
    pub fn claim_conflicts(&self) -> Vec<(NodeId, ClaimConflict)> {
        self.driver_info.read(driver_info::Cache::conflicts)
    }

    /// The nodes that list ids recorded for other nodes, and how many: at most 64 of each node count. Calls that change
    /// these volumes, or have secrets for them, are refused until the node denies the ids or is decommissioned.
    #[must_use]
    pub fn disputed_ids(&self) -> Vec<(NodeId, usize)> {
        self.doubts().disputed_ids()
    }

    /// The driver info of the nodes.
    pub(crate) fn driver_info(&self) -> &Arc<DriverInfo> {
        &self.driver_info
    }

    fn capacity_cache(&self) -> MutexGuard<'_, CapacityCache> {
        self.capacity_cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubts(&self) -> MutexGuard<'_, Doubts> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Routes a call.
    pub(crate) async fn answer(&self, relay: &dyn Relay, inbound: InboundCall) -> Replies {
        let answer = self.routed(relay, &inbound).await;
        answer.unwrap_or_else(|refusal| {
            let outcome = refusal.outcome();
            tracing::warn!(
                method = %inbound.method, driver = %self.driver, code = %outcome.code,
                message = %outcome.redacted_message(), "call not routed"
            );
            Replies::outcome(outcome)
        })
    }

    async fn routed(&self, relay: &dyn Relay, inbound: &InboundCall) -> Result<Replies, Refusal> {
        use Method as M;
        let Some(method) = Method::from_path(inbound.method.as_str()) else {
            return self.to_only_node(relay, inbound).await;
        };
        let call = RoutedCall { relay, inbound, method };
        let answer = match method {
            M::CreateVolume => self.create(call).await?,
            M::DeleteVolume | M::DeleteSnapshot | M::DeleteVolumeGroupSnapshot => self.remove(call).await?,
            M::ControllerPublishVolume => self.publish(call).await?,
            M::ControllerUnpublishVolume => self.unpublish(call).await?,
            M::ListVolumes | M::ListSnapshots | M::ControllerListVolumeHealth => self.list(call).await?,
            M::GetCapacity => self.capacity(call).await?,
            _ if method.is_server_streaming() || method.volume_key().is_some() => {
                return self.locate(call).await;
            }
            _ => return self.to_only_node(relay, inbound).await,
        };
        let (message, outcome) = answer;
        Ok(Replies::whole(message, outcome))
    }

    /// Routes a call of an unknown method, for which the route must have only one node.
    async fn to_only_node(&self, relay: &dyn Relay, inbound: &InboundCall) -> Result<Replies, Refusal> {
        let node = self.only().ok_or(BadRequest::UnknownMethod)?;
        Ok(self.call_node(relay, &node, inbound).await)
    }

    /// Calls one node. When the node is decommissioned, a waiting call and an open stream end.
    async fn call_node(&self, relay: &dyn Relay, node: &NodeId, inbound: &InboundCall) -> Replies {
        if let Err(refusal) = self.check_claim(node) {
            return Replies::outcome(refusal.outcome());
        }
        self.record_sent(inbound);
        let outcome = Refusal::Decommissioned { node: node.clone() }.outcome();
        let (quarantine, name) = (Arc::clone(&self.quarantine), node.clone());
        let mut added = Box::pin(async move { quarantine.until_added(&name).await });
        let call = inbound.call(node.clone(), self.driver.clone());
        let observation = Observation::start("endpoint", &call).abandoned_by(inbound.abandoned.clone());
        tokio::select! {
            biased;
            () = &mut added => Replies::outcome(outcome),
            answer = relay.relay(call) => {
                match observation.answered(answer).unwrap_or_else(Replies::outcome).into_whole() {
                    Ok((message, outcome)) => Replies::whole(message, outcome),
                    // The appended end is not read if the replies have ended themselves.
                    Err(parts) => {
                        Replies::stream(parts.take_until(added).chain(stream::iter([Reply::End(outcome)])))
                    }
                }
            }
        }
    }

    /// Calls a unary method of one node.
    async fn ask(&self, call: RoutedCall<'_>, node: &NodeId) -> Answer {
        let (message, outcome) = self.call_node(call.relay, node, call.inbound).await.read_unary().await;
        self.observe(node, &outcome);
        (message.filter(|_| outcome.is_ok()), outcome)
    }
}
