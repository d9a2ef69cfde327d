//! Encodes and decodes a [`Frame`].

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message;
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};

use super::failure::truncate;
use super::{
    End, Failure, Frame, Hello, Kind, Lane, MAX_CLOSING, MAX_FEATURES, MAX_HEADER, MAX_IDLE_PING,
    MAX_METADATA, MAX_SERVICES, Part, Reply, Request, WireFrame,
};
use crate::generated::session as pb;
use crate::name::{InvalidName, PeerId, ServiceName, SessionId};
use crate::token::{InvalidToken, Token};

/// Why bytes cannot be decoded as a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame is larger than this end's `max_frame`.
    #[error(
        "frame of {found} bytes; at most {max} are accepted: the sender must respect max_frame of the hello"
    )]
    FrameTooLarge {
        /// Size of the frame in bytes.
        found: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The header's length is not a varint, is zero, or exceeds the limit.
    #[error(
        "header length {}; expected a varint from 1 to {max}",
        found.map_or_else(|| "unreadable".to_owned(), |found| found.to_string())
    )]
    HeaderLength {
        /// The length, if it could be read.
        found: Option<u64>,
        /// The bound in bytes.
        max: usize,
    },
    /// The frame ends inside its header.
    #[error("frame ends inside its header: expected {expected} bytes, found {found}")]
    Truncated {
        /// Bytes announced.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// The header does not follow the schema.
    #[error("header is not an edge.session.v1.Header: {0}")]
    Schema(prost::DecodeError),
    /// A name in the header is invalid.
    #[error("field {field}: {cause}")]
    Name {
        /// The field in the schema.
        field: &'static str,
        /// What is wrong.
        cause: InvalidName,
    },
    /// The token of a hello is invalid. The error does not contain the token.
    #[error("field hello.token: {cause}")]
    Token {
        /// What is wrong.
        cause: InvalidToken,
    },
    /// A frame of a call has no call number.
    #[error("field call is {found}; a frame of a call needs a number from 1")]
    Call {
        /// The number found.
        found: u64,
    },
    /// A hello has no instance or no session number.
    #[error("field {field} is 0; expected a number from 1")]
    Zero {
        /// The field in the schema.
        field: &'static str,
    },
    /// A field of the header exceeds its limit.
    #[error("field {field} has {found}; at most {max} are allowed")]
    Bound {
        /// The field in the schema.
        field: &'static str,
        /// Size of the field: bytes, or entries of a list.
        found: usize,
        /// The limit, in the same unit.
        max: usize,
    },
    /// An invalid frame whose call is known. Only that call fails.
    #[error("call {number}: {cause}")]
    InCall {
        /// The call's number on the link.
        number: u64,
        /// Whether the frame is a request, whose call was never opened.
        request: bool,
        /// What is wrong.
        cause: Box<Self>,
    },
}

/// Decodes a frame of at most `max_frame` bytes. The body is a slice of `bytes`.
///
/// # Errors
/// If the bytes are not a valid frame. [`DecodeError::InCall`] affects only one call of the link.
pub fn decode(mut bytes: Bytes, max_frame: usize) -> Result<Frame, DecodeError> {
    if bytes.len() > max_frame {
        return Err(DecodeError::FrameTooLarge { found: bytes.len(), max: max_frame });
    }
    let header_len = header_len(&mut bytes)?;
    if header_len > bytes.len() {
        return Err(DecodeError::Truncated { expected: header_len, found: bytes.len() });
    }
    let header = pb::Header::decode(bytes.split_to(header_len)).map_err(DecodeError::Schema)?;
    let number = header.call;
    let names = optional_peer("source", &header.source)
        .and_then(|source| Ok((source, optional_peer("target", &header.target)?)));
    let (source, target) = match (names, &header.kind) {
        (Ok(names), _) => names,
        (Err(cause), Some(pb::header::Kind::Request(_))) if number > 0 => {
            return Err(DecodeError::InCall { number, request: true, cause: Box::new(cause) });
        }
        (Err(cause), _) => return Err(cause),
    };
    let in_call = |request: bool, part: Result<Part, DecodeError>| match part {
        _ if number == 0 => Err(DecodeError::Call { found: 0 }),
        Ok(part) => Ok(Kind::Call(number, part)),
        Err(cause) => Err(DecodeError::InCall { number, request, cause: Box::new(cause) }),
    };
    let kind = match header.kind {
        Some(pb::header::Kind::Hello(hello)) => Kind::Hello(decode_hello(hello)?),
        Some(pb::header::Kind::Request(request)) => in_call(true, decode_request(request, bytes))?,
        Some(pb::header::Kind::Reply(reply)) => in_call(false, decode_reply(reply, bytes))?,
        Some(pb::header::Kind::Credit(credit)) => in_call(false, Ok(Part::Credit { bytes: credit.bytes }))?,
        Some(pb::header::Kind::Cancel(pb::Cancel {})) => in_call(false, Ok(Part::Cancel))?,
        Some(pb::header::Kind::Ping(ping)) => Kind::Ping { nonce: ping.nonce },
        Some(pb::header::Kind::Pong(pong)) => Kind::Pong { nonce: pong.nonce },
        Some(pb::header::Kind::Drain(drain)) => Kind::Drain { reason: truncate(drain.reason) },
        None => Kind::Unknown,
    };
    Ok(Frame { source, target, kind })
}

