//! The answers of a node: the generated messages, with constructors.

use prost::Message;

use super::error::InvalidMessage;
pub use crate::generated::volumes::{
    Answer, ConsumerReport, Quarantined, Reconciled, Refusal, Refused, VolumeReport, VolumeReports, refusal,
};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::{self, Explanation, PublishError};

/// The maximum size of an answer in bytes.
pub const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The approximate maximum size of the reports in one answer, in bytes; further reports start another answer.
const MAX_REPORT_BYTES: usize = 256 << 10;

/// The maximum total size of rejected consumers in one answer, in bytes; the rest are omitted.
const MAX_REFUSED_BYTES: usize = 1 << 20;

/// The kinds of answers.
pub mod answer {
    pub use crate::generated::volumes::answer::Answer as Kind;
}

impl Answer {
    /// Decodes an answer.
    ///
    /// # Errors
    /// If it is larger than [`MAX_ANSWER_BYTES`], or is not an `Answer` message.
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
    /// Creates a refusal by a node whose desired set has this revision.
    #[must_use]
    pub fn new(reason: refusal::Reason, message: impl ToString, revision: u64) -> Self {
        Self { reason: reason.into(), message: message.to_string(), revision }
    }
}

impl Refused {
    /// Describes a rejected consumer.
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
    /// Describes the changes made by the desired set with this revision.
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

/// Returns the first rejected consumers, up to [`MAX_REFUSED_BYTES`] in total.
fn within_bytes(refused: impl Iterator<Item = Refused>) -> Vec<Refused> {
    refused
        .scan(0, |bytes, consumer| {
            *bytes += consumer.encoded_len();
            (*bytes <= MAX_REFUSED_BYTES).then_some(consumer)
        })
        .collect()
}

impl From<&Explanation> for VolumeReport {
    fn from(explanation: &Explanation) -> Self {
        let consumers = explanation.consumers.iter().map(|consumer| ConsumerReport {
            id: consumer.consumer.to_string(),
            target_path: consumer.target.to_string_lossy().into_owned(),
            wanted: consumer.wanted,
            published: consumer.published,
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
    /// Splits the reports into answers, at least one, of about 256 KiB each at most.
    #[must_use]
    pub fn parts(self) -> Vec<Answer> {
        let Self { revision, volumes, refused, quarantined } = self;
        let mut parts = Vec::new();
        let mut part = Self { revision, volumes: Vec::new(), refused, quarantined };
        let mut bytes = 0;
        for volume in volumes {
            let more = volume.encoded_len();
            if bytes > 0 && bytes + more > MAX_REPORT_BYTES {
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
