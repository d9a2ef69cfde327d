//! What the driver is told at its start.

use std::collections::BTreeSet;
use std::path::PathBuf;

use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proxy::{InvalidSegment, NodeId, NodeSegment};

/// The settings of a driver.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name that GetPluginInfo gives.
    pub driver_name: DriverName,
    /// The id of the one node that this driver serves.
    pub node_id: String,
    /// Where records and data live.
    pub state_dir: PathBuf,
    /// The topology of the node: one segment, with its id as the value.
    pub topology: csi::Topology,
    /// Bytes that all volumes and snapshots may have together; the size of the filesystem of `state_dir` if not given.
    pub capacity: Option<u64>,
    /// Most volumes attached at once; 0 is no limit.
    pub attach_limit: u32,
    /// The keys that ControllerModifyVolume takes; without any the capability is not announced.
    pub mutable_parameters: BTreeSet<String>,
    /// Whether snapshots tell that they stay on this node (SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, alpha in spec 1.13).
    pub snapshot_topology: bool,
}

impl Config {
    /// Settings with no limits beyond the space there is. Without a topology key it is that of the driver's name.
    ///
    /// # Errors
    /// If the key cannot be one, or the node's id no topology value.
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

    /// The topology that snapshots tell: a driver that does not announce it must tell none.
    pub fn topology_of_snapshots(&self) -> Option<csi::Topology> {
        self.snapshot_topology.then(|| self.topology.clone())
    }

    /// Whether a topology holds for this node. One without segments holds everywhere; keys have no case.
    pub fn is_in(&self, topology: &csi::Topology) -> bool {
        let is_own = |(key, value): (&String, &String)| {
            self.topology.segments.iter().any(|own| key.eq_ignore_ascii_case(own.0) && value == own.1)
        };
        topology.segments.iter().all(is_own)
    }

    /// Whether a requirement can be met by this node.
    pub fn meets(&self, requirement: Option<&csi::TopologyRequirement>) -> bool {
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
    fn names_that_kubernetes_would_refuse_are_refused_at_the_start() {
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
