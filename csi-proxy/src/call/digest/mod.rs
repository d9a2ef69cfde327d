//! A digest that is equal for all encodings of one request and excludes its secrets.

use std::fmt;

use csi_proto::secrets::TOKENS;
use csi_proto::shape::{Inside, Shape};
use sha2::{Digest as _, Sha256};

use crate::call::protobuf::{Field, Value, fields, next_field};

/// SHA-256 over a request without its secrets, in a canonical form independent of the order of fields and map entries.
///
/// Unknown fields are included. Secrets (option 1059) and the service-account tokens that kubelet puts into a
/// volume's context are excluded, since they may differ in a retry. Computed in a fixed amount of memory: of a message or a
/// map with more than 4096 fields or entries the order counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of an encoded request, or of the bytes themselves if they are not a protobuf message.
    #[must_use]
    pub fn of(shape: &Shape, request: &[u8]) -> Self {
        let mut form = Sha256::new();
        message(shape, request, &mut form);
        Self(form.finalize().into())
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

/// The maximum number of fields, and of entries of a map, that are brought into order. More count in the order in which
/// they are: their index would take several times the memory of the request.
const MAX_ORDERED: usize = 4096;

// Each piece starts with its kind and length, or ends with a mark, so that no two messages have the same form.

fn piece(kind: u8, bytes: &[u8], form: &mut Sha256) {
    number(kind, bytes.len() as u64, form);
    form.update(bytes);
}

fn number(kind: u8, number: u64, form: &mut Sha256) {
    form.update([kind]);
    form.update(number.to_le_bytes());
}

/// Adds the canonical form of a message, or the bytes if they are not a message.
fn message(shape: &Shape, bytes: &[u8], form: &mut Sha256) {
    let Some(fields) = fields(bytes) else { return piece(b'r', bytes, form) };
    form.update(b"m");
    if fields.clone().is_sorted_by_key(|field| field.number) || fields.clone().nth(MAX_ORDERED).is_some() {
        groups(shape, fields, form);
    } else {
        let mut ordered: Vec<_> = fields.collect();
        // Stable sort: the order of list elements counts.
        ordered.sort_by_key(|field| field.number);
        groups(shape, ordered.iter().copied(), form);
    }
    form.update(b"e");
}

/// Adds fields in groups of one number.
fn groups<'a>(shape: &Shape, mut fields: impl Iterator<Item = Field<'a>> + Clone, form: &mut Sha256) {
    while let Some(Field { number: key, .. }) = fields.clone().next() {
        let group = fields.clone().take_while(move |field| field.number == key).map(|field| field.value);
        let length = group.clone().count();
        fields.nth(length - 1);
        let inside = shape.field(key);
        if let Some(Inside::Secret) = inside {
            continue;
        }
        form.update(b"f");
        form.update(key.to_le_bytes());
        match inside {
            Some(Inside::Map) if length <= MAX_ORDERED => map(group, form),
            inside => {
                number(b'l', length as u64, form);
                group.for_each(|element| value(inside, element, form));
            }
        }
    }
}

fn value(inside: Option<Inside>, value: Value<'_>, form: &mut Sha256) {
    match (inside, value) {
        (Some(Inside::Message(shape)), Value::Bytes(bytes)) => message(shape, bytes, form),
        (_, Value::Bytes(bytes)) => piece(b'b', bytes, form),
        (_, Value::Varint(varint)) => number(b'v', varint, form),
        (_, Value::Fixed64(bytes)) => piece(b'8', bytes, form),
        (_, Value::Fixed32(bytes)) => piece(b'4', bytes, form),
        // Unreachable: `fields` rejects a message with groups.
        (_, Value::Group) => form.update(b"g"),
    }
}

fn map<'a>(entries: impl Iterator<Item = Value<'a>>, form: &mut Sha256) {
    let (mut pairs, mut invalid) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry.bytes().and_then(pair) {
            Some((key, _)) if key == TOKENS.as_bytes() => {}
            Some(pair) => pairs.push(pair),
            None => invalid.push(entry),
        }
    }
    // Keeps the last entry of each key, as protobuf decoders do; the sort is stable.
    pairs.reverse();
    pairs.sort_by_key(|(key, _)| *key);
    pairs.dedup_by_key(|(key, _)| *key);
    number(b'p', pairs.len() as u64, form);
    for (key, value) in pairs {
        piece(b'k', key, form);
        piece(b'b', value, form);
    }
    number(b'o', invalid.len() as u64, form);
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
