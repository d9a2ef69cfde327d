//! Everything that can go wrong on our own way, and the one place that says what follows from it: which status a caller
//! gets, whether the driver may have the request, and whether it is worth sending again.

use std::time::Duration;

use csi_proto::{Delivery, DriverName};

use crate::call::{CallNumber, NodeId, Outcome, Term};
use csi_proto::Code;

/// A failure that no driver reported: it happened between the caller and the driver.
///
/// Text in a fault is for people; it never holds a part of a request or an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The node is known but has no session at the moment.
    #[error("node {node} is offline")]
    NodeOffline {
        /// The node.
        node: NodeId,
    },
    /// No node could be chosen for the call.
    #[error("no node for this call: {reason}")]
    NoNode {
        /// Why.
        reason: String,
    },
    /// The node has no driver of this name at the moment.
    #[error("driver {driver} is not registered on the node")]
    DriverNotRegistered {
        /// The driver.
        driver: DriverName,
    },
    /// The driver's socket does not exist.
    #[error("driver {driver} has no socket at {path}; is it running?")]
    DriverSocketMissing {
        /// The driver.
        driver: DriverName,
        /// Where its socket should be.
        path: String,
    },
    /// The driver did not take the request: its socket cannot be connected to, or its connection ended or turned the request away before
    /// the driver had it.
    #[error("driver {driver} did not take the request: {reason}")]
    DriverRefused {
        /// The driver.
        driver: DriverName,
        /// What the operating system or the connection reported.
        reason: String,
    },
    /// The connection to the driver ended before its answer was complete. The operation may still be running.
    #[error("driver {driver} was lost before it had answered: {reason}; the operation may still be running")]
    DriverGone {
        /// The driver.
        driver: DriverName,
        /// How it ended.
        reason: String,
    },
    /// The driver's answer is not gRPC.
    #[error("driver {driver} did not answer in gRPC: {reason}")]
    DriverProtocol {
        /// The driver.
        driver: DriverName,
        /// What is wrong with it.
        reason: String,
    },
    /// The link was lost while the call was open.
    #[error("link lost: {reason}; the operation may still be running")]
    LinkLost {
        /// Which link, and how.
        reason: String,
    },
    /// There is no connection to any hub.
    #[error("no hub can be reached: {reason}")]
    HubUnreachable {
        /// What was tried.
        reason: String,
    },
    /// The request is larger than a bound on its way. It was refused before any byte of it was sent.
    #[error("request of {found} bytes; at most {max} can be carried; nothing was sent")]
    RequestTooLarge {
        /// Its size in bytes.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The answer is larger than a bound on its way. The operation was carried out.
    #[error("the answer has {found} bytes; at most {max} can be carried; the operation was carried out")]
    ReplyTooLarge {
        /// Its size in bytes as far as known.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The request or the answer is larger than a link further on allows; which of them is not known.
    #[error("too large for a link on the way: {reason}")]
    FrameTooLarge {
        /// What was refused.
        reason: String,
    },
    /// A bounded queue or table is full.
    #[error("{}", overloaded(what, *max))]
    Overloaded {
        /// What is full.
        what: String,
        /// Its bound. 0 if it is not known here, as of a transport, which may have refused the request or the answer.
        max: u64,
    },
    /// The time ran out. The operation may still be running.
    #[error("no answer within {waited:?}; the operation may still be running, ask again")]
    Deadline {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The caller left. The operation may still be running.
    #[error("the caller left; the operation may still be running")]
    CallerGone,
    /// A part on the way is shutting down and takes no new calls.
    #[error("{what} is shutting down")]
    Draining {
        /// Which part.
        what: String,
    },
    /// A part on the way does not carry calls from here to there.
    #[error("not allowed on the way: {reason}")]
    Forbidden {
        /// What is not allowed.
        reason: String,
    },
    /// Two of our own parts do not understand each other.
    #[error("relay protocol: {reason}")]
    Protocol {
        /// What was not understood.
        reason: String,
    },
    /// The part that carried the call ended without an answer.
    #[error("{what} ended without an answer; the operation may still be running")]
    ServiceLost {
        /// Which part.
        what: String,
    },
    /// Another operation on the same volume, snapshot or group is running at the driver.
    #[error("{running} is pending at driver {driver} for the same volume; try again later")]
    OperationPending {
        /// The driver.
        driver: DriverName,
        /// The method that is running.
        running: String,
    },
    /// The node has had a call of a later start of the driver's proxy: the one that sent this call was replaced.
    #[error(
        "the proxy of driver {driver} was replaced: this call is of its start {found}, the node knows start {current}"
    )]
    StaleTerm {
        /// The driver.
        driver: DriverName,
        /// The call's term.
        found: Term,
        /// The highest term that the node knows.
        current: Term,
    },
    /// The call may not begin at the node: its proxy has closed its number, or it has begun before.
    #[error("call {number} of driver {driver} was closed or has begun before; it does not begin again")]
    StaleCall {
        /// The driver.
        driver: DriverName,
        /// The call's number.
        number: CallNumber,
    },
    /// The call was for another session of the node than the one that it has.
    #[error("node {node} has another session than the one that the call was for")]
    WrongSession {
        /// The node.
        node: NodeId,
    },
    /// The node cannot keep the term of the call's proxy on its disk, so that no call of it may begin.
    #[error("the node cannot keep the term of driver {driver}: {reason}; nothing was sent to the driver")]
    TermNotRecorded {
        /// The driver.
        driver: DriverName,
        /// What failed.
        reason: String,
    },
    /// The driver has not been reached since this endpoint started, so what it offers is not known yet.
    #[error("driver {driver} has not been reached yet; what it offers is not known")]
    NotReady {
        /// The driver.
        driver: DriverName,
    },
}

