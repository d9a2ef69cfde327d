//! The answer of a driver to an operation.

use std::sync::Arc;

use bytes::Bytes;

use super::identity::Identity;
use crate::call::subject::{self, Key};
use crate::call::{Origin, Outcome};

/// The complete answer of a driver, success or failure. Cheap to clone. `Debug` does not print the message.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Answer(Arc<(Option<Bytes>, Outcome)>);

impl Answer {
    /// Creates an answer, if the driver decided the outcome and not the relay.
    pub(crate) fn new(message: Option<Bytes>, outcome: Outcome) -> Option<Self> {
        (outcome.origin == Origin::Driver).then(|| Self(Arc::new((message, outcome))))
    }

    /// The message, as the driver sent it.
    pub(crate) fn message(&self) -> Option<&Bytes> {
        self.0.0.as_ref()
    }

    /// The status.
    pub(crate) fn outcome(&self) -> &Outcome {
        &self.0.1
    }

    /// Message and status.
    pub(crate) fn into_parts(self) -> (Option<Bytes>, Outcome) {
        Arc::unwrap_or_clone(self.0)
    }

    /// Whether the answer ends the operation. An answer with one of the four codes that request a retry does not:
    /// the retry must reach the driver, and not get the earlier answer.
    pub(crate) fn is_final(&self) -> bool {
        !self.outcome().code.may_be_running()
    }

    /// The subjects that a success adds to those of the request: the ids of created resources.
    pub(crate) fn keys(&self, identity: &Identity) -> Vec<Key> {
        let message = self.message().filter(|_| self.outcome().is_ok());
        let subjects =
            message.map(|message| subject::created_subjects(identity.method(), message)).unwrap_or_default();
        let keys = subjects.into_iter().map(|subject| Key::new(identity.driver().clone(), subject));
        keys.filter(|key| !identity.keys().contains(key)).collect()
    }

    /// The approximate memory use in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let Outcome { message, details, trailers, .. } = self.outcome();
        let trailers: usize = trailers.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        256 + self.message().map_or(0, Bytes::len) + message.len() + details.len() + trailers
    }

    /// Copies the answer to memory of its own: the original may reference the buffer of a whole connection.
    pub(super) fn compacted(&self) -> Self {
        let (message, outcome) = &*self.0;
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let (message, outcome) = (message.as_ref().map(copy), outcome.clone());
        let outcome = Outcome { details: copy(&outcome.details), ..outcome };
        Self(Arc::new((message, outcome)))
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("message", &self.message().map(|message| format!("{} bytes", message.len())))
            .field("outcome", self.outcome())
            .finish()
    }
}
