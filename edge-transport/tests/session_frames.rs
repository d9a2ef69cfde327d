//! The frame codec, and the handling of frames by a session.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use edge_transport::advanced::frame::{
    self, DecodeError, Encoder, End, Frame, Hello, Kind, MAX_HEADER, MESSAGE_COST, Part, Reply, decode,
    encode,
};
use edge_transport::advanced::{Action, Event, Session, SessionSettings};
use edge_transport::link::Lane;
use edge_transport::{Failure, MAX_CLOSING, MAX_METADATA, PeerId, Reason, Request, ServiceName, SessionId};
use proptest::prelude::*;

fn peer(name: &str) -> PeerId {
    PeerId::new(name).unwrap()
}

fn first() -> SessionId {
    SessionId { instance: 9, number: 1 }
}

fn wire(frame: Frame) -> Bytes {
    let frame = encode(frame, Lane::Control);
    [frame.head, frame.body].concat().into()
}

fn reply(sequence: u64, message: Option<Bytes>, end: Option<End>) -> Reply {
    let mut reply = Reply::new(sequence);
    (reply.message, reply.end) = (message, end);
    reply
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let name = || "[a-z0-9._:/@-]{1,40}".prop_map(|name| peer(&name));
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
    let reason = proptest::sample::select(vec![
        Reason::Unspecified,
        Reason::PeerOffline,
        Reason::NoSuchService,
        Reason::LinkLost,
        Reason::Draining,
        Reason::Deadline,
        Reason::TooLarge,
        Reason::Overloaded,
        Reason::Forbidden,
        Reason::Protocol,
        Reason::ServiceLost,
        Reason::WrongSession,
    ]);
    let to = (1..u64::MAX, 1..u64::MAX).prop_map(|(instance, number)| SessionId { instance, number });
    let to = proptest::option::of(to);
    let request = ("[a-z/.]{1,40}", 0..u64::MAX / 2, bytes(), any::<u64>(), to, bytes()).prop_map(
        |(service, remaining, metadata, credit, to, body)| {
            let mut request = Request::new(ServiceName::new(service).unwrap(), body);
            request.remaining = (remaining > 0).then(|| Duration::from_millis(remaining));
            (request.metadata, request.credit, request.to_session) = (metadata, credit, to);
            Part::Request(request)
        },
    );
    let end = prop_oneof![
        Just(None),
        bytes().prop_map(|closing| Some(End::Finished(closing))),
        (reason, ".{0,50}").prop_map(|(reason, detail)| Some(End::Failed(Failure::new(reason, detail)))),
    ];
    let replies = (any::<u64>(), proptest::option::of(bytes()), end)
        .prop_map(|(sequence, message, end)| Part::Reply(reply(sequence, message, end)));
    let part = prop_oneof![
        request,
        replies,
        any::<u64>().prop_map(|bytes| Part::Credit { bytes }),
        Just(Part::Cancel),
    ];
    let call = (1..u64::MAX, part).prop_map(|(number, part)| Kind::Call(number, part));
    let kind = prop_oneof![
        4 => call,
        1 => any::<u64>().prop_map(|nonce| Kind::Ping { nonce }),
        1 => any::<u64>().prop_map(|nonce| Kind::Pong { nonce }),
        1 => ".{0,50}".prop_map(|reason| Kind::Drain { reason }),
    ];
    (proptest::option::of(name()), proptest::option::of(name()), kind).prop_map(|(source, target, kind)| {
        let mut frame = Frame::link(kind);
        (frame.source, frame.target) = (source, target);
        frame
    })
}

