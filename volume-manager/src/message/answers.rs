//! What a node answers. These travel as they are.

use prost::Message;

use super::error::InvalidMessage;
pub use crate::generated::volumes::{
    Answer, ConsumerReport, Quarantined, Reconciled, Refusal, Refused, VolumeReport, VolumeReports, refusal,
};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::{self, Explanation, PublishError};

/// The most bytes of one answer that is read.
pub const MAX_ANSWER_BYTES: usize = 8 << 20;

/// How many bytes of reports go into one answer, about: more begins another.
const REPORT_BYTES: usize = 256 << 10;

/// The most bytes of all refused consumers that one answer names; the others are left out.
const REFUSED_BYTES: usize = 1 << 20;

/// The kinds of answers.
pub mod answer {
    pub use crate::generated::volumes::answer::Answer as Kind;
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
        Ok(Self::decode(bytes)?)
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
