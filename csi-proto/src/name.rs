//! Validated names.

use std::borrow::Borrow;
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name that GetPluginInfo returns: 1 to 63 bytes, letters and digits at both ends, `-` and `.` between.
///
/// Names are case-sensitive, as in Kubernetes. Cheap to clone.
///
/// ```
/// use csi_proto::DriverName;
///
/// let name = DriverName::new("hostpath.csi.example.org")?;
/// assert_eq!(name.as_ref(), "hostpath.csi.example.org");
/// assert!(DriverName::new("-hostpath").is_err());
/// # Ok::<(), csi_proto::name::InvalidDriverName>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverName(Arc<str>);

impl DriverName {
    /// The maximum number of bytes that the spec allows.
    pub const MAX_BYTES: usize = 63;

    /// Validates a name.
    ///
    /// # Errors
    /// If the name is empty, too long, or has a character that is not allowed at its position.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidDriverName> {
        let name = name.as_ref();
        Self::check(name)?;
        Ok(Self(name.into()))
    }

    /// Validates a name without copying it.
    pub(crate) fn check(name: &str) -> Result<(), InvalidDriverName> {
        if name.is_empty() {
            return Err(InvalidDriverName::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(InvalidDriverName::TooLong { found: name.len() });
        }
        let last = name.len() - 1;
        for (at, found) in name.char_indices() {
            if found.is_ascii_alphanumeric() {
                continue;
            }
            if !matches!(found, '-' | '.') {
                return Err(InvalidDriverName::Character { found, at });
            }
            if at == 0 || at == last {
                return Err(InvalidDriverName::End { found, at });
            }
        }
        Ok(())
    }
}

/// Why a text is not a [`DriverName`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidDriverName {
    /// The text is empty.
    Empty,
    /// The text has more than [`DriverName::MAX_BYTES`] bytes.
    TooLong {
        /// Number of bytes found.
        found: usize,
    },
    /// A character is neither an ASCII letter or digit, nor `-` or `.`.
    Character {
        /// The character.
        found: char,
        /// The character's offset in bytes.
        at: usize,
    },
    /// The text begins or ends with `-` or `.`.
    End {
        /// The character.
        found: char,
        /// The character's offset in bytes.
        at: usize,
    },
}

impl fmt::Display for InvalidDriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                write!(f, "the driver name is empty; give the name that the driver's GetPluginInfo returns")
            }
            Self::TooLong { found } => {
                write!(f, "the driver name has {found} bytes; at most {} are allowed", DriverName::MAX_BYTES)
            }
            Self::Character { found, at } => write!(
                f,
                "the driver name has {found:?} at byte {at}; only ASCII letters, digits, '-' and '.' are allowed"
            ),
            Self::End { found, at } => {
                write!(
                    f,
                    "the driver name has {found:?} at byte {at}; it must begin and end with a letter or a digit"
                )
            }
        }
    }
}

impl Error for InvalidDriverName {}

/// The id that a plugin assigned to a volume: opaque, unique within the plugin, 1 to 4096 bytes.
///
/// The spec allows 128 bytes. Longer ids are in use, so they are accepted here and reported by
/// [`validate`](crate::validate).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(String);

impl VolumeId {
    /// The maximum number of bytes that are accepted.
    pub const MAX_BYTES: usize = 4096;

    /// Validates the length of an id.
    ///
    /// # Errors
    /// If the id is empty or too long.
    pub fn new(id: impl Into<String>) -> Result<Self, InvalidVolumeId> {
        let id = id.into();
        match id.len() {
            0 => Err(InvalidVolumeId::Empty),
            1..=Self::MAX_BYTES => Ok(Self(id)),
            found => Err(InvalidVolumeId::TooLong { found }),
        }
    }
}

/// Why a text is not a [`VolumeId`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidVolumeId {
    /// The text is empty; `volume_id` is a required field.
    Empty,
    /// The text has more than [`VolumeId::MAX_BYTES`] bytes.
    TooLong {
        /// Number of bytes found.
        found: usize,
    },
}

impl fmt::Display for InvalidVolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "volume_id is empty; it is a required field"),
            Self::TooLong { found } => {
                write!(f, "volume_id has {found} bytes; at most {} are accepted", VolumeId::MAX_BYTES)
            }
        }
    }
}

impl Error for InvalidVolumeId {}

/// Implements the traits of a string for a validated string.
macro_rules! checked_text {
    ($name:ident, $invalid:ident) => {
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = $invalid;

            fn from_str(text: &str) -> Result<Self, $invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $invalid;

            fn try_from(text: String) -> Result<Self, $invalid> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }
    };
}

checked_text!(DriverName, InvalidDriverName);
checked_text!(VolumeId, InvalidVolumeId);

impl From<DriverName> for Arc<str> {
    fn from(name: DriverName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::{DriverName, InvalidDriverName, InvalidVolumeId, VolumeId};

    #[test]
    fn validates_driver_names() {
        let (longest, longer) = ("a".repeat(63), "a".repeat(64));
        for valid in ["a", "0", "A1", "csi-hostpath", "hostpath.csi.k8s.io", "a--b..c", &longest] {
            assert_eq!(DriverName::new(valid).map(String::from).as_deref(), Ok(valid));
        }
        for (bad, why) in [
            ("", InvalidDriverName::Empty),
            (longer.as_str(), InvalidDriverName::TooLong { found: 64 }),
            ("-a", InvalidDriverName::End { found: '-', at: 0 }),
            ("a.", InvalidDriverName::End { found: '.', at: 1 }),
            ("a_b", InvalidDriverName::Character { found: '_', at: 1 }),
            ("a/../b", InvalidDriverName::Character { found: '/', at: 1 }),
            ("stra\u{df}e", InvalidDriverName::Character { found: '\u{df}', at: 4 }),
        ] {
            assert_eq!(bad.parse::<DriverName>(), Err(why), "{bad}");
        }
    }

    #[test]
    fn accepts_longer_volume_ids_than_the_spec() {
        assert_eq!(VolumeId::new(""), Err(InvalidVolumeId::Empty));
        assert!(VolumeId::new("v".repeat(129)).is_ok());
        assert!(VolumeId::new("v".repeat(4096)).is_ok());
        assert_eq!(VolumeId::new("v".repeat(4097)), Err(InvalidVolumeId::TooLong { found: 4097 }));
    }

    #[test]
    fn errors_contain_found_and_allowed_length() {
        let message = InvalidDriverName::TooLong { found: 64 }.to_string();
        assert!(message.contains("64") && message.contains("63"), "{message}");
        let message = InvalidVolumeId::TooLong { found: 5000 }.to_string();
        assert!(message.contains("5000") && message.contains("4096"), "{message}");
    }
}
