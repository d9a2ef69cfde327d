//! The configuration of the driver.

use std::collections::BTreeSet;
use std::path::PathBuf;

use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proxy::{InvalidSegment, NodeId, NodeSegment};

/// The settings of a driver.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name that GetPluginInfo returns.
    pub driver_name: DriverName,
    /// The id of the one node that this driver serves.
    pub node_id: String,
    /// The directory of records and data.
    pub state_dir: PathBuf,
    /// The topology of the node: one segment, with its id as the value.
    pub topology: csi::Topology,
    /// Maximum total size of all volumes and snapshots in bytes. `None`: the size of the filesystem of `state_dir`.
    pub capacity: Option<u64>,
    /// Maximum number of attached volumes; 0: unlimited.
    pub attach_limit: u32,
    /// The keys that ControllerModifyVolume accepts; the capability is announced only if there are any.
    pub mutable_parameters: BTreeSet<String>,
    /// True if snapshots report that they stay on this node (SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, alpha in spec 1.13).
    pub snapshot_topology: bool,
}

impl Config {
    /// Creates settings without additional limits. The default topology key is derived from the driver's name.
    ///
    /// # Errors
    /// Returns an error if the topology key is invalid, or if the node id is not a valid topology value.
    pub fn new(
        driver_name: DriverName,
        node: NodeId,
        state_dir: impl Into<PathBuf>,
        topology_key: Option<&str>,
    ) -> Result<Self, InvalidSegment> {
        let node_id = node.to_string();
        let segment = match topology_key {
            Some(key) => NodeSegment::with_key(node, key)?,
            None => NodeSegment::of_driver(node),
        };
        Ok(Self {
            topology: segment.topology(&driver_name)?,
            driver_name,
            node_id,
            state_dir: state_dir.into(),
            capacity: None,
            attach_limit: 0,
            mutable_parameters: BTreeSet::new(),
            snapshot_topology: false,
        })
    }

    /// Returns the topology of snapshots, or `None` unless the driver announces the capability.
    pub fn topology_of_snapshots(&self) -> Option<csi::Topology> {
        self.snapshot_topology.then(|| self.topology.clone())
    }

    /// Returns true if a topology includes this node. A topology without segments includes every node; keys are
    /// case-insensitive.
    pub fn is_in(&self, topology: &csi::Topology) -> bool {
        let is_own = |(key, value): (&String, &String)| {
            self.topology.segments.iter().any(|own| key.eq_ignore_ascii_case(own.0) && value == own.1)
        };
        topology.segments.iter().all(is_own)
    }

    /// Returns true if this node satisfies a requirement.
    pub fn satisfies(&self, requirement: Option<&csi::TopologyRequirement>) -> bool {
        requirement
            .is_none_or(|r| r.requisite.is_empty() || r.requisite.iter().any(|topology| self.is_in(topology)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str) -> DriverName {
        DriverName::new(name).unwrap()
    }

    fn with(node: &str, driver_name: &str, key: Option<&str>) -> Option<Config> {
        Config::new(driver(driver_name), NodeId::new(node).ok()?, "/x", key).ok()
    }

    fn config() -> Config {
        with("edge-1", "a.b", None).unwrap()
    }

    fn topology(segments: &[(&str, &str)]) -> csi::Topology {
        csi::Topology { segments: segments.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect() }
    }

    #[test]
    fn refuses_names_that_kubernetes_refuses() {
        assert!(with("edge-1", &"a".repeat(54), None).is_some());
        assert!(with("edge-1", &"a".repeat(55), None).is_none());
        for bad in ["node", "/node", "a/", "a/b/c", "a b/c", "ä/c"] {
            assert!(with("edge-1", "a.b", Some(bad)).is_none(), "{bad}");
        }
        for bad in ["", "a/b", "-a", "a-", &"a".repeat(64)] {
            assert!(with(bad, "a.b", None).is_none(), "{bad}");
        }
    }

    #[test]
    fn one_requisite_topology_of_this_node_satisfies() {
        let (here, there) =
            (topology(&[("Topology.a.b/node", "edge-1")]), topology(&[("topology.a.b/node", "edge-2")]));
        let foreign = topology(&[("topology.a.b/node", "edge-1"), ("zone", "z")]);
        for (requisite, satisfied) in [
            (vec![], true),
            (vec![there.clone(), here], true),
            (vec![there], false),
            (vec![foreign], false),
            (vec![topology(&[])], true),
        ] {
            let requirement = csi::TopologyRequirement { requisite: requisite.clone(), preferred: vec![] };
            assert_eq!(config().satisfies(Some(&requirement)), satisfied, "{requisite:?}");
        }
        assert!(config().satisfies(None));
    }
}
