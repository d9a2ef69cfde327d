//! The failures of the relay itself, and the one place that defines what each means: the status for the caller,
//! whether the driver may have the request, and whether to send it again.

use std::time::Duration;

use csi_proto::{Delivery, DriverName};

use crate::call::{CallNumber, NodeId, Outcome, Term};
use csi_proto::Code;

/// A failure between the caller and the driver, not reported by the driver.
///
/// The text of a fault is for people and never contains a part of a request or an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The node is known but has no session now.
    #[error("node {node} is offline")]
    NodeOffline {
        /// The node.
        node: NodeId,
    },
    /// Two agents with the node's name are connected, or were less than 10 s ago; the volume may be at either.
    #[error("two agents with the name of node {node} are connected; stop one, or give it its own name")]
    TwoAgents {
        /// The node.
        node: NodeId,
    },
    /// No node could be selected for the call.
    #[error("no node for this call: {reason}")]
    NoNode {
        /// Why no node could be selected.
        reason: String,
    },
    /// No driver of this name is registered on the node.
    #[error("driver {driver} is not registered on the node")]
    DriverNotRegistered {
        /// The driver.
        driver: DriverName,
    },
    /// The driver's socket does not exist.
    #[error("driver {driver} has no socket at {path}; check that it is running")]
    DriverSocketMissing {
        /// The driver.
        driver: DriverName,
        /// The configured path of the socket.
        path: String,
    },
    /// The driver did not receive the request: its socket refused the connection, or the connection ended or rejected
    /// the request first.
    #[error("driver {driver} did not receive the request: {reason}")]
    DriverRefused {
        /// The driver.
        driver: DriverName,
        /// The error of the operating system or the connection.
        reason: String,
    },
    /// The connection to the driver was lost before the answer was complete. The operation may still be running.
    #[error(
        "connection to driver {driver} lost before its answer: {reason}; the operation may still be running"
    )]
    DriverLost {
        /// The driver.
        driver: DriverName,
        /// How the connection ended.
        reason: String,
    },
    /// The driver's answer is not gRPC.
    #[error("answer of driver {driver} is not gRPC: {reason}")]
    DriverProtocol {
        /// The driver.
        driver: DriverName,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The link was lost while the call was open.
    #[error("link lost: {reason}; the operation may still be running")]
    LinkLost {
        /// Which link was lost, and how.
        reason: String,
    },
    /// No hub is connected, or the connected one does not report its nodes.
    #[error("no usable hub: {reason}")]
    HubUnreachable {
        /// Why there is none.
        reason: String,
    },
    /// The request exceeds a size limit on its path, and was rejected before any byte was sent.
    #[error("request has {found} bytes; expected at most {max}; nothing was sent")]
    RequestTooLarge {
        /// The size of the request in bytes.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The answer exceeds a size limit on its path. The operation was executed.
    #[error("answer has {found} bytes; expected at most {max}; the operation was executed")]
    ReplyTooLarge {
        /// The size of the answer in bytes, as far as known.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The request or the answer exceeds the frame size of a later link; it is unknown which of the two.
    #[error("too large for a link on the path: {reason}")]
    FrameTooLarge {
        /// The limit that was exceeded, as the transport reports it.
        reason: String,
    },
    /// A bounded queue or table is full.
    #[error("{}", overloaded(what, *max))]
    Overloaded {
        /// What is full.
        what: String,
        /// The limit of the queue or table; 0 if unknown, as when a transport rejected the request or the answer.
        max: u64,
    },
    /// The deadline expired. The operation may still be running.
    #[error("no answer within {waited:?}; the operation may still be running; retry")]
    Deadline {
        /// How long the caller waited.
        waited: Duration,
    },
    /// The caller cancelled the call. The operation may still be running.
    #[error("cancelled by the caller; the operation may still be running")]
    Cancelled,
    /// A component on the path is shutting down and accepts no new calls.
    #[error("{what} is shutting down")]
    Draining {
        /// The component.
        what: String,
    },
    /// A component on the path does not permit this call.
    #[error("not permitted: {reason}")]
    Forbidden {
        /// What is not allowed.
        reason: String,
    },
    /// Two components of the relay do not understand each other.
    #[error("relay protocol error: {reason}")]
    Protocol {
        /// What was not understood.
        reason: String,
    },
    /// The component that carried the call ended without an answer.
    #[error("{what} ended without an answer; the operation may still be running")]
    ServiceLost {
        /// The component.
        what: String,
    },
    /// Another operation on the same volume, snapshot or group is running at the driver.
    #[error("{running} is pending at driver {driver} for the same volume; retry later")]
    OperationPending {
        /// The driver.
        driver: DriverName,
        /// The method that is running.
        running: String,
    },
    /// The node has accepted a call with a higher term: the proxy that sent this call was replaced.
    #[error(
        "the proxy of driver {driver} was replaced: the call has term {found}, the node has recorded term {current}"
    )]
    StaleTerm {
        /// The driver.
        driver: DriverName,
        /// The call's term.
        found: Term,
        /// The highest term recorded at the node.
        current: Term,
    },
    /// A copy of the call has begun at the node within the last minute, and its result is not kept: that of a Node call and
    /// of an unknown method never is, and another operation on the same volume invalidates any other.
    #[error(
        "a copy of this call has begun at driver {driver}, and its result is not kept; the operation may still be running; retry with a new call"
    )]
    AlreadyBegun {
        /// The driver.
        driver: DriverName,
    },
    /// The call must not begin at the node: its proxy has closed its number, or the number has begun before.
    #[error("call {number} of driver {driver} was closed or has begun before; it must not begin again")]
    StaleCall {
        /// The driver.
        driver: DriverName,
        /// The call's number.
        number: CallNumber,
    },
    /// The call is addressed to a session that is not the current session of the node.
    #[error("the call is addressed to a session that node {node} no longer has")]
    WrongSession {
        /// The node.
        node: NodeId,
    },
    /// The node cannot write the term of the call's proxy to disk, so that no call of that term may begin.
    #[error("the node cannot record the term of driver {driver}: {reason}; nothing was sent to the driver")]
    TermNotRecorded {
        /// The driver.
        driver: DriverName,
        /// What failed.
        reason: String,
    },
    /// The driver has not answered since this endpoint started, so its capabilities are unknown.
    #[error("driver {driver} has not answered yet; its capabilities are unknown")]
    NotReady {
        /// The driver.
        driver: DriverName,
    },
}

