//! One record as bytes: an envelope by which damage is noticed, and protobuf in it.
//!
//! | Offset | Bytes | |
//! |---|---|---|
//! | 0 | 4 | the magic `CSIF` |
//! | 4 | 4 | the version of this format |
//! | 8 | 4 | length of the payload |
//! | 12 | 4 | CRC-32 over all that is before, and the payload |
//! | 16 | | the payload |
//!
//! Numbers are little-endian. The payload names the driver and the node, so that a record in another's place is noticed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message;

use super::super::facts::described;
use super::super::{Fact, Facts, Subject};
use super::Kept;

const MAGIC: [u8; 4] = *b"CSIF";

/// The version of the format that is written. A record of another one is not used: what it says is learnt again.
pub const VERSION: u32 = 1;

/// Largest record in bytes, all included.
pub const MAX_RECORD: usize = 64 * 1024;

const HEADER: usize = 16;

/// Bytes are no record that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// They do not begin as a record does.
    #[error("not a record of start-up facts")]
    NoRecord,
    /// It was written by another version of this software.
    #[error("a record of version {found}; this software reads version {supported}")]
    Version {
        /// Its version.
        found: u32,
        /// The one that is read here.
        supported: u32,
    },
    /// A part is missing, or something follows.
    #[error("a record of {expected} bytes, of which {found} are there")]
    Length {
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// It is larger than any record may be.
    #[error("{found} bytes; a record has at most {max}")]
    TooLarge {
        /// Its size in bytes.
        found: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The checksum does not fit.
    #[error("a record with checksum {found:08x}; {expected:08x} is expected")]
    Checksum {
        /// The checksum that is written in it.
        expected: u32,
        /// That of its bytes.
        found: u32,
    },
    /// The checksum fits, but it holds no facts.
    #[error("a record that is no protobuf of start-up facts")]
    Malformed,
    /// It is another driver's, or that of another node.
    #[error("a record of {found}, where one of {expected} should be")]
    Subject {
        /// Whose facts are wanted.
        expected: String,
        /// Whose facts they are.
        found: String,
    },
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(bytes = "bytes", optional, tag = "1")]
    info: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    plugin: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    controller: Option<FactRecord>,
    #[prost(message, optional, tag = "4")]
    group: Option<FactRecord>,
    #[prost(string, tag = "5")]
    driver: String,
    #[prost(string, tag = "6")]
    node: String,
    #[prost(uint64, tag = "7")]
    as_of_seconds: u64,
    #[prost(message, optional, tag = "8")]
    node_info: Option<FactRecord>,
    #[prost(message, optional, tag = "9")]
    node_service: Option<FactRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct FactRecord {
    #[prost(bytes = "bytes", optional, tag = "1")]
    answer: Option<Bytes>,
    #[prost(string, tag = "2")]
    not_offered: String,
}

impl Kept {
    /// The record as bytes. Times are kept in whole seconds.
    #[must_use]
    pub fn encode(&self, subject: &Subject) -> Vec<u8> {
        let fact = |fact: &Option<Fact>| {
            fact.as_ref().map(|fact| match fact {
                Fact::Answer(answer) => FactRecord { answer: Some(answer.clone()), ..FactRecord::default() },
                Fact::NotOffered(text) => FactRecord { answer: None, not_offered: text.clone() },
            })
        };
        let Facts { info, plugin, controller, group, node_service, node } = &self.facts;
        let record = Record {
            info: info.clone(),
            plugin: plugin.clone(),
            controller: fact(controller),
            group: fact(group),
            driver: subject.driver.to_string(),
            node: subject.node_name(),
            as_of_seconds: self.as_of.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            node_info: fact(node),
            node_service: fact(node_service),
        };
        seal(VERSION, &record.encode_to_vec())
    }

    /// The record of this driver that these bytes are.
    ///
    /// # Errors
    /// If they are none, or that of another driver or node.
    pub fn decode(bytes: &[u8], subject: &Subject) -> Result<Self, RecordError> {
        let Record { info, plugin, controller, group, driver, node, as_of_seconds, node_info, node_service } =
            Record::decode(open(bytes)?).map_err(|_| RecordError::Malformed)?;
        if driver != subject.driver.as_str() || node != subject.node_name() {
            let found = described(&driver, &node);
            return Err(RecordError::Subject { expected: subject.to_string(), found });
        }
        let fact = |record: FactRecord| match record.answer {
            Some(answer) => Fact::Answer(answer),
            None => Fact::NotOffered(record.not_offered),
        };
        let (controller, group) = (controller.map(fact), group.map(fact));
        let (node_service, node) = (node_service.map(fact), node_info.map(fact));
        let facts = Facts { info, plugin, controller, group, node_service, node };
        let as_of = UNIX_EPOCH.checked_add(Duration::from_secs(as_of_seconds));
        Ok(Self { facts, as_of: as_of.unwrap_or(SystemTime::UNIX_EPOCH) })
    }
}

fn seal(version: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    // A longer payload is refused by every store, and would be by `open`.
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    let checksum = checksum(&bytes, payload);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload.
fn open(bytes: &[u8]) -> Result<&[u8], RecordError> {
    if bytes.len() > MAX_RECORD {
        return Err(RecordError::TooLarge { found: bytes.len() as u64, max: MAX_RECORD as u64 });
    }
    if bytes.is_empty() || !bytes.iter().zip(MAGIC).all(|(byte, expected)| *byte == expected) {
        return Err(RecordError::NoRecord);
    }
    let short = |expected| RecordError::Length { expected, found: bytes.len() as u64 };
    let number = |at| number(bytes, at).ok_or_else(|| short(HEADER as u64));
    let version = number(4)?;
    if version != VERSION {
        return Err(RecordError::Version { found: version, supported: VERSION });
    }
    let (length, expected) = (number(8)?, number(12)?);
    let whole = HEADER as u64 + u64::from(length);
    if whole != bytes.len() as u64 {
        return Err(short(whole));
    }
    let (head, payload) = bytes.split_at(HEADER);
    let found = checksum(head.get(..12).unwrap_or_default(), payload);
    if found != expected {
        return Err(RecordError::Checksum { expected, found });
    }
    Ok(payload)
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_proto::DriverName;

    fn subject(driver: &str, node: Option<&str>) -> Subject {
        let node = node.map(|node| node.parse().unwrap());
        Subject { driver: DriverName::new(driver).unwrap(), node }
    }

    fn kept() -> Kept {
        let facts = Facts {
            info: Some(Bytes::from_static(b"info")),
            plugin: Some(Bytes::from_static(b"plugin")),
            controller: Some(Fact::Answer(Bytes::new())),
            group: Some(Fact::NotOffered("no such service".to_owned())),
            node_service: Some(Fact::Answer(Bytes::from_static(b"service"))),
            node: Some(Fact::Answer(Bytes::from_static(b"node"))),
        };
        Kept { facts, as_of: UNIX_EPOCH + Duration::from_secs(1_800_000_000) }
    }

    #[test]
    fn a_record_is_read_back_by_its_driver_and_node_alone() {
        let ours = subject("vendor", Some("edge-1"));
        let bytes = kept().encode(&ours);
        assert_eq!(Kept::decode(&bytes, &ours), Ok(kept()));
        for other in
            [subject("other", Some("edge-1")), subject("vendor", Some("edge-2")), subject("vendor", None)]
        {
            let error = Kept::decode(&bytes, &other).unwrap_err();
            assert!(matches!(error, RecordError::Subject { .. }), "{error}");
        }
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let ours = subject("vendor", None);
        let bytes = kept().encode(&ours);
        for end in 0..bytes.len() {
            assert!(Kept::decode(&bytes[..end], &ours).is_err(), "cut after {end} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Kept::decode(&bytes, &ours).is_err(), "bit {bit} flipped");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(Kept::decode(&longer, &ours), Err(RecordError::Length { .. })));
    }

    #[test]
    fn what_is_wrong_with_a_record_is_named() {
        let ours = subject("vendor", None);
        let of = |bytes: &[u8]| Kept::decode(bytes, &ours).unwrap_err();
        assert_eq!(of(&seal(7, b"")), RecordError::Version { found: 7, supported: VERSION });
        assert_eq!(of(&seal(VERSION, b"\xff\xff")), RecordError::Malformed);
        assert_eq!(of(b"junk"), RecordError::NoRecord);
        assert_eq!(of(b""), RecordError::NoRecord);
        let max = MAX_RECORD as u64;
        assert_eq!(of(&vec![0; MAX_RECORD + 1]), RecordError::TooLarge { found: max + 1, max });
    }
}