fn header_len(bytes: &mut Bytes) -> Result<usize, DecodeError> {
    let found = decode_varint(bytes).ok();
    match found {
        Some(len) if (1..=MAX_HEADER as u64).contains(&len) => Ok(len as usize),
        _ => Err(DecodeError::HeaderLength { found, max: MAX_HEADER }),
    }
}

fn optional_peer(field: &'static str, name: &str) -> Result<Option<PeerId>, DecodeError> {
    if name.is_empty() {
        return Ok(None);
    }
    named(field, PeerId::new(name)).map(Some)
}

fn bounded(field: &'static str, found: usize, max: usize) -> Result<(), DecodeError> {
    if found > max { Err(DecodeError::Bound { field, found, max }) } else { Ok(()) }
}

fn decode_hello(hello: pb::Hello) -> Result<Hello, DecodeError> {
    bounded("hello.services", hello.services.len(), MAX_SERVICES)?;
    let session = SessionId { instance: hello.instance, number: hello.session };
    for (field, number) in [("hello.instance", session.instance), ("hello.session", session.number)] {
        if number == 0 {
            return Err(DecodeError::Zero { field });
        }
    }
    let service = |name: &String| named("hello.services", ServiceName::new(name));
    Ok(Hello {
        version_min: hello.version_min,
        version_max: hello.version_max,
        peer: named("hello.peer", PeerId::new(&hello.peer))?,
        session,
        max_frame: hello.max_frame as usize,
        services: hello.services.iter().map(service).collect::<Result<_, _>>()?,
        features: hello
            .features
            .into_iter()
            .filter(|feature| feature.len() <= 64)
            .take(MAX_FEATURES)
            .collect(),
        token: match hello.token.as_str() {
            "" => None,
            token => Some(Token::new(token).map_err(|cause| DecodeError::Token { cause })?),
        },
        idle_ping: match hello.idle_ping_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.into()).min(MAX_IDLE_PING)),
        },
    })
}

fn named<T>(field: &'static str, name: Result<T, InvalidName>) -> Result<T, DecodeError> {
    name.map_err(|cause| DecodeError::Name { field, cause })
}

fn decode_request(request: pb::Request, body: Bytes) -> Result<Part, DecodeError> {
    bounded("request.metadata", request.metadata.len(), MAX_METADATA)?;
    let to = SessionId { instance: request.to_instance, number: request.to_session };
    Ok(Part::Request(Request {
        service: named("request.service", ServiceName::new(&request.service))?,
        remaining: (request.remaining_ms > 0).then(|| Duration::from_millis(request.remaining_ms)),
        metadata: request.metadata,
        credit: request.credit,
        to_session: (to != SessionId { instance: 0, number: 0 }).then_some(to),
        body,
    }))
}

fn decode_reply(reply: pb::Reply, body: Bytes) -> Result<Part, DecodeError> {
    let end = match reply.end {
        Some(pb::reply::End::Finished(closing)) => {
            bounded("reply.finished", closing.len(), MAX_CLOSING)?;
            Some(End::Finished(closing))
        }
        Some(pb::reply::End::Failed(failed)) => {
            Some(End::Failed(Failure::new(failed.reason(), failed.detail)))
        }
        None => None,
    };
    Ok(Part::Reply(Reply { sequence: reply.sequence, message: reply.message.then_some(body), end }))
}

/// Encodes a frame for a lane. The body is passed on, not copied.
#[must_use]
pub fn encode(frame: Frame, lane: Lane) -> WireFrame {
    Encoder { block: BytesMut::new(), block_len: 0 }.encode(frame, lane)
}

