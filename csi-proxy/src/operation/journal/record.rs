//! The bytes of a row, by which damage is noticed.
//!
//! | Offset | Bytes | |
//! |---|---|---|
//! | 0 | 4 | the magic `OPJR` |
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
//!   string method = 2;                // /package.Service/Method
//!   repeated Subject subjects = 3;    // the first one names the operation
//!   bytes digest = 4;                 // 32 bytes
//!   uint32 stage = 5;                 // 1 accepted, 2 started, 3 finished
//!   uint64 written = 6;               // milliseconds since 1970
//!   bytes message = 7;                // of the answer; from here on only if finished
//!   bytes closing = 8;                // the status, as in `csi_proxy::wire`
//! }
//! message Subject { uint32 kind = 1; string id = 2; } // 1 volume by name, 2 volume, 3 snapshot, 4 group snapshot
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use csi_proto::{DriverName, Method};
use prost::Message;

use super::sealed;
use crate::operation::{Answer, Digest, Identity, OperationId, Restored, Stage, Subject};
use crate::outcome::Outcome;

/// What each row begins with.
pub const MAGIC: [u8; 4] = *b"OPJR";

/// The version of the format that is written. Every version keeps the magic and the place of the version.
pub const VERSION: u16 = 1;

/// Why bytes are not taken for a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// They are too few, or begin with something else.
    #[error("it is no record")]
    NoRecord,
    /// They were written by a version that this one does not know.
    #[error("it has format {found}, and this version knows {VERSION}")]
    Version {
        /// That version.
        found: u16,
    },
    /// Some byte is wrong, or the row is another one's.
    #[error("its checksum is {found:08x} instead of {expected:08x}")]
    Checksum {
        /// What the header says.
        expected: u32,
        /// What it is.
        found: u32,
    },
    /// The bytes are as they were written, but make no sense.
    #[error("its field {field} has no value that is known")]
    Field {
        /// The field.
        field: &'static str,
    },
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(string, tag = "1")]
    driver: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(message, repeated, tag = "3")]
    subjects: Vec<SubjectRecord>,
    #[prost(bytes = "vec", tag = "4")]
    digest: Vec<u8>,
    #[prost(uint32, tag = "5")]
    stage: u32,
    #[prost(uint64, tag = "6")]
    written: u64,
    #[prost(bytes = "bytes", optional, tag = "7")]
    message: Option<Bytes>,
    #[prost(bytes = "bytes", tag = "8")]
    closing: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct SubjectRecord {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    id: String,
}

/// The bytes of an operation's row.
#[must_use]
pub fn seal(operation: OperationId, identity: &Identity, stage: &Stage, written: SystemTime) -> Vec<u8> {
    let (number, message, closing) = match stage {
        Stage::Accepted => (1, None, Bytes::new()),
        Stage::Started => (2, None, Bytes::new()),
        Stage::Finished(answer) => (3, answer.message().cloned(), answer.outcome().encode()),
    };
    let subjects = identity.keys().iter().map(|key| {
        let kind = match key.subject() {
            Subject::VolumeName(_) => 1,
            Subject::Volume(_) => 2,
            Subject::Snapshot(_) => 3,
            Subject::GroupSnapshot(_) => 4,
        };
        SubjectRecord { kind, id: key.subject().id().to_owned() }
    });
    let record = Record {
        driver: identity.driver().to_string(),
        method: identity.method().path().to_owned(),
        subjects: subjects.collect(),
        digest: identity.digest().as_bytes().to_vec(),
        stage: number,
        written: millis(written),
        message,
        closing,
    };
    sealed::seal(MAGIC, VERSION, operation.number(), &record.encode_to_vec())
}

/// Reads the bytes of an operation's row.
///
/// A row that was written in what is now the future counts as written just now.
///
/// # Errors
/// What is wrong with it.
pub fn open(operation: OperationId, bytes: &[u8], now: SystemTime) -> Result<Restored, Defect> {
    let record: Record = sealed::open(MAGIC, VERSION, operation.number(), bytes)?;
    let age = Duration::from_millis(millis(now).saturating_sub(record.written));
    let stage = match record.stage {
        1 => Stage::Accepted,
        2 => Stage::Started,
        3 => Stage::Finished(answer(&record).ok_or(Defect::Field { field: "closing" })?),
        _ => return Err(Defect::Field { field: "stage" }),
    };
    Ok(Restored::new(operation, identity(record)?, stage, age))
}

fn identity(record: Record) -> Result<Identity, Defect> {
    let driver = DriverName::new(record.driver).map_err(|_| Defect::Field { field: "driver" })?;
    let method = Method::from_path(&record.method).ok_or(Defect::Field { field: "method" })?;
    let digest = <[u8; 32]>::try_from(record.digest).map_err(|_| Defect::Field { field: "digest" })?;
    let subjects = record.subjects.into_iter().map(|SubjectRecord { kind, id }| match kind {
        1 => Some(Subject::VolumeName(id.into())),
        2 => Some(Subject::Volume(id.into())),
        3 => Some(Subject::Snapshot(id.into())),
        4 => Some(Subject::GroupSnapshot(id.into())),
        _ => None,
    });
    let subjects: Option<Vec<_>> = subjects.collect();
    let identity =
        subjects.and_then(|subjects| Identity::new(driver, method, subjects, Digest::from_bytes(digest)));
    identity.ok_or(Defect::Field { field: "subjects" })
}

fn answer(record: &Record) -> Option<Answer> {
    let outcome = Outcome::decode(record.closing.clone()).ok()?;
    Answer::new(record.message.clone(), outcome)
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
