//! Everything that can go wrong on our own way, and the one place that says what a caller is told of it.

use std::time::Duration;

use csi_proto::DriverName;

use crate::call::NodeId;
use crate::code::Code;

/// A failure that no driver reported: it happened between the caller and the driver.
///
/// Text in a fault is for people; it never holds a part of a request or an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The node is known but has no session at the moment.
    NodeOffline {
        /// The node.
        node: NodeId,
    },
    /// No node of this name has ever been seen.
    NodeUnknown {
        /// The node.
        node: NodeId,
    },
    /// No node could be chosen for the call.
    NoNode {
        /// Why.
        reason: String,
    },
    /// The node has no driver of this name at the moment.
    DriverNotRegistered {
        /// The driver.
        driver: DriverName,
    },
    /// The driver's socket does not exist.
    DriverSocketMissing {
        /// The driver.
        driver: DriverName,
        /// Where its socket should be.
        path: String,
    },
    /// The driver's socket exists but cannot be connected to.
    DriverRefused {
        /// The driver.
        driver: DriverName,
        /// What the operating system said.
        reason: String,
    },
    /// The connection to the driver ended before its answer was complete. The operation may still be running.
    DriverGone {
        /// The driver.
        driver: DriverName,
        /// How it ended.
        reason: String,
    },
    /// The driver's answer is not gRPC.
    DriverProtocol {
        /// The driver.
        driver: DriverName,
        /// What is wrong with it.
        reason: String,
    },
    /// The link was lost while the call was open.
    LinkLost {
        /// Which link, and how.
        reason: String,
    },
    /// There is no connection to any hub.
    HubUnreachable {
        /// What was tried.
        reason: String,
    },
    /// The request is larger than a bound on its way. It was refused before any byte of it was sent.
    RequestTooLarge {
        /// Its size in bytes.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The answer is larger than a bound on its way. The operation was carried out.
    ReplyTooLarge {
        /// Its size in bytes as far as known.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The request or the answer is larger than a link further on allows; which of them is not known.
    FrameTooLarge {
        /// What was refused.
        reason: String,
    },
    /// A bounded queue or table is full.
    Overloaded {
        /// What is full.
        what: String,
        /// Its bound; 0 if it is not known here.
        max: u64,
    },
    /// The time ran out. The operation may still be running.
    Deadline {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The caller left. The operation may still be running.
    CallerGone,
    /// A part on the way is shutting down and takes no new calls.
    Draining {
        /// Which part.
        what: String,
    },
    /// A part on the way does not carry calls from here to there.
    Forbidden {
        /// What is not allowed.
        reason: String,
    },
    /// Two of our own parts do not understand each other.
    Protocol {
        /// What was not understood.
        reason: String,
    },
    /// The part that carried the call ended without an answer.
    ServiceLost {
        /// Which part.
        what: String,
    },
    /// Another operation on the same volume, snapshot or group is running at the driver.
    OperationPending {
        /// The driver.
        driver: DriverName,
        /// The method that is running.
        running: String,
    },
    /// An answer that must no longer be given cannot be taken out of the journal, so nothing may make it wrong meanwhile.
    JournalFailed {
        /// What failed.
        reason: String,
    },
    /// The driver has not been reached since this endpoint started, so what it offers is not known yet.
    NotReady {
        /// The driver.
        driver: DriverName,
    },
}

/// What a caller is told of a fault of ours: **the** table, used for every fault at every place.
///
/// The sidecars read every code but four as "nothing is running any more", and then forget volumes that exist. So:
///
/// - [`Fault::Deadline`] is `DEADLINE_EXCEEDED`, [`Fault::CallerGone`] is `CANCELLED`;
/// - [`Fault::RequestTooLarge`] is `INVALID_ARGUMENT`, the one final code: the request provably never left, it will be as
///   large the next time, and a code that may be retried would have the sidecar send it for ever. `RESOURCE_EXHAUSTED`
///   would make external-provisioner move the volume to another node, where the request is no smaller;
/// - [`Fault::OperationPending`] is `ABORTED`, which the spec has for exactly this: an operation is pending for this volume, back
///   off and ask again. It is true when it is said, for this process itself waits for the operation that runs, and it is safe:
///   `ABORTED` is one of the four codes that the sidecars read as "may still be running", so nothing is forgotten. It cannot be
///   taken for the driver's verdict on the request, which is not known yet;
/// - everything else is `UNAVAILABLE`.
#[must_use]
pub fn outcome_of(fault: &Fault) -> (Code, String) {
    use Fault as F;
    let message = match fault {
        F::Deadline { waited } => {
            let text = format!("no answer within {waited:?}; the operation may still be running, ask again");
            return (Code::DEADLINE_EXCEEDED, text);
        }
        F::CallerGone => {
            return (Code::CANCELLED, "the caller left; the operation may still be running".to_owned());
        }
        F::OperationPending { driver, running } => {
            let text =
                format!("{running} is pending at driver {driver} for the same volume; try again later");
            return (Code::ABORTED, text);
        }
        F::RequestTooLarge { found, max } => {
            let text = format!("request of {found} bytes; at most {max} can be carried; nothing was sent");
            return (Code::INVALID_ARGUMENT, text);
        }
        F::NodeOffline { node } => format!("node {node} is offline"),
        F::NodeUnknown { node } => format!("node {node} is not known; has its agent ever connected?"),
        F::NoNode { reason } => format!("no node for this call: {reason}"),
        F::DriverNotRegistered { driver } => format!("driver {driver} is not registered on the node"),
        F::DriverSocketMissing { driver, path } => {
            format!("driver {driver} has no socket at {path}; is it running?")
        }
        F::DriverRefused { driver, reason } => {
            format!("driver {driver} does not accept connections: {reason}")
        }
        F::DriverGone { driver, reason } => {
            format!(
                "driver {driver} was lost before it had answered: {reason}; the operation may still be running"
            )
        }
        F::DriverProtocol { driver, reason } => format!("driver {driver} did not answer in gRPC: {reason}"),
        F::LinkLost { reason } => format!("link lost: {reason}; the operation may still be running"),
        F::HubUnreachable { reason } => format!("no hub can be reached: {reason}"),
        F::ReplyTooLarge { found, max } => {
            format!(
                "the answer has {found} bytes; at most {max} can be carried; the operation was carried out"
            )
        }
        F::FrameTooLarge { reason } => format!("too large for a link on the way: {reason}"),
        F::Overloaded { what, max: 0 } => format!("overloaded: {what}; try again later"),
        F::Overloaded { what, max } => format!("{what} is full (bound {max}); try again later"),
        F::Draining { what } => format!("{what} is shutting down"),
        F::Forbidden { reason } => format!("not allowed on the way: {reason}"),
        F::Protocol { reason } => format!("relay protocol: {reason}"),
        F::ServiceLost { what } => {
            format!("{what} ended without an answer; the operation may still be running")
        }
        F::JournalFailed { reason } => {
            format!(
                "the journal of operations failed and holds an answer that this would make wrong: {reason}"
            )
        }
        F::NotReady { driver } => {
            format!("driver {driver} has not been reached yet; what it offers is not known")
        }
    };
    (Code::UNAVAILABLE, message)
}

impl Fault {
    /// The kind in snake case, for logs and metric labels.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NodeOffline { .. } => "node_offline",
            Self::NodeUnknown { .. } => "node_unknown",
            Self::NoNode { .. } => "no_node",
            Self::DriverNotRegistered { .. } => "driver_not_registered",
            Self::DriverSocketMissing { .. } => "driver_socket_missing",
            Self::DriverRefused { .. } => "driver_refused",
            Self::DriverGone { .. } => "driver_gone",
            Self::DriverProtocol { .. } => "driver_protocol",
            Self::LinkLost { .. } => "link_lost",
            Self::HubUnreachable { .. } => "hub_unreachable",
            Self::RequestTooLarge { .. } => "request_too_large",
            Self::ReplyTooLarge { .. } => "reply_too_large",
            Self::FrameTooLarge { .. } => "frame_too_large",
            Self::Overloaded { .. } => "overloaded",
            Self::Deadline { .. } => "deadline",
            Self::CallerGone => "caller_gone",
            Self::Draining { .. } => "draining",
            Self::Forbidden { .. } => "forbidden",
            Self::Protocol { .. } => "protocol",
            Self::ServiceLost { .. } => "service_lost",
            Self::OperationPending { .. } => "operation_pending",
            Self::JournalFailed { .. } => "journal_failed",
            Self::NotReady { .. } => "not_ready",
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&outcome_of(self).1)
    }
}

