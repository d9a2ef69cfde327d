//! What each node may report about itself: its `node_id` and its topology segments belong to the first node that
//! reported them.
//!
//! This module has no disk and no clock: [`Claims::check`] returns the claim to make durable, and [`Claims::apply`]
//! applies it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::placements::{Defect, seal, unseal};
use crate::call::NodeId;
use crate::generated::state as pb;

/// The maximum size of a claim in bytes. Typical claims have a hundred.
const MAX_CLAIM: usize = 8 * 1024;

/// What a node owns: no other node may report it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the format of a stored row")]
pub struct Claim {
    /// The `node_id` of the driver; empty if it has no node service.
    pub node_id: String,
    /// The topology segments under keys that are not shared, by key in lower case.
    pub segments: BTreeMap<String, String>,
}

/// A node reports what is not its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimConflict {
    /// Another node has this `node_id`.
    #[error(
        "it reports the node_id {node_id:?} of node {owner}; decommission the one that is lost, or correct this one"
    )]
    NodeId {
        /// The reported `node_id`.
        node_id: String,
        /// The node that reported it first.
        owner: NodeId,
    },
    /// Another node has this topology segment.
    #[error(
        "it reports the topology segment {key}={value} of node {owner}; decommission the one that is lost, correct this one, or declare the key as shared"
    )]
    Segment {
        /// The key in lower case.
        key: String,
        /// The reported value.
        value: String,
        /// The node that reported it first.
        owner: NodeId,
    },
    /// The value of the topology key is not the name of the node.
    #[error("it reports the topology segment {key}={value}; expected its own name as the value")]
    NotItsName {
        /// The configured topology key.
        key: String,
        /// The reported value.
        value: String,
    },
    /// The node reports two values under one topology key, whose case does not matter.
    #[error("it reports several topology segments with the key {key}, whose case does not matter")]
    SameKey {
        /// The key in lower case.
        key: String,
    },
    /// The node reports too much.
    #[error("its node_id and topology have {size} bytes; expected at most {MAX_CLAIM}")]
    TooLarge {
        /// The size in bytes.
        size: usize,
    },
}

/// The claims of all nodes of a driver.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// The topology key whose value must be the name of the node.
    topology_key: Option<String>,
    /// The keys, in lower case, whose segments several nodes may have.
    shared: BTreeSet<String>,
    of: BTreeMap<NodeId, Claim>,
    owners: HashMap<Attribute, NodeId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Attribute {
    NodeId(String),
    Segment(String, String),
}

impl Claims {
    /// Creates an empty table. The value of `topology_key` must be the name of the node; segments under the `shared`
    /// keys belong to no node.
    pub(crate) fn new(topology_key: Option<String>, shared: impl IntoIterator<Item = String>) -> Self {
        let shared = shared.into_iter().map(|key| key.to_ascii_lowercase()).collect();
        Self { topology_key, shared, ..Self::default() }
    }

    /// Checks what a node reports. Returns the claim to make durable; `None` if it is recorded already.
    ///
    /// # Errors
    /// If the node reports what another node owns, or a value that it may not have.
    pub(crate) fn check(
        &self,
        node: &NodeId,
        node_id: &str,
        topology: &csi::Topology,
    ) -> Result<Option<Claim>, ClaimConflict> {
        let own = |(key, value): (&String, &String)| (key.to_ascii_lowercase(), value.clone());
        let mut segments = BTreeMap::new();
        for (key, value) in topology.segments.iter().map(own) {
            if let Some(key) = segments.insert(key.clone(), value).map(|_| key) {
                return Err(ClaimConflict::SameKey { key });
            }
        }
        if let Some(key) = &self.topology_key
            && let Some(value) = topology.segment(key).filter(|value| *value != node.as_str())
        {
            return Err(ClaimConflict::NotItsName { key: key.clone(), value: value.to_owned() });
        }
        segments.retain(|key, _| !self.shared.contains(key));
        let size = node_id.len() + segments.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if size > MAX_CLAIM {
            return Err(ClaimConflict::TooLarge { size });
        }
        let claim = Claim { node_id: node_id.to_owned(), segments };
        for attribute in attributes(&claim) {
            let Some(owner) = self.owners.get(&attribute).filter(|owner| *owner != node) else { continue };
            let owner = owner.clone();
            return Err(match attribute {
                Attribute::NodeId(node_id) => ClaimConflict::NodeId { node_id, owner },
                Attribute::Segment(key, value) => ClaimConflict::Segment { key, value, owner },
            });
        }
        Ok((self.of.get(node) != Some(&claim)).then_some(claim))
    }

    /// Applies a durable claim of a node; `None` removes its claim.
    pub(crate) fn apply(&mut self, node: &NodeId, claim: Option<Claim>) {
        let before = self.of.remove(node).unwrap_or_default();
        for attribute in attributes(&before) {
            if self.owners.get(&attribute) == Some(node) {
                self.owners.remove(&attribute);
            }
        }
        let Some(claim) = claim else { return };
        for attribute in attributes(&claim) {
            // Of two stored claims the first one is valid.
            self.owners.entry(attribute).or_insert_with(|| node.clone());
        }
        self.of.insert(node.clone(), claim);
    }
}

