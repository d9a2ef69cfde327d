//! Asking the nodes what they are, in the background and before a volume is refused.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use futures_util::StreamExt as _;
use futures_util::stream::{self, FuturesUnordered};
use prost::Message;
use tokio::time::{Instant, sleep_until, timeout};

use super::known::Facts;
use super::way::Way;
use super::{AT_ONCE, TopologyRouter, path};
use crate::call::{Metadata, NodeId};
use crate::fault::Fault;
use crate::observe::Abandoned;
use crate::outcome::{Origin, Outcome};
use crate::relay::Relay;
use crate::route::Event;
use csi_proto::Code;

/// How long all that is asked of a node at once may take.
const VISIT: Duration = Duration::from_secs(120);

/// How long one node may take for one question.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was asked this short a time ago is not asked again.
const RECENT: Duration = Duration::from_millis(500);

/// Longest description of a node that is kept. A driver's answers have a few hundred bytes.
const MAX_DESCRIPTION: usize = 64 * 1024;

impl TopologyRouter {
    /// Asks the nodes what is to be asked of them, when its time has come, until dropped.
    pub(crate) async fn run(&self, relay: &dyn Relay) {
        let mut visits = FuturesUnordered::new();
        loop {
            let (now_due, later) = match AT_ONCE.saturating_sub(visits.len()) {
                0 => (Vec::new(), None),
                room => self.nodes.take_due(room, Instant::now()),
            };
            for node in now_due {
                visits.push(self.visit(relay, node));
            }
            let due = later.filter(|_| visits.len() < AT_ONCE);
            let next = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let returned = self.returned.notified();
            tokio::select! {
                Some(()) = poll_fn(|cx| visits.poll_next_unpin(cx)), if !visits.is_empty() => {}
                () = next => {}
                () = returned => {}
            }
        }
    }

    /// Asks the nodes now of which it is not known whether they are there.
    pub(crate) fn refresh(&self) {
        self.nodes.refresh();
        self.returned.notify_one();
    }

    /// Waits until a node is online that was not. However many come meanwhile, it is told once.
    pub(crate) async fn comes_online(&self) {
        self.nodes.comes_online().await;
    }

    /// Takes in that all nodes that are there were told of: no other is. From then on nodes are asked when they come, and seldom
    /// otherwise.
    pub fn current(&self) {
        self.nodes.current();
    }

    /// Asks one node for whatever is due.
    async fn visit(&self, relay: &dyn Relay, node: NodeId) {
        let (metadata, abandoned) = (Metadata::default(), Abandoned::default());
        let (driver, metadata, abandoned) = (&self.driver, &metadata, &abandoned);
        let way = Way { relay, driver, metadata, end: Instant::now() + VISIT, abandoned };
        let asked = self.nodes.begin_facts(&node, Instant::now());
        if asked {
            self.ask_node(&way, &node).await;
        }
        self.nodes.rested(&node, asked);
    }

    /// Asks those nodes that were away, unless that has just been done.
    pub(super) async fn survey_absent(&self, way: &Way<'_>) {
        let mut last = self.surveying.lock().await;
        if last.is_some_and(|last| last.elapsed() < RECENT) {
            return;
        }
        self.ask_nodes(way, self.nodes.absent()).await;
        *last = Some(Instant::now());
    }

