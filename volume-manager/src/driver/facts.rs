//! What is known of a driver after it was asked once.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::DriverName;

use super::capabilities::Capabilities;

/// What a driver said of itself and of this node when it was connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverFacts {
    /// Its name.
    pub name: DriverName,
    /// Its version, free text of at most 128 characters.
    pub vendor_version: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its id of this node, 1 to 256 bytes; `None` if it has no NodeGetInfo, which only drivers that attach need.
    pub node_id: Option<String>,
    /// How many volumes the node can have attached; `None` if the driver sets no limit.
    pub max_volumes: Option<u64>,
    /// Where the node lies, domain to segment; at most 64 entries.
    pub topology: BTreeMap<String, String>,
}

impl DriverFacts {
    /// Facts of a driver that can do nothing and is nowhere; to begin from.
    #[must_use]
    pub fn new(name: DriverName) -> Self {
        Self {
            name,
            vendor_version: String::new(),
            capabilities: Capabilities::default(),
            node_id: None,
            max_volumes: None,
            topology: BTreeMap::new(),
        }
    }

    /// In what these facts differ from earlier ones.
    #[must_use]
    pub fn changes_since(&self, earlier: &Self) -> Vec<DriverChange> {
        let mut changes = Vec::new();
        if self.node_id != earlier.node_id {
            let (was, is) = (earlier.node_id.clone(), self.node_id.clone());
            changes.push(DriverChange::NodeId { was, is });
        }
        if self.capabilities != earlier.capabilities {
            let (was, is) = (Box::new(earlier.capabilities), Box::new(self.capabilities));
            changes.push(DriverChange::Capabilities { was, is });
        }
        if self.max_volumes != earlier.max_volumes {
            changes.push(DriverChange::MaxVolumes { was: earlier.max_volumes, is: self.max_volumes });
        }
        if self.topology != earlier.topology {
            changes.push(DriverChange::Topology);
        }
        if self.vendor_version != earlier.vendor_version {
            let (was, is) = (earlier.vendor_version.clone(), self.vendor_version.clone());
            changes.push(DriverChange::VendorVersion { was, is });
        }
        changes
    }
}

/// Something in which two generations of a driver differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChange {
    /// The driver calls this node otherwise. What was attached under the old id must be detached under it.
    NodeId {
        /// The old id.
        was: Option<String>,
        /// The new id.
        is: Option<String>,
    },
    /// The driver can do more, or less.
    Capabilities {
        /// What it could do.
        was: Box<Capabilities>,
        /// What it can do.
        is: Box<Capabilities>,
    },
    /// The node can have more volumes attached, or fewer.
    MaxVolumes {
        /// The old limit.
        was: Option<u64>,
        /// The new limit.
        is: Option<u64>,
    },
    /// The node lies elsewhere.
    Topology,
    /// The driver is of another version.
    VendorVersion {
        /// The old version.
        was: String,
        /// The new version.
        is: String,
    },
}

impl fmt::Display for DriverChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeId { was, is } => write!(
                f,
                "node id {} became {}",
                was.as_deref().unwrap_or("(none)"),
                is.as_deref().unwrap_or("(none)")
            ),
            Self::Capabilities { .. } => f.write_str("capabilities changed"),
            Self::MaxVolumes { was, is } => {
                let limit = |limit: &Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
                write!(f, "limit of attached volumes {} became {}", limit(was), limit(is))
            }
            Self::Topology => f.write_str("topology changed"),
            Self::VendorVersion { was, is } => write!(f, "version {was:?} became {is:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_of_two_generations_is_named_once() {
        let was = DriverFacts::new(DriverName::new("a").unwrap());
        assert_eq!(was.changes_since(&was), []);
        let mut is = was.clone();
        is.vendor_version = "2".into();
        is.node_id = Some("n".into());
        is.max_volumes = Some(5);
        is.topology = [("zone".to_owned(), "z".to_owned())].into();
        is.capabilities.node.stage_unstage = true;
        let texts: Vec<String> = is.changes_since(&was).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "node id (none) became n",
                "capabilities changed",
                "limit of attached volumes none became 5",
                "topology changed",
                "version \"\" became \"2\""
            ]
        );
    }
}
