//! A placement and its encoding.
//!
//! The schema is `proto/edge/csi/v1/state.proto`.
//!
//! The record is preceded by its CRC-32 over the key and the record, little-endian. The checksum detects damage,
//! and a row under the wrong key.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message as _;

use crate::call::NodeId;
use crate::call::{Digest, Subject};
use crate::generated::state as pb;

/// The node of a subject, and its status.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the format of a stored row")]
pub struct Placement {
    /// The node that has, or may have, the subject.
    pub node: NodeId,
    /// The digest of the request; zero if there were several requests, or the digest is unknown.
    pub digest: Digest,
    /// The status of the subject.
    pub status: Status,
}

/// The status of a volume, snapshot or group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the format of a stored row")]
pub enum Status {
    /// The volume may exist, or be created later.
    Pending,
    /// The volume, snapshot or group exists with this id.
    Created {
        /// The id in the response of the driver.
        id: Box<str>,
    },
    /// A driver has deleted the volume, snapshot or group.
    Deleted {
        /// The id before the deletion.
        id: Box<str>,
        /// The time of the deletion.
        at: SystemTime,
    },
    /// The node was decommissioned with everything on it.
    Lost {
        /// The id before the loss.
        id: Box<str>,
    },
}

impl Status {
    /// Whether the volume, snapshot or group exists or may exist.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Pending | Self::Created { .. })
    }

    /// The id; `None` while the status is pending.
    #[must_use]
    pub fn volume_id(&self) -> Option<&str> {
        match self {
            Self::Pending => None,
            Self::Created { id } | Self::Deleted { id, .. } | Self::Lost { id } => Some(id),
        }
    }
}

/// The version of a row. Opaque, assigned by the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "an opaque value of the store")]
pub struct Revision(pub Box<str>);

/// A row of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the format of a stored row")]
pub struct Row {
    /// A volume by its name, or a snapshot, a group, or a volume of an unknown name by its id.
    pub key: Subject,
    /// The current revision in the store.
    pub revision: Revision,
    /// The placement, or why it cannot be read.
    pub placement: Result<Placement, Defect>,
}

/// Why a row cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The bytes are damaged, or the row belongs to another key.
    #[error("the checksum of the row is wrong")]
    Checksum,
    /// The checksum is correct, but a field has an invalid or unknown value.
    #[error("the field {field} of the row has an invalid or unknown value")]
    Field {
        /// The name of the field in `state.proto`, or in the object of Kubernetes.
        field: &'static str,
    },
}

impl Placement {
    /// Encodes the row with this key.
    #[must_use]
    pub fn encode(&self, key: &Subject) -> Vec<u8> {
        let (status, at) = match &self.status {
            Status::Pending => (1, UNIX_EPOCH),
            Status::Created { .. } => (2, UNIX_EPOCH),
            Status::Deleted { at, .. } => (3, *at),
            Status::Lost { .. } => (4, UNIX_EPOCH),
        };
        let record = pb::Placement {
            node: self.node.to_string(),
            status,
            digest: Bytes::copy_from_slice(self.digest.as_bytes()),
            volume_id: self.status.volume_id().unwrap_or_default().to_owned(),
            deleted_at: at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        };
        seal(key, &record.encode_to_vec())
    }

    /// Decodes the row with this key.
    ///
    /// # Errors
    /// If the checksum or the value of a field is wrong.
    pub fn decode(key: &Subject, bytes: &[u8]) -> Result<Self, Defect> {
        let record = unseal(key, bytes)?;
        let field = |field| Defect::Field { field };
        let record = pb::Placement::decode(record).map_err(|_| field("record"))?;
        let node = NodeId::new(&record.node).map_err(|_| field("node"))?;
        let digest = <[u8; 32]>::try_from(&*record.digest).map_err(|_| field("digest"))?;
        let id = record.volume_id.into_boxed_str();
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(record.deleted_at));
        let at = at.ok_or_else(|| field("deleted_at"))?;
        let status = match record.status {
            1 => Status::Pending,
            2 => Status::Created { id },
            3 => Status::Deleted { id, at },
            4 => Status::Lost { id },
            _ => return Err(field("status")),
        };
        Ok(Self { node, digest: Digest::from_bytes(digest), status })
    }
}

/// Returns a record preceded by its CRC-32 over the key and the record, little-endian.
pub(in crate::routing) fn seal(key: &impl fmt::Display, record: &[u8]) -> Vec<u8> {
    [&checksum(key, record).to_le_bytes(), record].concat()
}

/// Returns the record of a key without its checksum.
///
/// # Errors
/// If the checksum is wrong.
pub(in crate::routing) fn unseal<'a>(key: &impl fmt::Display, bytes: &'a [u8]) -> Result<&'a [u8], Defect> {
    let (sum, record) = bytes.split_first_chunk().ok_or(Defect::Checksum)?;
    match checksum(key, record) == u32::from_le_bytes(*sum) {
        true => Ok(record),
        false => Err(Defect::Checksum),
    }
}

fn checksum(key: &impl fmt::Display, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.to_string().as_bytes());
    hasher.update(record);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_round_trips_and_damage_is_detected() {
        let (key, other) = (Subject::VolumeName("pvc-1".into()), Subject::Volume("pvc-1".into()));
        let at = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let id: Box<str> = "vol-1".into();
        for status in [
            Status::Pending,
            Status::Created { id: id.clone() },
            Status::Deleted { id: id.clone(), at },
            Status::Lost { id },
        ] {
            let node = NodeId::new("edge-1").unwrap();
            let placement = Placement { node, digest: Digest::from_bytes([7; 32]), status };
            let bytes = placement.encode(&key);
            assert_eq!(Placement::decode(&other, &bytes), Err(Defect::Checksum));
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0x10;
                assert_eq!(Placement::decode(&key, &changed), Err(Defect::Checksum), "byte {at}");
                assert!(Placement::decode(&key, &bytes[..at]).is_err(), "cut at {at}");
            }
            assert_eq!(Placement::decode(&key, &bytes), Ok(placement));
        }
    }
}
