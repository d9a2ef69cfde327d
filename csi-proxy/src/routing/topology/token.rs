//! The token of a list over several nodes.

use crate::call::NodeId;

const VERSION: &str = "1";

/// The position in a list: the next node, and the position in its list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) node: NodeId,
    pub(super) position: Position,
}

/// The position in the list of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Position {
    /// In the list of its driver.
    Driver {
        /// The number of entries before this position.
        listed: u32,
        /// The token of the driver; empty at the start.
        token: String,
    },
    /// In its recorded volumes, by id.
    Recorded {
        /// The last id before this position.
        after: String,
    },
}

impl Default for Position {
    fn default() -> Self {
        Self::Driver { listed: 0, token: String::new() }
    }
}

impl Token {
    /// `1:NODE:LISTED:TOKEN`, or `1:NODE::ID`; a node's name has no colon.
    pub(super) fn encode(&self) -> String {
        let node = &self.node;
        match &self.position {
            Position::Driver { listed, token } => format!("{VERSION}:{node}:{listed}:{token}"),
            Position::Recorded { after } => format!("{VERSION}:{node}::{after}"),
        }
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let (node, rest) = text.strip_prefix(VERSION)?.strip_prefix(':')?.split_once(':')?;
        let (listed, rest) = rest.split_once(':')?;
        let position = match listed {
            "" => Position::Recorded { after: rest.to_owned() },
            listed => Position::Driver { listed: listed.parse().ok()?, token: rest.to_owned() },
        };
        Some(Self { node: NodeId::new(node).ok()?, position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_round_trips_and_rejects_other_text() {
        let node = NodeId::new("edge-1.example").unwrap();
        for inner in ["", "7", "a:b:1", "\u{e9} \n"] {
            let inner = inner.to_owned();
            for position in
                [Position::Driver { listed: 9, token: inner.clone() }, Position::Recorded { after: inner }]
            {
                let token = Token { node: node.clone(), position };
                assert_eq!(Token::decode(&token.encode()), Some(token));
            }
        }
        for other in ["", "1", "1:", "1::0:x", "2:edge-1:0:x", "edge-1:0:x", "1:edge 1:0:x", "1:edge-1:x:y"] {
            assert_eq!(Token::decode(other), None, "{other}");
        }
    }
}
