//! Errors of calls to a driver.

use std::time::Duration;

use csi_proto::{DriverName, Method};

use super::secret_reference::SecretReference;
use crate::name::ConsumerId;

/// Why a call to a driver failed. No variant holds a secret: the values that were sent are stripped from the driver's messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not sent: the driver does not support the operation.
    #[error("{} was not sent", method.name())]
    Request {
        /// The method.
        method: Method,
        /// Why.
        #[source]
        reason: RequestError,
    },
    /// Not sent: a secret could not be resolved.
    #[error("{} was not sent", method.name())]
    Secret {
        /// The method.
        method: Method,
        /// Why.
        #[source]
        reason: SecretError,
    },
    /// Not sent: the driver could not be reached, the connection was lost, or the driver accepted no more calls.
    #[error("{} was not sent: {reason}", method.name())]
    NotSent {
        /// The method.
        method: Method,
        /// The reason, at most 1 KiB.
        reason: String,
    },
    /// The driver answered with an error.
    #[error("{} answered code {code}: {message}", method.name())]
    Status {
        /// The method.
        method: Method,
        /// The gRPC code as the driver sent it; never 0.
        code: i32,
        /// The driver's message, at most 4 KiB, with the secrets of the call stripped.
        message: String,
    },
    /// The deadline was exceeded. The call may still be running.
    #[error("{} was not answered within {bound:?}; it may still be running", method.name())]
    Timeout {
        /// The method.
        method: Method,
        /// The timeout.
        bound: Duration,
    },
    /// The connection broke before the answer was whole. The call may still be running.
    #[error("the connection broke during {}: {reason}; it may still be running", method.name())]
    Broken {
        /// The method.
        method: Method,
        /// How the connection broke, at most 1 KiB.
        reason: String,
    },
    /// The driver answered OK with an invalid message.
    #[error("the answer of {} is invalid: {reason}", method.name())]
    Answer {
        /// The method.
        method: Method,
        /// What is wrong with the answer, at most 1 KiB.
        reason: String,
    },
}

impl CallError {
    /// The gRPC code, if the driver answered with an error. `None` for failures on this side of the connection.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the driver may have received the call. A call that was not sent changed nothing; an earlier attempt may still
    /// be running.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        match self {
            Self::Request { .. } | Self::Secret { .. } | Self::NotSent { .. } => false,
            Self::Status { .. } | Self::Timeout { .. } | Self::Broken { .. } | Self::Answer { .. } => true,
        }
    }

    /// The method of the call.
    #[must_use]
    pub fn method(&self) -> Method {
        match self {
            Self::Request { method, .. }
            | Self::Secret { method, .. }
            | Self::NotSent { method, .. }
            | Self::Status { method, .. }
            | Self::Timeout { method, .. }
            | Self::Broken { method, .. }
            | Self::Answer { method, .. } => *method,
        }
    }
}

/// Why an operation cannot be sent to a driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The volume belongs to another driver.
    #[error(
        "the volume belongs to driver {expected}, but the connection is to driver {found}; use the volume's driver"
    )]
    Driver {
        /// The volume's driver.
        expected: DriverName,
        /// The driver of the connection.
        found: DriverName,
    },
    /// The driver does not support the call.
    #[error("the driver does not have the capability {capability}; skip the call")]
    Capability {
        /// The capability's name in the CSI spec.
        capability: &'static str,
    },
    /// The call does not exist for ephemeral volumes.
    #[error("the volume is ephemeral; ephemeral volumes are only published and unpublished")]
    Ephemeral,
    /// The driver does not support the volume's lifecycle mode.
    #[error(
        "volumeLifecycleModes of the driver does not contain {mode}, the volume's mode; use a driver that supports it"
    )]
    LifecycleMode {
        /// The volume's mode: `Persistent` or `Ephemeral`.
        mode: &'static str,
    },
    /// The node id for attach and detach is unknown.
    #[error(
        "the driver did not report a node id; attaching volumes needs a driver that implements NodeGetInfo"
    )]
    NoNodeId,
    /// The driver requests tokens of a pod, and the consumer is not a pod.
    #[error("the driver requests service-account tokens, and {consumer} is not a pod; set its PodInfo")]
    NoPod {
        /// The consumer.
        consumer: ConsumerId,
    },
}

/// Why a secret could not be resolved. The texts must not contain a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret does not exist.
    #[error("secret {reference} not found; create it, or remove the reference from the volume")]
    NotFound {
        /// The reference.
        reference: SecretReference,
    },
    /// The secret may exist, but cannot be read now.
    #[error("secret {reference} is unavailable: {reason}")]
    Unavailable {
        /// The reference.
        reference: SecretReference,
        /// Why.
        reason: String,
    },
    /// The keys and values of the secret exceed [`SecretReference::MAX_VALUE_BYTES`].
    #[error("secret {reference} has {found} bytes; at most {} are sent", SecretReference::MAX_VALUE_BYTES)]
    TooLarge {
        /// The reference.
        reference: SecretReference,
        /// The total bytes of keys and values.
        found: usize,
    },
    /// Service-account tokens are not supported by the [`Secrets`](super::Secrets) implementation.
    #[error(
        "the driver requests service-account tokens, which are not supported here; implement Secrets::service_account_tokens"
    )]
    NoTokens,
    /// Tokens cannot be issued now.
    #[error("service-account tokens are unavailable: {reason}")]
    TokensUnavailable {
        /// Why.
        reason: String,
    },
    /// The secret provider did not answer in time.
    #[error("the secrets were not resolved within {bound:?}")]
    Timeout {
        /// The timeout.
        bound: Duration,
    },
}
