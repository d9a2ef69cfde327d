//! Iterates over the fields of an encoded message without copying, to read or count some of them without decoding.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// One field at the top level of a message.
#[allow(clippy::exhaustive_structs, reason = "the wire format of a field")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field number.
    pub number: u32,
    /// The value.
    pub value: Value<'a>,
    /// The encoded field, with its key.
    pub whole: &'a [u8],
}

/// The value of a field.
#[allow(clippy::exhaustive_enums, reason = "the types of the wire format")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint: a number, bool or enum value.
    Varint(u64),
    /// Eight bytes in little endian: a fixed64, sfixed64 or double.
    Fixed64(&'a [u8]),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
    /// A group, which proto3 does not support.
    Group,
    /// Four bytes in little endian: a fixed32, sfixed32 or float.
    Fixed32(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The content of a field of bytes, text or a message; `None` for other types.
    #[must_use]
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The content as text; `None` if it is not UTF-8, or of another type.
    #[must_use]
    pub fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

/// Removes the first field from `rest` and returns it.
///
/// # Errors
/// If the bytes do not begin with a field.
#[inline]
pub fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, DecodeError> {
    let message = *rest;
    let (number, wire) = key(rest)?;
    let mut at_value = *rest;
    let value = match wire {
        WireType::Varint => Some(Value::Varint(varint(rest)?)),
        WireType::SixtyFourBit => take(8, rest).map(Value::Fixed64),
        WireType::LengthDelimited => take(varint(rest)?, rest).map(Value::Bytes),
        WireType::StartGroup | WireType::EndGroup => None,
        WireType::ThirtyTwoBit => take(4, rest).map(Value::Fixed32),
    };
    let value = match value {
        Some(value) => value,
        // A group, or the error of a value that is cut off.
        None => {
            skip_field(wire, number, &mut at_value, DecodeContext::default())?;
            *rest = at_value;
            Value::Group
        }
    };
    let (whole, _) = message.split_at(message.len() - rest.len());
    Ok(Field { number, value, whole })
}

// Every call walks its messages, and most keys and lengths have one byte.

fn key(rest: &mut &[u8]) -> Result<(u32, WireType), DecodeError> {
    match rest.split_first() {
        Some((&key @ 0x08..0x80, after)) => {
            *rest = after;
            Ok((u32::from(key >> 3), WireType::try_from(u64::from(key & 7))?))
        }
        _ => decode_key(rest),
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    match rest.split_first() {
        Some((&value @ ..0x80, after)) => {
            *rest = after;
            Ok(u64::from(value))
        }
        _ => decode_varint(rest),
    }
}

fn take<'a>(length: u64, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = after;
    Some(taken)
}

/// Iterates over the fields of a message in their order. The iterator ends after the first error.
pub fn fields(mut message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, DecodeError>> {
    std::iter::from_fn(move || {
        if message.is_empty() {
            return None;
        }
        let field = next_field(&mut message);
        if field.is_err() {
            message = &[];
        }
        Some(field)
    })
}

/// Counts how often a field occurs, which is the length of a list.
///
/// # Errors
/// If the bytes are not a message.
pub fn count(message: &[u8], number: u32) -> Result<usize, DecodeError> {
    fields(message).try_fold(0, |count, field| Ok(count + usize::from(field?.number == number)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_every_wire_type() {
        let message = b"\x08\x96\x01\x11ABCDEFGH\x1a\x03abc\x23\x08\x01\x24\x2dabcd";
        let found: Vec<_> = fields(message).map(Result::unwrap).collect();
        let values = [
            Value::Varint(150),
            Value::Fixed64(b"ABCDEFGH"),
            Value::Bytes(b"abc"),
            Value::Group,
            Value::Fixed32(b"abcd"),
        ];
        assert!(found.iter().map(|field| (field.number, field.value)).eq((1..).zip(values)));
        assert_eq!(found.iter().flat_map(|field| field.whole).copied().collect::<Vec<_>>(), message);
        assert_eq!((found[2].value.text(), found[0].value.bytes()), (Some("abc"), None));
        assert_eq!((count(message, 3), count(message, 9)), (Ok(1), Ok(0)));
    }

    #[test]
    fn rejects_invalid_bytes() {
        for junk in [&b"\x0a\x05x"[..], b"\x0c", b"\x00\x01", b"\x80", b"\x09\x01", b"\x0b"] {
            assert!(
                fields(junk).last().is_some_and(|last| last.is_err()) && count(junk, 1).is_err(),
                "{junk:?}"
            );
        }
    }

    proptest! {
        /// The short way for keys and values of one byte reads the same as prost.
        #[test]
        fn reads_the_fields_that_prost_reads(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut rest = &bytes[..];
            let found = next_field(&mut rest).map(|field| (field.number, field.whole.len(), rest.len()));
            let mut rest = &bytes[..];
            let expected = decode_key(&mut rest).and_then(|(number, wire)| {
                skip_field(wire, number, &mut rest, DecodeContext::default())?;
                Ok((number, bytes.len() - rest.len(), rest.len()))
            });
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(fields(&bytes).take(bytes.len() + 1).count() <= bytes.len());
        }
    }
}
