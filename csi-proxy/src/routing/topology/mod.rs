//! The route that finds the node of every call: new volumes by topology, everything else by what it has an id of.

mod attach;
mod capacity;
mod create;
mod decommission;
mod list;
mod nodes;
mod remove;
mod room;
mod seek;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use csi_proto::{DriverName, Method};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

pub(crate) use self::create::with_topology;
use self::decommission::Quarantine;
pub use self::decommission::{DecommissionError, Decommissioned, MAX_DECOMMISSIONED};
use self::room::Rooms;
use super::durable::DurablePlacements;
use super::election::OfflinePolicy;
use super::placements::Placements;
use super::refusal::Refusal;
use super::store::{PlacementStore, StoreError};
use crate::call::{Call, CallId, Metadata, MethodPath, NodeId, Outcome, Replies, Reply};
use crate::dispatcher::operation::{Answer as DriverAnswer, BadRequest, Identity, Subject, subjects_of};
use crate::driver_info::{AT_ONCE, DriverInfo, DriverInfoStore, Mode};
use crate::observe::{Abandoned, Observation};
use crate::relay::Relay;

/// How a [`TopologyRouter`] chooses.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TopologySettings {
    /// The node of volumes whose request names no topology, as with a class that binds at once and a provisioner that is told
    /// `--immediate-topology=false`. Default none: such a request is an `INVALID_ARGUMENT`, unless there is only one node.
    pub default_node: Option<NodeId>,
    /// What becomes of a new volume whose node is offline; default it waits.
    pub offline: OfflinePolicy,
    /// The topology key of nodes whose driver names none; the node's name is its value. It has to be the one that the node's
    /// kubelet is told, as a shim in front of the driver does. Default none: such nodes are never chosen.
    pub topology_key: Option<String>,
    /// Whether each node that the route is [told of](TopologyRouter::arrived) belongs to it once it has the driver; default no: only
    /// those that it is opened with.
    pub discovers: bool,
}

/// A route by topology cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenRouteError {
    /// There is no node.
    #[error("a route by topology needs at least one node to choose from")]
    NoNodes,
    /// The default node is none of the nodes.
    #[error("the default node {node} is none of the nodes; name it among them")]
    DefaultUnknown {
        /// The default node.
        node: NodeId,
    },
    /// What is kept cannot be read.
    #[error("table of placements: {0}")]
    Store(#[from] StoreError),
}

/// The route of a driver that is on many nodes, each with volumes of its own.
///
/// | Call | Goes to |
/// |---|---|
/// | `CreateVolume` | the node that was chosen for the name before; else the node of its content source; else the first node by topology, by [`Ballot::elect`](super::Ballot::elect) |
/// | what names a volume, snapshot or group by its id | where that was made; of an id that is not known, one node after the other until one has it |
/// | `DeleteVolume`, `DeleteSnapshot` and group of an unknown id | all nodes; OK only if every one says so |
/// | `ControllerPublishVolume`, `ControllerUnpublishVolume` | the node whose driver has the `node_id`; an empty one is all |
/// | lists | all nodes, one after the other; if one cannot be asked the list fails |
/// | `GetCapacity` | the nodes within the topology; an offline one has none |
/// | start-up calls | answered from all nodes: the capabilities that all have |
///
/// What it has chosen is in a [`PlacementStore`] before anything is sent, and so is where things are before a caller is told.
///
/// ```
/// use csi_proxy::routing::store::MemoryStore;
/// use csi_proxy::{Router, TopologyRouter, TopologySettings};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nodes = ["edge-1".parse()?, "edge-2".parse()?];
/// // For more than a test: a `RedbStore`.
/// let store = MemoryStore::default();
/// let settings = TopologySettings::default();
/// let route = TopologyRouter::open("csi-hostpath".parse()?, nodes, store, settings).await?;
/// let router = Router::topology(route);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TopologyRouter {
    driver: DriverName,
    settings: TopologySettings,
    placements: Arc<DurablePlacements>,
    drivers: Arc<DriverInfo>,
    quarantine: Arc<Quarantine>,
    rooms: Mutex<Rooms>,
}

/// A call that has no node yet.
#[derive(Clone)]
pub(crate) struct Inquiry {
    pub(crate) method: MethodPath,
    pub(crate) metadata: Metadata,
    pub(crate) body: Bytes,
    /// When the caller stops waiting.
    pub(crate) end: Instant,
    /// Why the answer is not read to its end, if it is not.
    pub(crate) abandoned: Abandoned,
}

impl Inquiry {
    /// The call to a node.
    pub(crate) fn call(&self, node: NodeId, driver: DriverName) -> Call {
        let remaining = self.end.saturating_duration_since(Instant::now());
        let call = Call::new(CallId::new(), node, driver, self.method.clone(), self.body.clone());
        call.with_remaining(remaining).with_metadata(self.metadata.clone())
    }
}

/// A whole unary answer: a message if and only if it is OK.
type Answer = (Option<Bytes>, Outcome);

impl TopologyRouter {
    /// A route for a driver that is on these nodes, with what the store has.
    ///
    /// # Errors
    /// If there is no node, the default one is none of them, or the store cannot be read.
    pub async fn open(
        driver: DriverName,
        nodes: impl IntoIterator<Item = NodeId>,
        store: impl PlacementStore + DriverInfoStore + 'static,
        settings: TopologySettings,
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
        let quarantine = Arc::new(Quarantine::new(decommissioned, &mut names));
        let (topology_key, discovers) = (settings.topology_key.clone(), settings.discovers);
        let drivers =
            DriverInfo::new(driver.clone(), Mode::Together { topology_key, discovers }, Some(store));
        for name in names {
            drivers.change(|cache, now| cache.add(&name, now));
        }
        drivers.load().await;
        let route = Self { driver, settings, placements, drivers, quarantine, rooms: Mutex::default() };
        for (node, _) in route.decommissioned() {
            route.remove_node(&node).await;
        }
        Ok(route)
    }

