//! A digest that is equal for all encodings of one request and excludes its secrets.

use std::fmt;

use csi_proto::secrets::TOKENS;
use csi_proto::shape::{Inside, Shape};
use sha2::{Digest as _, Sha256};

use crate::call::protobuf::{Field, Value, fields, next_field};

/// SHA-256 over a request without its secrets, in a canonical form independent of the order of fields and map entries.
///
/// Unknown fields are included. Secrets (option 1059) and the service-account tokens that kubelet puts into a
/// volume's context are excluded, since they may differ in a retry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of an encoded request, or of the bytes themselves if they are not a protobuf message.
    #[must_use]
    pub fn of(shape: &Shape, request: &[u8]) -> Self {
        let mut form = Vec::with_capacity(request.len() * 2 + 16);
        message(shape, request, &mut form);
        Self(Sha256::digest(&form).into())
    }

    /// Creates a digest from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The first eight bytes, enough to distinguish digests in a log.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// Each piece starts with its kind and length, or ends with a mark, so that no two messages have the same form.

fn piece(kind: u8, bytes: &[u8], form: &mut Vec<u8>) {
    count(kind, bytes.len(), form);
    form.extend_from_slice(bytes);
}

fn count(kind: u8, count: usize, form: &mut Vec<u8>) {
    form.push(kind);
    prost::encoding::encode_varint(count as u64, form);
}

/// Appends the canonical form of a message; bytes that are not a message are appended unchanged.
fn message(shape: &Shape, bytes: &[u8], form: &mut Vec<u8>) {
    let Some(mut fields) = fields(bytes) else { return piece(b'r', bytes, form) };
    if !fields.is_sorted_by_key(|field| field.number) {
        // Stable sort: the order of list elements counts.
        fields.sort_by_key(|field| field.number);
    }
    form.push(b'm');
    for group in fields.chunk_by(|a, b| a.number == b.number) {
        let Some(first) = group.first() else { continue };
        let inside = shape.field(first.number);
        if let Some(Inside::Secret) = inside {
            continue;
        }
        form.push(b'f');
        form.extend_from_slice(&first.number.to_le_bytes());
        match inside {
            Some(Inside::Map) => map(group, form),
            inside => {
                count(b'l', group.len(), form);
                for field in group {
                    value(inside, field.value, form);
                }
            }
        }
    }
    form.push(b'e');
}

fn value(inside: Option<Inside>, value: Value<'_>, form: &mut Vec<u8>) {
    match (inside, value) {
        (Some(Inside::Message(shape)), Value::Bytes(bytes)) => message(shape, bytes, form),
        (_, Value::Bytes(bytes)) => piece(b'b', bytes, form),
        (_, Value::Varint(number)) => piece(b'v', &number.to_le_bytes(), form),
        (_, Value::Fixed64(bytes)) => piece(b'8', bytes, form),
        (_, Value::Fixed32(bytes)) => piece(b'4', bytes, form),
        // Unreachable: `fields` rejects a message with groups.
        (_, Value::Group) => form.push(b'g'),
    }
}

fn map(entries: &[Field<'_>], form: &mut Vec<u8>) {
    let mut pairs = Vec::with_capacity(entries.len());
    let mut invalid = Vec::new();
    for entry in entries {
        match entry.value {
            Value::Bytes(bytes) => match pair(bytes) {
                Some((key, _)) if key == TOKENS.as_bytes() => {}
                Some(pair) => pairs.push(pair),
                None => invalid.push(entry.value),
            },
            other => invalid.push(other),
        }
    }
    // Keeps the last entry of each key, as protobuf decoders do; the sort is stable.
    pairs.reverse();
    pairs.sort_by_key(|(key, _)| *key);
    pairs.dedup_by_key(|(key, _)| *key);
    count(b'p', pairs.len(), form);
    for (key, value) in pairs {
        piece(b'k', key, form);
        piece(b'b', value, form);
    }
    count(b'o', invalid.len(), form);
    for entry in invalid {
        value(None, entry, form);
    }
}

/// The key and value of a map entry; `None` if they are not text.
fn pair(mut entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut key, mut value) = (&[][..], &[][..]);
    while !entry.is_empty() {
        match next_field(&mut entry)? {
            Field { number: 1, value: Value::Bytes(bytes), .. } => key = bytes,
            Field { number: 2, value: Value::Bytes(bytes), .. } => value = bytes,
            _ => return None,
        }
    }
    Some((key, value))
}

#[cfg(test)]
mod tests;
