//! Selects the node of a call.

use std::sync::Arc;

use super::TopologyRouter;
use crate::call::NodeId;

/// The router of an endpoint. Cheap to clone.
///
/// For a custom selection, implement a [`Relay`](crate::Relay) that sets the [`Call::node`](crate::Call::node) of
/// each call and forwards the call.
#[derive(Debug, Clone)]
#[allow(clippy::exhaustive_enums, reason = "an endpoint serves one node or all")]
pub enum Router {
    /// Sends every call to this node.
    Fixed(NodeId),
    /// Places new volumes by topology, and sends all other calls to the node of their subject.
    Topology(Arc<TopologyRouter>),
}

impl Router {
    /// Creates a router that sends every call to this node.
    #[must_use]
    pub fn fixed(node: NodeId) -> Self {
        Self::Fixed(node)
    }

    /// Creates a router that sends each call to its node by this route.
    #[must_use]
    pub fn topology(route: impl Into<Arc<TopologyRouter>>) -> Self {
        Self::Topology(route.into())
    }
}
