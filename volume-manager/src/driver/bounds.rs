//! The bounds of a volume or consumer spec, and their errors.

use std::collections::BTreeMap;

use super::access::AccessMode;

/// The maximum size of all keys and values of one context in bytes. The CSI spec allows 4 KiB; Kubernetes objects
/// exceed it.
pub(super) const MAX_CONTEXT_BYTES: usize = 64 * 1024;

/// The maximum size of all mount flags together in bytes.
pub(super) const MAX_MOUNT_FLAGS_BYTES: usize = 64 * 1024;

/// The maximum size of a name of a pod, or of an SELinux label, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 253;

/// Why a [`VolumeSpec`](super::VolumeSpec) or [`ConsumerSpec`](super::ConsumerSpec) is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSpec {
    /// A field is longer than its bound.
    #[error("{field} has {found} bytes; at most {bound} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The size in bytes: of all keys and values of a map, or of all elements of a list.
        found: usize,
        /// The maximum.
        bound: usize,
    },
    /// A required field is empty.
    #[error("{field} is empty; set it, or omit the whole object")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A field contains a control character, a quote or a backslash, which would change the meaning of the request.
    #[error("{field} contains the character {found:?}; remove it")]
    Character {
        /// The field.
        field: &'static str,
        /// The character.
        found: char,
    },
    /// The access mode is not set.
    #[error("the access mode is {found:?}; expected one of the spec's modes other than UNKNOWN")]
    Mode {
        /// The mode.
        found: AccessMode,
    },
    /// The field applies to file systems, not to block devices.
    #[error("{field} is set for a block volume; remove it, or use the volume as a file system")]
    Block {
        /// The field.
        field: &'static str,
    },
    /// Ephemeral volumes have no calls but NodePublishVolume and NodeUnpublishVolume.
    #[error("{field} is set for an ephemeral volume, which is only published; remove it")]
    Ephemeral {
        /// The field.
        field: &'static str,
    },
    /// A publish context, the result of an attach, is set for a volume that is not attached.
    #[error(
        "publish_context is set for a volume that is not attached; remove it, or set attach to Here or Awaited"
    )]
    ContextWithoutAttach,
}

pub(super) fn check_text(field: &'static str, value: &str, bound: usize) -> Result<(), InvalidSpec> {
    if value.len() > bound {
        return Err(InvalidSpec::TooLong { field, found: value.len(), bound });
    }
    match value.chars().find(|found| found.is_control()) {
        Some(found) => Err(InvalidSpec::Character { field, found }),
        None => Ok(()),
    }
}

pub(super) fn check_context(field: &'static str, map: &BTreeMap<String, String>) -> Result<(), InvalidSpec> {
    let found = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if found > MAX_CONTEXT_BYTES {
        return Err(InvalidSpec::TooLong { field, found, bound: MAX_CONTEXT_BYTES });
    }
    Ok(())
}

pub(super) fn check_mount_flags(flags: &[String]) -> Result<(), InvalidSpec> {
    const FIELD: &str = "mount_flags";
    let found = flags.iter().map(String::len).sum();
    if found > MAX_MOUNT_FLAGS_BYTES {
        return Err(InvalidSpec::TooLong { field: FIELD, found, bound: MAX_MOUNT_FLAGS_BYTES });
    }
    if flags.iter().any(String::is_empty) {
        return Err(InvalidSpec::Empty { field: FIELD });
    }
    match flags.iter().flat_map(|flag| flag.chars()).find(|found| found.is_control()) {
        Some(found) => Err(InvalidSpec::Character { field: FIELD, found }),
        None => Ok(()),
    }
}
