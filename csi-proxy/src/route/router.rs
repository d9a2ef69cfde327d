//! Which node a call goes to.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::TopologyRouter;
use crate::call::{MethodPath, NodeId};
use crate::fault::Fault;

/// Chooses the node of a call. May decode a copy of the body; never changes it.
#[async_trait]
pub trait Route: Send + Sync {
    /// The node whose driver is to answer.
    ///
    /// # Errors
    /// If no node can be chosen now.
    async fn route(&self, method: &MethodPath, body: &Bytes) -> Result<NodeId, Fault>;
}

/// The router of an endpoint: one of ours, or any [`Route`]. Cheap to clone.
#[derive(Clone)]
pub struct Router(Mode);

#[derive(Clone)]
enum Mode {
    Fixed(NodeId),
    Topology(Arc<TopologyRouter>),
    Other(Arc<dyn Route>),
}

/// Where a call goes.
pub(crate) enum Chosen<'a> {
    Node(NodeId),
    /// To nodes that this chooses and asks by itself.
    Topology(&'a TopologyRouter),
}

impl Router {
    /// Every call goes to this node.
    #[must_use]
    pub fn fixed(node: NodeId) -> Self {
        Self(Mode::Fixed(node))
    }

    /// New volumes go to a node by their topology, and everything else to where it is.
    #[must_use]
    pub fn topology(route: impl Into<Arc<TopologyRouter>>) -> Self {
        Self(Mode::Topology(route.into()))
    }

    /// Asks this for every call.
    pub fn new(route: impl Route + 'static) -> Self {
        Self(Mode::Other(Arc::new(route)))
    }

    /// The node of every call, if there is one.
    pub(crate) fn only_node(&self) -> Option<&NodeId> {
        match &self.0 {
            Mode::Fixed(node) => Some(node),
            Mode::Topology(_) | Mode::Other(_) => None,
        }
    }

    /// The route by topology, if it is one.
    pub(crate) fn by_topology(&self) -> Option<&Arc<TopologyRouter>> {
        match &self.0 {
            Mode::Topology(route) => Some(route),
            Mode::Fixed(_) | Mode::Other(_) => None,
        }
    }

    /// Where a call goes.
    pub(crate) async fn choose(&self, method: &MethodPath, body: &Bytes) -> Result<Chosen<'_>, Fault> {
        match &self.0 {
            Mode::Fixed(node) => Ok(Chosen::Node(node.clone())),
            Mode::Topology(route) => Ok(Chosen::Topology(route)),
            Mode::Other(route) => route.route(method, body).await.map(Chosen::Node),
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Mode::Fixed(node) => f.debug_tuple("Fixed").field(node).finish(),
            Mode::Topology(route) => f.debug_tuple("Topology").field(route).finish(),
            Mode::Other(_) => f.write_str("Other"),
        }
    }
}
