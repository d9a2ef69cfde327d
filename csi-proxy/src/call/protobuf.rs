//! Reads and appends fields of encoded messages without a full decode. Encoding a decoded message anew would drop
//! unknown fields.

#![cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only the feature `runtime` appends fields"))]

use bytes::Bytes;
pub(crate) use csi_proto::fields::{Field, Value};
use prost::encoding::{WireType, encode_key, encode_varint};

/// The maximum size of a message with replaced fields in bytes, which gRPC clients accept by default. The values of a node may
/// be many, and what replaces them long.
const MAX_REPLACED: usize = 4 << 20;

/// The fields of a message in order. Each clone walks the message: a field takes two bytes there, and dozens in a list.
#[derive(Clone)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields with one number.
    pub(crate) fn of(&self, number: u32) -> impl Iterator<Item = Value<'a>> + Clone + use<'a> {
        self.clone().filter(move |field| field.number == number).map(|field| field.value)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.0.is_empty() { None } else { next_field(&mut self.0) }
    }
}

/// The fields of a message; `None` if the bytes are not a message, or contain groups, which proto3 does not have.
pub(crate) fn fields(message: &[u8]) -> Option<Fields<'_>> {
    for_each_field(message, drop)?;
    Some(Fields(message))
}

/// Calls `visit` with each field in order; `None` as [`fields`] does, which may be after some visits.
fn for_each_field<'a>(message: &'a [u8], mut visit: impl FnMut(Field<'a>)) -> Option<()> {
    let mut rest = message;
    while !rest.is_empty() {
        visit(next_field(&mut rest)?);
    }
    Some(())
}

/// The last field with this number, which is the value of a singular field; `None` also if the bytes are not a
/// message.
pub(crate) fn last_field(message: &[u8], number: u32) -> Option<Value<'_>> {
    let mut last = None;
    for_each_field(message, |field| {
        if field.number == number {
            last = Some(field.value);
        }
    })?;
    last
}

/// Takes the next field of a message.
pub(crate) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    csi_proto::fields::next_field(rest).ok().filter(|field| field.value != Value::Group)
}

/// The text of a field; the last if it repeats, as in decoding. `None` if it is absent or empty, or the bytes are not
/// a message.
pub(crate) fn text(message: &[u8], number: u32) -> Option<&str> {
    last_field(message, number)?.text().filter(|text| !text.is_empty())
}

/// The texts of a repeated field.
pub(crate) fn texts(message: &[u8], number: u32) -> impl Iterator<Item = &str> {
    fields(message).into_iter().flat_map(move |fields| fields.of(number)).filter_map(Value::text)
}

/// The number of elements of a repeated field.
pub(crate) fn count(message: &[u8], number: u32) -> usize {
    csi_proto::fields::count(message, number).unwrap_or_default()
}

/// The message without one field.
pub(crate) fn remove_field(message: &[u8], number: u32) -> Option<Vec<u8>> {
    retain(message, |field| field.number != number)
}

/// The message with the fields to `keep`.
pub(crate) fn retain(message: &[u8], keep: impl Fn(&Field<'_>) -> bool) -> Option<Vec<u8>> {
    let mut kept = Vec::with_capacity(message.len());
    for_each_field(message, |field| {
        if keep(&field) {
            kept.extend_from_slice(field.whole);
        }
    })?;
    Some(kept)
}

/// The message with the value of each field with this number replaced; `None` if the bytes are not a message, `change`
/// returns `None`, or the result has more than [`MAX_REPLACED`] bytes.
pub(crate) fn replace_each(
    message: &[u8],
    number: u32,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut replaced = Vec::with_capacity(message.len());
    for field in fields(message)? {
        match field.number == number {
            true => encode_field(number, &change(field.value.bytes()?)?, &mut replaced),
            false => replaced.extend_from_slice(field.whole),
        }
        if replaced.len() > MAX_REPLACED {
            return None;
        }
    }
    Some(replaced)
}

/// Appends a field of bytes, text or a message. By the rules of protobuf the appended field replaces a text,
/// merges into a message, and becomes the last element of a list.
pub(crate) fn append_field(message: &[u8], number: u32, value: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(message.len() + value.len() + 16);
    bytes.extend_from_slice(message);
    encode_field(number, value, &mut bytes);
    bytes.into()
}

/// Encodes a field of bytes, text or a message.
pub(crate) fn encode_field(number: u32, value: &[u8], bytes: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(value.len() as u64, bytes);
    bytes.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use csi_proto::csi::v1 as csi;
    use prost::Message as _;

    use super::*;

    /// Field 99 with the text `later`, and field 98 with a number, as a later version may have them.
    const LATER: &[u8] = b"\x9a\x06\x05later\x90\x06\x2a";

    #[test]
    fn appended_field_leaves_earlier_bytes_unchanged() {
        let mut request =
            csi::ListVolumesRequest { max_entries: 7, starting_token: "a".into() }.encode_to_vec();
        request.extend_from_slice(LATER);
        let added = append_field(&request, 2, b"");
        assert!(added.starts_with(&request));
        let decoded = csi::ListVolumesRequest::decode(added.clone()).unwrap();
        assert_eq!((decoded.max_entries, decoded.starting_token.as_str()), (7, ""));
        assert_eq!(
            (text(&request, 2), text(&added, 2), text(&request, 99)),
            (Some("a"), None, Some("later"))
        );
    }

    #[test]
    fn removes_only_the_named_field() {
        let mut message = LATER.to_vec();
        message.extend_from_slice(b"\x0a\x01x\x12\x01y\x0a\x01z");
        let expected = [LATER, b"\x12\x01y"].concat();
        assert_eq!(remove_field(&message, 1).unwrap(), expected);
        assert!(texts(&message, 1).eq(["x", "z"]));
        assert_eq!((count(&message, 1), count(&message, 3)), (2, 0));
    }

    #[test]
    fn invalid_messages_have_no_fields() {
        for junk in [&b"\x0a\x05x"[..], b"\x0b", b"\x00\x01", b"\x80", b"\x09\x01"] {
            assert!(
                fields(junk).is_none() && text(junk, 1).is_none() && remove_field(junk, 1).is_none(),
                "{junk:?}"
            );
        }
    }
}
