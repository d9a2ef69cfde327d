//! The errors of the router itself, and the table of their codes.

use csi_proto::Code;

use super::claims::ClaimConflict;
use crate::call::{BadRequest, Subject};
use crate::call::{Fault, NodeId, Outcome};

/// A call is not sent to a node, or its answer cannot be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request does not determine the node.
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    /// The request has no topology and no default node is configured.
    #[error(
        "accessibility_requirements is empty and no default node is configured: use a storage class with volumeBindingMode WaitForFirstConsumer"
    )]
    NoTopology,
    /// No node of the driver is within the topology.
    #[error("no node with the driver is within accessibility_requirements")]
    NoNodeInTopology,
    /// The nodes within the topology have too little capacity.
    #[error("no node within accessibility_requirements has {required} bytes available")]
    NoRoom {
        /// The required capacity in bytes.
        required: u64,
    },
    /// The content source is on a node outside the topology.
    #[error("the content source is on node {node}, which is not within accessibility_requirements")]
    SourceElsewhere {
        /// The node of the source.
        node: NodeId,
    },
    /// All nodes within the topology are offline, nothing was ever sent to one of them for this volume, and the volume
    /// may move.
    #[error("every node within accessibility_requirements is offline; nothing was sent")]
    AllOffline,
    /// The node is offline, and the volume waits for the node.
    #[error("node {node} is offline")]
    Offline {
        /// The offline node.
        node: NodeId,
    },
    /// The placement of the name is damaged: its volume may be on any node.
    #[error(
        "the placement of {name:?} is damaged, and its volume may be on any node; restore the store, or repair the placement"
    )]
    Damaged {
        /// The name of the volume.
        name: Box<str>,
    },
    /// The volumes of a group snapshot are on different nodes.
    #[error("the volumes are on different nodes; a group snapshot needs all volumes on one node")]
    VolumesOnDifferentNodes,
    /// The volume is on another node and cannot be attached to this one.
    #[error("the volume is on node {node} and cannot be attached to another")]
    WrongNode {
        /// The node of the volume.
        node: NodeId,
    },
    /// No node of the driver has this `node_id`.
    #[error("no node with the driver has the node_id {node_id:?}")]
    NoSuchNode {
        /// The `node_id` in the request.
        node_id: String,
    },
    /// The starting token is invalid.
    #[error("invalid starting_token; start the list again without one")]
    BadToken,
    /// No node has the subject.
    #[error("no node has {subject}")]
    Absent {
        /// The kind and the id of the subject.
        subject: Subject,
    },
    /// The node of the subject is not known, and this node does not report whether it has the subject.
    #[error(
        "{subject} is not known, and node {node} does not report whether it has it. Start the node, or decommission it"
    )]
    MayBeOn {
        /// The kind and the id of the subject.
        subject: Subject,
        /// A node that may have the subject.
        node: NodeId,
    },
    /// The node cannot be determined yet.
    #[error("{what}")]
    Undetermined {
        /// What is unknown, and what to do.
        what: String,
    },
    /// Two nodes reported the same id.
    #[error(
        "{subject} is on node {known}, and node {other} reported the same id; make the ids of the drivers unique, or delete one manually"
    )]
    DuplicateId {
        /// The kind and the id of the subject.
        subject: Subject,
        /// The node in the table of placements.
        known: NodeId,
        /// The node that reported the id later.
        other: NodeId,
    },
    /// The table of placements is full.
    #[error("the table of placements is full (limit {max})")]
    Full {
        /// The maximum number of rows.
        max: usize,
    },
    /// The node has its maximum number of placements. Nothing was sent.
    #[error("node {node} has {max} volumes and snapshots, which is the limit of a node")]
    NodeFull {
        /// The node.
        node: NodeId,
        /// The maximum number of rows of a node.
        max: usize,
    },
    /// The node is decommissioned.
    #[error("node {node} is decommissioned")]
    Decommissioned {
        /// The decommissioned node.
        node: NodeId,
    },
    /// The node is quarantined: it reports what belongs to another node.
    #[error("node {node} is quarantined: {reason}")]
    Quarantined {
        /// The quarantined node.
        node: NodeId,
        /// What the node reports.
        reason: ClaimConflict,
    },
    /// Another proxy has changed the placement.
    #[error("the placement of {subject} was changed by another proxy")]
    Changed {
        /// The kind and the name or id of the subject.
        subject: Subject,
    },
    /// The change cannot be written to the store.
    #[error("cannot write the placement store: {reason}")]
    NotPersisted {
        /// The error of the store.
        reason: String,
    },
}

impl Refusal {
    /// Returns the error for a node that was never reached.
    pub(super) fn not_reached(node: &NodeId) -> Self {
        let what = format!(
            "node {node} has not been reached yet; start its agent, or remove it from the list of nodes"
        );
        Self::Undetermined { what }
    }

