//! Which node a call goes to.

use std::sync::Arc;

use super::TopologyRouter;
use crate::call::NodeId;

/// The router of an endpoint. Cheap to clone.
///
/// Another choice of your own is a [`Relay`](crate::Relay) that sets [`Call::node`](crate::Call::node) of the calls that it hands on.
#[derive(Debug, Clone)]
#[allow(clippy::exhaustive_enums, reason = "an endpoint stands for one node or for all")]
pub enum Router {
    /// Every call goes to this node.
    Fixed(NodeId),
    /// New volumes go to a node by their topology, and everything else to where it is.
    Topology(Arc<TopologyRouter>),
}

impl Router {
    /// Every call goes to this node.
    #[must_use]
    pub fn fixed(node: NodeId) -> Self {
        Self::Fixed(node)
    }

    /// New volumes go to a node by their topology, and everything else to where it is.
    #[must_use]
    pub fn topology(route: impl Into<Arc<TopologyRouter>>) -> Self {
        Self::Topology(route.into())
    }
}
