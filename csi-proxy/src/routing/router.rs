//! Selects the node of a call.

use std::sync::Arc;

use super::TopologyRouter;
use crate::call::NodeId;

/// The router of an endpoint. Cheap to clone.
///
/// A custom choice is a [`Relay`](crate::Relay) that sets [`Call::node`](crate::Call::node) of the calls that it
/// forwards.
#[derive(Debug, Clone)]
#[allow(clippy::exhaustive_enums, reason = "an endpoint serves one node or all")]
pub enum Router {
    /// Every call goes to this node.
    Fixed(NodeId),
    /// New volumes go to a node selected by topology, all other calls to the node of their subject.
    Topology(Arc<TopologyRouter>),
}

impl Router {
    /// Every call goes to this node.
    #[must_use]
    pub fn fixed(node: NodeId) -> Self {
        Self::Fixed(node)
    }

    /// New volumes go to a node selected by topology, all other calls to the node of their subject.
    #[must_use]
    pub fn topology(route: impl Into<Arc<TopologyRouter>>) -> Self {
        Self::Topology(route.into())
    }
}
