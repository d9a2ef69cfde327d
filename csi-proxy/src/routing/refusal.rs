//! What a router answers by itself, and the one place that says with which code.

use csi_proto::Code;

use crate::call::{Fault, NodeId, Outcome};
use crate::dispatcher::operation::{BadRequest, Subject};

/// A call goes to no node, or what came back from one cannot be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// What decides on the node cannot be told from the request.
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    /// A new volume may be anywhere, and no node is the default.
    #[error(
        "accessibility_requirements is empty and there is no default node: use a storage class with volumeBindingMode WaitForFirstConsumer"
    )]
    NoTopology,
    /// No node of the driver is where the volume must be.
    #[error("no node with the driver is within accessibility_requirements")]
    NoNodeThere,
    /// The nodes where the volume may be have too little room.
    #[error("no node within accessibility_requirements has {required} bytes left")]
    NoRoom {
        /// The room that is needed, in bytes.
        required: u64,
    },
    /// The volume is to be a copy of something that is on a node where it must not be.
    #[error("the content source is on node {node}, which is not within accessibility_requirements")]
    SourceElsewhere {
        /// The node of the source.
        node: NodeId,
    },
    /// The nodes where the volume may be are offline, nothing was ever sent to one of them for it, and it may move on.
    #[error("every node within accessibility_requirements is offline; nothing was sent to one")]
    AllOffline,
    /// The node is offline, and waited for.
    #[error("node {node} is offline")]
    Offline {
        /// The node.
        node: NodeId,
    },
    /// The placement of that name is damaged: a volume of it may be anywhere.
    #[error(
        "the placement of {name:?} is damaged, and a volume of that name may be on any node; restore the store, or use another name"
    )]
    Damaged {
        /// The name.
        name: Box<str>,
    },
    /// The volumes of a group are on different nodes.
    #[error("the volumes are on different nodes; a group snapshot is made on one")]
    Apart,
    /// A volume cannot be attached to a node, since it is on another one.
    #[error("the volume is on node {node} and cannot be attached to another")]
    NotThere {
        /// Where it is.
        node: NodeId,
    },
    /// No node of the driver has this `node_id`.
    #[error("no node with the driver has the node_id {node_id:?}")]
    NoSuchNode {
        /// The `node_id`.
        node_id: String,
    },
    /// A list cannot be continued from this token.
    #[error("starting_token is none that was given for this list; begin again without one")]
    BadToken,
    /// What would decide on the node is not known yet.
    #[error("{what}")]
    NotKnown {
        /// What is not known, and what to do.
        what: String,
    },
    /// Two nodes gave the same id.
    #[error(
        "{subject} is on node {known}, and node {other} gave the same id; give each node's driver ids of its own, or delete one by hand"
    )]
    SameId {
        /// The kind and the id.
        subject: Subject,
        /// Where it was first.
        known: NodeId,
        /// The other one.
        other: NodeId,
    },
    /// The table of placements is full.
    #[error("the table of placements is full; at most {max}")]
    Full {
        /// Its bound.
        max: usize,
    },
    /// The node is decommissioned.
    #[error("node {node} is decommissioned")]
    Decommissioned {
        /// The node.
        node: NodeId,
    },
    /// Another proxy has changed a placement.
    #[error("the placement of {subject} was changed by another proxy")]
    Changed {
        /// The kind and the name or id.
        subject: Subject,
    },
    /// What must be on the disk cannot be written to it.
    #[error("it cannot be kept on the disk: {reason}")]
    NotKept {
        /// Why.
        reason: String,
    },
}

impl Refusal {
    /// A node was never asked what it is.
    pub(super) fn not_reached(node: &NodeId) -> Self {
        let what = format!(
            "node {node} has not been reached yet, so not all is known of it; start its agent, or take it from the list of nodes"
        );
        Self::NotKnown { what }
    }