impl Fault {
    /// The outcome of a call that failed with this fault: **the** table, used for every fault everywhere.
    ///
    /// Sidecars read every code but four as "nothing is running any more" and then leak volumes that exist.
    /// Therefore:
    ///
    /// - [`Fault::Deadline`] is `DEADLINE_EXCEEDED`, [`Fault::Cancelled`] is `CANCELLED`;
    /// - [`Fault::RequestTooLarge`] is `INVALID_ARGUMENT`, the only final code: the request was provably never sent,
    ///   it has the same size the next time, and a retryable code would make the sidecar send it forever.
    ///   `RESOURCE_EXHAUSTED` would make external-provisioner move the volume to another node, where the request is
    ///   just as large;
    /// - [`Fault::OperationPending`] is `ABORTED`, which the spec defines for exactly this: an operation is
    ///   pending for this volume, back off and retry. The code is accurate, because the node itself waits for the
    ///   running operation first, and safe, because it is one of the four codes that sidecars read as "may still
    ///   be running";
    /// - everything else is `UNAVAILABLE`.
    #[must_use]
    pub fn to_status(&self) -> Outcome {
        self.clone().into()
    }

    /// Whether the fault proves that the attempt was not sent. A call with several attempts was not sent only if none
    /// of them was.
    ///
    /// Some faults are a proof only where they arise: the [wire](crate::wire) decodes them as faults that
    /// prove nothing.
    #[must_use]
    pub const fn delivery(&self) -> Delivery {
        match self {
            // Rejected on this side of the link.
            Self::NoNode { .. }
            | Self::NotReady { .. }
            | Self::TwoAgents { .. }
            | Self::HubUnreachable { .. }
            | Self::RequestTooLarge { .. }
            // Rejected by the hub, which forwarded nothing of the attempt, or by the node's session.
            | Self::NodeOffline { .. }
            | Self::WrongSession { .. }
            | Self::Forbidden { .. }
            | Self::Draining { .. }
            // Rejected by the dispatcher.
            | Self::DriverNotRegistered { .. }
            | Self::DriverSocketMissing { .. }
            | Self::DriverRefused { .. }
            | Self::OperationPending { .. }
            | Self::StaleTerm { .. }
            | Self::StaleCall { .. }
            | Self::TermNotRecorded { .. } => Delivery::NotSent,
            // Without a limit the fault is from a transport, which reports it for answers too.
            Self::Overloaded { max, .. } if *max > 0 => Delivery::NotSent,
            _ => Delivery::Unknown,
        }
    }

