//! Bounded headers and trailers of a call.

use std::fmt;

use bytes::Bytes;

/// The maximum size of one [`Metadata`] in bytes: names, values, and 32 for each entry.
pub const MAX_METADATA: usize = 8 * 1024;

/// What an entry costs in addition to its bytes, as HTTP/2 counts header lists (RFC 9113, section 6.5.2). A driver that is sent
/// more than it accepts may end the connection, with the calls of others.
const ENTRY_COST: usize = 32;

/// Header or trailer entries in their order. At most [`MAX_METADATA`] bytes.
///
/// Values stay as they are on the wire: the value of a `-bin` entry stays base64. `Debug` prints names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    entries: Vec<(Box<str>, Bytes)>,
    bytes: usize,
}

/// An entry is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The name is not a lower-case header name, or is reserved by gRPC or HTTP.
    #[error(
        "invalid metadata name {name:?}; expected lower-case letters, digits, `-`, `_` and `.`, not starting with `grpc-`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The value holds a control character.
    #[error("the value of {name:?} contains a control character")]
    Value {
        /// The name of the entry.
        name: String,
    },
    /// The total size exceeds the limit.
    #[error("metadata has {found} bytes with {name:?}; expected at most {MAX_METADATA}")]
    TooLarge {
        /// The name of the entry that did not fit.
        name: String,
        /// The total size with the entry, in bytes.
        found: usize,
    },
}

impl Metadata {
    /// Adds an entry.
    ///
    /// # Errors
    /// If the name or the value is not valid in an HTTP/2 header, or the total would exceed [`MAX_METADATA`].
    pub fn insert(&mut self, name: &str, value: impl Into<Bytes>) -> Result<(), MetadataError> {
        let value = value.into();
        if !is_valid_name(name) {
            return Err(MetadataError::Name { name: name.into() });
        }
        if value.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
            return Err(MetadataError::Value { name: name.into() });
        }
        let found = self.bytes + name.len() + value.len() + ENTRY_COST;
        if found > MAX_METADATA {
            return Err(MetadataError::TooLarge { name: name.into(), found });
        }
        self.bytes = found;
        self.entries.push((name.into(), value));
        Ok(())
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.entries.iter().map(|(name, value)| (&**name, value))
    }

    /// The size in bytes, as [`MAX_METADATA`] counts it.
    #[cfg(feature = "runtime")]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

fn is_valid_name(name: &str) -> bool {
    const RESERVED: [&str; 10] = [
        "content-type",
        "content-length",
        "te",
        "connection",
        "host",
        "user-agent",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ];
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.iter().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.'))
        && !name.starts_with("grpc-")
        && !RESERVED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_reserved_names() {
        let mut metadata = Metadata::default();
        for bad in ["", "grpc-status", "te", "content-type", ":path", "Upper", "sp ace"] {
            assert_eq!(metadata.insert(bad, "v"), Err(MetadataError::Name { name: bad.into() }), "{bad:?}");
        }
        assert_eq!(metadata.insert("a", "x\ny"), Err(MetadataError::Value { name: "a".into() }));
        assert_eq!(metadata, Metadata::default());
    }

    #[test]
    fn total_size_is_bounded() {
        let mut metadata = Metadata::default();
        metadata.insert("a", vec![b'x'; MAX_METADATA - ENTRY_COST - 1]).unwrap();
        let found = metadata.insert("b", "");
        let size = MAX_METADATA + ENTRY_COST + 1;
        assert_eq!(found, Err(MetadataError::TooLarge { name: "b".into(), found: size }));
    }

    /// Many entries of few bytes exceed the limit that HTTP/2 has for them.
    #[test]
    fn entries_count_as_in_http2() {
        let mut metadata = Metadata::default();
        let inserted = (0..7000).take_while(|_| metadata.insert("a", "").is_ok()).count();
        assert_eq!(inserted, MAX_METADATA / (ENTRY_COST + 1));
    }

    #[test]
    fn debug_does_not_print_values() {
        let mut metadata = Metadata::default();
        metadata.insert("baggage", "canary").unwrap();
        assert_eq!(format!("{metadata:?}"), r#"["baggage"]"#);
    }
}
