//! The id of a call.

use std::fmt;
#[cfg(feature = "runtime")]
use std::hash::{BuildHasher, Hasher, RandomState};
#[cfg(feature = "runtime")]
use std::time::{SystemTime, UNIX_EPOCH};

/// Identifies one call on its whole path, in the form of a UUID. Version 7, so ids sort by creation time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId([u8; 16]);

impl CallId {
    /// Creates a unique id.
    #[cfg(feature = "runtime")]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "ids are unique, so none can be the default")]
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Ids must be unique, not secret: the keys of the standard library's hasher are random and differ for
        // every state. The keys cost no system call; `Uuid::now_v7` makes two.
        let random = || RandomState::new().build_hasher().finish().to_le_bytes();
        let ([a, b, ..], [c, d, e, f, g, h, i, j]) = (random(), random());
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &[a, b, c, d, e, f, g, h, i, j]);
        Self(id.into_uuid().into_bytes())
    }

    /// Creates an id from its 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes of the id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_prints_as_uuid() {
        let id = CallId::from_bytes([0x01, 0x8f, 2, 3, 4, 5, 0x76, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(id.to_string(), "018f0203-0405-7607-0809-0a0b0c0d0e0f");
    }

    #[cfg(feature = "runtime")]
    #[test]
    fn new_ids_are_unique_and_version_7() {
        let ids: std::collections::BTreeSet<_> = std::iter::repeat_with(CallId::new).take(10_000).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.0[6] >> 4 == 7 && id.0[8] >> 6 == 0b10));
    }
}
