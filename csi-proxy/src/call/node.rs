//! The name of a node.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The maximum length of a [`NodeId`] in bytes: the limit of a Kubernetes node name (a DNS subdomain, RFC 1123).
pub const MAX_NODE_ID: usize = 253;

/// The name of a node in Kubernetes: letters, digits, `-`, `_` and `.`, with a letter or digit at both ends. Cheap to
/// clone.
///
/// Not the `node_id` that a driver reports in `NodeGetInfo`, which is private to the driver.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(Arc<str>);

/// A node name is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidNodeId {
    /// The name is empty.
    #[error("node name is empty; expected 1 to {MAX_NODE_ID} bytes")]
    Empty,
    /// The name is too long.
    #[error("node name has {found} bytes; expected at most {MAX_NODE_ID}")]
    TooLong {
        /// The length of the name in bytes.
        found: usize,
    },
    /// The name contains a character that is not allowed at that position.
    #[error(
        "node name has {found:?} at byte {at}; expected letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
    )]
    Character {
        /// The character.
        found: char,
        /// The position of the character, in bytes from the start.
        at: usize,
    },
}

impl NodeId {
    /// Validates a name.
    ///
    /// # Errors
    /// If the name is empty, longer than [`MAX_NODE_ID`] bytes, or not in the form of a node name.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidNodeId> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(InvalidNodeId::Empty);
        }
        if name.len() > MAX_NODE_ID {
            return Err(InvalidNodeId::TooLong { found: name.len() });
        }
        let last = name.char_indices().next_back().map_or(0, |(at, _)| at);
        let allowed = |at: usize, c: char| {
            c.is_ascii_alphanumeric() || (matches!(c, '-' | '_' | '.') && at != 0 && at != last)
        };
        match name.char_indices().find(|(at, c)| !allowed(*at, *c)) {
            Some((at, found)) => Err(InvalidNodeId::Character { found, at }),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for NodeId {
    type Err = InvalidNodeId;

    fn from_str(name: &str) -> Result<Self, InvalidNodeId> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_names_and_reports_what_was_found() {
        assert_eq!(NodeId::new(""), Err(InvalidNodeId::Empty));
        assert_eq!(NodeId::new("a".repeat(254)), Err(InvalidNodeId::TooLong { found: 254 }));
        assert_eq!(NodeId::new("edge/1"), Err(InvalidNodeId::Character { found: '/', at: 4 }));
        assert_eq!(NodeId::new("-edge"), Err(InvalidNodeId::Character { found: '-', at: 0 }));
        assert_eq!(NodeId::new("edge."), Err(InvalidNodeId::Character { found: '.', at: 4 }));
        assert_eq!(NodeId::new("edgé"), Err(InvalidNodeId::Character { found: 'é', at: 3 }));
        for valid in ["a", "edge-1", "ip-10-0-0-1.eu-west-1.compute.internal", "Edge_1"] {
            assert_eq!(NodeId::new(valid).unwrap().as_str(), valid);
        }
        assert!(NodeId::new("a".repeat(253)).is_ok());
    }
}
