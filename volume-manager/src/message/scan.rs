//! The fields of a message, one by one and without a copy.
//!
//! Decoding a whole message first would let a few bytes become much memory: an empty element of a list takes two bytes
//! on the way and hundreds once it is decoded. So lists are counted here before anything is made of them.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// A number.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// What no field of the schema has.
    Other,
}

/// The fields of a message by their numbers. It ends after the first error.
pub(super) fn fields(mut message: &[u8]) -> impl Iterator<Item = Result<(u32, Value<'_>), DecodeError>> {
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

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Value<'a>), DecodeError> {
    let (number, wire) = decode_key(rest)?;
    let from = *rest;
    skip_field(wire, number, rest, DecodeContext::default())?;
    let (mut skipped, _) = from.split_at(from.len() - rest.len());
    let value = match wire {
        WireType::Varint => Value::Number(decode_varint(&mut skipped)?),
        WireType::LengthDelimited => {
            decode_varint(&mut skipped)?;
            Value::Bytes(skipped)
        }
        _ => Value::Other,
    };
    Ok((number, value))
}

/// How many times a field occurs.
pub(super) fn occurrences(message: &[u8], number: u32) -> Result<usize, DecodeError> {
    let mut count = 0;
    for field in fields(message) {
        count += usize::from(field?.0 == number);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_order_and_a_cut_message_is_an_error_once() {
        let message = [0x08, 0x96, 0x01, 0x12, 0x02, b'a', b'b', 0x1d, 0, 0, 0, 0, 0x12, 0x00];
        let found: Vec<_> = fields(&message).map(Result::unwrap).collect();
        assert_eq!(
            found,
            [(1, Value::Number(150)), (2, Value::Bytes(b"ab")), (3, Value::Other), (2, Value::Bytes(b""))]
        );
        assert_eq!(occurrences(&message, 2), Ok(2));
        for end in [1, 2, 4, 5, 6, 8, 11, 13] {
            let mut fields = fields(&message[..end]).skip_while(Result::is_ok);
            assert!(fields.next().is_some_and(|field| field.is_err()) && fields.next().is_none(), "{end}");
        }
        assert!(fields(&[0xff; 11]).next().is_some_and(|field| field.is_err()));
    }
}
