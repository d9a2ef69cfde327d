//! The bounds of a spec, and what is wrong with one.

use std::collections::BTreeMap;

use super::access::AccessMode;

/// The most bytes of all keys and values of one context. The spec allows 4 KiB; Kubernetes objects exceed it.
pub(super) const MAX_CONTEXT_BYTES: usize = 64 * 1024;

/// The most bytes of all mount flags together.
pub(super) const MAX_MOUNT_FLAGS_BYTES: usize = 64 * 1024;

/// The most bytes of a short text: a file system type, a label.
pub(super) const MAX_SHORT_BYTES: usize = 253;

/// Why a [`VolumeSpec`](super::VolumeSpec) or [`ConsumerSpec`](super::ConsumerSpec) cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSpec {
    /// A field is longer than its bound.
    #[error("{field} has {found} bytes; at most {bound} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its bytes; of a map those of all keys and values, of a list those of all elements.
        found: usize,
        /// The most that is allowed.
        bound: usize,
    },
    /// A field that must say something is empty.
    #[error("{field} is empty; give it, or leave the whole out")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A field has a control character, a quote or a backslash, which would change the meaning of what is sent.
    #[error("{field} has the character {found:?}; leave it out")]
    Character {
        /// The field.
        field: &'static str,
        /// The character.
        found: char,
    },
    /// The access mode says nothing.
    #[error("the access mode is {found:?}; give one of the spec's modes other than UNKNOWN")]
    Mode {
        /// The mode.
        found: AccessMode,
    },
    /// A block device has no file system to apply the field to.
    #[error("{field} is set for a block volume; leave it out, or use the volume as a file system")]
    Block {
        /// The field.
        field: &'static str,
    },
    /// An ephemeral volume is made by NodePublishVolume and has nothing before or after it.
    #[error("{field} is set for an ephemeral volume, which is only ever published; leave it out")]
    Ephemeral {
        /// The field.
        field: &'static str,
    },
    /// There is nothing that could have given the context.
    #[error(
        "publish_context is set for a volume that is not attached; leave it out, or set attach to Here or Awaited"
    )]
    ContextWithoutAttach,
}

pub(super) fn text(field: &'static str, value: &str, bound: usize) -> Result<(), InvalidSpec> {
    if value.len() > bound {
        return Err(InvalidSpec::TooLong { field, found: value.len(), bound });
    }
    match value.chars().find(|found| found.is_control()) {
        Some(found) => Err(InvalidSpec::Character { field, found }),
        None => Ok(()),
    }
}

pub(super) fn context(field: &'static str, map: &BTreeMap<String, String>) -> Result<(), InvalidSpec> {
    let found = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if found > MAX_CONTEXT_BYTES {
        return Err(InvalidSpec::TooLong { field, found, bound: MAX_CONTEXT_BYTES });
    }
    Ok(())
}

pub(super) fn mount_flags(flags: &[String]) -> Result<(), InvalidSpec> {
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