fn attributes(claim: &Claim) -> impl Iterator<Item = Attribute> + use<> {
    let node_id = Some(claim.node_id.clone()).filter(|node_id| !node_id.is_empty());
    let segments = claim.segments.clone().into_iter();
    let segments = segments.map(|(key, value)| Attribute::Segment(key, value));
    node_id.map(Attribute::NodeId).into_iter().chain(segments)
}

impl Claim {
    /// Encodes the claim of this node, preceded by its CRC-32 over the node and the record.
    #[must_use]
    pub fn encode(&self, node: &NodeId) -> Bytes {
        let segment =
            |(key, value): (&String, &String)| pb::Segment { key: key.clone(), value: value.clone() };
        let segments = self.segments.iter().map(segment).collect();
        let record = pb::NodeClaim { node_id: self.node_id.clone(), segments }.encode_to_vec();
        seal(node, &record).into()
    }

    /// Decodes the claim of this node.
    ///
    /// # Errors
    /// If the checksum is wrong.
    pub fn decode(node: &NodeId, bytes: &[u8]) -> Result<Self, Defect> {
        let record =
            pb::NodeClaim::decode(unseal(node, bytes)?).map_err(|_| Defect::Field { field: "record" })?;
        let segments = record.segments.into_iter().map(|segment| (segment.key, segment.value)).collect();
        Ok(Self { node_id: record.node_id, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn place(segments: &[(&str, &str)]) -> csi::Topology {
        csi::Topology::from_iter(segments.iter().copied())
    }

    /// Reports and records.
    fn report(
        claims: &mut Claims,
        name: &str,
        node_id: &str,
        at: &[(&str, &str)],
    ) -> Result<(), ClaimConflict> {
        let claim = claims.check(&node(name), node_id, &place(at))?;
        claim.into_iter().for_each(|claim| claims.apply(&node(name), Some(claim)));
        assert_eq!(claims.check(&node(name), node_id, &place(at)), Ok(None));
        Ok(())
    }

    #[test]
    fn first_owner_keeps_node_id_and_segment() {
        let mut claims = Claims::new(None, ["Zone".to_owned()]);
        report(&mut claims, "a", "id-a", &[("host", "a"), ("zone", "z")]).unwrap();
        report(&mut claims, "b", "id-b", &[("host", "b"), ("ZONE", "z")]).unwrap();
        let taken = report(&mut claims, "b", "id-a", &[("host", "b")]);
        assert!(matches!(taken, Err(ClaimConflict::NodeId { owner, .. }) if owner == node("a")));
        let taken = report(&mut claims, "b", "id-b", &[("HOST", "a")]);
        assert!(matches!(taken, Err(ClaimConflict::Segment { owner, .. }) if owner == node("a")));
        // What a node no longer reports, or a removed node had, is free.
        report(&mut claims, "a", "id-c", &[("host", "a")]).unwrap();
        report(&mut claims, "b", "id-a", &[("host", "b")]).unwrap();
        claims.apply(&node("a"), None);
        report(&mut claims, "b", "id-c", &[("host", "a")]).unwrap();
        // A driver without a node service has no node_id.
        report(&mut claims, "c", "", &[]).unwrap();
        report(&mut claims, "d", "", &[]).unwrap();
    }

    #[test]
    fn value_of_the_topology_key_is_the_name() {
        let mut claims = Claims::new(Some("host".to_owned()), []);
        report(&mut claims, "a", "id-a", &[("Host", "a")]).unwrap();
        let taken = report(&mut claims, "b", "id-b", &[("HOST", "c")]);
        assert!(matches!(taken, Err(ClaimConflict::NotItsName { .. })), "{taken:?}");
        let large = "x".repeat(MAX_CLAIM + 1);
        let taken = report(&mut claims, "b", &large, &[]);
        assert!(matches!(taken, Err(ClaimConflict::TooLarge { .. })), "{taken:?}");
    }

    #[test]
    fn keys_of_a_topology_differ_in_more_than_their_case() {
        for shared in [None, Some("host".to_owned())] {
            let mut claims = Claims::new(Some("host".to_owned()), shared);
            let taken = report(&mut claims, "b", "id-b", &[("HOST", "a"), ("host", "b")]);
            assert_eq!(taken, Err(ClaimConflict::SameKey { key: "host".to_owned() }));
        }
    }

    #[test]
    fn claim_round_trips_and_damage_is_detected() {
        let segments = [("host".to_owned(), "a".to_owned())].into();
        let claim = Claim { node_id: "id-a".to_owned(), segments };
        let bytes = claim.encode(&node("a"));
        assert_eq!(Claim::decode(&node("b"), &bytes), Err(Defect::Checksum));
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 0x10;
            assert_eq!(Claim::decode(&node("a"), &changed), Err(Defect::Checksum), "byte {at}");
        }
        assert_eq!(Claim::decode(&node("a"), &bytes), Ok(claim));
    }
}