    /// Whether the same call may succeed if it is sent again soon: something on the path was lost, is disconnected or
    /// is shutting down.
    ///
    /// False for calls that the node itself has rejected and for states of its driver: the caller retries such
    /// calls later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NodeOffline { .. }
                | Self::TwoAgents { .. }
                | Self::HubUnreachable { .. }
                | Self::LinkLost { .. }
                | Self::Draining { .. }
                | Self::ServiceLost { .. }
                | Self::WrongSession { .. }
        )
    }

    /// The code of the status.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::Deadline { .. } => Code::DEADLINE_EXCEEDED,
            Self::Cancelled => Code::CANCELLED,
            Self::OperationPending { .. } => Code::ABORTED,
            Self::RequestTooLarge { .. } => Code::INVALID_ARGUMENT,
            _ => Code::UNAVAILABLE,
        }
    }

    /// The kind in snake case, for logs and metric labels.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NodeOffline { .. } => "node_offline",
            Self::TwoAgents { .. } => "two_agents",
            Self::NoNode { .. } => "no_node",
            Self::DriverNotRegistered { .. } => "driver_not_registered",
            Self::DriverSocketMissing { .. } => "driver_socket_missing",
            Self::DriverRefused { .. } => "driver_refused",
            Self::DriverLost { .. } => "driver_lost",
            Self::DriverProtocol { .. } => "driver_protocol",
            Self::LinkLost { .. } => "link_lost",
            Self::HubUnreachable { .. } => "hub_unreachable",
            Self::RequestTooLarge { .. } => "request_too_large",
            Self::ReplyTooLarge { .. } => "reply_too_large",
            Self::FrameTooLarge { .. } => "frame_too_large",
            Self::Overloaded { .. } => "overloaded",
            Self::Deadline { .. } => "deadline",
            Self::Cancelled => "cancelled",
            Self::Draining { .. } => "draining",
            Self::Forbidden { .. } => "forbidden",
            Self::Protocol { .. } => "protocol",
            Self::ServiceLost { .. } => "service_lost",
            Self::OperationPending { .. } => "operation_pending",
            Self::StaleTerm { .. } => "stale_term",
            Self::StaleCall { .. } => "stale_call",
            Self::AlreadyBegun { .. } => "already_begun",
            Self::WrongSession { .. } => "wrong_session",
            Self::TermNotRecorded { .. } => "term_not_recorded",
            Self::NotReady { .. } => "not_ready",
        }
    }
}

