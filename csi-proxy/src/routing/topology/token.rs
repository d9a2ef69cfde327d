//! The token of a list over several nodes.

use std::time::Duration;

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
        /// The time that its pages have taken, in whole milliseconds.
        spent: Duration,
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
        Self::Driver { listed: 0, spent: Duration::ZERO, token: String::new() }
    }
}

impl Token {
    /// `1:NODE:LISTED:SPENT:TOKEN`, or `1:NODE::ID`; a node's name has no colon.
    pub(super) fn encode(&self) -> String {
        let node = &self.node;
        match &self.position {
            Position::Driver { listed, spent, token } => {
                format!("{VERSION}:{node}:{listed}:{}:{token}", spent.as_millis())
            }
            Position::Recorded { after } => format!("{VERSION}:{node}::{after}"),
        }
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let (node, rest) = text.strip_prefix(VERSION)?.strip_prefix(':')?.split_once(':')?;
        let (listed, rest) = rest.split_once(':')?;
        let position = match listed {
            "" => Position::Recorded { after: rest.to_owned() },
            listed => {
                let (spent, token) = rest.split_once(':')?;
                let spent = Duration::from_millis(spent.parse().ok()?);
                Position::Driver { listed: listed.parse().ok()?, spent, token: token.to_owned() }
            }
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
            let (spent, token) = (Duration::from_millis(7), inner.clone());
            for position in
                [Position::Driver { listed: 9, spent, token }, Position::Recorded { after: inner }]
            {
                let token = Token { node: node.clone(), position };
                assert_eq!(Token::decode(&token.encode()), Some(token));
            }
        }
        for other in [
            "",
            "1",
            "1:",
            "1::0:0:x",
            "2:edge-1:0:0:x",
            "edge-1:0:0:x",
            "1:edge 1:0:0:x",
            "1:edge-1:x:0:y",
            "1:edge-1:0:y",
        ] {
            assert_eq!(Token::decode(other), None, "{other}");
        }
    }
}
