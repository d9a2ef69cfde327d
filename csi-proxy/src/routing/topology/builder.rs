//! Opens a topology route.

use csi_proto::DriverName;

use super::{OpenRouteError, TopologyRouter};
use crate::call::NodeId;
use crate::driver_info::DriverInfoStore;
use crate::routing::selection::OfflinePolicy;
use crate::routing::store::PlacementStore;

/// How a topology route selects nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) default_node: Option<NodeId>,
    pub(super) offline: OfflinePolicy,
    pub(super) topology_key: Option<String>,
    pub(super) shared_topology_keys: Vec<String>,
    pub(super) discovers: bool,
}

/// Opens a [`TopologyRouter`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it opens"]
pub struct TopologyRouterBuilder {
    driver: DriverName,
    nodes: Vec<NodeId>,
    settings: Settings,
}

impl TopologyRouter {
    /// Begins a route for a driver on these nodes: at least one, unless the route has
    /// [discovery](TopologyRouterBuilder::with_discovery).
    pub fn builder(driver: DriverName, nodes: impl IntoIterator<Item = NodeId>) -> TopologyRouterBuilder {
        let nodes = nodes.into_iter().collect();
        TopologyRouterBuilder { driver, nodes, settings: Settings::default() }
    }
}

impl TopologyRouterBuilder {
    /// Sets the node of volumes without a topology requirement, as with immediate binding and a provisioner with
    /// `--immediate-topology=false`. Default none: such a request fails with `INVALID_ARGUMENT`, unless there is only
    /// one node.
    pub fn with_default_node(mut self, node: NodeId) -> Self {
        self.settings.default_node = Some(node);
        self
    }

    /// Sets how a new volume whose node is offline is handled; by default the volume waits.
    pub fn with_offline_policy(mut self, policy: OfflinePolicy) -> Self {
        self.settings.offline = policy;
        self
    }

    /// Sets the topology key of nodes whose driver reports none; its value is the name of the node. The key must be the
    /// one that a shim in front of the driver reports to kubelet on the node. Default none: such nodes are never
    /// selected.
    ///
    /// If a driver reports this key, its value must be the name of the node: another one quarantines the node.
    pub fn with_topology_key(mut self, key: impl Into<String>) -> Self {
        self.settings.topology_key = Some(key.into());
        self
    }

    /// Adds topology keys, such as a zone, whose segments several nodes may have. A segment under any other key belongs
    /// to the first node that reported it. Default none.
    pub fn with_shared_topology_keys(mut self, keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.settings.shared_topology_keys.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Adds [reported](TopologyRouter::arrived) nodes with the driver; default: only the configured ones.
    pub fn with_discovery(mut self) -> Self {
        self.settings.discovers = true;
        self
    }

    /// Opens the route with the state of the store.
    ///
    /// # Errors
    /// If no node is configured, the default node is not one of them, or the store cannot be read.
    pub async fn open(
        self,
        store: impl PlacementStore + DriverInfoStore + 'static,
    ) -> Result<TopologyRouter, OpenRouteError> {
        TopologyRouter::open(self.driver, self.nodes, store, self.settings).await
    }
}