fn overloaded(what: &str, max: u64) -> String {
    match max {
        0 => format!("overloaded: {what}; retry later"),
        max => format!("{what} is full (limit {max}); retry later"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One fault of each kind, for tables that must cover all.
    pub(crate) fn one_of_each() -> Vec<Fault> {
        let node = NodeId::new("edge-1").unwrap();
        let driver = DriverName::new("csi-hostpath").unwrap();
        let text = || "why ünd how".to_owned();
        let all = vec![
            Fault::NodeOffline { node: node.clone() },
            Fault::WrongSession { node: node.clone() },
            Fault::TwoAgents { node },
            Fault::NoNode { reason: text() },
            Fault::DriverNotRegistered { driver: driver.clone() },
            Fault::DriverSocketMissing { driver: driver.clone(), path: "/plugins/csi.sock".to_owned() },
            Fault::DriverRefused { driver: driver.clone(), reason: text() },
            Fault::DriverLost { driver: driver.clone(), reason: text() },
            Fault::DriverProtocol { driver: driver.clone(), reason: text() },
            Fault::LinkLost { reason: text() },
            Fault::HubUnreachable { reason: text() },
            Fault::RequestTooLarge { found: 9, max: 8 },
            Fault::ReplyTooLarge { found: 9, max: 8 },
            Fault::FrameTooLarge { reason: text() },
            Fault::Overloaded { what: text(), max: 8 },
            Fault::Deadline { waited: Duration::from_millis(1500) },
            Fault::Cancelled,
            Fault::Draining { what: text() },
            Fault::Forbidden { reason: text() },
            Fault::Protocol { reason: text() },
            Fault::ServiceLost { what: text() },
            Fault::OperationPending { driver: driver.clone(), running: text() },
            Fault::StaleTerm { driver: driver.clone(), found: Term::FIRST, current: Term::FIRST.next() },
            Fault::StaleCall { driver: driver.clone(), number: CallNumber::FIRST },
            Fault::TermNotRecorded { driver: driver.clone(), reason: text() },
            Fault::AlreadyBegun { driver: driver.clone() },
            Fault::NotReady { driver },
        ];
        let kinds: std::collections::BTreeSet<_> = all.iter().map(Fault::kind).collect();
        assert_eq!(kinds.len(), 27, "a kind is missing or listed twice");
        all
    }

    /// The expected code, delivery and transience of a fault.
    fn row(fault: &Fault) -> (Code, Delivery, bool) {
        use Delivery::{NotSent, Unknown};
        // Exhaustive, so that a new fault does not compile without its row.
        match fault {
            Fault::Deadline { .. } => (Code::DEADLINE_EXCEEDED, Unknown, false),
            Fault::Cancelled => (Code::CANCELLED, Unknown, false),
            Fault::RequestTooLarge { .. } => (Code::INVALID_ARGUMENT, NotSent, false),
            Fault::OperationPending { .. } => (Code::ABORTED, NotSent, false),
            Fault::NodeOffline { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::TwoAgents { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::NoNode { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverNotRegistered { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverSocketMissing { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverRefused { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverLost { .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::DriverProtocol { .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::LinkLost { .. } => (Code::UNAVAILABLE, Unknown, true),
            Fault::HubUnreachable { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::ReplyTooLarge { .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::FrameTooLarge { .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::Overloaded { max: 0, .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::Overloaded { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::Draining { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::Forbidden { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::Protocol { .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::ServiceLost { .. } => (Code::UNAVAILABLE, Unknown, true),
            Fault::AlreadyBegun { .. } => (Code::UNAVAILABLE, Unknown, false),
            Fault::StaleTerm { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::StaleCall { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::WrongSession { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::TermNotRecorded { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::NotReady { .. } => (Code::UNAVAILABLE, NotSent, false),
        }
    }

    #[test]
    fn every_fault_matches_the_table() {
        let unbounded = Fault::Overloaded { what: "a link".to_owned(), max: 0 };
        for fault in one_of_each().into_iter().chain([unbounded]) {
            let status = fault.to_status();
            assert_eq!((status.code, fault.delivery(), fault.is_transient()), row(&fault), "{fault:?}");
            assert!(!status.message.is_empty() && status.fault() == Some(&fault));
        }
    }
}