    /// How many nodes there are, and how many of them could be reached the last time.
    #[must_use]
    pub fn node_counts(&self) -> (usize, usize) {
        (self.names().len(), self.online().len())
    }

    /// How many volumes, snapshots and groups the table of placements has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.placements.rows()
    }

    /// What is known of the driver on its nodes.
    pub(crate) fn drivers(&self) -> &Arc<DriverInfo> {
        &self.drivers
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a call to wherever it belongs.
    pub(crate) async fn answer(&self, relay: &dyn Relay, inquiry: Inquiry) -> Replies {
        let answer = self.routed(relay, &inquiry).await;
        answer.unwrap_or_else(|refusal| {
            let outcome = refusal.outcome();
            tracing::warn!(
                method = %inquiry.method, driver = %self.driver, code = %outcome.code,
                message = %outcome.loggable(), "no way for a call"
            );
            Replies::outcome(outcome)
        })
    }

    async fn routed(&self, relay: &dyn Relay, inquiry: &Inquiry) -> Result<Replies, Refusal> {
        use Method as M;
        let Some(method) = Method::from_path(inquiry.method.as_str()) else {
            return self.to_the_only(relay, inquiry).await;
        };
        let answer = match method {
            M::CreateVolume => self.create(relay, inquiry).await?,
            M::DeleteVolume | M::DeleteSnapshot | M::DeleteVolumeGroupSnapshot => {
                self.remove(relay, inquiry, method).await?
            }
            M::ControllerPublishVolume => self.publish(relay, inquiry).await?,
            M::ControllerUnpublishVolume => self.unpublish(relay, inquiry).await?,
            M::ListVolumes | M::ListSnapshots | M::ControllerListVolumeHealth => {
                self.list(relay, inquiry, method).await?
            }
            M::GetCapacity => self.capacity(relay, inquiry).await?,
            _ if method.is_server_streaming() || method.volume_key().is_some() => {
                return self.seek(relay, inquiry, method).await;
            }
            _ => return self.to_the_only(relay, inquiry).await,
        };
        let (message, outcome) = answer;
        Ok(Replies::whole(message, outcome))
    }

    /// Where it is not known what a method is about, there must be only one node.
    async fn to_the_only(&self, relay: &dyn Relay, inquiry: &Inquiry) -> Result<Replies, Refusal> {
        let node = self.only().ok_or(BadRequest::UnknownMethod)?;
        Ok(self.carry(relay, &node, inquiry).await)
    }

    /// Calls one node, until it is decommissioned: then what waits for it ends, and a stream that is open.
    async fn carry(&self, relay: &dyn Relay, node: &NodeId, inquiry: &Inquiry) -> Replies {
        let outcome = Refusal::Decommissioned { node: node.clone() }.outcome();
        let (quarantine, name) = (Arc::clone(&self.quarantine), node.clone());
        let mut added = Box::pin(async move { quarantine.until_added(&name).await });
        let call = inquiry.call(node.clone(), self.driver.clone());
        let observation = Observation::start("endpoint", &call).abandoned_by(inquiry.abandoned.clone());
        tokio::select! {
            biased;
            () = &mut added => Replies::outcome(outcome),
            answer = relay.relay(call) => {
                match observation.answered(answer).unwrap_or_else(Replies::outcome).into_whole() {
                    Ok((message, outcome)) => Replies::whole(message, outcome),
                    // After the end of the replies nothing is read.
                    Err(parts) => {
                        Replies::stream(parts.take_until(added).chain(stream::iter([Reply::End(outcome)])))
                    }
                }
            }
        }
    }

    /// Calls a unary method of one node.
    async fn ask(&self, relay: &dyn Relay, node: &NodeId, inquiry: &Inquiry) -> Answer {
        let (message, outcome) = self.carry(relay, node, inquiry).await.read_unary().await;
        self.hear(node, &outcome);
        (message.filter(|_| outcome.is_ok()), outcome)
    }

    /// Keeps the ids of what a call made, and of what it was about.
    async fn learn(
        &self,
        inquiry: &Inquiry,
        method: Method,
        node: &NodeId,
        (message, outcome): &Answer,
    ) -> Result<(), Refusal> {
        let Some(answer) = DriverAnswer::new(message.clone(), outcome.clone()).filter(|_| outcome.is_ok())
        else {
            return Ok(());
        };
        let mut subjects = subjects(method, &inquiry.body).unwrap_or_default();
        if let Some(identity) = Identity::of(&self.driver, method, &inquiry.body) {
            subjects.extend(answer.keys(&identity).iter().map(|key| key.subject().clone()));
        }
        for subject in subjects {
            self.placements.found(&subject, node).await?;
        }
        Ok(())
    }
}

/// What a request is about.
fn subjects(method: Method, body: &[u8]) -> Result<Vec<Subject>, BadRequest> {
    let fields =
        crate::call::protobuf::fields(body).ok_or(BadRequest::Unreadable { field: "the request" })?;
    subjects_of(method, &fields)
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inquiry({}, {} bytes)", self.method, self.body.len())
    }
}
