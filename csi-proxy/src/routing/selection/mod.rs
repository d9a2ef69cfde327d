//! Selects the node of a new volume: one whose name has no node in [`Placements`](super::Placements) yet.

use std::collections::HashMap;

use csi_proto::csi::v1 as csi;

use super::refusal::Refusal;
use super::request::VolumeRequest;
use crate::call::NodeId;
pub(crate) use crate::driver_info::Presence;

/// A node that may be selected.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    /// The name of the node.
    pub(crate) node: NodeId,
    /// The topology of the node, as its driver reports in `NodeGetInfo`; `None` if the driver was never reached.
    pub(crate) topology: Option<csi::Topology>,
    /// Whether the driver on the node is reachable.
    pub(crate) presence: Presence,
    /// The largest volume that fits, in bytes, if known.
    pub(crate) room: Option<u64>,
}

/// The handling of a new volume whose node is offline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OfflinePolicy {
    /// The volume waits for the node: `UNAVAILABLE`.
    #[default]
    Wait,
    /// The volume moves to the next allowed node. If none is online the answer is `RESOURCE_EXHAUSTED`, and the
    /// scheduler selects another node for the pod. Never applies to a volume whose request a node may have received.
    Move,
}

/// The candidates and the policy of a selection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeSelector<'a> {
    /// The nodes that may be selected.
    pub(crate) candidates: &'a [Candidate],
    /// The node of volumes without a topology requirement.
    pub(crate) default: Option<&'a NodeId>,
    /// The handling of a volume whose node is offline.
    pub(crate) offline: OfflinePolicy,
}

impl NodeSelector<'_> {
    fn candidate(&self, node: &NodeId) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.node == *node)
    }

    /// Selects the node of a volume; `source` is the node of its content source, if known.
    ///
    /// # Errors
    /// If no node is suitable, or the volume must wait for a node.
    pub(crate) fn select(&self, request: &VolumeRequest, source: Option<&NodeId>) -> Result<NodeId, Refusal> {
        if let Some(source) = source {
            return self.same_node_as(source, request);
        }
        if request.topologies.is_empty() {
            let default = self.default.ok_or(Refusal::NoTopology)?;
            return self.only_candidate(default, request);
        }
        let places = Places::new(self.candidates);
        let (mut offline, mut unknown, mut full) = (None, None, false);
        for topology in &request.topologies {
            let matching = places.within(topology, &request.name);
            if matching.is_empty() {
                // A node whose topology is unknown may be within this topology.
                for unreached in &places.unknown {
                    match (self.offline, unreached.presence) {
                        (OfflinePolicy::Wait, _) => return Err(Refusal::not_reached(&unreached.node)),
                        (OfflinePolicy::Move, Presence::Unknown) => unknown = Some(&unreached.node),
                        (OfflinePolicy::Move, _) => offline = Some(&unreached.node),
                    }
                }
            }
            let mut offline_candidate = None;
            for candidate in matching {
                if !has_room(candidate, request) {
                    full = true;
                } else if candidate.presence == Presence::Online {
                    return Ok(candidate.node.clone());
                } else {
                    offline_candidate = offline_candidate.or(Some(candidate));
                }
            }
            if let Some(Candidate { node, presence, .. }) = offline_candidate {
                match (self.offline, presence) {
                    (_, Presence::Unknown) => unknown = Some(node),
                    (OfflinePolicy::Wait, _) => return Err(Refusal::Offline { node: node.clone() }),
                    (OfflinePolicy::Move, _) => offline = Some(node),
                }
                if self.offline == OfflinePolicy::Wait {
                    break;
                }
            }
        }
        Err(match (unknown, offline, full) {
            // A node that was not reached may be suitable, so the code is not final.
            (Some(node), ..) => Refusal::not_reached(node),
            (None, Some(_), _) => Refusal::AllOffline,
            (None, None, true) => Refusal::NoRoom { required: request.required_bytes },
            (None, None, false) => Refusal::NoNodeInTopology,
        })
    }

    fn same_node_as(&self, source: &NodeId, request: &VolumeRequest) -> Result<NodeId, Refusal> {
        let place = self.candidate(source).and_then(|candidate| candidate.topology.as_ref());
        let allowed = |place: &csi::Topology| {
            request.topologies.is_empty()
                || request.topologies.iter().any(|topology| place.is_within(topology))
        };
        if place.is_some_and(|place| !allowed(place)) {
            return Err(Refusal::SourceElsewhere { node: source.clone() });
        }
        self.only_candidate(source, request)
    }

    /// Selects this node, or returns why it cannot have the volume: no other node may be selected.
    fn only_candidate(&self, node: &NodeId, request: &VolumeRequest) -> Result<NodeId, Refusal> {
        match self.candidate(node) {
            Some(candidate) if !has_room(candidate, request) => {
                Err(Refusal::NoRoom { required: request.required_bytes })
            }
            Some(candidate) if candidate.presence == Presence::Online => Ok(node.clone()),
            _ => Err(Refusal::Offline { node: node.clone() }),
        }
    }
}

/// The candidates by their places: a request may name as many places as there are nodes.
struct Places<'a> {
    /// The nodes with the driver, by each value of their segments.
    by_value: HashMap<&'a str, Vec<&'a Candidate>>,
    /// The nodes with the driver and a known topology.
    known: Vec<&'a Candidate>,
    /// The nodes whose topology is unknown.
    unknown: Vec<&'a Candidate>,
}

impl<'a> Places<'a> {
    fn new(candidates: &'a [Candidate]) -> Self {
        let (unknown, mut known): (Vec<_>, Vec<_>) =
            candidates.iter().partition(|candidate| candidate.topology.is_none());
        known.retain(|candidate| candidate.presence != Presence::WithoutDriver);
        let mut by_value: HashMap<_, Vec<&Candidate>> = HashMap::with_capacity(known.len());
        for &candidate in &known {
            for value in candidate.topology.iter().flat_map(|place| place.segments.values()) {
                let with_value = by_value.entry(value.as_str()).or_default();
                // Two segments of a node may have the same value.
                if !with_value.last().is_some_and(|last| std::ptr::eq(*last, candidate)) {
                    with_value.push(candidate);
                }
            }
        }
        Self { by_value, known, unknown }
    }

    /// The nodes with the driver within a topology. The volume's name determines the first, so that volumes are spread
    /// over equal nodes.
    fn within(&self, topology: &csi::Topology, name: &str) -> Vec<&'a Candidate> {
        // A node within the topology has all its values; few nodes have the rarest.
        let with_value =
            |value: &String| self.by_value.get(value.as_str()).map(Vec::as_slice).unwrap_or_default();
        let rarest = topology.segments.values().map(with_value).min_by_key(|nodes| nodes.len());
        let inside = |candidate: &&Candidate| {
            candidate.topology.as_ref().is_some_and(|place| place.is_within(topology))
        };
        let mut matching: Vec<_> = rarest.unwrap_or(&self.known).iter().copied().filter(inside).collect();
        if !matching.is_empty() {
            let first = crc32fast::hash(name.as_bytes()) as usize % matching.len();
            matching.rotate_left(first);
        }
        matching
    }
}

fn has_room(candidate: &Candidate, request: &VolumeRequest) -> bool {
    candidate.room.is_none_or(|room| room >= request.required_bytes)
}

#[cfg(test)]
mod tests;
