//! The fields of an encoded message as they stand: to read one without a decoder, and to add to a message without encoding it
//! anew, which would drop what these bindings do not know.

#![cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "the core reads, the runtime adds"))]

use bytes::Bytes;
use prost::encoding::{decode_varint, encode_varint};

/// One field at the top level of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    /// What a field of bytes, text or a message holds; `None` for numbers.
    pub(super) inner: Option<&'a [u8]>,
    /// The field with its key.
    pub(super) whole: &'a [u8],
}

/// The fields in their order; `None` if the bytes are no message of proto3.
pub(super) fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let (mut fields, mut rest) = (Vec::new(), message);
    while !rest.is_empty() {
        let begin = rest;
        let key = decode_varint(&mut rest).ok()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let inner = match key & 7 {
            0 => decode_varint(&mut rest).ok().map(|_| None)?,
            1 => take(&mut rest, 8).map(|_| None)?,
            2 => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                Some(take(&mut rest, length)?)
            }
            5 => take(&mut rest, 4).map(|_| None)?,
            _ => return None,
        };
        let whole = begin.get(..begin.len() - rest.len())?;
        fields.push(Field { number, inner, whole });
    }
    Some(fields)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

/// The text of a field; of several the last one, as when it is decoded. `None` if it is absent or empty, or there is no message.
pub(super) fn text(message: &[u8], number: u32) -> Option<&str> {
    let fields = fields(message)?;
    let last = fields.iter().rfind(|field| field.number == number)?;
    std::str::from_utf8(last.inner?).ok().filter(|text| !text.is_empty())
}

/// The texts of a list.
pub(super) fn texts(message: &[u8], number: u32) -> Vec<&str> {
    let fields = fields(message).unwrap_or_default();
    let of_number = fields.iter().filter(|field| field.number == number);
    of_number.filter_map(|field| std::str::from_utf8(field.inner?).ok()).collect()
}

/// How often a field is there: how long a list is.
pub(super) fn count(message: &[u8], number: u32) -> usize {
    fields(message).unwrap_or_default().iter().filter(|field| field.number == number).count()
}

/// The message without a field.
pub(super) fn without(message: &[u8], number: u32) -> Option<Vec<u8>> {
    let fields = fields(message)?;
    let rest = fields.iter().filter(|field| field.number != number);
    Some(rest.flat_map(|field| field.whole).copied().collect())
}

/// The message with one more field of bytes, text or a message at its end. A text replaces the one that is there, a message is
/// merged into it, and an element of a list becomes the last one: so says protobuf.
pub(super) fn with(message: &[u8], number: u32, value: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(message.len() + value.len() + 16);
    bytes.extend_from_slice(message);
    encode_varint(u64::from(number) << 3 | 2, &mut bytes);
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
