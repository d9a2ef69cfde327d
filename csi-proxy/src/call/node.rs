//! The node that a call goes to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest [`NodeId`] in bytes: the bound of a Kubernetes node name (a DNS subdomain, RFC 1123).
pub const MAX_NODE_ID: usize = 253;

/// The name of a node, as Kubernetes names it: letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
/// Cheap to clone.
///
/// Not the `node_id` that a driver reports in `NodeGetInfo`: that one is the driver's own and never read here.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(Arc<str>);

/// A node name is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidNodeId {
    /// It has no character.
    #[error("the node name is empty; give a name of 1 to {MAX_NODE_ID} bytes")]
    Empty,
    /// It is too long.
    #[error("the node name has {found} bytes; at most {MAX_NODE_ID} are allowed")]
    TooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// It holds a character that node names may not hold, there.
    #[error(
        "the node name holds {found:?} at byte {at}; allowed are letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
    )]
    Character {
        /// The character.
        found: char,
        /// Its place in bytes from the start.
        at: usize,
    },
}

impl NodeId {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// If it is empty, longer than [`MAX_NODE_ID`] bytes, or not in the form of a node name.
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
    fn a_node_name_outside_its_form_is_refused_with_what_was_found() {
        assert_eq!(NodeId::new(""), Err(InvalidNodeId::Empty));
        assert_eq!(NodeId::new("a".repeat(254)), Err(InvalidNodeId::TooLong { found: 254 }));
        assert_eq!(NodeId::new("edge/1"), Err(InvalidNodeId::Character { found: '/', at: 4 }));
        assert_eq!(NodeId::new("-edge"), Err(InvalidNodeId::Character { found: '-', at: 0 }));
        assert_eq!(NodeId::new("edge."), Err(InvalidNodeId::Character { found: '.', at: 4 }));
        assert_eq!(NodeId::new("edgé"), Err(InvalidNodeId::Character { found: 'é', at: 3 }));
        for good in ["a", "edge-1", "ip-10-0-0-1.eu-west-1.compute.internal", "Edge_1"] {
            assert_eq!(NodeId::new(good).unwrap().as_str(), good);
        }
        assert!(NodeId::new("a".repeat(253)).is_ok());
    }
}