impl Fault {
    /// How a call ends that failed so: **the** table, used for every fault at every place.
    ///
    /// The sidecars read every code but four as "nothing is running any more", and then forget volumes that exist. So:
    ///
    /// - [`Fault::Deadline`] is `DEADLINE_EXCEEDED`, [`Fault::CallerGone`] is `CANCELLED`;
    /// - [`Fault::RequestTooLarge`] is `INVALID_ARGUMENT`, the one final code: the request provably never left, it will
    ///   be as large the next time, and a code that may be retried would have the sidecar send it for ever.
    ///   `RESOURCE_EXHAUSTED` would make external-provisioner move the volume to another node, where the request is no
    ///   smaller;
    /// - [`Fault::OperationPending`] is `ABORTED`, which the spec has for exactly this: an operation is pending for
    ///   this volume, back off and ask again. It is true when it is said, for the node itself waits for the operation
    ///   that runs, and it is safe: `ABORTED` is one of the four codes that the sidecars read as "may still be
    ///   running", so nothing is forgotten;
    /// - everything else is `UNAVAILABLE`.
    #[must_use]
    pub fn to_status(&self) -> Outcome {
        self.clone().into()
    }

    /// What the fault proves about the attempt that it ended. A call of several attempts was not sent only if none of
    /// them was.
    ///
    /// A fault that counts as a proof only where the near side raises it, which knows what it has given to the link,
    /// never comes over the [wire](crate::call::wire): there it is decoded as one that proves nothing.
    #[must_use]
    pub const fn delivery(&self) -> Delivery {
        match self {
            // Refused on this side of the link.
            Self::NoNode { .. }
            | Self::NotReady { .. }
            | Self::HubUnreachable { .. }
            | Self::RequestTooLarge { .. }
            // Refused by the hub, which forwarded nothing of the attempt, or by the node's session.
            | Self::NodeOffline { .. }
            | Self::WrongSession { .. }
            | Self::Forbidden { .. }
            | Self::Draining { .. }
            // Refused by the dispatcher.
            | Self::DriverNotRegistered { .. }
            | Self::DriverSocketMissing { .. }
            | Self::DriverRefused { .. }
            | Self::OperationPending { .. }
            | Self::StaleTerm { .. }
            | Self::StaleCall { .. }
            | Self::TermNotRecorded { .. } => Delivery::NotSent,
            // A transport, which gives no bound, says so of answers too.
            Self::Overloaded { max, .. } if *max > 0 => Delivery::NotSent,
            _ => Delivery::Unknown,
        }
    }

