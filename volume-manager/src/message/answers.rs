//! What a node answers. These travel as they are.

use prost::{Enumeration, Message, Oneof};

use super::error::InvalidMessage;
use crate::driver::AccessMode;
use crate::name::{ConsumerId, VolumeKey};
use crate::node::{self, Explanation, PublishError};

/// The most bytes of one answer that is read.
pub const MAX_ANSWER_BYTES: usize = 8 << 20;

/// How many bytes of reports go into one answer, about: more begins another.
const REPORT_BYTES: usize = 256 << 10;

/// The most bytes of all refused consumers that one answer names; the others are left out.
const REFUSED_BYTES: usize = 1 << 20;

/// An answer of a node.
#[derive(Clone, PartialEq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Answer {
    /// Which one; `None` if it is of a kind that is not known here.
    #[prost(oneof = "answer::Kind", tags = "1, 2, 3")]
    pub answer: Option<answer::Kind>,
}

/// The kinds of answers.
pub mod answer {
    use super::Oneof;

    /// What an answer can be.
    #[derive(Clone, PartialEq, Oneof)]
    #[allow(clippy::exhaustive_enums, reason = "the fields of the message")]
    pub enum Kind {
        /// To desired volumes that were taken.
        #[prost(message, tag = "1")]
        Reconciled(super::Reconciled),
        /// To a query: a part of the volumes.
        #[prost(message, tag = "2")]
        Reports(super::VolumeReports),
        /// Nothing was taken, unless it says so.
        #[prost(message, tag = "3")]
        Refusal(super::Refusal),
    }
}

/// A set is on the node's disk, and is being made so.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Reconciled {
    /// The number of the set.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// How many consumers are wanted that were not before.
    #[prost(uint64, tag = "2")]
    pub wanted: u64,
    /// How many consumers are not wanted any more.
    #[prost(uint64, tag = "3")]
    pub released: u64,
    /// What cannot be had as things are; of very much, the first MiB.
    #[prost(message, repeated, tag = "4")]
    pub refused: Vec<Refused>,
}

/// A consumer that does not get its volume for now.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Refused {
    /// Name of the driver.
    #[prost(string, tag = "1")]
    pub driver: String,
    /// The driver's id of the volume.
    #[prost(string, tag = "2")]
    pub volume_id: String,
    /// Who does not get it.
    #[prost(string, tag = "3")]
    pub consumer: String,
    /// Why, for people.
    #[prost(string, tag = "4")]
    pub reason: String,
}

/// Some of the volumes of a node.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct VolumeReports {
    /// The number of the latest set that the node has taken; 0 if there is none.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// In order of driver and id over all answers.
    #[prost(message, repeated, tag = "2")]
    pub volumes: Vec<VolumeReport>,
    /// In the first answer only: what cannot be had as things are.
    #[prost(message, repeated, tag = "3")]
    pub refused: Vec<Refused>,
    /// In the first answer only: records that cannot be read.
    #[prost(message, repeated, tag = "4")]
    pub quarantined: Vec<Quarantined>,
}

/// A volume as it is.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct VolumeReport {
    /// Name of the driver.
    #[prost(string, tag = "1")]
    pub driver: String,
    /// The driver's id of the volume.
    #[prost(string, tag = "2")]
    pub volume_id: String,
    /// The name of its state; empty if its record cannot be read.
    #[prost(string, tag = "3")]
    pub state: String,
    /// Why it is so, who holds it, the last error and the next try.
    #[prost(string, tag = "4")]
    pub explanation: String,
    /// Who has it, shall have it, or is losing it.
    #[prost(message, repeated, tag = "5")]
    pub consumers: Vec<ConsumerReport>,
}

/// A consumer as it is.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct ConsumerReport {
    /// Who.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Where.
    #[prost(string, tag = "2")]
    pub target_path: String,
    /// Whether it shall have the volume. If not, it is losing it.
    #[prost(bool, tag = "3")]
    pub wanted: bool,
    /// Whether the volume is at the target, and the mount table agrees.
    #[prost(bool, tag = "4")]
    pub published: bool,
}

/// A record that cannot be read.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Quarantined {
    /// What it is called in the node's store.
    #[prost(string, tag = "1")]
    pub record: String,
    /// What is wrong with it.
    #[prost(string, tag = "2")]
    pub reason: String,
}

