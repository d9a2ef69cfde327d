//! The custom resource `DriverNode`: what is recorded of a node of a driver, its claim and whether it is decommissioned.
//!
//! A resource of its own, since `kubectl get placements` should list placements only, and a right on ConfigMaps would include
//! those of others in the namespace. The object exists while it has something to record.

use std::collections::BTreeMap;

use csi_proto::DriverName;
use serde::{Deserialize, Serialize};

use super::object::{Kind, Object, hashed_name};
use crate::call::NodeId;
use crate::routing::Claim;

/// The resource of nodes.
#[derive(Debug, Clone)]
pub(super) struct DriverNodes;

impl Kind for DriverNodes {
    const KIND: &'static str = "DriverNode";
    const PLURAL: &'static str = "drivernodes";
}

/// The spec of a `DriverNode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriverNode {
    driver: String,
    node: String,
    /// Whether an operator has declared the node lost.
    #[serde(default)]
    pub(super) decommissioned: bool,
    /// What no other node may report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) claim: Option<NodeClaim>,
}

/// The claim of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeClaim {
    #[serde(rename = "nodeID", default)]
    node_id: String,
    #[serde(default)]
    segments: BTreeMap<String, String>,
}

impl From<&Claim> for NodeClaim {
    fn from(claim: &Claim) -> Self {
        Self { node_id: claim.node_id.clone(), segments: claim.segments.clone() }
    }
}

impl From<NodeClaim> for Claim {
    fn from(claim: NodeClaim) -> Self {
        Self { node_id: claim.node_id, segments: claim.segments }
    }
}

impl DriverNode {
    /// A node without records.
    pub(super) fn new(driver: &DriverName, node: &NodeId) -> Self {
        Self { driver: driver.to_string(), node: node.to_string(), decommissioned: false, claim: None }
    }

    /// Whether nothing is recorded.
    pub(super) fn is_empty(&self) -> bool {
        !self.decommissioned && self.claim.is_none()
    }

    /// The object.
    pub(super) fn encode(
        &self,
        driver: &DriverName,
        node: &NodeId,
    ) -> Result<Object<DriverNodes>, serde_json::Error> {
        Ok(Object::new(driver, name(driver, node), serde_json::to_value(self)?))
    }

    /// The node of an object with its records; `None` if the object is not one of this driver, or cannot be decoded.
    pub(super) fn decode(driver: &DriverName, object: &Object<DriverNodes>) -> Option<(NodeId, Self)> {
        let found = Self::deserialize(&object.spec).ok()?;
        let node = NodeId::new(&found.node).ok()?;
        let is_own = found.driver == driver.as_str() && name(driver, &node) == object.name();
        is_own.then_some((node, found))
    }
}

/// The name of the object of a node.
pub(super) fn name(driver: &DriverName, node: &NodeId) -> String {
    hashed_name([driver.as_str(), node.as_str()])
}
