//! The route that finds the node of every call: new volumes by topology, everything else by what it has an id of.

mod attach;
mod capabilities;
mod capacity;
mod create;
mod decommission;
mod known;
mod list;
mod nodes;
mod remove;
mod seek;
mod startup;
#[cfg(test)]
mod storm;
mod survey;
mod token;
#[cfg(test)]
mod told;
mod way;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use csi_proto::{DriverName, Method};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use self::decommission::Quarantine;
pub use self::decommission::{DecommissionError, Decommissioned, MAX_DECOMMISSIONED};
use self::nodes::Nodes;
use self::way::Answer;
pub(crate) use self::way::Way;
use super::election::OfflinePolicy;
use super::keeper::Keeper;
use super::ledger::{DEFAULT_MAX_ROWS, Event, Ledger};
use super::refusal::Refusal;
use crate::call::{MethodPath, NodeId};
use crate::fault::Fault;
use crate::operation::journal::{Journal, OpenJournalError};
use crate::operation::{Answer as DriverAnswer, Identity, NoSubject, Subject, subjects_of};
use crate::outcome::Outcome;
use crate::replies::Replies;

/// Nodes that are asked at once.
const AT_ONCE: usize = 16;

/// How a [`TopologyRouter`] chooses.
#[derive(Debug, Clone)]
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
    /// Most rows of the table of placements; default [`DEFAULT_MAX_ROWS`].
    pub max_rows: usize,
    /// Whether each node that the route is [told of](TopologyRouter::arrived) belongs to it once it has the driver; default no: only
    /// those that it is opened with.
    pub discovers: bool,
}

impl Default for TopologySettings {
    fn default() -> Self {
        Self {
            default_node: None,
            offline: OfflinePolicy::default(),
            topology_key: None,
            max_rows: DEFAULT_MAX_ROWS,
            discovers: false,
        }
    }
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
    /// The journal cannot be read.
    #[error("table of placements: {0}")]
    Journal(#[from] OpenJournalError),
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
/// What it has chosen is in a [`Journal`] of its own before anything is sent, and so is where things are before a caller is told.
///
/// ```
/// use csi_proxy::operation::journal::memory::MemoryJournal;
/// use csi_proxy::{Router, TopologyRouter, TopologySettings};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nodes = ["edge-1".parse()?, "edge-2".parse()?];
/// // For more than a test: a `RedbJournal`.
/// let journal = MemoryJournal::default();
/// let route = TopologyRouter::open("csi-hostpath".parse()?, nodes, journal, TopologySettings::default())?;
/// let router = Router::topology(route);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TopologyRouter {
    driver: DriverName,
    settings: TopologySettings,
    nodes: Nodes,
    quarantine: Quarantine,
    keeper: Arc<Keeper>,
    /// When absent nodes were asked last. Held while they are asked.
    surveying: Mutex<Option<Instant>>,
    returned: Notify,
}

/// A call that has no node yet.
pub(crate) struct Inquiry {
    pub(crate) method: MethodPath,
    pub(crate) body: Bytes,
}

impl TopologyRouter {
    /// A route for a driver that is on these nodes, which goes on where the journal ends. Blocks while that is read. A thread
    /// writes it from now on, and ends with the route.
    ///
    /// # Errors
    /// If there is no node, the default one is none of them, or the journal cannot be read.
    pub fn open(
        driver: DriverName,
        nodes: impl IntoIterator<Item = NodeId>,
        journal: impl Journal + 'static,
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
        let ledger = Ledger::new(driver.clone()).with_max_rows(settings.max_rows);
        let keeper = Arc::new(Keeper::open(ledger, Box::new(journal))?);
        let quarantine = Quarantine::new(keeper.decommissioned(), &mut names);
        let nodes = Nodes::new(names, settings.discovers, keeper.descriptions());
        let (surveying, returned) = (Mutex::default(), Notify::new());
        Ok(Self { driver, settings, nodes, quarantine, keeper, surveying, returned })
    }

