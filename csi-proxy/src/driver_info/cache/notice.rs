//! Notices for the operator, and how often each is reported.

use std::time::Instant;

use csi_proto::csi::v1 as csi;

use crate::call::Outcome;
use crate::driver_info::question::Question;
use crate::log_limit::LogLimit;

/// A notice for the operator.
#[derive(Debug, PartialEq)]
pub(crate) enum Notice {
    /// The driver reports another name than configured. Reported for one node at most once in 10 s.
    NameMismatch {
        /// The reported name.
        found: String,
    },
    /// The driver is unreachable. Reported once per outage.
    Unreachable(Outcome),
    /// The driver is reachable, for the first time or again.
    Reached,
    /// An answer is refused before it is decoded. Reported for one node at most once in 10 s.
    TooLarge {
        /// The start-up call.
        question: Question,
        /// The size of the answer in bytes.
        found: usize,
        /// The maximum size in bytes.
        max: usize,
    },
    /// A node is rejected because of the limit. Reported once.
    TooMany,
    /// The topology of a node has changed. Reported for one node at most once in 10 s.
    Moved {
        /// The previous topology.
        before: csi::Topology,
        /// The new topology.
        now: csi::Topology,
    },
}

/// The last notices to the operator about a node, or about all nodes together.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) reached: Option<bool>,
    pub(super) stale: bool,
    /// Notices that a node can cause at will.
    name: LogLimit,
    size: LogLimit,
    topology: LogLimit,
    pub(super) conflict: LogLimit,
}

impl Reported {
    /// Whether to log a notice about one node.
    pub(super) fn permits(&self, notice: &Notice, now: Instant) -> bool {
        match notice {
            Notice::NameMismatch { .. } => self.name.permits(now),
            Notice::TooLarge { .. } => self.size.permits(now),
            Notice::Moved { .. } => self.topology.permits(now),
            // Once per outage of all nodes, or of a node with a socket of its own.
            Notice::Unreachable(_) | Notice::Reached | Notice::TooMany => true,
        }
    }
}
