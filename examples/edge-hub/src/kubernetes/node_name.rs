//! The name of a Node.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use edge_csi_common::excerpt::excerpt;

/// A name that a Node can have: a DNS subdomain in the sense of RFC 1123.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeName(Arc<str>);

/// A text is not a name of a Node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a name of a Node; expected at most {} bytes of a-z, 0-9, '-' and '.', each part with a letter or a \
     digit at its ends",
    NodeName::MAX_BYTES
)]
pub(super) struct InvalidNodeName {
    /// The text, cut to 100 bytes.
    found: String,
}

impl NodeName {
    /// The maximum length of a name in bytes.
    pub(super) const MAX_BYTES: usize = 253;

    /// Parses a name.
    ///
    /// # Errors
    /// If no Node can have this name.
    pub(super) fn new(text: &str) -> Result<Self, InvalidNodeName> {
        if is_subdomain(text) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidNodeName { found: excerpt(text, 100).to_owned() })
        }
    }

    /// Returns the name as text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a text is a DNS subdomain in the sense of RFC 1123.
pub(super) fn is_subdomain(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        part.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
            && part.bytes().next().is_some_and(alphanumeric)
            && part.bytes().next_back().is_some_and(alphanumeric)
    };
    text.len() <= NodeName::MAX_BYTES && text.split('.').all(part)
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_node_can_be_called_is_a_name() {
        let long = "a".repeat(NodeName::MAX_BYTES);
        for valid in ["edge-1", "a", "0.b-c.example", &long] {
            assert_eq!(NodeName::new(valid).unwrap().as_str(), valid);
        }
        let too_long = "a".repeat(NodeName::MAX_BYTES + 1);
        for bad in ["", "Edge", "a..b", "-a", "a-", "a/b", "a.", "spiffe://a", "a_b", &too_long] {
            assert!(NodeName::new(bad).is_err(), "{bad}");
        }
    }
}
