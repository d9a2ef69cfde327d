//! What a driver says of itself, of what it can do, and of this node.

use std::collections::BTreeMap;

use csi_proto::DriverName;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use csi_proto::csi::v1::node_service_capability::{self, rpc::Type as NodeRpc};
use csi_proto::csi::v1::{ControllerGetCapabilitiesResponse, NodeGetCapabilitiesResponse};

use crate::lifecycle::DriverCapabilities;

/// What a driver said of itself and of this node when it was connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverFacts {
    /// Its name.
    pub name: DriverName,
    /// Its version, free text of at most 128 characters.
    pub vendor_version: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its id of this node, 1 to 256 bytes; `None` if it has no NodeGetInfo, which only drivers that attach need.
    pub node_id: Option<String>,
    /// How many volumes the node can have attached; `None` if the driver sets no limit.
    pub max_volumes: Option<u64>,
    /// Where the node lies, domain to segment; at most 64 entries.
    pub topology: BTreeMap<String, String>,
}

impl DriverFacts {
    /// Facts of a driver that can do nothing and is nowhere; to begin from.
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

/// What one generation of a driver can do, as far as anything here depends on it. What is not known is ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Capabilities {
    /// Of the controller service on this socket; nothing if it has none.
    pub controller: ControllerCapabilities,
    /// Of the node service.
    pub node: NodeCapabilities,
}

impl Capabilities {
    /// What the lifecycle of a volume depends on.
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
    /// `PUBLISH_READONLY`: ControllerPublishVolume heeds `readonly`.
    pub publish_read_only: bool,
    /// `EXPAND_VOLUME`
    pub expand: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub single_node_multi_writer: bool,
}

impl ControllerCapabilities {
    /// What the driver answered. What is not known is ignored.
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
    /// `VOLUME_CONDITION`, number 4, of versions before 1.13: the answer of NodeGetVolumeStats has a condition.
    pub volume_condition: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub single_node_multi_writer: bool,
    /// `VOLUME_MOUNT_GROUP`: the driver gives files to a group by itself.
    pub volume_mount_group: bool,
    /// `GET_VOLUME_HEALTH`, since 1.13.
    pub volume_health: bool,
}

impl NodeCapabilities {
    /// What the driver answered. What is not known is ignored.
    #[must_use]
    pub fn read(answer: &NodeGetCapabilitiesResponse) -> Self {
        /// 1.13 took the value out of the schema; the drivers that send it are still there.
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

    /// Anchors (c) 15: a capability is not there because another one is.
    #[test]
    fn each_number_sets_its_own_capability_and_no_other() {
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