/// Why a request was not answered otherwise.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Refusal {
    /// Why.
    #[prost(enumeration = "refusal::Reason", tag = "1")]
    pub reason: i32,
    /// Why, for people.
    #[prost(string, tag = "2")]
    pub message: String,
    /// The number of the set that the node has; 0 if there is none.
    #[prost(uint64, tag = "3")]
    pub revision: u64,
}

/// The kinds of refusals.
pub mod refusal {
    use super::Enumeration;

    /// Why a request was not answered otherwise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
    #[allow(clippy::exhaustive_enums, reason = "the values of the message")]
    #[repr(i32)]
    pub enum Reason {
        /// A reason that is not known here.
        Unspecified = 0,
        /// The set has a lower number than the one that the node has, or is another one under the same number.
        Stale = 1,
        /// The request breaks a bound, or says something that cannot be.
        Invalid = 2,
        /// The node cannot do it now. A set whose number is the refusal's is on its disk all the same.
        Unavailable = 3,
    }
}

impl Answer {
    /// Reads an answer.
    ///
    /// # Errors
    /// If it has more than [`MAX_ANSWER_BYTES`] bytes, or is no such message.
    pub fn read(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        if bytes.len() > MAX_ANSWER_BYTES {
            return Err(InvalidMessage::TooLarge { found: bytes.len(), bound: MAX_ANSWER_BYTES });
        }
        Self::decode(bytes).map_err(|error| InvalidMessage::Malformed { reason: error.to_string() })
    }
}

impl From<answer::Kind> for Answer {
    fn from(answer: answer::Kind) -> Self {
        Self { answer: Some(answer) }
    }
}

impl Refusal {
    /// A refusal by a node that has the set of number `revision`.
    #[must_use]
    pub fn new(reason: refusal::Reason, message: impl ToString, revision: u64) -> Self {
        Self { reason: reason.into(), message: message.to_string(), revision }
    }
}

impl Refused {
    /// What the volumes of a node refused.
    #[must_use]
    pub fn new(key: &VolumeKey, consumer: &ConsumerId, error: &PublishError) -> Self {
        Self {
            driver: key.driver.to_string(),
            volume_id: key.id.to_string(),
            consumer: consumer.to_string(),
            reason: error.to_string(),
        }
    }
}

impl Reconciled {
    /// What the set of number `revision` changed.
    #[must_use]
    pub fn new(revision: u64, reconciled: &node::Reconciled) -> Self {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let refused =
            reconciled.refused.iter().map(|(key, consumer, error)| Refused::new(key, consumer, error));
        Self {
            revision,
            wanted: count(reconciled.wanted),
            released: count(reconciled.released),
            refused: within_bytes(refused),
        }
    }
}

/// As many of the first ones as have [`REFUSED_BYTES`] together.
fn within_bytes(refused: impl Iterator<Item = Refused>) -> Vec<Refused> {
    refused
        .scan(0, |bytes, one| {
            *bytes += one.encoded_len();
            (*bytes <= REFUSED_BYTES).then_some(one)
        })
        .collect()
}

impl From<&Explanation> for VolumeReport {
    fn from(explanation: &Explanation) -> Self {
        let consumers = explanation.holders.iter().map(|holder| ConsumerReport {
            id: holder.consumer.to_string(),
            target_path: holder.target.to_string_lossy().into_owned(),
            wanted: holder.wanted,
            published: holder.published,
        });
        Self {
            driver: explanation.key.driver.to_string(),
            volume_id: explanation.key.id.to_string(),
            state: explanation.state.map(|state| state.to_string()).unwrap_or_default(),
            explanation: explanation.to_string(),
            consumers: consumers.collect(),
        }
    }
}

impl VolumeReports {
    /// As many answers as it takes, at least one, each of about 256 KiB at most.
    #[must_use]
    pub fn parts(self) -> Vec<Answer> {
        let Self { revision, volumes, refused, quarantined } = self;
        let mut parts = Vec::new();
        let mut part = Self { revision, volumes: Vec::new(), refused, quarantined };
        let mut bytes = 0;
        for volume in volumes {
            let more = volume.encoded_len();
            if bytes > 0 && bytes + more > REPORT_BYTES {
                let next = Self { revision, ..Self::default() };
                parts.push(answer::Kind::Reports(std::mem::replace(&mut part, next)).into());
                bytes = 0;
            }
            bytes += more;
            part.volumes.push(volume);
        }
        parts.push(answer::Kind::Reports(part).into());
        parts
    }
}

// The mode's numbers are those of the schema.
const _: () = assert!(AccessMode::SingleNodeMultiWriter as i32 == 7);