    /// What a caller is told: **the** table.
    ///
    /// A code that ends the matter is only given where it is certain that nothing is under way and nothing was made that
    /// would be forgotten by it: the call went to no node, and no earlier one of its name has. All else is a [`Fault`], after
    /// which sidecars ask again.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let code = match self {
            Self::BadRequest(BadRequest::UnknownMethod) => Code::UNIMPLEMENTED,
            Self::BadRequest(_) | Self::NoTopology => Code::INVALID_ARGUMENT,
            Self::NoNodeThere | Self::NoRoom { .. } | Self::SourceElsewhere { .. } | Self::AllOffline => {
                Code::RESOURCE_EXHAUSTED
            }
            Self::Apart | Self::NotThere { .. } => Code::FAILED_PRECONDITION,
            Self::NoSuchNode { .. } => Code::NOT_FOUND,
            Self::BadToken => Code::ABORTED,
            Self::Offline { node } => return Fault::NodeOffline { node: node.clone() }.into(),
            Self::Full { max } => {
                return Fault::Overloaded { what: "the table of placements".to_owned(), max: *max as u64 }
                    .into();
            }
            Self::NotKnown { .. }
            | Self::Decommissioned { .. }
            | Self::Damaged { .. }
            | Self::Changed { .. }
            | Self::NotKept { .. }
            | Self::SameId { .. } => return Fault::NoNode { reason: self.to_string() }.into(),
        };
        Outcome::from_endpoint(code, self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Refusal> {
        let node = || NodeId::new("edge-1").unwrap();
        vec![
            BadRequest::Missing { field: "name" }.into(),
            BadRequest::Unreadable { field: "name" }.into(),
            BadRequest::UnknownMethod.into(),
            Refusal::NoTopology,
            Refusal::NoNodeThere,
            Refusal::NoRoom { required: 1 },
            Refusal::SourceElsewhere { node: node() },
            Refusal::AllOffline,
            Refusal::Offline { node: node() },
            Refusal::Damaged { name: "pvc-1".into() },
            Refusal::Changed { subject: Subject::Volume("v".into()) },
            Refusal::Apart,
            Refusal::NotThere { node: node() },
            Refusal::NoSuchNode { node_id: "n".into() },
            Refusal::BadToken,
            Refusal::NotKnown { what: "x".into() },
            Refusal::SameId { subject: Subject::Volume("v".into()), known: node(), other: node() },
            Refusal::Full { max: 1 },
            Refusal::Decommissioned { node: node() },
            Refusal::NotKept { reason: "x".into() },
        ]
    }

    #[test]
    fn every_refusal_has_its_row() {
        for refusal in one_of_each() {
            // Exhaustive, so that a new refusal does not compile without its row.
            let expected = match &refusal {
                Refusal::BadRequest(BadRequest::UnknownMethod) => Code::UNIMPLEMENTED,
                Refusal::BadRequest(BadRequest::Missing { .. } | BadRequest::Unreadable { .. })
                | Refusal::NoTopology => Code::INVALID_ARGUMENT,
                Refusal::NoNodeThere
                | Refusal::NoRoom { .. }
                | Refusal::SourceElsewhere { .. }
                | Refusal::AllOffline => Code::RESOURCE_EXHAUSTED,
                Refusal::Apart | Refusal::NotThere { .. } => Code::FAILED_PRECONDITION,
                Refusal::NoSuchNode { .. } => Code::NOT_FOUND,
                Refusal::BadToken => Code::ABORTED,
                Refusal::Offline { .. }
                | Refusal::NotKnown { .. }
                | Refusal::Damaged { .. }
                | Refusal::Changed { .. }
                | Refusal::SameId { .. }
                | Refusal::Full { .. }
                | Refusal::Decommissioned { .. }
                | Refusal::NotKept { .. } => Code::UNAVAILABLE,
            };
            let outcome = refusal.outcome();
            assert_eq!(outcome.code, expected, "{refusal:?}");
            assert!(!outcome.message.is_empty());
        }
    }
}
