//! The status of a call.

use std::borrow::Cow;
use std::fmt;

use http::header::{HeaderMap, HeaderName};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

use crate::Code;

/// The name of the metadata field with the status code.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The name of the metadata field with the percent-encoded status message.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// gRPC requires encoding of the percent sign and of everything except printable ASCII.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// A status as sent by the server. `Debug` prints only the length of the message: drivers may repeat requests in it, including
/// secrets.
#[derive(Clone)]
#[non_exhaustive]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The decoded message; empty if absent.
    pub message: String,
    /// All fields of the headers or trailers with the status.
    pub fields: HeaderMap,
}

impl Status {
    /// Reads a status; `None` without a numeric `grpc-status`.
    #[must_use]
    pub fn read(fields: HeaderMap) -> Option<Self> {
        let code = fields.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()?;
        let message = fields.get(GRPC_MESSAGE).map(|value| decode_message(value.as_bytes()));
        Some(Self { code: Code::new(code), message: message.unwrap_or_default(), fields })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({}, {} bytes of message)", self.code, self.message.len())
    }
}

/// Encodes the value of `grpc-message`: printable ASCII.
#[must_use]
pub fn encode_message(message: &str) -> Cow<'_, str> {
    percent_encode(message.as_bytes(), MESSAGE).into()
}

/// Decodes a `grpc-message`. Never fails: invalid UTF-8 is replaced, as gRPC requires, and invalid escapes are kept.
fn decode_message(value: &[u8]) -> String {
    percent_decode(value).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_message_survives_as_printable_ascii(message in any::<String>()) {
            let value = encode_message(&message);
            prop_assert!(value.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
            prop_assert_eq!(decode_message(value.as_bytes()), message);
        }
    }

    #[test]
    fn reads_messages_of_other_encoders() {
        for (value, message) in [
            (&b"50% done%2"[..], "50% done%2"),
            (b"gr%C3%B6%C3%9Fe", "gr\u{f6}\u{df}e"),
            (b"a%20b%25", "a b%"),
            (b"%zz%C3%A4", "%zz\u{e4}"),
            (b"%ff", "\u{fffd}"),
            (&[b'a', 0xff], "a\u{fffd}"),
            (b"", ""),
        ] {
            assert_eq!(decode_message(value), message);
        }
    }

    #[test]
    fn requires_a_numeric_status_code() {
        let read = |code| {
            Status::read(HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static(code))]))
                .map(|status| status.code.number())
        };
        assert_eq!((read("0"), read("14"), read("4711")), (Some(0), Some(14), Some(4711)));
        assert_eq!((read("UNAVAILABLE"), read("-1"), read("")), (None, None, None));
        assert!(Status::read(HeaderMap::new()).is_none());
    }

    #[test]
    fn debug_shows_no_message() {
        let status = Status { code: Code::INTERNAL, message: "hunter2".into(), fields: HeaderMap::new() };
        assert_eq!(format!("{status:?}"), "Status(INTERNAL, 7 bytes of message)");
    }
}
