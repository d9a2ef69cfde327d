//! Why a secret cannot be had.

use std::time::Duration;

use super::secret_reference::SecretReference;

/// Why there is no secret. None of the texts may hold a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// There is no secret of this name.
    #[error("there is no secret {reference}; make it, or take the reference out of the volume")]
    NotFound {
        /// The name.
        reference: SecretReference,
    },
    /// It may be there, and cannot be had now.
    #[error("secret {reference} cannot be had now: {reason}")]
    Unavailable {
        /// The name.
        reference: SecretReference,
        /// Why.
        reason: String,
    },
    /// More than [`SecretReference::MAX_VALUE_BYTES`].
    #[error("secret {reference} has {found} bytes; at most {} are sent", SecretReference::MAX_VALUE_BYTES)]
    TooLarge {
        /// The name.
        reference: SecretReference,
        /// The bytes of all keys and values.
        found: usize,
    },
    /// Nobody issues tokens here.
    #[error(
        "the driver asks for service-account tokens, and nobody issues them here; implement Secrets::service_account_tokens"
    )]
    NoTokens,
    /// Tokens cannot be had now.
    #[error("service-account tokens cannot be had now: {reason}")]
    TokensUnavailable {
        /// Why.
        reason: String,
    },
    /// The resolver did not answer.
    #[error("the secrets were not resolved within {bound:?}")]
    Late {
        /// The time that it had.
        bound: Duration,
    },
}