    /// Whether the same call may get through if it is sent again soon: something on the way was lost, is away or is
    /// ending.
    ///
    /// Not what the node itself has refused or what its driver is in: whoever made the call asks again by itself,
    /// later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NodeOffline { .. }
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
            Self::CallerGone => Code::CANCELLED,
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
            Self::StaleTerm { .. } => "stale_term",
            Self::StaleCall { .. } => "stale_call",
            Self::WrongSession { .. } => "wrong_session",
            Self::TermNotRecorded { .. } => "term_not_recorded",
            Self::NotReady { .. } => "not_ready",
        }
    }
}

fn overloaded(what: &str, max: u64) -> String {
    match max {
        0 => format!("overloaded: {what}; try again later"),
        max => format!("{what} is full (bound {max}); try again later"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One fault of every kind, for tables that must cover them all.
    pub(crate) fn one_of_each() -> Vec<Fault> {
        let node = NodeId::new("edge-1").unwrap();
        let driver = DriverName::new("csi-hostpath").unwrap();
        let text = || "why ünd how".to_owned();
        let all = vec![
            Fault::NodeOffline { node: node.clone() },
            Fault::WrongSession { node },
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
            Fault::StaleTerm { driver: driver.clone(), found: Term::FIRST, current: Term::FIRST.next() },
            Fault::StaleCall { driver: driver.clone(), number: CallNumber::FIRST },
            Fault::TermNotRecorded { driver: driver.clone(), reason: text() },
            Fault::NotReady { driver },
        ];
        let kinds: std::collections::BTreeSet<_> = all.iter().map(Fault::kind).collect();
        assert_eq!(kinds.len(), 25, "a kind is missing or there twice");
        all
    }

    /// What is expected of a fault: its code, whether the driver may have the request, whether it is worth sending
    /// again.
    fn row(fault: &Fault) -> (Code, Delivery, bool) {
        use Delivery::{NotSent, Unknown};
        // Exhaustive, so that a new fault does not compile without its row.
        match fault {
            Fault::Deadline { .. } => (Code::DEADLINE_EXCEEDED, Unknown, false),
            Fault::CallerGone => (Code::CANCELLED, Unknown, false),
            Fault::RequestTooLarge { .. } => (Code::INVALID_ARGUMENT, NotSent, false),
            Fault::OperationPending { .. } => (Code::ABORTED, NotSent, false),
            Fault::NodeOffline { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::NoNode { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverNotRegistered { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverSocketMissing { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverRefused { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::DriverGone { .. } => (Code::UNAVAILABLE, Unknown, false),
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
            Fault::StaleTerm { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::StaleCall { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::WrongSession { .. } => (Code::UNAVAILABLE, NotSent, true),
            Fault::TermNotRecorded { .. } => (Code::UNAVAILABLE, NotSent, false),
            Fault::NotReady { .. } => (Code::UNAVAILABLE, NotSent, false),
        }
    }

    #[test]
    fn every_fault_has_its_row() {
        let unbounded = Fault::Overloaded { what: "a link".to_owned(), max: 0 };
        for fault in one_of_each().into_iter().chain([unbounded]) {
            let status = fault.to_status();
            assert_eq!((status.code, fault.delivery(), fault.is_transient()), row(&fault), "{fault:?}");
            assert!(!status.message.is_empty() && status.fault() == Some(&fault));
        }
    }
}
