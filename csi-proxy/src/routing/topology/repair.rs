//! Names whose placement is damaged: an operator reports where their volume is.
//!
//! No node can report it: CSI has no question for the name of a volume, and a `CreateVolume` sent to find out would
//! create the volume where it is not.

use std::collections::BTreeSet;

use csi_proto::DriverName;

use super::TopologyRouter;
use crate::call::NodeId;
use crate::routing::Refusal;

/// A damaged placement cannot be repaired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The placement of the name is not damaged.
    #[error("the placement of {name:?} is not damaged")]
    NotDamaged {
        /// The name of the volume.
        name: Box<str>,
    },
    /// The route does not know the node, or the node is decommissioned.
    #[error("node {node} is decommissioned, or not known to the proxy of driver {driver}")]
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// The driver of the route.
        driver: DriverName,
    },
    /// The change is not durable. The name stays blocked.
    #[error("the placement of {name:?} is not durable, repeat the command: {source}")]
    NotDurable {
        /// The name of the volume.
        name: Box<str>,
        /// Why the change is not durable.
        source: Refusal,
    },
}

impl TopologyRouter {
    /// The names of volumes that are blocked because their placement is damaged, sorted.
    #[must_use]
    pub fn damaged_names(&self) -> BTreeSet<Box<str>> {
        self.placements.damaged_names()
    }

    /// Replaces the damaged placement of a volume's name: its requests go to `node`; for `None` no node has the volume
    /// or is creating it, so the name is free.
    ///
    /// # Errors
    /// If the placement is not damaged, the node is not known or decommissioned, or the change is not durable. Nothing
    /// is changed then.
    pub async fn repair(&self, name: &str, node: Option<&NodeId>) -> Result<(), RepairError> {
        if let Some(node) = node.filter(|node| !self.names().contains(*node)) {
            return Err(RepairError::NoSuchNode { node: node.clone(), driver: self.driver.clone() });
        }
        match self.placements.repair(name, node).await {
            Ok(true) => {
                tracing::warn!(name, ?node, "damaged placement replaced by an operator");
                Ok(())
            }
            Ok(false) => Err(RepairError::NotDamaged { name: name.into() }),
            Err(source) => Err(RepairError::NotDurable { name: name.into(), source }),
        }
    }
}
