//! Rewrites the authority in a compressed header block (RFC 7541).

use std::ops::Range;

use http::uri::Authority;

use super::huffman;

const NAME: &[u8] = b":authority";

/// `:authority` in the static table.
const NAME_INDEX: usize = 1;

/// The field that replaces an empty authority, and its index in the static table. Its name is as long as
/// `:authority`, and the field may repeat.
const SUBSTITUTE: (&[u8], u8) = (b"user-agent", 58);

/// The block with a valid authority; `None` if the authority is already valid, absent or cannot be determined.
pub(super) fn corrected(block: &[u8]) -> Option<Vec<u8>> {
    let mut fields = Fields { block, at: 0 };
    let (range, new) = std::iter::from_fn(|| fields.next()).find_map(|field| field.replacement())?;
    Some([block.get(..range.start)?, &new, block.get(range.end..)?].concat())
}

/// The representation of one field (section 6).
#[derive(Debug)]
struct Field<'a> {
    range: Range<usize>,
    /// Whether both ends add the field to their tables.
    indexed: bool,
    name: Name<'a>,
    /// `None` for an index of a table entry that includes the value.
    value: Option<Text<'a>>,
}

#[derive(Debug)]
enum Name<'a> {
    Index(usize),
    Text(Text<'a>),
}

#[derive(Debug)]
struct Text<'a> {
    huffman: bool,
    bytes: &'a [u8],
}

impl Text<'_> {
    fn read(&self) -> Option<Vec<u8>> {
        if self.huffman { huffman::decode(self.bytes) } else { Some(self.bytes.to_vec()) }
    }
}

impl Field<'_> {
    /// The replacement of the field, if it is an invalid authority.
    fn replacement(&self) -> Option<(Range<usize>, Vec<u8>)> {
        let is_authority = match &self.name {
            Name::Index(index) => *index == NAME_INDEX,
            Name::Text(text) => text.read().as_deref() == Some(NAME),
        };
        let value = match &self.value {
            _ if !is_authority => return None,
            None => Vec::new(),
            Some(value) => value.read()?,
        };
        if Authority::try_from(&*value).is_ok() {
            return None;
        }
        let new = match (self.indexed, value.len()) {
            // No valid authority is empty, so another field replaces it. The caller's table still has the
            // authority, which is harmless: a call without an authority is served.
            (true, 0) => match self.name {
                Name::Index(_) => vec![0x40 | SUBSTITUTE.1, 0],
                Name::Text(_) => [&[0x40], &*text(SUBSTITUTE.0), &[0]].concat(),
            },
            (true, length) => match self.name {
                Name::Index(_) => [&[0x41], &*text(&b"x".repeat(length))].concat(),
                Name::Text(_) => [&[0x40], &*text(NAME), &*text(&b"x".repeat(length))].concat(),
            },
            (false, _) => [&[0x01], &*text(b"x")].concat(),
        };
        Some((self.range.clone(), new))
    }
}

/// Encodes a text without Huffman coding (section 5.2).
fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 3);
    match u8::try_from(bytes.len()) {
        Ok(length) if length < 127 => out.push(length),
        _ => {
            out.push(127);
            let mut rest = bytes.len() - 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 0x80);
                rest /= 128;
            }
            out.push(rest as u8);
        }
    }
    out.extend_from_slice(bytes);
    out
}

/// Iterates over the fields of a block, as far as they can be decoded.
struct Fields<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<Field<'a>> {
        loop {
            let start = self.at;
            let first = *self.block.get(start)?;
            let (indexed, prefix) = match first {
                0x80.. => {
                    let name = Name::Index(self.number(7)?);
                    return Some(Field { range: start..self.at, indexed: false, name, value: None });
                }
                0x40.. => (true, 6),
                0x20.. => {
                    // A table size update, not a field.
                    self.number(5)?;
                    continue;
                }
                _ => (false, 4),
            };
            let name = match self.number(prefix)? {
                0 => Name::Text(self.text()?),
                index => Name::Index(index),
            };
            let value = Some(self.text()?);
            return Some(Field { range: start..self.at, indexed, name, value });
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.block.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Decodes an integer with a prefix of this many bits (section 5.1).
    fn number(&mut self, bits: u32) -> Option<usize> {
        let max = (1_usize << bits) - 1;
        let mut number = usize::from(self.byte()?) & max;
        if number < max {
            return Some(number);
        }
        for shift in (0..28).step_by(7) {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<Text<'a>> {
        let huffman = self.block.get(self.at)? & 0x80 != 0;
        let length = self.number(7)?;
        let bytes = self.block.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(Text { huffman, bytes })
    }
}
