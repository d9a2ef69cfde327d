//! What a driver offers that is on several nodes: what all of them offer.

use std::sync::Arc;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message as _;

use super::known::Facts;

/// The plugin's own description: the first node's, with every version that there is, so that a change of one is noticed.
pub(super) fn info(nodes: &[Arc<Facts>]) -> Option<csi::GetPluginInfoResponse> {
    let infos: Vec<_> = nodes
        .iter()
        .filter_map(|facts| csi::GetPluginInfoResponse::decode(facts.info.clone()).ok())
        .collect();
    let mut versions: Vec<_> = infos.iter().map(|info| info.vendor_version.clone()).collect();
    versions.sort();
    versions.dedup();
    let mut first = infos.into_iter().next()?;
    first.vendor_version = versions.join(", ");
    Some(first)
}

/// The plugin's capabilities. That volumes are bound to places is true of the driver as a whole, even if it does not say so,
/// when every node has one.
pub(super) fn plugin(nodes: &[Arc<Facts>]) -> Option<csi::GetPluginCapabilitiesResponse> {
    let mut common = nodes.first()?.plugin.clone();
    common.capabilities.retain(|one| nodes.iter().all(|facts| facts.plugin.capabilities.contains(one)));
    let bound = nodes.iter().all(|facts| !facts.topology.segments.is_empty());
    if bound && !common.has_service(Service::VolumeAccessibilityConstraints) {
        common.capabilities.push(csi::PluginCapability::service(Service::VolumeAccessibilityConstraints));
    }
    Some(common)
}

/// The controller's capabilities; `None` if a node has no controller.
pub(super) fn controller(nodes: &[Arc<Facts>]) -> Option<csi::ControllerGetCapabilitiesResponse> {
    let capabilities = common(nodes, |facts| Some(&facts.controller.as_ref()?.capabilities))?;
    Some(csi::ControllerGetCapabilitiesResponse { capabilities })
}

/// The group controller's capabilities; `None` if a node has no group controller.
pub(super) fn group(nodes: &[Arc<Facts>]) -> Option<csi::GroupControllerGetCapabilitiesResponse> {
    let capabilities = common(nodes, |facts| Some(&facts.group.as_ref()?.capabilities))?;
    Some(csi::GroupControllerGetCapabilitiesResponse { capabilities })
}

/// The node service's capabilities; `None` if a node has no such service.
pub(super) fn node_service(nodes: &[Arc<Facts>]) -> Option<csi::NodeGetCapabilitiesResponse> {
    let capabilities = common(nodes, |facts| Some(&facts.node_service.as_ref()?.capabilities))?;
    Some(csi::NodeGetCapabilitiesResponse { capabilities })
}

/// What every node has of a service; `None` if a node does not have the service, or there is no node.
fn common<C: Clone + PartialEq>(
    nodes: &[Arc<Facts>],
    of: impl Fn(&Facts) -> Option<&Vec<C>>,
) -> Option<Vec<C>> {
    let all: Vec<_> = nodes.iter().map(|facts| of(facts)).collect::<Option<_>>()?;
    let mut common = (*all.first()?).clone();
    common.retain(|one| all.iter().all(|other| other.contains(one)));
    Some(common)
}

#[cfg(test)]
mod tests {
    use csi::controller_service_capability::rpc::Type as Rpc;
    use csi::node_service_capability::rpc::Type as NodeRpc;

    use super::*;

    fn facts(version: &str, rpcs: &[Rpc], services: &[Service], place: Option<&str>) -> Arc<Facts> {
        let info = csi::GetPluginInfoResponse {
            name: "csi-hostpath".to_owned(),
            vendor_version: version.to_owned(),
            ..Default::default()
        };
        Arc::new(Facts {
            node_id: String::new(),
            topology: csi::Topology::from_iter(place.map(|place| ("node", place))),
            info: info.encode_to_vec().into(),
            plugin: services.iter().map(|service| csi::PluginCapability::service(*service)).collect(),
            controller: Some(rpcs.iter().copied().collect()),
            group: None,
            ..Facts::default()
        })
    }

    #[test]
    fn only_what_every_node_offers_is_offered() {
        use Service::{ControllerService, GroupControllerService, VolumeAccessibilityConstraints};
        let nodes = [
            facts(
                "2",
                &[Rpc::CreateDeleteVolume, Rpc::GetCapacity],
                &[ControllerService, GroupControllerService],
                Some("a"),
            ),
            facts("1", &[Rpc::CreateDeleteVolume, Rpc::ListVolumes], &[ControllerService], Some("b")),
        ];
        let rpcs = controller(&nodes).unwrap();
        assert!(rpcs.has(Rpc::CreateDeleteVolume) && rpcs.capabilities.len() == 1);
        let services = plugin(&nodes).unwrap();
        assert!(services.has_service(ControllerService) && !services.has_service(GroupControllerService));
        assert!(services.has_service(VolumeAccessibilityConstraints), "every node has a place");
        assert_eq!(info(&nodes).unwrap().vendor_version, "1, 2");
        assert_eq!(group(&nodes), None);
    }

    /// An external-resizer asks for that of nodes where the controller cannot grow volumes.
    #[test]
    fn what_nodes_can_do_is_what_all_of_them_can() {
        let with = |rpcs: Option<&[NodeRpc]>| {
            let node_service = rpcs.map(|rpcs| rpcs.iter().copied().collect());
            Arc::new(Facts { node_service, ..Facts::default() })
        };
        let both = with(Some(&[NodeRpc::StageUnstageVolume, NodeRpc::ExpandVolume]));
        let one = with(Some(&[NodeRpc::ExpandVolume]));
        let common = node_service(&[both, one.clone()]).unwrap();
        assert!(common.has(NodeRpc::ExpandVolume) && common.capabilities.len() == 1);
        assert_eq!(node_service(&[one, with(None)]), None);
        assert_eq!(node_service(&[]), None);
    }

    #[test]
    fn nodes_without_a_place_do_not_make_volumes_bound_to_one() {
        let nodes = [
            facts("1", &[], &[Service::ControllerService], Some("a")),
            facts("1", &[], &[Service::ControllerService], None),
        ];
        assert!(!plugin(&nodes).unwrap().has_service(Service::VolumeAccessibilityConstraints));
    }

    #[test]
    fn of_no_nodes_nothing_is_known() {
        assert!(info(&[]).is_none() && plugin(&[]).is_none() && controller(&[]).is_none());
    }
}
