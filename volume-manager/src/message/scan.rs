//! The fields of a message, one by one and without a copy.
//!
//! Decoding a whole message first would let a few bytes become much memory: an empty element of a list takes two bytes
//! on the way and hundreds once it is decoded. So lists are counted here before anything is made of them.

use super::error::InvalidMessage;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// A number.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of fixed size, which no field of the schema is.
    Fixed,
}

/// Goes over the fields of a message. It ends after the first error.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// How many times a field occurs.
    pub(super) fn occurrences(self, number: u64) -> Result<usize, InvalidMessage> {
        let mut count = 0;
        for field in self {
            count += usize::from(field?.0 == number);
        }
        Ok(count)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f).checked_shl(u32::try_from(at * 7).ok()?)?;
            if byte & 0x80 == 0 {
                self.0 = self.0.get(at + 1..)?;
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let bytes = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.take(bytes)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), InvalidMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| InvalidMessage::Malformed { reason: "a field is cut off".to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_order_and_a_cut_message_is_an_error_once() {
        let message = [0x08, 0x96, 0x01, 0x12, 0x02, b'a', b'b', 0x1d, 0, 0, 0, 0, 0x12, 0x00];
        let fields: Vec<_> = Fields::of(&message).map(Result::unwrap).collect();
        assert_eq!(
            fields,
            [(1, Value::Number(150)), (2, Value::Bytes(b"ab")), (3, Value::Fixed), (2, Value::Bytes(b""))]
        );
        assert_eq!(Fields::of(&message).occurrences(2), Ok(2));
        for end in [1, 2, 4, 5, 6, 8, 11, 13] {
            let mut fields = Fields::of(&message[..end]).skip_while(Result::is_ok);
            assert!(fields.next().is_some_and(|field| field.is_err()) && fields.next().is_none(), "{end}");
        }
        assert!(Fields::of(&[0xff; 11]).next().is_some_and(|field| field.is_err()));
    }
}
