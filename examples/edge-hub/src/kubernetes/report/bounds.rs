//! Bounds of a status, which nodes observe and the hub enforces. A status must fit into one frame.

use csi_proto::{DriverName, VolumeId};
use volume_manager::advanced::message::MAX_VOLUMES;

use edge_csi_common::kubernetes::message::NodeStatus;

/// The maximum length of a text in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// The maximum length in bytes of the name of a volume in use.
const MAX_VOLUME_NAME_BYTES: usize =
    "kubernetes.io/csi/^".len() + DriverName::MAX_BYTES + VolumeId::MAX_BYTES;

/// The maximum number of topology segments of a driver, as at a node.
const MAX_SEGMENTS: usize = 64;

/// A part of a status is out of bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum OutOfBounds {
    /// A list is too long.
    #[error("{field} has {found} entries; expected at most {most}")]
    List { field: &'static str, found: usize, most: usize },
    /// A text is too long, or empty where it names something.
    #[error("{field} has {found} bytes; expected 1 to {most}")]
    Text { field: &'static str, found: usize, most: usize },
    /// Two drivers have the same name.
    #[error("drivers contains {0:?} more than once; expected unique names")]
    Duplicate(String),
}

/// Checks that a status is within its bounds.
pub(super) fn check(status: &NodeStatus) -> Result<(), OutOfBounds> {
    list("drivers", status.drivers.len(), 64)?;
    // The current volumes and the desired ones.
    list("volumes_in_use", status.volumes_in_use.len(), 2 * MAX_VOLUMES)?;
    list("expanded", status.expanded.len(), 1024)?;
    list("pod_volumes", status.pod_volumes.len(), 8192)?;
    for driver in &status.drivers {
        text("drivers.name", &driver.name, MAX_TEXT_BYTES)?;
        text("drivers.node_id", &driver.node_id, MAX_TEXT_BYTES)?;
        list("drivers.segments", driver.segments.len(), MAX_SEGMENTS)?;
    }
    status
        .volumes_in_use
        .iter()
        .try_for_each(|volume| text("volumes_in_use", volume, MAX_VOLUME_NAME_BYTES))?;
    let mut names: Vec<_> = status.drivers.iter().map(|driver| &driver.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(OutOfBounds::Duplicate(pair[0].clone())),
        None => Ok(()),
    }
}

fn list(field: &'static str, found: usize, most: usize) -> Result<(), OutOfBounds> {
    if found > most { Err(OutOfBounds::List { field, found, most }) } else { Ok(()) }
}

fn text(field: &'static str, value: &str, most: usize) -> Result<(), OutOfBounds> {
    let found = value.len();
    if (1..=most).contains(&found) { Ok(()) } else { Err(OutOfBounds::Text { field, found, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edge_csi_common::kubernetes::message::{ExpandedClaim, NodeDriver, PodVolumeStatus};

    fn driver(name: &str, node_id: &str) -> NodeDriver {
        NodeDriver { name: name.to_owned(), node_id: node_id.to_owned(), ..NodeDriver::default() }
    }

    #[test]
    fn refuses_statuses_out_of_bounds() {
        let good = NodeStatus { drivers: vec![driver("a", "n"), driver("b", "n")], ..NodeStatus::default() };
        assert_eq!(check(&good), Ok(()));
        for (wrong, expected) in [
            (
                NodeStatus { volumes_in_use: vec!["v".to_owned(); 32_769], ..good.clone() },
                "volumes_in_use has 32769",
            ),
            (
                NodeStatus { volumes_in_use: vec![String::new()], ..good.clone() },
                "volumes_in_use has 0 bytes",
            ),
            (NodeStatus { drivers: vec![driver("a", "n"); 2], ..good.clone() }, "\"a\" more than once"),
            (NodeStatus { drivers: vec![driver("a", "")], ..good.clone() }, "drivers.node_id has 0"),
            (NodeStatus { drivers: vec![driver(&"a".repeat(1025), "n")], ..good }, "drivers.name has 1025"),
        ] {
            let text = check(&wrong).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn accepts_a_status_at_its_bounds() {
        let segments = (0..64).map(|number| (format!("d.example/{number}"), "v".to_owned())).collect();
        let name = "d".repeat(DriverName::MAX_BYTES);
        let driver = NodeDriver { segments, ..driver(&name, &"n".repeat(256)) };
        let volume = format!("kubernetes.io/csi/{name}^{}", "h".repeat(VolumeId::MAX_BYTES));
        for most in [
            NodeStatus { drivers: vec![driver], ..NodeStatus::default() },
            NodeStatus { volumes_in_use: vec![volume], ..NodeStatus::default() },
            // The current volumes and the desired ones.
            NodeStatus { volumes_in_use: vec!["v".to_owned(); 2 * 16_384], ..NodeStatus::default() },
            NodeStatus { expanded: vec![ExpandedClaim::default(); 1024], ..NodeStatus::default() },
            NodeStatus { pod_volumes: vec![PodVolumeStatus::default(); 8192], ..NodeStatus::default() },
        ] {
            assert_eq!(check(&most), Ok(()));
        }
    }
}
