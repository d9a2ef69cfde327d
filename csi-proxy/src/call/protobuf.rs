//! The fields of an encoded message as they are on the wire: to read one without a decoder, and to add to a message
//! without encoding it anew, which would drop what these bindings do not know.

#![cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "the core reads, the runtime adds"))]

use bytes::Bytes;
pub(crate) use csi_proto::fields::{Field, Value};
use prost::encoding::{WireType, encode_key, encode_varint};

/// For how many fields room is made at first; most messages have fewer.
const USUAL_FIELDS: usize = 8;

/// The fields of a message in their order; `None` if the bytes are no message, or one with groups, which proto3 does
/// not have.
pub(crate) fn fields(mut message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::with_capacity(USUAL_FIELDS);
    while !message.is_empty() {
        fields.push(next_field(&mut message)?);
    }
    Some(fields)
}

/// The last field of a number, which is the one that counts where only one may be; `None` also if the bytes are no
/// message.
pub(crate) fn last_field(mut message: &[u8], number: u32) -> Option<Value<'_>> {
    let mut last = None;
    while !message.is_empty() {
        let field = next_field(&mut message)?;
        if field.number == number {
            last = Some(field.value);
        }
    }
    last
}

/// Takes the first field of what is left of a message.
pub(crate) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    csi_proto::fields::next_field(rest).ok().filter(|field| field.value != Value::Group)
}

/// The text of a field; of several the last one, as when it is decoded. `None` if it is absent or empty, or there is no
/// message.
pub(crate) fn text(message: &[u8], number: u32) -> Option<&str> {
    last_field(message, number)?.text().filter(|text| !text.is_empty())
}

/// The texts of a list.
pub(crate) fn texts(message: &[u8], number: u32) -> Vec<&str> {
    let fields = fields(message).unwrap_or_default();
    fields.iter().filter(|field| field.number == number).filter_map(|field| field.value.text()).collect()
}

/// How often a field is there: how long a list is.
pub(crate) fn count(message: &[u8], number: u32) -> usize {
    csi_proto::fields::count(message, number).unwrap_or_default()
}

/// The message without a field.
pub(crate) fn without(message: &[u8], number: u32) -> Option<Vec<u8>> {
    let fields = fields(message)?;
    let rest = fields.iter().filter(|field| field.number != number);
    Some(rest.flat_map(|field| field.whole).copied().collect())
}

/// The message with one more field of bytes, text or a message at its end. A text replaces the one that is there, a
/// message is merged into it, and an element of a list becomes the last one: so says protobuf.
pub(crate) fn with(message: &[u8], number: u32, value: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(message.len() + value.len() + 16);
    bytes.extend_from_slice(message);
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.len() as u64, &mut bytes);
    bytes.extend_from_slice(value);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use csi_proto::csi::v1 as csi;
    use prost::Message as _;

    use super::*;

    /// Field 99 with the text `later`, and field 98 with a number, as a later version may have them.
    const LATER: &[u8] = b"\x9a\x06\x05later\x90\x06\x2a";

    #[test]
    fn what_is_added_is_found_by_a_decoder_and_not_a_byte_before_it_changes() {
        let mut request =
            csi::ListVolumesRequest { max_entries: 7, starting_token: "a".into() }.encode_to_vec();
        request.extend_from_slice(LATER);
        let added = with(&request, 2, b"");
        assert!(added.starts_with(&request));
        let decoded = csi::ListVolumesRequest::decode(added.clone()).unwrap();
        assert_eq!((decoded.max_entries, decoded.starting_token.as_str()), (7, ""));
        assert_eq!(
            (text(&request, 2), text(&added, 2), text(&request, 99)),
            (Some("a"), None, Some("later"))
        );
    }

    #[test]
    fn what_is_taken_out_is_the_field_and_nothing_else() {
        let mut message = LATER.to_vec();
        message.extend_from_slice(b"\x0a\x01x\x12\x01y\x0a\x01z");
        let expected = [LATER, b"\x12\x01y"].concat();
        assert_eq!(without(&message, 1).unwrap(), expected);
        assert_eq!((texts(&message, 1), count(&message, 1), count(&message, 3)), (vec!["x", "z"], 2, 0));
    }

    #[test]
    fn bytes_that_are_no_message_have_no_fields() {
        for junk in [&b"\x0a\x05x"[..], b"\x0b", b"\x00\x01", b"\x80", b"\x09\x01"] {
            assert!(
                fields(junk).is_none() && text(junk, 1).is_none() && without(junk, 1).is_none(),
                "{junk:?}"
            );
        }
    }
}
