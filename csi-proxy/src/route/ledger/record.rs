//! The bytes of a row, by which damage is noticed.
//!
//! | Offset | Bytes | |
//! |---|---|---|
//! | 0 | 4 | the magic `CSIR` |
//! | 4 | 2 | the version of this format |
//! | 6 | 2 | zero |
//! | 8 | 4 | CRC-32 over the bytes before, the number of the row and the record |
//! | 12 | | the record, a protobuf message |
//!
//! Numbers are little-endian.
//!
//! ```proto
//! message Record {
//!   string driver = 1;
//!   string node = 2;
//!   uint32 kind = 3;        // 1 placement of a volume by name; by id: 2 volume, 3 snapshot, 4 group snapshot; 5 a node;
//!                           // 6 a decommissioned node
//!   string id = 4;          // the name or the id; not of a node
//!   bytes fingerprint = 5;  // 32 bytes; of a placement
//!   string volume_id = 6;   // of a placement whose volume was made
//!   bytes description = 7;  // of a node
//! }
//! ```

use bytes::Bytes;
use csi_proto::DriverName;
use prost::Message;

use crate::call::NodeId;
use crate::operation::journal::record::Defect;
use crate::operation::journal::sealed;
use crate::operation::{Digest, Subject};

/// What each row begins with.
pub const MAGIC: [u8; 4] = *b"CSIR";

/// The version of the format that is written. Every version keeps the magic and the place of the version.
pub const VERSION: u16 = 1;

/// What a row says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row {
    Placement { name: Box<str>, node: NodeId, fingerprint: Digest, volume: Option<Box<str>> },
    Place { subject: Subject, node: NodeId },
    Node { node: NodeId, description: Bytes },
    Decommissioned { node: NodeId },
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(string, tag = "1")]
    driver: String,
    #[prost(string, tag = "2")]
    node: String,
    #[prost(uint32, tag = "3")]
    kind: u32,
    #[prost(string, tag = "4")]
    id: String,
    #[prost(bytes = "vec", tag = "5")]
    fingerprint: Vec<u8>,
    #[prost(string, tag = "6")]
    volume_id: String,
    #[prost(bytes = "bytes", tag = "7")]
    description: Bytes,
}

/// The bytes of a row.
pub(super) fn seal(driver: &DriverName, row: u64, content: &Row) -> Vec<u8> {
    let record = match content {
        Row::Placement { name, node, fingerprint, volume } => Record {
            driver: driver.to_string(),
            node: node.to_string(),
            kind: 1,
            id: name.to_string(),
            fingerprint: fingerprint.as_bytes().to_vec(),
            volume_id: volume.as_deref().unwrap_or_default().to_owned(),
            ..Record::default()
        },
        Row::Node { node, description } => Record {
            driver: driver.to_string(),
            node: node.to_string(),
            kind: 5,
            description: description.clone(),
            ..Record::default()
        },
        Row::Decommissioned { node } => {
            Record { driver: driver.to_string(), node: node.to_string(), kind: 6, ..Record::default() }
        }
        Row::Place { subject, node } => Record {
            driver: driver.to_string(),
            node: node.to_string(),
            kind: match subject {
                Subject::VolumeName(_) => 1,
                Subject::Volume(_) => 2,
                Subject::Snapshot(_) => 3,
                Subject::GroupSnapshot(_) => 4,
            },
            id: subject.id().to_owned(),
            ..Record::default()
        },
    };
    sealed::seal(MAGIC, VERSION, row, &record.encode_to_vec())
}

/// Reads the bytes of a row of this driver's.
pub(super) fn open(driver: &DriverName, row: u64, bytes: &[u8]) -> Result<Row, Defect> {
    let record: Record = sealed::open(MAGIC, VERSION, row, bytes)?;
    content(driver, record)
}

fn content(driver: &DriverName, record: Record) -> Result<Row, Defect> {
    let defect = |field| Defect::Field { field };
    if record.driver != driver.as_str() {
        return Err(defect("driver"));
    }
    let node = NodeId::new(&record.node).map_err(|_| defect("node"))?;
    if record.kind == 5 {
        return Ok(Row::Node { node, description: record.description });
    }
    if record.kind == 6 {
        return Ok(Row::Decommissioned { node });
    }
    if record.id.is_empty() {
        return Err(defect("id"));
    }
    let id = record.id.into_boxed_str();
    let subject = match record.kind {
        1 => {
            let fingerprint = <[u8; 32]>::try_from(record.fingerprint).map_err(|_| defect("fingerprint"))?;
            let volume = (!record.volume_id.is_empty()).then(|| record.volume_id.into());
            let fingerprint = Digest::from_bytes(fingerprint);
            return Ok(Row::Placement { name: id, node, fingerprint, volume });
        }
        2 => Subject::Volume(id),
        3 => Subject::Snapshot(id),
        4 => Subject::GroupSnapshot(id),
        _ => return Err(defect("kind")),
    };
    Ok(Row::Place { subject, node })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> DriverName {
        DriverName::new("csi-hostpath").unwrap()
    }

    fn rows() -> [Row; 5] {
        let node = NodeId::new("edge-1").unwrap();
        let fingerprint = Digest::from_bytes([7; 32]);
        [
            Row::Placement { name: "pvc-1".into(), node: node.clone(), fingerprint, volume: None },
            Row::Placement {
                name: "pvc-1".into(),
                node: node.clone(),
                fingerprint,
                volume: Some("v".into()),
            },
            Row::Place { subject: Subject::GroupSnapshot("g".into()), node: node.clone() },
            Row::Node { node: node.clone(), description: Bytes::from_static(b"x") },
            Row::Decommissioned { node },
        ]
    }

    #[test]
    fn a_row_comes_back_and_no_changed_byte_other_place_or_other_driver_is_taken_for_it() {
        for row in rows() {
            let bytes = seal(&driver(), 3, &row);
            assert!(open(&driver(), 4, &bytes).is_err());
            assert!(open(&DriverName::new("other").unwrap(), 3, &bytes).is_err());
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0x10;
                assert!(open(&driver(), 3, &changed).is_err(), "byte {at}");
                assert!(open(&driver(), 3, &bytes[..at]).is_err(), "cut at {at}");
            }
            assert_eq!(open(&driver(), 3, &bytes), Ok(row));
        }
    }
}
