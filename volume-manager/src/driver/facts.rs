//! What is known of a driver after it was asked once.

use std::collections::BTreeMap;

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
}
