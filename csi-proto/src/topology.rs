//! Topologies of volumes: [`Topology`] and [`TopologyRequirement`].

use std::collections::BTreeSet;

use crate::csi::v1::{Topology, TopologyRequirement};

impl Topology {
    /// The value of a key; keys are case-insensitive (spec, message Topology).
    #[must_use]
    pub fn segment(&self, key: &str) -> Option<&str> {
        let exact = self.segments.get(key);
        let found =
            exact.or_else(|| self.segments.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v));
        found.map(String::as_str)
    }

    /// Whether this topology has all segments of `outer`. Every topology is within an empty one.
    #[must_use]
    pub fn is_within(&self, outer: &Self) -> bool {
        outer.segments.iter().all(|(key, value)| self.segment(key) == Some(value))
    }
}

/// ```
/// use csi_proto::csi::v1::Topology;
///
/// let node = Topology::from_iter([("topology.example.org/node", "edge-1")]);
/// assert_eq!(node.segment("topology.example.org/node"), Some("edge-1"));
/// ```
impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Topology {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(segments: I) -> Self {
        Self { segments: segments.into_iter().map(|(key, value)| (key.into(), value.into())).collect() }
    }
}

impl TopologyRequirement {
    /// The topologies in the order in which a plugin must try them: the preferred ones, then the other requisite ones.
    pub fn candidates(&self) -> impl Iterator<Item = &Topology> {
        // Both lists may name all nodes of a cluster.
        let preferred: BTreeSet<_> = self.preferred.iter().map(|topology| &topology.segments).collect();
        let others = self.requisite.iter().filter(move |topology| !preferred.contains(&topology.segments));
        self.preferred.iter().chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::{Topology, TopologyRequirement};

    #[test]
    fn keys_are_case_insensitive() {
        let node = Topology::from_iter([("Zone", "z1"), ("rack", "r1")]);
        assert_eq!((node.segment("zone"), node.segment("row")), (Some("z1"), None));
        assert!(node.is_within(&Topology::from_iter([("zone", "z1")])));
        assert!(node.is_within(&Topology::default()));
        assert!(!node.is_within(&Topology::from_iter([("zone", "Z1")])));
        assert!(!Topology::default().is_within(&node));
    }

    #[test]
    fn candidates_are_preferred_then_requisite() {
        let zone = |name: &str| Topology::from_iter([("zone", name)]);
        let requirement = TopologyRequirement {
            requisite: vec![zone("1"), zone("2"), zone("3")],
            preferred: vec![zone("3"), zone("1")],
        };
        let order: Vec<_> =
            requirement.candidates().filter_map(|topology| topology.segment("zone")).collect();
        assert_eq!(order, ["3", "1", "2"]);
    }
}
