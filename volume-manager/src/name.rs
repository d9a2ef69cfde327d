//! Names of volumes and consumers.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use csi_proto::{DriverName, VolumeId};

/// The key of a volume on this node. Volume ids are unique within one driver only.
#[allow(clippy::exhaustive_structs, reason = "a volume is identified by its driver and id")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeKey {
    /// The driver of the volume.
    pub driver: DriverName,
    /// The driver's id of the volume.
    pub id: VolumeId,
}

impl fmt::Display for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.id)
    }
}

/// The id of a consumer, such as the UID of a pod: 1 to 253 bytes without control characters.
///
/// The consumers of a volume are its reference count. Repeated requests with one id count once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(Arc<str>);

impl ConsumerId {
    /// The maximum size of an id in bytes.
    pub const MAX_BYTES: usize = 253;

    /// Validates an id.
    ///
    /// # Errors
    /// If the id is empty, too long, or contains a control character.
    pub fn new(id: &str) -> Result<Self, InvalidConsumerId> {
        if id.is_empty() {
            return Err(InvalidConsumerId::Empty);
        }
        if id.len() > Self::MAX_BYTES {
            return Err(InvalidConsumerId::TooLong { found: id.len() });
        }
        match id.char_indices().find(|(_, found)| found.is_control()) {
            Some((at, found)) => Err(InvalidConsumerId::ControlCharacter { found, at }),
            None => Ok(Self(id.into())),
        }
    }

    /// Returns the id as a string slice.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ConsumerId {
    type Err = InvalidConsumerId;

    fn from_str(id: &str) -> Result<Self, InvalidConsumerId> {
        Self::new(id)
    }
}

impl TryFrom<String> for ConsumerId {
    type Error = InvalidConsumerId;

    fn try_from(id: String) -> Result<Self, InvalidConsumerId> {
        Self::new(&id)
    }
}

impl AsRef<str> for ConsumerId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ConsumerId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ConsumerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The error of an invalid [`ConsumerId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumerId {
    /// The text is empty.
    #[error("the consumer id is empty; use a unique id for each consumer, such as a pod's UID")]
    Empty,
    /// The text has more than [`ConsumerId::MAX_BYTES`] bytes.
    #[error("the consumer id has {found} bytes; at most {} are allowed", ConsumerId::MAX_BYTES)]
    TooLong {
        /// The size in bytes.
        found: usize,
    },
    /// The text contains a control character.
    #[error("the consumer id has the control character {found:?} at byte {at}; remove it")]
    ControlCharacter {
        /// The character.
        found: char,
        /// Its offset in bytes.
        at: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_consumer_ids() {
        assert_eq!(ConsumerId::new("pod-1").unwrap().as_str(), "pod-1");
        assert_eq!("pod-1".parse(), ConsumerId::try_from("pod-1".to_owned()));
        assert!(ConsumerId::new(&"x".repeat(253)).is_ok());
        assert_eq!(ConsumerId::new(""), Err(InvalidConsumerId::Empty));
        assert_eq!(ConsumerId::new(&"x".repeat(254)), Err(InvalidConsumerId::TooLong { found: 254 }));
        let broken = Err(InvalidConsumerId::ControlCharacter { found: '\n', at: 1 });
        assert_eq!(ConsumerId::new("a\nb"), broken);
    }
}
