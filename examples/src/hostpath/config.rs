//! What the driver is told at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;

/// Longest topology prefix, name and value in bytes (spec, message Topology).
pub const MAX_TOPOLOGY_PART: usize = 63;

/// The settings of a driver.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The name that GetPluginInfo gives.
    pub driver_name: DriverName,
    /// The id of the one node that this driver serves, and its topology value.
    pub node_id: String,
    /// Where records and data live.
    pub state_dir: PathBuf,
    /// The topology key of the node.
    pub topology_key: TopologyKey,
    /// Bytes that all volumes and snapshots may have together; the size of the filesystem of `state_dir` if not given.
    pub capacity: Option<u64>,
    /// Most volumes attached at once; 0 is no limit.
    pub attach_limit: u32,
    /// The keys that ControllerModifyVolume takes; without any the capability is not announced.
    pub mutable_parameters: BTreeSet<String>,
    /// Whether snapshots tell that they stay on this node (SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, alpha in spec 1.13).
    pub snapshot_topology: bool,
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The node id does not fit into a topology value.
    #[error(
        "node id {found:?} cannot be a topology value: 1 to {MAX_TOPOLOGY_PART} letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
    )]
    NodeId {
        /// What was given.
        found: String,
    },
    /// The topology key has not the form of the spec.
    #[error(
        "topology key {found:?} is not prefix/name, each 1 to {MAX_TOPOLOGY_PART} letters, digits, '-', '_' or '.'; choose one with --topology-key"
    )]
    TopologyKey {
        /// What was given.
        found: String,
    },
}

/// The key of the node's topology segment, like `topology.hostpath.csi.edge/node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyKey(String);

impl TopologyKey {
    /// Takes a key.
    ///
    /// # Errors
    /// If it is not `prefix/name` with parts of at most [`MAX_TOPOLOGY_PART`] bytes.
    pub fn new(key: &str) -> Result<Self, ConfigError> {
        let valid = key.split_once('/').is_some_and(|(prefix, name)| is_part(prefix) && is_part(name));
        if valid { Ok(Self(key.to_owned())) } else { Err(ConfigError::TopologyKey { found: key.to_owned() }) }
    }

    /// The key of a driver that was told none.
    ///
    /// # Errors
    /// If the driver's name is too long for a prefix.
    pub fn of_driver(driver_name: &DriverName) -> Result<Self, ConfigError> {
        Self::new(&format!("topology.{driver_name}/node"))
    }
}

impl Config {
    /// Settings with no limits beyond the space there is.
    ///
    /// # Errors
    /// If the node id cannot be a topology value.
    pub fn new(
        driver_name: DriverName,
        node_id: impl Into<String>,
        state_dir: impl Into<PathBuf>,
        topology_key: TopologyKey,
    ) -> Result<Self, ConfigError> {
        let node_id = node_id.into();
        if !is_part(&node_id) {
            return Err(ConfigError::NodeId { found: node_id });
        }
        Ok(Self {
            driver_name,
            node_id,
            state_dir: state_dir.into(),
            topology_key,
            capacity: None,
            attach_limit: 0,
            mutable_parameters: BTreeSet::new(),
            snapshot_topology: false,
        })
    }

    /// The topology of the node.
    #[must_use]
    pub fn topology(&self) -> csi::Topology {
        csi::Topology { segments: BTreeMap::from([(self.topology_key.0.clone(), self.node_id.clone())]) }
    }

    /// The topology that snapshots tell: a driver that does not announce it must tell none.
    #[must_use]
    pub fn topology_of_snapshots(&self) -> Option<csi::Topology> {
        self.snapshot_topology.then(|| self.topology())
    }

    /// Whether a topology holds for this node. One without segments holds everywhere; keys have no case.
    #[must_use]
    pub fn is_in(&self, topology: &csi::Topology) -> bool {
        topology
            .segments
            .iter()
            .all(|(key, value)| key.eq_ignore_ascii_case(&self.topology_key.0) && *value == self.node_id)
    }

    /// Whether a requirement can be met by this node.
    #[must_use]
    pub fn meets(&self, requirement: Option<&csi::TopologyRequirement>) -> bool {
        requirement
            .is_none_or(|r| r.requisite.is_empty() || r.requisite.iter().any(|topology| self.is_in(topology)))
    }
}

fn is_part(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_TOPOLOGY_PART
        && bytes.iter().copied().all(inside)
        && ends(bytes.first())
        && ends(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str) -> DriverName {
        DriverName::new(name).unwrap()
    }

    fn with_node(node_id: &str) -> Result<Config, ConfigError> {
        Config::new(driver("a.b"), node_id, "/x", TopologyKey::of_driver(&driver("a.b")).unwrap())
    }

    fn config() -> Config {
        with_node("edge-1").unwrap()
    }

    fn topology(segments: &[(&str, &str)]) -> csi::Topology {
        csi::Topology { segments: segments.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect() }
    }

    #[test]
    fn names_that_kubernetes_would_refuse_are_refused_at_the_start() {
        assert!(TopologyKey::of_driver(&driver(&"a".repeat(54))).is_ok());
        assert!(TopologyKey::of_driver(&driver(&"a".repeat(55))).is_err());
        for bad in ["node", "/node", "a/", "a/b/c", "a b/c", "ä/c"] {
            assert!(TopologyKey::new(bad).is_err(), "{bad}");
        }
        for bad in ["", "a/b", "-a", "a-", &"a".repeat(64)] {
            assert!(with_node(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_requirement_is_met_if_one_requisite_topology_is_this_node() {
        let (here, there) =
            (topology(&[("Topology.a.b/node", "edge-1")]), topology(&[("topology.a.b/node", "edge-2")]));
        let foreign = topology(&[("topology.a.b/node", "edge-1"), ("zone", "z")]);
        for (requisite, met) in [
            (vec![], true),
            (vec![there.clone(), here], true),
            (vec![there], false),
            (vec![foreign], false),
            (vec![topology(&[])], true),
        ] {
            let requirement = csi::TopologyRequirement { requisite: requisite.clone(), preferred: vec![] };
            assert_eq!(config().meets(Some(&requirement)), met, "{requisite:?}");
        }
        assert!(config().meets(None));
    }
}
