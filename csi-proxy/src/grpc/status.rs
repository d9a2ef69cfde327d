//! The text forms of a status: `grpc-message` is percent-encoded, `grpc-status-details-bin` is base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

/// gRPC wants all but printable ASCII encoded, and the percent sign itself.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// Peers pad or not; gRPC says not to.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The value of `grpc-message`.
pub(crate) fn encode_message(message: &str) -> Cow<'_, str> {
    percent_encode(message.as_bytes(), MESSAGE).into()
}

/// The text in a `grpc-message`. Never fails: what is no UTF-8 is replaced, as gRPC asks.
pub(crate) fn decode_message(value: &[u8]) -> String {
    percent_decode(value).decode_utf8_lossy().into_owned()
}

/// The value of a `-bin` header.
pub(crate) fn encode_binary(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes in a `-bin` header; `None` if it is not base64.
pub(crate) fn decode_binary(value: &[u8]) -> Option<Vec<u8>> {
    BASE64.decode(value).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_message_survives_as_printable_ascii(message in any::<String>()) {
            let value = encode_message(&message);
            prop_assert!(value.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
            prop_assert_eq!(decode_message(value.as_bytes()), message);
        }

        #[test]
        fn any_bytes_survive_as_base64(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode_binary(encode_binary(&bytes).as_bytes()), Some(bytes));
        }
    }

    #[test]
    fn what_others_write_is_read() {
        assert_eq!(decode_message(b"50% done%2"), "50% done%2");
        assert_eq!(decode_message(b"gr%C3%B6%C3%9Fe"), "größe");
        assert_eq!(decode_message(&[b'a', 0xff]), "a\u{fffd}");
        assert_eq!(decode_binary(b"AAE="), Some(vec![0, 1]));
        assert_eq!(decode_binary(b"AAE"), Some(vec![0, 1]));
        assert_eq!(decode_binary(b"*"), None);
    }
}