impl std::error::Error for Fault {}

/// One fault of every kind, for tables that must cover them all.
#[cfg(test)]
pub(crate) fn one_of_each() -> Vec<Fault> {
    let node = NodeId::new("edge-1").unwrap();
    let driver = DriverName::new("csi-hostpath").unwrap();
    let text = || "why ünd how".to_owned();
    let all = vec![
        Fault::NodeOffline { node: node.clone() },
        Fault::NodeUnknown { node },
        Fault::NoNode { reason: text() },
        Fault::DriverNotRegistered { driver: driver.clone() },
        Fault::DriverSocketMissing { driver: driver.clone(), path: "/plugins/csi.sock".to_owned() },
        Fault::DriverRefused { driver: driver.clone(), reason: text() },
        Fault::DriverGone { driver: driver.clone(), reason: text() },
        Fault::DriverProtocol { driver: driver.clone(), reason: text() },
        Fault::LinkLost { reason: text() },
        Fault::HubUnreachable { reason: text() },
        Fault::RequestTooLarge { found: 9, max: 8 },
        Fault::ReplyTooLarge { found: 9, max: 8 },
        Fault::FrameTooLarge { reason: text() },
        Fault::Overloaded { what: text(), max: 8 },
        Fault::Deadline { waited: Duration::from_millis(1500) },
        Fault::CallerGone,
        Fault::Draining { what: text() },
        Fault::Forbidden { reason: text() },
        Fault::Protocol { reason: text() },
        Fault::ServiceLost { what: text() },
        Fault::OperationPending { driver: driver.clone(), running: text() },
        Fault::JournalFailed { reason: text() },
        Fault::NotReady { driver },
    ];
    let kinds: std::collections::BTreeSet<_> = all.iter().map(Fault::kind).collect();
    assert_eq!(kinds.len(), 23, "a kind is missing or there twice");
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_row_and_only_one_of_them_is_final() {
        for fault in one_of_each() {
            // Exhaustive, so that a new fault does not compile without its row.
            let expected = match &fault {
                Fault::Deadline { .. } => Code::DEADLINE_EXCEEDED,
                Fault::CallerGone => Code::CANCELLED,
                Fault::RequestTooLarge { .. } => Code::INVALID_ARGUMENT,
                Fault::OperationPending { .. } => Code::ABORTED,
                Fault::NodeOffline { .. }
                | Fault::NodeUnknown { .. }
                | Fault::NoNode { .. }
                | Fault::DriverNotRegistered { .. }
                | Fault::DriverSocketMissing { .. }
                | Fault::DriverRefused { .. }
                | Fault::DriverGone { .. }
                | Fault::DriverProtocol { .. }
                | Fault::LinkLost { .. }
                | Fault::HubUnreachable { .. }
                | Fault::ReplyTooLarge { .. }
                | Fault::FrameTooLarge { .. }
                | Fault::Overloaded { .. }
                | Fault::Draining { .. }
                | Fault::Forbidden { .. }
                | Fault::Protocol { .. }
                | Fault::ServiceLost { .. }
                | Fault::JournalFailed { .. }
                | Fault::NotReady { .. } => Code::UNAVAILABLE,
            };
            let (code, message) = outcome_of(&fault);
            assert_eq!(code, expected, "{fault:?}");
            assert!(!message.is_empty());
        }
    }
}