    async fn ask_nodes(&self, way: &Way<'_>, nodes: Vec<NodeId>) {
        let one = |node: NodeId| async move { self.ask_node(way, &node).await };
        stream::iter(nodes).map(one).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    async fn ask_node(&self, way: &Way<'_>, node: &NodeId) {
        let outcome = match self.ask_facts(way, node).await {
            Ok(facts) => return self.describe(node, facts).await,
            Err(outcome) => outcome,
        };
        tracing::debug!(%node, code = %outcome.code, message = %outcome.loggable(), "a node of the route did not say what it is");
        self.nodes.missed(node);
        match outcome.origin {
            // It is there and does not do as it should, which is no better than away.
            Origin::Driver => {
                let offline = Outcome::from(Fault::NodeOffline { node: node.clone() });
                self.nodes.tell(node, &offline);
            }
            _ => self.nodes.tell(node, &outcome),
        }
    }

    /// Keeps what a node has said.
    pub(super) async fn describe(&self, node: &NodeId, facts: Facts) {
        let description = facts.encode_to_vec();
        self.nodes.learn(node, facts);
        if description.len() <= MAX_DESCRIPTION {
            // If it cannot be kept, which is told, it is asked for again after the next start.
            let kept = Event::Described { node, description: description.into() };
            let _ = self.keeper.handle(kept).await;
        }
    }

    async fn ask_facts(&self, way: &Way<'_>, node: &NodeId) -> Result<Facts, Outcome> {
        let info = ask(way, node, Method::GetPluginInfo).await?;
        let place = match ask(way, node, Method::NodeGetInfo).await {
            Ok(answer) => decode::<csi::NodeGetInfoResponse>(answer)?,
            Err(outcome) if is_not_offered(&outcome) => csi::NodeGetInfoResponse::default(),
            Err(outcome) => return Err(outcome),
        };
        let topology = self.topology_of(node, place.accessible_topology);
        let node_id = place.node_id;
        let known = self.nodes.facts(node);
        if let Some(known) = &known
            && known.info == info
            && self.nodes.is_online(node)
        {
            return Ok(Facts { node_id, topology, ..Facts::clone(known) });
        }
        let plugin: csi::GetPluginCapabilitiesResponse =
            decode(ask(way, node, Method::GetPluginCapabilities).await?)?;
        let controller = match plugin.has_service(Service::ControllerService) {
            true => offered(ask(way, node, Method::ControllerGetCapabilities).await)?,
            false => None,
        };
        let group = match plugin.has_service(Service::GroupControllerService) {
            true => offered(ask(way, node, Method::GroupControllerGetCapabilities).await)?,
            false => None,
        };
        let node_service = offered(ask(way, node, Method::NodeGetCapabilities).await)?;
        Ok(Facts { node_id, topology, info, plugin, controller, group, node_service })
    }

    /// Where a node is: as its driver says, or else by the key that stands for nodes.
    fn topology_of(&self, node: &NodeId, told: Option<csi::Topology>) -> csi::Topology {
        match (told.filter(|topology| !topology.segments.is_empty()), &self.settings.topology_key) {
            (Some(topology), _) => topology,
            (None, Some(key)) => csi::Topology::from_iter([(key.as_str(), node.as_str())]),
            (None, None) => csi::Topology::default(),
        }
    }
}

async fn ask(way: &Way<'_>, node: &NodeId, method: Method) -> Result<Bytes, Outcome> {
    let (way, path) = (way.until(Instant::now() + PATIENCE), path(method)?);
    match timeout(PATIENCE, way.ask(node, &path, Bytes::new())).await {
        Ok((Some(message), _)) => Ok(message),
        Ok((None, outcome)) => Err(outcome),
        // A node that does not answer so long is as good as away.
        Err(_) => Err(Fault::NodeOffline { node: node.clone() }.into()),
    }
}

fn decode<M: Message + Default>(answer: Bytes) -> Result<M, Outcome> {
    M::decode(answer).map_err(|error| Fault::Protocol { reason: format!("answer of a node: {error}") }.into())
}

fn offered<M: Message + Default>(answer: Result<Bytes, Outcome>) -> Result<Option<M>, Outcome> {
    match answer {
        Ok(answer) => decode(answer).map(Some),
        Err(outcome) if is_not_offered(&outcome) => Ok(None),
        Err(outcome) => Err(outcome),
    }
}

fn is_not_offered(outcome: &Outcome) -> bool {
    outcome.origin == Origin::Driver && outcome.code == Code::UNIMPLEMENTED
}
