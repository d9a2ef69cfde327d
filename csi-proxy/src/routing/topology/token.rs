//! The token of a list over several nodes.

use crate::call::NodeId;

const VERSION: &str = "1";

/// The position in a list: the next node, and the token of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) node: NodeId,
    pub(super) inner: String,
}

impl Token {
    /// `1:NODE:INNER`; a node's name has no colon.
    pub(super) fn encode(&self) -> String {
        format!("{VERSION}:{}:{}", self.node, self.inner)
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let (node, inner) = text.strip_prefix(VERSION)?.strip_prefix(':')?.split_once(':')?;
        Some(Self { node: NodeId::new(node).ok()?, inner: inner.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_round_trips_and_rejects_other_text() {
        for inner in ["", "7", "a:b:1", "\u{e9} \n"] {
            let token = Token { node: NodeId::new("edge-1.example").unwrap(), inner: inner.to_owned() };
            assert_eq!(Token::decode(&token.encode()), Some(token));
        }
        for other in ["", "1", "1:", "1::x", "2:edge-1:x", "edge-1:x", "1:edge 1:x", "1:edge-1"] {
            assert_eq!(Token::decode(other), None, "{other}");
        }
    }
}
