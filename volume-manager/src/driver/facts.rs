//! The facts that a driver reports about itself and this node.

use std::collections::BTreeMap;

use csi_proto::DriverName;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use csi_proto::csi::v1::node_service_capability::{self, rpc::Type as NodeRpc};
use csi_proto::csi::v1::{ControllerGetCapabilitiesResponse, NodeGetCapabilitiesResponse};

use crate::lifecycle::DriverCapabilities;

/// The name, version, capabilities and node info that a driver reported during the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverFacts {
    /// The driver's name.
    pub name: DriverName,
    /// The vendor version, free text, cut at 128 bytes.
    pub vendor_version: String,
    /// The capabilities of its services.
    pub capabilities: Capabilities,
    /// The driver's id of this node, 1 to 256 bytes; `None` without NodeGetInfo, which only drivers that attach need.
    pub node_id: Option<String>,
    /// The maximum number of volumes that can be attached to the node; `None` if the driver has no limit.
    pub max_volumes: Option<u64>,
    /// The topology segments of the node by key; at most 64 entries.
    pub topology: BTreeMap<String, String>,
}

impl DriverFacts {
    /// Creates the facts of a driver without capabilities and node info.
    #[must_use]
    pub fn new(name: DriverName) -> Self {
        Self {
            name,
            vendor_version: String::new(),
            capabilities: Capabilities::default(),
            node_id: None,
            max_volumes: None,
            topology: BTreeMap::new(),
        }
    }
}

/// The capabilities of a driver that this crate uses. Others are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Capabilities {
    /// The capabilities of the controller service on this socket; all false without such a service.
    pub controller: ControllerCapabilities,
    /// The capabilities of the node service.
    pub node: NodeCapabilities,
}

impl Capabilities {
    /// The capabilities that the lifecycle of a volume depends on.
    #[must_use]
    pub fn lifecycle(&self) -> DriverCapabilities {
        DriverCapabilities {
            publish_unpublish: self.controller.publish_unpublish,
            stage_unstage: self.node.stage_unstage,
            controller_expand: self.controller.expand,
            node_expand: self.node.expand,
        }
    }
}

/// Capabilities from ControllerGetCapabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ControllerCapabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME`
    pub publish_unpublish: bool,
    /// `PUBLISH_READONLY`: ControllerPublishVolume supports `readonly`.
    pub publish_read_only: bool,
    /// `EXPAND_VOLUME`
    pub expand: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub single_node_multi_writer: bool,
}

impl ControllerCapabilities {
    /// Returns the capabilities in an answer. Unknown ones are ignored.
    #[must_use]
    pub fn read(answer: &ControllerGetCapabilitiesResponse) -> Self {
        Self {
            publish_unpublish: answer.has(ControllerRpc::PublishUnpublishVolume),
            publish_read_only: answer.has(ControllerRpc::PublishReadonly),
            expand: answer.has(ControllerRpc::ExpandVolume),
            single_node_multi_writer: answer.has(ControllerRpc::SingleNodeMultiWriter),
        }
    }
}

/// Capabilities from NodeGetCapabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct NodeCapabilities {
    /// `STAGE_UNSTAGE_VOLUME`
    pub stage_unstage: bool,
    /// `GET_VOLUME_STATS`
    pub volume_stats: bool,
    /// `EXPAND_VOLUME`
    pub expand: bool,
    /// `VOLUME_CONDITION`, number 4, removed in 1.13: the answer of NodeGetVolumeStats has a condition.
    pub volume_condition: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub single_node_multi_writer: bool,
    /// `VOLUME_MOUNT_GROUP`: the driver applies the fsGroup.
    pub volume_mount_group: bool,
    /// `GET_VOLUME_HEALTH`, since 1.13.
    pub volume_health: bool,
}

impl NodeCapabilities {
    /// Returns the capabilities in an answer. Unknown ones are ignored.
    #[must_use]
    pub fn read(answer: &NodeGetCapabilitiesResponse) -> Self {
        /// The number of the capability that was removed from the schema in 1.13; older drivers send it.
        const VOLUME_CONDITION: i32 = 4;
        let condition = answer.capabilities.iter().any(|capability| {
            matches!(capability.r#type, Some(node_service_capability::Type::Rpc(rpc)) if rpc.r#type == VOLUME_CONDITION)
        });
        Self {
            stage_unstage: answer.has(NodeRpc::StageUnstageVolume),
            volume_stats: answer.has(NodeRpc::GetVolumeStats),
            expand: answer.has(NodeRpc::ExpandVolume),
            volume_condition: condition,
            single_node_multi_writer: answer.has(NodeRpc::SingleNodeMultiWriter),
            volume_mount_group: answer.has(NodeRpc::VolumeMountGroup),
            volume_health: answer.has(NodeRpc::GetVolumeHealth),
        }
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::csi::v1::NodeServiceCapability;

    use super::*;

    fn rpc(number: i32) -> NodeServiceCapability {
        let rpc = node_service_capability::Rpc { r#type: number };
        NodeServiceCapability { r#type: Some(node_service_capability::Type::Rpc(rpc)) }
    }

    /// Capabilities do not imply each other.
    #[test]
    fn each_number_sets_only_its_own_capability() {
        let read = |number| {
            let answer = NodeGetCapabilitiesResponse { capabilities: vec![rpc(number)] };
            NodeCapabilities::read(&answer)
        };
        let none = NodeCapabilities::default();
        assert_eq!(read(1), NodeCapabilities { stage_unstage: true, ..none });
        assert_eq!(read(2), NodeCapabilities { volume_stats: true, ..none });
        assert_eq!(read(3), NodeCapabilities { expand: true, ..none });
        assert_eq!(read(4), NodeCapabilities { volume_condition: true, ..none });
        assert_eq!(read(5), NodeCapabilities { single_node_multi_writer: true, ..none });
        assert_eq!(read(6), NodeCapabilities { volume_mount_group: true, ..none });
        assert_eq!(read(7), NodeCapabilities { volume_health: true, ..none });
        for unknown in [0, 8, 99, -1, i32::MAX] {
            assert_eq!(read(unknown), none, "{unknown}");
        }
        let empty = NodeServiceCapability { r#type: None };
        assert_eq!(NodeCapabilities::read(&NodeGetCapabilitiesResponse { capabilities: vec![empty] }), none);
    }
}