    /// How many nodes there are, and how many of them could be reached the last time.
    #[must_use]
    pub fn node_counts(&self) -> (usize, usize) {
        (self.nodes.names().len(), self.nodes.online().len())
    }

    /// How many rows the table of placements has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.keeper.rows()
    }

    /// Carries a call to wherever it belongs.
    pub(crate) async fn answer(&self, way: &Way<'_>, inquiry: Inquiry) -> Replies {
        let answer = self.routed(way, &inquiry).await;
        answer.unwrap_or_else(|refusal| {
            let outcome = refusal.outcome(&self.driver);
            tracing::warn!(
                method = %inquiry.method, driver = %self.driver, code = %outcome.code,
                message = %outcome.loggable(), "no way for a call"
            );
            Replies::outcome(outcome)
        })
    }

    async fn routed(&self, way: &Way<'_>, inquiry: &Inquiry) -> Result<Replies, Refusal> {
        use Method as M;
        let Some(method) = Method::from_path(inquiry.method.as_str()) else {
            return self.to_the_only(way, inquiry).await;
        };
        let answer = match method {
            M::CreateVolume => self.create(way, inquiry).await?,
            M::DeleteVolume | M::DeleteSnapshot | M::DeleteVolumeGroupSnapshot => {
                self.remove(way, inquiry, method).await?
            }
            M::ControllerPublishVolume => self.publish(way, inquiry).await?,
            M::ControllerUnpublishVolume => self.unpublish(way, inquiry).await?,
            M::ListVolumes | M::ListSnapshots | M::ControllerListVolumeHealth => {
                self.list(way, inquiry, method).await?
            }
            M::GetCapacity => self.capacity(way, inquiry).await?,
            _ if method.is_server_streaming() => return self.stream(way, inquiry, method).await,
            _ if method.volume_key().is_some() => self.seek(way, inquiry, method).await?,
            _ => return self.to_the_only(way, inquiry).await,
        };
        let (message, outcome) = answer;
        Ok(Replies::whole(message, outcome))
    }

    /// Where it is not known what a method is about, there must be only one node.
    async fn to_the_only(&self, way: &Way<'_>, inquiry: &Inquiry) -> Result<Replies, Refusal> {
        let node = self.nodes.only().ok_or(Refusal::UnknownMethod)?;
        Ok(way.relay(&node, &inquiry.method, inquiry.body.clone()).await)
    }

    /// Calls one node.
    async fn ask(&self, way: &Way<'_>, node: &NodeId, inquiry: &Inquiry) -> Answer {
        let answer = tokio::select! {
            biased;
            // Not for a node that returns while the call waits for it.
            () = self.quarantine.until_added(node) => {
                return (None, Refusal::Decommissioned { node: node.clone() }.outcome(&self.driver));
            }
            answer = way.ask(node, &inquiry.method, inquiry.body.clone()) => answer,
        };
        self.nodes.tell(node, &answer.1);
        answer
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
            self.keeper.handle(Event::Found { subject, node }).await?;
        }
        Ok(())
    }
}

/// What a request is about.
fn subjects(method: Method, body: &[u8]) -> Result<Vec<Subject>, Refusal> {
    let fields = crate::protobuf::fields(body).ok_or(Refusal::Unreadable { field: "the request" })?;
    subjects_of(method, &fields).map_err(|error| match error {
        NoSubject::UnknownMethod => Refusal::UnknownMethod,
        NoSubject::Missing { field } => Refusal::Missing { field },
        NoSubject::Unreadable { field } => Refusal::Unreadable { field },
    })
}

/// The path of a method of the spec.
fn path(method: Method) -> Result<MethodPath, Outcome> {
    MethodPath::new(method.path()).map_err(|error| Fault::Protocol { reason: error.to_string() }.into())
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inquiry({}, {} bytes)", self.method, self.body.len())
    }
}
