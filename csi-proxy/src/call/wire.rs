//! The encoding of calls and outcomes for a message bus: protobuf, so that a relay in another language can read them.
//!
//! A call is a header and its body, an answer is messages and a closing. Bodies and messages are never wrapped, so
//! they are never copied. The schema is `proto/edge/csi/v1/call.proto` of this crate.

use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::name::InvalidDriverName;
use prost::Message;

use crate::call::text::printable;
use crate::call::{
    Call, CallId, CallNumber, Fault, Fence, GivenUp, InvalidFence, InvalidMethodPath, InvalidNodeId,
    MAX_GIVEN_UP, Metadata, MetadataError, MethodPath, NodeId, Origin, Outcome, Term,
};
use crate::generated::call as pb;
use csi_proto::Code;

/// The maximum size of a header and of a closing in bytes.
const MAX_HEADER: usize = 64 << 10;

/// A header or closing is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are not the protobuf message that is expected.
    #[error("not a protobuf {expected}")]
    Malformed {
        /// The message that was expected.
        expected: &'static str,
    },
    /// The header or closing has too many bytes, and was not decoded.
    #[error("{expected} has {found} bytes; expected at most {MAX_HEADER}")]
    TooLarge {
        /// The message that was expected.
        expected: &'static str,
        /// Its size in bytes.
        found: usize,
    },
    /// The closing names no origin.
    #[error("the closing names no origin; expected driver, endpoint or fault")]
    MissingOrigin,
    /// The id is not 16 bytes long.
    #[error("call id has {found} bytes; expected 16")]
    Id {
        /// The length of the id in bytes.
        found: usize,
    },
    /// The node name is invalid.
    #[error(transparent)]
    Node(#[from] InvalidNodeId),
    /// The driver name is invalid.
    #[error(transparent)]
    Driver(#[from] InvalidDriverName),
    /// The method path is invalid.
    #[error(transparent)]
    Method(#[from] InvalidMethodPath),
    /// A metadata entry is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The fence is not the fence of an open call.
    #[error(transparent)]
    Fence(#[from] InvalidFence),
}

impl Call {
    /// Encodes everything but the body as a `CallHeader`.
    #[must_use]
    pub fn encode_header(&self) -> Bytes {
        let Self { id, node, driver, method, remaining, metadata, fence, remote: _, session: _, body: _ } =
            self;
        let header = pb::CallHeader {
            id: Bytes::copy_from_slice(id.as_bytes()),
            node: node.to_string(),
            driver: driver.to_string(),
            method: method.to_string(),
            metadata: entries(metadata),
            remaining_millis: remaining.map(millis),
            fence: fence.as_ref().map(fence_record),
        };
        header.encode_to_vec().into()
    }

    /// Decodes a call from its header and body. The call is [remote](Call::remote).
    ///
    /// # Errors
    /// If the header is not a `CallHeader`, or a value in it is outside its bounds.
    pub fn decode(header: Bytes, body: Bytes) -> Result<Self, WireError> {
        let header: pb::CallHeader = decode_bounded(header, "CallHeader")?;
        let id = <[u8; 16]>::try_from(&*header.id).map_err(|_| WireError::Id { found: header.id.len() })?;
        Ok(Self {
            id: CallId::from_bytes(id),
            node: NodeId::new(header.node)?,
            driver: DriverName::new(header.driver)?,
            method: MethodPath::new(header.method)?,
            remaining: header.remaining_millis.map(Duration::from_millis),
            metadata: metadata(header.metadata)?,
            fence: header.fence.map(fence_of).transpose()?,
            remote: true,
            session: None,
            body,
        })
    }
}

impl Outcome {
    /// Encodes the outcome as a `Closing`.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let closing = pb::Closing {
            code: self.code.number(),
            message: if self.fault().is_some() { String::new() } else { self.message.clone() },
            details: self.details.clone(),
            trailers: entries(&self.trailers),
            endpoint: self.origin == Origin::Endpoint,
            fault: self.fault().map(fault_record),
            driver: self.origin == Origin::Driver,
        };
        closing.encode_to_vec().into()
    }

    /// Encodes the outcome as a `Closing` of at most `max` bytes, for a bus with such a limit; `max` is at least 128.
    ///
    /// Drops the trailers first, then the details, then the end of the message or of the fault's text, but never the
    /// code. gRPC libraries reject trailers larger than some KiB by default, so a limit of some KiB costs nothing in practice.
    #[must_use]
    pub fn encode_within(&self, max: usize) -> Bytes {
        let whole = self.encode();
        if whole.len() <= max {
            return whole;
        }
        if let Some(fault) = self.fault() {
            return fault_within(fault, max);
        }
        let mut truncated = Self { trailers: Metadata::default(), ..self.clone() };
        if truncated.encode().len() > max {
            truncated.details = Bytes::new();
        }
        let excess = truncated.encode().len().saturating_sub(max);
        shorten(&mut truncated.message, excess);
        truncated.encode()
    }

    /// Decodes an outcome from a `Closing`.
    ///
    /// A fault of an unknown kind becomes [`Fault::Protocol`]; its code is never taken from the wire. An outcome of an
    /// endpoint becomes one of the driver: only the reader's own endpoint decides for its caller. A code that gRPC does
    /// not define becomes `UNKNOWN`.
    ///
    /// # Errors
    /// If the bytes are not a `Closing`, the `Closing` names no origin, or a value is out of bounds. Therefore an
    /// empty message, which some buses deliver instead of no answer, is never a success.
    pub fn decode(closing: Bytes) -> Result<Self, WireError> {
        let closing: pb::Closing = decode_bounded(closing, "Closing")?;
        if let Some(fault) = closing.fault {
            return Ok(fault_of(fault)?.into());
        }
        if !closing.driver && !closing.endpoint {
            return Err(WireError::MissingOrigin);
        }
        // gRPC requires UNKNOWN for a code that it does not define.
        let code =
            Some(Code::new(closing.code)).filter(|code| code.name().is_some()).unwrap_or(Code::UNKNOWN);
        let outcome = Self::from_driver(code, closing.message);
        Ok(outcome.with_details(closing.details).with_trailers(metadata(closing.trailers)?))
    }
}

/// Decodes a message of a peer. An entry of a list takes two bytes there, and dozens in memory.
fn decode_bounded<M: Message + Default>(bytes: Bytes, expected: &'static str) -> Result<M, WireError> {
    match bytes.len() {
        found if found > MAX_HEADER => Err(WireError::TooLarge { expected, found }),
        _ => M::decode(bytes).map_err(|_| WireError::Malformed { expected }),
    }
}

/// Encodes a fault in at most `max` bytes: without the end of its text, or, if its subject leaves no room, with its kind only.
fn fault_within(fault: &Fault, max: usize) -> Bytes {
    let mut record = fault_record(fault);
    let closing = |record: &pb::FaultRecord| {
        let code = fault.code().number();
        pb::Closing { code, fault: Some(record.clone()), ..pb::Closing::default() }.encode_to_vec()
    };
    let excess = closing(&record).len().saturating_sub(max);
    shorten(&mut record.text, excess);
    let shortened = closing(&record);
    if shortened.len() <= max {
        return shortened.into();
    }
    // Only a node's name is that long, and its faults have the code of this one.
    Fault::Protocol { reason: fault.kind().to_owned() }.to_status().encode()
}

/// Removes at least this many bytes from the end of a text.
fn shorten(text: &mut String, bytes: usize) {
    let keep = text.len().saturating_sub(bytes);
    let end = (0..=keep).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
}

fn fence_record(fence: &Fence) -> pb::Fence {
    let mut given_up = Vec::with_capacity(2 * fence.given_up().ranges().len());
    let mut before = fence.lowest_open().get();
    for range in fence.given_up().ranges() {
        let (first, last) = (range.start().get(), range.end().get());
        given_up.extend([first.saturating_sub(before), last.saturating_sub(first)]);
        before = last;
    }
    pb::Fence {
        term: fence.term().get(),
        number: fence.number().get(),
        lowest_open: fence.lowest_open().get(),
        given_up,
    }
}

fn fence_of(record: pb::Fence) -> Result<Fence, InvalidFence> {
    let pb::Fence { term, number, lowest_open, given_up } = record;
    if given_up.len() > 2 * MAX_GIVEN_UP {
        return Err(InvalidFence::TooMany { found: given_up.len().div_ceil(2) });
    }
    let mut before = lowest_open;
    let above = |before: u64, by: u64| before.checked_add(by).ok_or(InvalidFence::Unordered);
    let mut ranges = Vec::with_capacity(given_up.len() / 2);
    for pair in given_up.chunks(2) {
        let &[gap, more] = pair else { return Err(InvalidFence::Unordered) };
        let first = above(before, gap)?;
        before = above(first, more)?;
        ranges.push(call_number(first, "given_up")?..=call_number(before, "given_up")?);
    }
    let (number, lowest_open) = (call_number(number, "number")?, call_number(lowest_open, "lowest_open")?);
    Fence::new(proxy_term(term, "term")?, number, lowest_open, GivenUp::new(ranges)?)
}

fn call_number(number: u64, what: &'static str) -> Result<CallNumber, InvalidFence> {
    CallNumber::new(number).ok_or(InvalidFence::Zero { what })
}

fn proxy_term(number: u64, what: &'static str) -> Result<Term, InvalidFence> {
    match number {
        0 => Err(InvalidFence::Zero { what }),
        found => Term::new(found).ok_or(InvalidFence::TermTooHigh { what, found }),
    }
}

fn fault_record(fault: &Fault) -> pb::FaultRecord {
    use Fault as F;
    let record = |kind: u32, subject: &dyn std::fmt::Display, text: &str| pb::FaultRecord {
        kind,
        subject: subject.to_string(),
        text: text.to_owned(),
        ..pb::FaultRecord::default()
    };
    let sized =
        |kind, text: &str, found: u64, max: u64| pb::FaultRecord { found, max, ..record(kind, &"", text) };
    let fenced =
        |kind, driver: &DriverName, found, max| pb::FaultRecord { found, max, ..record(kind, driver, "") };
    match fault {
        F::NodeOffline { node } => record(1, node, ""),
        F::NoNode { reason } => record(3, &"", reason),
        F::DriverNotRegistered { driver } => record(4, driver, ""),
        F::DriverSocketMissing { driver, path } => record(5, driver, path),
        F::DriverRefused { driver, reason } => record(6, driver, reason),
        F::DriverLost { driver, reason } => record(7, driver, reason),
        F::DriverProtocol { driver, reason } => record(8, driver, reason),
        F::LinkLost { reason } => record(9, &"", reason),
        F::HubUnreachable { reason } => record(10, &"", reason),
        F::RequestTooLarge { found, max } => sized(11, "", *found, *max),
        F::ReplyTooLarge { found, max } => sized(12, "", *found, *max),
        F::Overloaded { what, max } => sized(13, what, 0, *max),
        F::Deadline { waited } => sized(14, "", millis(*waited), 0),
        F::Cancelled => record(15, &"", ""),
        F::Draining { what } => record(16, &"", what),
        F::Forbidden { reason } => record(17, &"", reason),
        F::Protocol { reason } => record(18, &"", reason),
        F::ServiceLost { what } => record(19, &"", what),
        F::NotReady { driver } => record(20, driver, ""),
        F::FrameTooLarge { reason } => record(21, &"", reason),
        F::OperationPending { driver, running } => record(22, driver, running),
        F::TermNotRecorded { driver, reason } => record(23, driver, reason),
        F::StaleTerm { driver, found, current } => fenced(24, driver, found.get(), current.get()),
        F::StaleCall { driver, number } => fenced(25, driver, number.get(), 0),
        F::WrongSession { node } => record(26, node, ""),
        F::AlreadyBegun { driver } => record(27, driver, ""),
        F::TwoAgents { node } => record(28, node, ""),
    }
}

/// Decodes a fault of the far side. The far side has received the request, so its faults for an unreachable hub
/// and for a request above a limit become faults that do not prove that nothing was sent. It cannot know that the caller
/// on this side has cancelled. Its text is made [printable].
fn fault_of(record: pb::FaultRecord) -> Result<Fault, WireError> {
    let pb::FaultRecord { kind, subject, text, found, max } = record;
    let reason = printable(&text);
    Ok(match kind {
        1 => Fault::NodeOffline { node: NodeId::new(subject)? },
        3 => Fault::NoNode { reason },
        4 => Fault::DriverNotRegistered { driver: DriverName::new(subject)? },
        5 => Fault::DriverSocketMissing { driver: DriverName::new(subject)?, path: reason },
        6 => Fault::DriverRefused { driver: DriverName::new(subject)?, reason },
        7 => Fault::DriverLost { driver: DriverName::new(subject)?, reason },
        8 => Fault::DriverProtocol { driver: DriverName::new(subject)?, reason },
        9 => Fault::LinkLost { reason },
        10 => Fault::LinkLost { reason: format!("the far side is not connected to a hub: {reason}") },
        11 => Fault::FrameTooLarge { reason: format!("request has {found} bytes; expected at most {max}") },
        12 => Fault::ReplyTooLarge { found, max },
        13 => Fault::Overloaded { what: reason, max },
        14 => Fault::Deadline { waited: Duration::from_millis(found) },
        15 => Fault::ServiceLost { what: "the far side".to_owned() },
        16 => Fault::Draining { what: reason },
        17 => Fault::Forbidden { reason },
        18 => Fault::Protocol { reason },
        19 => Fault::ServiceLost { what: reason },
        20 => Fault::NotReady { driver: DriverName::new(subject)? },
        21 => Fault::FrameTooLarge { reason },
        22 => Fault::OperationPending { driver: DriverName::new(subject)?, running: reason },
        23 => Fault::TermNotRecorded { driver: DriverName::new(subject)?, reason },
        24 => Fault::StaleTerm {
            driver: DriverName::new(subject)?,
            found: proxy_term(found, "the term of a fault")?,
            current: proxy_term(max, "the current term of a fault")?,
        },
        25 => Fault::StaleCall {
            driver: DriverName::new(subject)?,
            number: call_number(found, "the number of a fault")?,
        },
        26 => Fault::WrongSession { node: NodeId::new(subject)? },
        27 => Fault::AlreadyBegun { driver: DriverName::new(subject)? },
        28 => Fault::TwoAgents { node: NodeId::new(subject)? },
        _ => Fault::Protocol { reason: format!("fault of unknown kind {kind}: {reason}") },
    })
}

fn entries(metadata: &Metadata) -> Vec<pb::Entry> {
    metadata.iter().map(|(name, value)| pb::Entry { name: name.to_owned(), value: value.clone() }).collect()
}

fn metadata(entries: Vec<pb::Entry>) -> Result<Metadata, MetadataError> {
    let mut metadata = Metadata::default();
    for pb::Entry { name, value } in entries {
        metadata.insert(&name, value)?;
    }
    Ok(metadata)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use csi_proto::Delivery;

    use super::*;
    use crate::call::fault::tests::one_of_each;

    #[test]
    fn faults_round_trip_except_proofs_of_the_near_side() {
        for fault in one_of_each() {
            let outcome = fault.to_status();
            let back = Outcome::decode(outcome.encode()).unwrap();
            if fault == Fault::Cancelled {
                assert!(matches!(back.fault(), Some(Fault::ServiceLost { .. })), "{back:?}");
                continue;
            }
            if !matches!(fault, Fault::HubUnreachable { .. } | Fault::RequestTooLarge { .. }) {
                assert_eq!(back, outcome);
                continue;
            }
            assert_eq!(fault.delivery(), Delivery::NotSent);
            let back = back.fault().unwrap();
            assert_eq!((back.delivery(), back.to_status().code), (Delivery::Unknown, Code::UNAVAILABLE));
            assert_eq!(back.is_transient(), fault.is_transient());
        }
    }

    fn fence(number: u64, lowest_open: u64, given_up: &[(u64, u64)]) -> Fence {
        let n = |number| CallNumber::new(number).unwrap();
        let ranges = given_up.iter().map(|(first, last)| n(*first)..=n(*last));
        Fence::new(Term::new(9).unwrap(), n(number), n(lowest_open), GivenUp::new(ranges).unwrap()).unwrap()
    }

    #[test]
    fn fence_round_trips() {
        let many: Vec<_> = (1..=1024).map(|at| (3 * at, 3 * at + 1)).collect();
        for (lowest, given_up) in [
            (1, &[][..]),
            (7, &[]),
            (2, &[(4, 5), (6, 6), (8, u64::MAX)]),
            (2, &many),
            (u64::MAX - 9, &[(u64::MAX, u64::MAX)]),
        ] {
            let call = call().with_fence(fence(lowest, lowest, given_up));
            let back = Call::decode(call.encode_header(), Bytes::new()).unwrap();
            assert_eq!(back.fence, call.fence);
        }
    }

    #[test]
    fn rejects_fence_outside_its_bounds() {
        let good = pb::Fence { term: 1, number: 9, lowest_open: 2, given_up: vec![1, 1] };
        assert!(fence_of(good.clone()).is_ok());
        let zero = |what| InvalidFence::Zero { what };
        let closed = InvalidFence::Closed {
            number: CallNumber::new(9).unwrap(),
            lowest_open: CallNumber::new(10).unwrap(),
        };
        for (bad, expected) in [
            (pb::Fence { term: 0, ..good.clone() }, zero("term")),
            (
                pb::Fence { term: u64::MAX, ..good.clone() },
                InvalidFence::TermTooHigh { what: "term", found: u64::MAX },
            ),
            (pb::Fence { number: 0, ..good.clone() }, zero("number")),
            (pb::Fence { lowest_open: 0, ..good.clone() }, zero("lowest_open")),
            (pb::Fence { lowest_open: 10, ..good.clone() }, closed),
            (pb::Fence { given_up: vec![0, 1], ..good.clone() }, InvalidFence::Unordered),
            (pb::Fence { given_up: vec![1, 1, 0, 1], ..good.clone() }, InvalidFence::Unordered),
            (pb::Fence { given_up: vec![1], ..good.clone() }, InvalidFence::Unordered),
            (pb::Fence { given_up: vec![1, u64::MAX], ..good.clone() }, InvalidFence::Unordered),
            (pb::Fence { given_up: vec![2; 2050], ..good.clone() }, InvalidFence::TooMany { found: 1025 }),
        ] {
            let header =
                crate::call::protobuf::append_field(&call().encode_header(), 7, &bad.encode_to_vec());
            let error = Call::decode(header, Bytes::new()).unwrap_err();
            assert_eq!(error, WireError::Fence(expected), "{bad:?}");
        }
    }

    fn call() -> Call {
        Call::new(
            CallId::from_bytes([3; 16]),
            NodeId::new("edge-1").unwrap(),
            DriverName::new("csi-hostpath").unwrap(),
            MethodPath::new("/csi.v9.New/Thing").unwrap(),
            Bytes::from_static(&[0, 1, 2]),
        )
    }

    #[test]
    fn empty_closing_is_not_a_success() {
        for closing in
            [pb::Closing::default(), pb::Closing { message: "lost".to_owned(), ..Default::default() }]
        {
            let error = Outcome::decode(closing.encode_to_vec().into()).unwrap_err();
            assert_eq!(error, WireError::MissingOrigin);
        }
        for outcome in [Outcome::ok(), Outcome::from_endpoint(Code::OK, "")] {
            assert_eq!(Outcome::decode(outcome.encode()).unwrap(), Outcome::ok());
        }
    }

    #[test]
    fn fault_of_a_later_version_stays_retryable() {
        let record = pb::FaultRecord { kind: 999, text: "new".to_owned(), ..Default::default() };
        let closing = pb::Closing { code: 5, fault: Some(record), ..Default::default() };
        let outcome = Outcome::decode(closing.encode_to_vec().into()).unwrap();
        assert_eq!(outcome.code, Code::UNAVAILABLE);
    }

    #[test]
    fn fault_text_of_the_far_side_is_bounded_and_on_one_line() {
        let text = format!("X\n2026 ERROR forged\r\x1b[31m\u{202e}{}", "x".repeat(4000));
        for kind in (1..=26).chain([999]) {
            let subject = "edge-1".to_owned();
            let record = pb::FaultRecord { kind, subject, text: text.clone(), found: 1, max: 1 };
            let closing = pb::Closing { fault: Some(record), ..Default::default() };
            let outcome = Outcome::decode(closing.encode_to_vec().into()).unwrap();
            let fault = outcome.fault().unwrap();
            assert!(!fault.to_string().contains(['\n', '\r', '\x1b', '\u{202e}']), "{fault:?}");
            assert!(fault.to_string().len() < 1200, "{fault:?}");
        }
    }

    #[test]
    fn driver_status_round_trips() {
        let mut trailers = Metadata::default();
        trailers.insert("x-vendor-bin", "AAEC").unwrap();
        for number in (0..=16).chain([17, 99, u32::MAX]) {
            let outcome = Outcome::from_driver(Code::new(number), "größe: 盤\n%".repeat(500))
                .with_details(vec![0, 255, 1])
                .with_trailers(trailers.clone());
            let code = if number <= 16 { outcome.code } else { Code::UNKNOWN };
            assert_eq!(Outcome::decode(outcome.encode()).unwrap(), Outcome { code, ..outcome });
        }
    }

    #[test]
    fn truncated_outcome_keeps_its_code_and_message_prefix() {
        let mut trailers = Metadata::default();
        trailers.insert("x-vendor", vec![b'v'; 500]).unwrap();
        let outcome = Outcome::from_driver(Code::NOT_FOUND, "größe ".repeat(100)).with_details(vec![7; 500]);
        let outcome = outcome.with_trailers(trailers);
        for max in [64, 300, 900, 1200, 2000] {
            let bytes = outcome.encode_within(max);
            assert!(bytes.len() <= max, "{} > {max}", bytes.len());
            let found = Outcome::decode(bytes).unwrap();
            assert_eq!(found.code, Code::NOT_FOUND);
            assert!(outcome.message.starts_with(&found.message) && !found.message.is_empty());
        }
        assert_eq!(Outcome::decode(outcome.encode_within(2000)).unwrap(), outcome);
        let fault = Outcome::from(Fault::LinkLost { reason: "x".repeat(5000) });
        let bytes = fault.encode_within(1000);
        assert!(bytes.len() <= 1000);
        assert_eq!(Outcome::decode(bytes).unwrap().code, Code::UNAVAILABLE);
    }

    /// A pending operation keeps its code: to a sidecar it means that the operation may still run.
    #[test]
    fn shortened_fault_keeps_its_kind() {
        for (name, text) in [("d".repeat(63), "ü".repeat(2000)), ("d.example".to_owned(), "x".repeat(4000))]
        {
            let driver = DriverName::new(name).unwrap();
            let fault = Fault::OperationPending { driver: driver.clone(), running: text };
            for max in [128, 200, 1000] {
                let bytes = fault.to_status().encode_within(max);
                assert!(bytes.len() <= max);
                let shortened = Outcome::decode(bytes).unwrap();
                assert_eq!(shortened.code, Code::ABORTED);
                let kept = matches!(shortened.fault(), Some(Fault::OperationPending { driver: kept, .. }) if *kept == driver);
                assert!(kept, "{shortened:?}");
            }
        }
        let node = Fault::NodeOffline { node: NodeId::new("n".repeat(200)).unwrap() };
        let shortened = Outcome::decode(node.to_status().encode_within(128)).unwrap();
        assert_eq!(shortened.code, Code::UNAVAILABLE);
    }

    #[test]
    fn call_round_trips() {
        let mut metadata = Metadata::default();
        metadata.insert("traceparent", "00-aa-bb-01").unwrap();
        let call = call().with_remaining(Duration::from_millis(1234)).with_metadata(metadata);
        let mut back = Call::decode(call.encode_header(), call.body.clone()).unwrap();
        assert!(std::mem::take(&mut back.remote), "it came from another host");
        assert_eq!(format!("{back:?}"), format!("{call:?}"));
        assert_eq!((back.body, back.metadata), (call.body, call.metadata));
    }

    #[test]
    fn invalid_header_error_names_the_field() {
        let bad = pb::CallHeader { id: Bytes::from_static(b"x"), ..Default::default() };
        assert_eq!(
            Call::decode(bad.encode_to_vec().into(), Bytes::new()).unwrap_err(),
            WireError::Id { found: 1 }
        );
        let garbage = Call::decode(Bytes::from_static(&[0xff; 9]), Bytes::new()).unwrap_err();
        assert_eq!(garbage, WireError::Malformed { expected: "CallHeader" });
    }

    #[test]
    fn a_large_header_or_closing_is_not_decoded() {
        let large = Bytes::from(vec![0x0a; MAX_HEADER + 1]);
        for (found, expected) in [
            (Call::decode(large.clone(), Bytes::new()).unwrap_err(), "CallHeader"),
            (Outcome::decode(large.clone()).unwrap_err(), "Closing"),
        ] {
            assert_eq!(found, WireError::TooLarge { expected, found: MAX_HEADER + 1 });
        }
    }
}