/// Maximum number of closing bytes in a shared block: enough for a successful call. More closing bytes may contain
/// an error message with data of callers: their memory must be freed with their frame.
const SHORT_CLOSING: usize = 16;

/// Encodes many frames. Headers share blocks of memory, so that most frames need no allocation for theirs. A block is freed
/// with its last frame.
#[derive(Debug)]
pub struct Encoder {
    block: BytesMut,
    block_len: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { block: BytesMut::new(), block_len: 4 * 1024 }
    }
}

impl Encoder {
    /// Encodes a frame for a lane. The body is passed on, not copied.
    pub fn encode(&mut self, frame: Frame, lane: Lane) -> WireFrame {
        let last = frame.ends_lane();
        let has_long_closing = closing_len(&frame) > SHORT_CLOSING;
        let (header, body) = to_wire(frame);
        let header_len = header.encoded_len();
        let len = header_len + encoded_len_varint(header_len as u64);
        let mut own = BytesMut::new();
        let block = if has_long_closing { &mut own } else { &mut self.block };
        if block.capacity() - block.len() < len {
            *block = BytesMut::with_capacity(if has_long_closing { len } else { len.max(self.block_len) });
        }
        encode_varint(header_len as u64, block);
        header.encode_raw(block);
        WireFrame::new(lane, last, block.split().freeze(), body)
    }
}

fn closing_len(frame: &Frame) -> usize {
    match &frame.kind {
        Kind::Call(_, Part::Reply(Reply { end: Some(End::Finished(closing)), .. })) => closing.len(),
        _ => 0,
    }
}

fn to_wire(frame: Frame) -> (pb::Header, Bytes) {
    let name = |peer: Option<PeerId>| peer.map_or_else(String::new, |peer| peer.as_str().to_owned());
    let mut header =
        pb::Header { source: name(frame.source), target: name(frame.target), ..pb::Header::default() };
    let mut body = Bytes::new();
    header.kind = match frame.kind {
        Kind::Hello(hello) => Some(pb::header::Kind::Hello(encode_hello(&hello))),
        Kind::Ping { nonce } => Some(pb::header::Kind::Ping(pb::Ping { nonce })),
        Kind::Pong { nonce } => Some(pb::header::Kind::Pong(pb::Pong { nonce })),
        Kind::Drain { reason } => Some(pb::header::Kind::Drain(pb::Drain { reason: truncate(reason) })),
        Kind::Unknown => None,
        Kind::Call(number, part) => {
            header.call = number;
            Some(match part {
                Part::Request(request) => {
                    body = request.body;
                    pb::header::Kind::Request(pb::Request {
                        service: request.service.as_str().to_owned(),
                        // 0 means no deadline: a remaining time below a millisecond is sent as 1.
                        remaining_ms: request.remaining.map_or(0, |left| (left.as_millis() as u64).max(1)),
                        metadata: request.metadata,
                        credit: request.credit,
                        to_instance: request.to_session.map_or(0, |to| to.instance),
                        to_session: request.to_session.map_or(0, |to| to.number),
                    })
                }
                Part::Reply(reply) => {
                    let message = reply.message.is_some();
                    body = reply.message.unwrap_or_default();
                    let end = reply.end.map(|end| match end {
                        End::Finished(closing) => pb::reply::End::Finished(closing),
                        End::Failed(failure) => pb::reply::End::Failed(pb::Failure {
                            reason: failure.reason().into(),
                            detail: failure.detail().to_owned(),
                        }),
                    });
                    pb::header::Kind::Reply(pb::Reply { sequence: reply.sequence, message, end })
                }
                Part::Credit { bytes } => pb::header::Kind::Credit(pb::Credit { bytes }),
                Part::Cancel => pb::header::Kind::Cancel(pb::Cancel {}),
            })
        }
    };
    (header, body)
}

fn encode_hello(hello: &Hello) -> pb::Hello {
    pb::Hello {
        version_min: hello.version_min,
        version_max: hello.version_max,
        peer: hello.peer.as_str().to_owned(),
        instance: hello.session.instance,
        session: hello.session.number,
        features: hello.features.clone(),
        max_frame: u32::try_from(hello.max_frame).unwrap_or(u32::MAX),
        services: hello.services.iter().map(|service| service.as_str().to_owned()).collect(),
        token: hello.token.as_ref().map_or_else(String::new, |token| token.secret().to_owned()),
        idle_ping_seconds: hello
            .idle_ping
            .map_or(0, |every| u32::try_from(every.as_secs()).unwrap_or(u32::MAX).max(1)),
    }
}