    /// Returns the outcome for the caller. This is the only table of the codes.
    ///
    /// A final code is used only if it is certain that nothing is running, and that nothing was created which the
    /// caller would then leak: neither this call nor an earlier call of its name was sent to a node. Everything
    /// else is a [`Fault`], after which sidecars retry.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let code = match self {
            Self::BadRequest(BadRequest::UnknownMethod) => Code::UNIMPLEMENTED,
            Self::BadRequest(_) | Self::NoTopology => Code::INVALID_ARGUMENT,
            Self::NoNodeInTopology
            | Self::NoRoom { .. }
            | Self::SourceElsewhere { .. }
            | Self::NodeFull { .. }
            | Self::AllOffline => Code::RESOURCE_EXHAUSTED,
            Self::VolumesOnDifferentNodes | Self::WrongNode { .. } => Code::FAILED_PRECONDITION,
            Self::NoSuchNode { .. } | Self::Absent { .. } => Code::NOT_FOUND,
            Self::BadToken => Code::ABORTED,
            Self::Offline { node } => return Fault::NodeOffline { node: node.clone() }.into(),
            Self::Full { max } => {
                return Fault::Overloaded { what: "the table of placements".to_owned(), max: *max as u64 }
                    .into();
            }
            Self::Undetermined { .. }
            | Self::MayBeOn { .. }
            | Self::Decommissioned { .. }
            | Self::Quarantined { .. }
            | Self::Damaged { .. }
            | Self::Changed { .. }
            | Self::NotPersisted { .. }
            | Self::DuplicateId { .. } => return Fault::NoNode { reason: self.to_string() }.into(),
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
            BadRequest::TooMany { field: "snapshot_ids" }.into(),
            BadRequest::NotAMessage.into(),
            BadRequest::UnknownMethod.into(),
            Refusal::NoTopology,
            Refusal::NoNodeInTopology,
            Refusal::NoRoom { required: 1 },
            Refusal::SourceElsewhere { node: node() },
            Refusal::AllOffline,
            Refusal::Offline { node: node() },
            Refusal::Damaged { name: "pvc-1".into() },
            Refusal::Changed { subject: Subject::Volume("v".into()) },
            Refusal::VolumesOnDifferentNodes,
            Refusal::WrongNode { node: node() },
            Refusal::NoSuchNode { node_id: "n".into() },
            Refusal::BadToken,
            Refusal::Absent { subject: Subject::Volume("v".into()) },
            Refusal::MayBeOn { subject: Subject::Volume("v".into()), node: node() },
            Refusal::Undetermined { what: "x".into() },
            Refusal::DuplicateId { subject: Subject::Volume("v".into()), known: node(), other: node() },
            Refusal::Full { max: 1 },
            Refusal::NodeFull { node: node(), max: 1 },
            Refusal::Decommissioned { node: node() },
            Refusal::Quarantined { node: node(), reason: ClaimConflict::TooLarge { size: 1 } },
            Refusal::NotPersisted { reason: "x".into() },
        ]
    }

    #[test]
    fn every_refusal_matches_the_table() {
        for refusal in one_of_each() {
            // Exhaustive, so that a new refusal does not compile without its row.
            let expected = match &refusal {
                Refusal::BadRequest(BadRequest::UnknownMethod) => Code::UNIMPLEMENTED,
                Refusal::BadRequest(
                    BadRequest::NotAMessage
                    | BadRequest::Missing { .. }
                    | BadRequest::Unreadable { .. }
                    | BadRequest::TooMany { .. },
                )
                | Refusal::NoTopology => Code::INVALID_ARGUMENT,
                Refusal::NoNodeInTopology
                | Refusal::NoRoom { .. }
                | Refusal::SourceElsewhere { .. }
                | Refusal::NodeFull { .. }
                | Refusal::AllOffline => Code::RESOURCE_EXHAUSTED,
                Refusal::VolumesOnDifferentNodes | Refusal::WrongNode { .. } => Code::FAILED_PRECONDITION,
                Refusal::NoSuchNode { .. } | Refusal::Absent { .. } => Code::NOT_FOUND,
                Refusal::BadToken => Code::ABORTED,
                Refusal::Offline { .. }
                | Refusal::Undetermined { .. }
                | Refusal::MayBeOn { .. }
                | Refusal::Damaged { .. }
                | Refusal::Changed { .. }
                | Refusal::DuplicateId { .. }
                | Refusal::Full { .. }
                | Refusal::Decommissioned { .. }
                | Refusal::Quarantined { .. }
                | Refusal::NotPersisted { .. } => Code::UNAVAILABLE,
            };
            let outcome = refusal.outcome();
            assert_eq!(outcome.code, expected, "{refusal:?}");
            assert!(!outcome.message.is_empty());
        }
    }
}
