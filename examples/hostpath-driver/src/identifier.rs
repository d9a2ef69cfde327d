//! Ids that are safe as file names, for any input from callers.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Maximum length of an id in bytes: the spec's limit for a string.
pub const MAX_ID: usize = 128;

/// The id of a volume, a snapshot or a group: letters, digits, `-`, `_` and `.`, not starting with a dot.
///
/// Ids that this driver creates sort by their creation time, so that a list keeps its order while it grows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ResourceId(String);

impl ResourceId {
    /// Parses an id. A text that is not a valid id names no resource of this driver.
    pub fn parse(text: &str) -> Option<Self> {
        let in_alphabet = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let safe = !text.is_empty()
            && text.len() <= MAX_ID
            && !text.starts_with('.')
            && text.bytes().all(in_alphabet);
        safe.then(|| Self(text.to_owned()))
    }

    /// Generates an id: the prefix, the time in milliseconds and 64 random bits.
    pub fn generate(prefix: &'static str, now: SystemTime) -> Self {
        // A hasher with random keys is the standard library's source of random numbers.
        let random = RandomState::new().build_hasher().finish();
        let millis = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis();
        Self(format!("{prefix}-{millis:012x}-{random:016x}"))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ResourceId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not an id"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_could_leave_a_folder_is_an_id() {
        let longest = "a".repeat(MAX_ID);
        for valid in ["vol-1", "A_b.c", longest.as_str()] {
            assert_eq!(ResourceId::parse(valid).unwrap().as_str(), valid);
        }
        let too_long = "a".repeat(MAX_ID + 1);
        for bad in
            ["", ".", "..", ".hidden", "a/b", "../x", "/etc", "ä", "a b", "a\0b", "a\nb", too_long.as_str()]
        {
            assert_eq!(ResourceId::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn generated_ids_are_valid_unique_and_sorted() {
        let later = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let first = ResourceId::generate("vol", UNIX_EPOCH);
        let (second, third) = (ResourceId::generate("vol", later), ResourceId::generate("vol", later));
        assert!(first < second && second != third);
        assert_eq!(ResourceId::parse(first.as_str()), Some(first));
    }

    #[test]
    fn an_id_in_a_file_is_checked_too() {
        assert!(serde_json::from_str::<ResourceId>("\"../x\"").is_err());
    }
}
