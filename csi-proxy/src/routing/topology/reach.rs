//! Which nodes a new volume may be placed on, as far as their topologies show.

use std::collections::HashSet;

use csi_proto::csi::v1 as csi;

use crate::call::NodeId;
use crate::routing::VolumeRequest;

/// The nodes that may be within a topology of a request. A request may name as many topologies as there are nodes, so that
/// each node is checked at once against all of them.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    /// The values of the topologies. `None`: every node with a known topology may be selected.
    values: Option<HashSet<&'a str>>,
    /// The names of the nodes. `None`: every node with an unknown topology may be selected.
    names: Option<HashSet<&'a str>>,
}

impl<'a> Reach<'a> {
    /// The reach of a request. The value of the topology key is the name of the node.
    pub(super) fn of(request: &'a VolumeRequest, topology_key: Option<&str>) -> Self {
        let topologies = &request.topologies;
        // A volume with a content source is placed on the node of its source, or refused.
        let is_anywhere = topologies.is_empty()
            || request.source.is_some()
            || topologies.iter().any(|topology| topology.segments.is_empty());
        let values = topologies.iter().flat_map(|topology| topology.segments.values());
        let values = (!is_anywhere).then(|| values.map(String::as_str).collect());
        let name = |topology: &'a csi::Topology| topology.segment(topology_key?);
        let names: Option<HashSet<_>> = topologies.iter().map(name).collect();
        Self { values, names: names.filter(|names| !names.is_empty()) }
    }

    /// Whether the node, whose topology may be unknown, may be within one of the topologies.
    pub(super) fn may_include(&self, node: &NodeId, topology: Option<&csi::Topology>) -> bool {
        let Some(place) = topology else {
            return self.names.as_ref().is_none_or(|names| names.contains(node.as_str()));
        };
        // A node within a topology has all its values.
        let is_wanted =
            |values: &HashSet<&str>| place.segments.values().any(|value| values.contains(value.as_str()));
        self.values.as_ref().is_none_or(is_wanted)
    }
}