proptest! {
    #[test]
    fn decodes_encoded_frames(frames in proptest::collection::vec(any_frame(), 1..20)) {
        let mut encoder = Encoder::default();
        for frame in frames {
            let encoded = encoder.encode(frame.clone(), Lane::Control);
            prop_assert_eq!(&encoded, &encode(frame.clone(), Lane::Control));
            prop_assert_eq!(encoded.last, frame.ends_lane());
            let bytes = Bytes::from([encoded.head, encoded.body].concat());
            prop_assert_eq!(decode(bytes, usize::MAX), Ok(frame));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(bytes.into(), 200);
    }

    #[test]
    fn corrupted_frames_never_panic(frame in any_frame(), at in any::<usize>(), bit in 0..8, end in any::<usize>()) {
        let mut bytes = wire(frame).to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1_u8 << bit;
        bytes.truncate(1 + end % bytes.len());
        let _ = decode(bytes.into(), usize::MAX);
    }
}

#[test]
fn bodies_are_slices_and_never_copied() {
    let body = Bytes::from(vec![1; 100_000]);
    let encoded = encode(
        Frame::call(None, None, 1, Part::Request(Request::new(service(), body.clone()))),
        Lane::Call(1),
    );
    assert_eq!(encoded.body.as_ptr(), body.as_ptr());
    let received = Bytes::from([encoded.head.clone(), encoded.body].concat());
    let place = received.as_ptr() as usize + encoded.head.len();
    let Kind::Call(_, Part::Request(request)) = decode(received, usize::MAX).unwrap().kind else {
        panic!("no request")
    };
    assert_eq!(request.body.as_ptr() as usize, place);
}

#[test]
fn less_than_a_millisecond_is_still_a_deadline() {
    let mut request = Request::new(service(), Bytes::new());
    request.remaining = Some(Duration::from_micros(3));
    let decoded = decode(wire(Frame::call(None, None, 1, Part::Request(request))), usize::MAX).unwrap();
    assert!(
        matches!(decoded.kind, Kind::Call(_, Part::Request(request)) if request.remaining == Some(Duration::from_millis(1)))
    );
}

#[test]
fn rejects_frames_over_limits_with_field_and_limit() {
    let request = |metadata: usize| {
        let mut request = Request::new(service(), Bytes::new());
        request.metadata = vec![0; metadata].into();
        wire(Frame::call(None, None, 4, Part::Request(request)))
    };
    let hello = |instance: u64, number: u64| {
        wire(Frame::link(Kind::Hello(Hello::new(peer("edge"), SessionId { instance, number }))))
    };
    let closing = |len: usize| {
        let end = Some(End::Finished(vec![0; len].into()));
        wire(Frame::call(None, None, 4, Part::Reply(reply(1, None, end))))
    };
    assert!(decode(request(MAX_METADATA), usize::MAX).is_ok());
    assert!(decode(closing(MAX_CLOSING), usize::MAX).is_ok());
    assert!(decode(hello(1, 1), usize::MAX).is_ok());
    for (bytes, expected) in [
        (request(MAX_METADATA + 1), "field request.metadata has 49153; at most 49152"),
        (hello(0, 1), "field hello.instance is 0"),
        (hello(1, 0), "field hello.session is 0"),
        (closing(MAX_CLOSING + 1), "field reply.finished has 49153; at most 49152"),
        (request(MAX_HEADER), "header length 655"),
        (Bytes::new(), "header length unreadable"),
        (Bytes::from_static(b"\x00"), "header length 0;"),
        (Bytes::from_static(b"\x09abc"), "expected 9 bytes, found 3"),
        (Bytes::from_static(b"\x02\xff\xff"), "not an edge.session.v1.Header"),
        (Bytes::from_static(b"\x03\x0a\x01!"), "field source"),
    ] {
        let error = decode(bytes, usize::MAX).unwrap_err();
        assert!(error.to_string().contains(expected), "{error} does not contain {expected}");
    }
    assert_eq!(
        decode(request(100), 50),
        Err(DecodeError::FrameTooLarge { found: request(100).len(), max: 50 })
    );
    // A request with an invalid target.
    let mut invalid = BytesMut::from(&request(0)[..]);
    let names = b"\x12\x01*";
    invalid[0] += u8::try_from(names.len()).unwrap();
    invalid.extend_from_slice(names);
    for (bytes, field) in
        [(request(MAX_METADATA + 1), "request.metadata"), (invalid.freeze(), "field target")]
    {
        let error = decode(bytes, usize::MAX).unwrap_err();
        assert!(matches!(error, DecodeError::InCall { request: true, number: 4, .. }), "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn debug_output_contains_no_body() {
    let secret = Bytes::from_static(b"canary");
    let mut request = Request::new(service(), secret.clone());
    request.metadata = secret.clone();
    let frames = [
        Frame::call(None, None, 1, Part::Request(request)),
        Frame::call(None, None, 1, Part::Reply(reply(1, Some(secret.clone()), Some(End::Finished(secret))))),
    ];
    for frame in frames {
        let printed = format!("{frame:?} {:?}", encode(frame.clone(), Lane::Control));
        assert!(!printed.contains("canary") && !printed.contains("99, 97"), "{printed}");
    }
}

fn service() -> ServiceName {
    ServiceName::new("echo").unwrap()
}

/// A session with one open call, number 1, to `edge`.
struct Caller {
    session: Session,
    now: Instant,
}

impl Caller {
    fn new() -> Self {
        let now = Instant::now();
        let session = Session::new(Hello::new(peer("cloud"), first()), SessionSettings::default());
        let mut caller = Self { session, now };
        caller.event(Event::LinkUp);
        caller.receive(Frame::link(Kind::Hello(Hello::new(peer("hub"), first()))));
        let mut request = Request::new(service(), Bytes::new());
        request.credit = 100;
        caller.event(Event::Call { number: 1, target: peer("edge"), request, deadline: None });
        caller
    }

    /// The outputs: `send KIND`, `message`, or an end.
    fn event(&mut self, event: Event) -> Vec<String> {
        self.session.handle(event, self.now);
        std::iter::from_fn(|| self.session.poll_action())
            .filter_map(|action| match action {
                Action::Send { frame, .. } => {
                    let bytes = Bytes::from([frame.head, frame.body].concat());
                    match decode(bytes, usize::MAX).unwrap().kind {
                        Kind::Call(_, Part::Cancel) => Some("send cancel".to_owned()),
                        _ => Some("send".to_owned()),
                    }
                }
                Action::Reply { message, end, .. } => Some(match end {
                    Some(End::Failed(failure)) => failure.reason().to_string(),
                    Some(_) => "finished".to_owned(),
                    None => format!("message {}", message.unwrap().len()),
                }),
                _ => None,
            })
            .collect()
    }

    fn receive(&mut self, frame: Frame) -> Vec<String> {
        self.event(Event::Received(wire(frame)))
    }

    fn reply(&mut self, source: Option<&str>, number: u64, reply: Reply) -> Vec<String> {
        self.receive(Frame::call(source.map(peer), None, number, Part::Reply(reply)))
    }
}

#[test]
fn replies_are_numbered_without_gaps() {
    let mut caller = Caller::new();
    let message = |sequence| reply(sequence, Some(Bytes::from_static(b"x")), None);
    assert_eq!(caller.reply(Some("edge"), 1, message(1)), ["message 1"]);
    assert!(caller.reply(Some("edge"), 1, message(1)).is_empty());
    assert_eq!(caller.session.stats().duplicates, 1);
    assert_eq!(caller.reply(Some("edge"), 1, message(3)), ["send cancel", "PROTOCOL"]);
    assert!(caller.reply(Some("edge"), 1, message(2)).is_empty(), "the call has ended");
    assert_eq!(caller.session.stats().unknown_call_replies, 1);
}

#[test]
fn message_without_credit_ends_the_call() {
    let mut caller = Caller::new();
    let message = |sequence, len| reply(sequence, Some(vec![0; len].into()), None);
    // 100 bytes of credit: one message may overdraw it, the next is not allowed.
    assert_eq!(caller.reply(Some("edge"), 1, message(1, 99 - MESSAGE_COST as usize)), ["message 35"]);
    assert_eq!(caller.reply(Some("edge"), 1, message(2, 5000)), ["message 5000"]);
    assert_eq!(caller.reply(Some("edge"), 1, message(3, 0)), ["send cancel", "PROTOCOL"]);
}

#[test]
fn accepts_replies_of_target_and_failures_of_hub() {
    let mut caller = Caller::new();
    let finished = || reply(1, None, Some(End::Finished(Bytes::new())));
    assert!(caller.reply(Some("mallory"), 1, finished()).is_empty());
    assert!(caller.reply(Some("mallory"), 1, Reply::failed(Failure::new(Reason::LinkLost, ""))).is_empty());
    assert!(caller.reply(None, 1, finished()).is_empty());
    assert_eq!(caller.session.stats().wrong_source, 3);
    assert_eq!(caller.reply(None, 1, Reply::failed(Failure::new(Reason::LinkLost, ""))), ["LINK_LOST"]);
    assert!(caller.reply(Some("edge"), 1, finished()).is_empty());
}

#[test]
fn drops_replies_of_unknown_calls() {
    let mut caller = Caller::new();
    let message = |sequence| reply(sequence, Some(Bytes::new()), None);
    assert!(caller.reply(Some("edge"), 77, message(1)).is_empty());
    assert_eq!(caller.event(Event::Cancel { number: 1 }), ["send cancel"]);
    assert!(caller.reply(Some("edge"), 1, message(1)).is_empty());
    assert_eq!(caller.session.stats().unknown_call_replies, 2);
}

#[test]
fn bad_reply_ends_only_its_call() {
    let mut caller = Caller::new();
    let request = Request::new(service(), Bytes::new());
    caller.event(Event::Call { number: 2, target: peer("edge"), request, deadline: None });
    let bad = reply(1, None, Some(End::Finished(vec![0; MAX_CLOSING + 1].into())));
    assert_eq!(caller.reply(Some("edge"), 1, bad), ["send cancel", "PROTOCOL"]);
    assert!(caller.event(Event::Received(Bytes::from_static(b"\x02\xff\xff"))).is_empty());
    assert_eq!(
        caller.reply(Some("edge"), 2, reply(1, None, Some(End::Finished(Bytes::new())))),
        ["finished"]
    );
    assert_eq!(caller.session.stats().malformed, 2);
}

#[test]
fn ignores_and_counts_unknown_kinds() {
    let mut caller = Caller::new();
    // Field 99 of the header, which does not exist.
    assert!(caller.event(Event::Received(Bytes::from_static(b"\x04\x9a\x06\x01\x01"))).is_empty());
    assert_eq!(caller.session.stats().unknown_kinds, 1);
    assert_eq!(frame::cost(&Bytes::new()), MESSAGE_COST);
}

#[test]
fn refuses_calls_over_the_limit_and_keeps_deadlines() {
    let mut settings = SessionSettings::default();
    settings.max_outbound_calls = 2;
    let mut caller = Caller::new();
    caller.session = Session::new(Hello::new(peer("cloud"), first()), settings);
    let call = |number, deadline| Event::Call {
        number,
        target: peer("edge"),
        request: Request::new(service(), Bytes::new()),
        deadline,
    };
    assert_eq!(caller.event(call(1, None)), ["PEER_OFFLINE"]);
    caller.event(Event::LinkUp);
    caller.receive(Frame::link(Kind::Hello(Hello::new(peer("hub"), first()))));
    let now = caller.now;
    assert_eq!(caller.event(call(2, Some(now))), ["DEADLINE"]);
    assert_eq!(caller.event(call(3, Some(now + Duration::from_secs(2)))), ["send"]);
    assert_eq!(caller.event(call(4, Some(now + Duration::from_secs(1)))), ["send"]);
    assert_eq!(caller.event(call(5, None)), ["OVERLOADED"]);
    assert_eq!(caller.session.next_wakeup(), Some(now + Duration::from_secs(1)));
    caller.now += Duration::from_secs(1);
    assert_eq!(caller.event(Event::Tick), ["send cancel", "DEADLINE"]);
    assert_eq!(caller.session.next_wakeup(), Some(now + Duration::from_secs(2)));
}
