//! Which node a new volume is made on. Only for a volume whose name has no node yet: see [`Placements`](super::Placements).

use csi_proto::csi::v1 as csi;

use super::refusal::Refusal;
use super::request::VolumeRequest;
use crate::call::NodeId;
pub use crate::driver_info::Presence;

/// A node that may be chosen.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::exhaustive_structs, reason = "the inputs of the election")]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Where it is, as its driver says in `NodeGetInfo`; `None` if the driver was never asked.
    pub topology: Option<csi::Topology>,
    /// Whether its driver can be reached.
    pub presence: Presence,
    /// The largest volume in bytes that it has room for, if that is known.
    pub room: Option<u64>,
}

/// What becomes of a new volume whose node is offline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OfflinePolicy {
    /// It waits for the node: `UNAVAILABLE`.
    #[default]
    Wait,
    /// It goes to the next node that it may be on. Is none of them online, the answer is `RESOURCE_EXHAUSTED`, upon which the
    /// scheduler chooses another node for the pod. Never for a volume of which a node may have heard.
    Move,
}

/// Among whom is chosen, and how.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::exhaustive_structs, reason = "the inputs of the election")]
pub struct Ballot<'a> {
    /// The nodes.
    pub candidates: &'a [Candidate],
    /// The node of volumes that may be anywhere.
    pub default: Option<&'a NodeId>,
    /// What becomes of a volume whose node is offline.
    pub offline: OfflinePolicy,
}

impl Ballot<'_> {
    fn candidate(&self, node: &NodeId) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.node == *node)
    }

    /// Chooses the node of a volume; `source` is the node of what it is to be a copy of, if that is known.
    ///
    /// # Errors
    /// If there is none, or it must be waited for.
    pub fn elect(&self, request: &VolumeRequest, source: Option<&NodeId>) -> Result<NodeId, Refusal> {
        if let Some(source) = source {
            return self.beside(source, request);
        }
        if request.topologies.is_empty() {
            let default = self.default.ok_or(Refusal::NoTopology)?;
            return self.the_only(default, request);
        }
        let (mut offline, mut unknown, mut full) = (None, None, false);
        for topology in &request.topologies {
            let mut there = self.within(topology, &request.name).peekable();
            if there.peek().is_none() {
                // It may be the place of a node that has not said yet where it is.
                for silent in self.candidates.iter().filter(|candidate| candidate.topology.is_none()) {
                    match (self.offline, silent.presence) {
                        (OfflinePolicy::Wait, _) => return Err(Refusal::not_reached(&silent.node)),
                        (OfflinePolicy::Move, Presence::Unknown) => unknown = Some(&silent.node),
                        (OfflinePolicy::Move, _) => offline = Some(&silent.node),
                    }
                }
            }
            let mut waited_for = None;
            for candidate in there {
                if !has_room(candidate, request) {
                    full = true;
                } else if candidate.presence == Presence::Online {
                    return Ok(candidate.node.clone());
                } else {
                    waited_for = waited_for.or(Some(candidate));
                }
            }
            if let Some(Candidate { node, presence, .. }) = waited_for {
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
            // It may be there after all, or be said to be offline the next time.
            (Some(node), ..) => Refusal::not_reached(node),
            (None, Some(_), _) => Refusal::AllOffline,
            (None, None, true) => Refusal::NoRoom { required: request.required_bytes },
            (None, None, false) => Refusal::NoNodeThere,
        })
    }

    /// The nodes within a topology that have the driver. Which comes first depends on the volume's name, so that volumes are
    /// spread over nodes that are alike.
    fn within(&self, topology: &csi::Topology, name: &str) -> impl Iterator<Item = &Candidate> {
        let inside = |candidate: &&Candidate| {
            candidate.presence != Presence::WithoutDriver
                && candidate.topology.as_ref().is_some_and(|place| place.is_within(topology))
        };
        let mut there: Vec<_> = self.candidates.iter().filter(inside).collect();
        if !there.is_empty() {
            let first = crc32fast::hash(name.as_bytes()) as usize % there.len();
            there.rotate_left(first);
        }
        there.into_iter()
    }

    fn beside(&self, source: &NodeId, request: &VolumeRequest) -> Result<NodeId, Refusal> {
        let place = self.candidate(source).and_then(|candidate| candidate.topology.as_ref());
        let allowed = |place: &csi::Topology| {
            request.topologies.is_empty()
                || request.topologies.iter().any(|topology| place.is_within(topology))
        };
        if place.is_some_and(|place| !allowed(place)) {
            return Err(Refusal::SourceElsewhere { node: source.clone() });
        }
        self.the_only(source, request)
    }

    /// A node for which there is no other: to wait for it is all that can be done.
    fn the_only(&self, node: &NodeId, request: &VolumeRequest) -> Result<NodeId, Refusal> {
        match self.candidate(node) {
            Some(candidate) if !has_room(candidate, request) => {
                Err(Refusal::NoRoom { required: request.required_bytes })
            }
            Some(candidate) if candidate.presence == Presence::Online => Ok(node.clone()),
            _ => Err(Refusal::Offline { node: node.clone() }),
        }
    }
}

fn has_room(candidate: &Candidate, request: &VolumeRequest) -> bool {
    candidate.room.is_none_or(|room| room >= request.required_bytes)
}

#[cfg(test)]
mod tests;
