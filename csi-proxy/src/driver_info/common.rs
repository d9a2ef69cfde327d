//! What a driver offers that is on several nodes: what all of them offer.

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message;

use super::info::{Fact, Info};

/// The plugin's own description: the first node's, with every version that there is, so that a change of one is noticed.
pub(super) fn info<'a>(nodes: impl Iterator<Item = &'a Info>) -> Option<csi::GetPluginInfoResponse> {
    let infos = nodes.filter_map(|node| csi::GetPluginInfoResponse::decode(node.info.clone()?).ok());
    let mut first = None;
    let mut versions = Vec::new();
    for info in infos {
        versions.push(info.vendor_version.clone());
        first.get_or_insert(info);
    }
    versions.sort();
    versions.dedup();
    let first = first?;
    Some(csi::GetPluginInfoResponse { vendor_version: versions.join(", "), ..first })
}

/// The plugin's capabilities. That volumes are bound to places is true of the driver as a whole, even if it does not say so,
/// when every node has one.
pub(super) fn plugin<'a>(
    nodes: impl Iterator<Item = &'a Info>,
    bound: bool,
) -> Option<csi::GetPluginCapabilitiesResponse> {
    let decode = |node: &Info| {
        Some(csi::GetPluginCapabilitiesResponse::decode(node.plugin.clone()?).ok()?.capabilities)
    };
    let mut common = csi::GetPluginCapabilitiesResponse { capabilities: common(nodes.map(decode))? };
    if bound && !common.has_service(Service::VolumeAccessibilityConstraints) {
        common.capabilities.push(csi::PluginCapability::service(Service::VolumeAccessibilityConstraints));
    }
    Some(common)
}

/// A service's capabilities, as its response message; `None` if a node does not have the service.
pub(super) fn service<'a, M: Message + Default, C: Clone + PartialEq>(
    nodes: impl Iterator<Item = &'a Info>,
    fact: impl Fn(&'a Info) -> &'a Option<Fact>,
    take: impl Fn(M) -> Vec<C>,
    make: impl Fn(Vec<C>) -> M,
) -> Option<M> {
    common(nodes.map(|node| fact(node).as_ref()?.decode().map(&take))).map(make)
}

/// What every node has; `None` if one has nothing, or there is no node.
fn common<C: PartialEq>(mut nodes: impl Iterator<Item = Option<Vec<C>>>) -> Option<Vec<C>> {
    let mut common = nodes.next()??;
    for node in nodes {
        let node = node?;
        common.retain(|one| node.contains(one));
    }
    Some(common)
}
