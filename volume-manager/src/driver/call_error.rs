//! Why a call is not known to be good.

use std::time::Duration;

use csi_proto::{DriverName, Method};

use super::secret_reference::SecretReference;
use crate::name::ConsumerId;

/// How a call to a driver failed. No variant holds a secret: what a driver wrote is searched for the values it was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not sent: this cannot be asked of this driver.
    #[error("{} was not sent", method.name())]
    Request {
        /// The method.
        method: Method,
        /// Why.
        #[source]
        reason: RequestError,
    },
    /// Not sent: a secret could not be had.
    #[error("{} was not sent", method.name())]
    Secret {
        /// The method.
        method: Method,
        /// Why.
        #[source]
        reason: SecretError,
    },
    /// Not sent: the driver could not be reached, its connection was gone, or it refused to take a call.
    #[error("{} was not sent: {reason}", method.name())]
    NotSent {
        /// The method.
        method: Method,
        /// Why, at most 1 KiB.
        reason: String,
    },
    /// The driver answered with an error.
    #[error("{} answered code {code}: {message}", method.name())]
    Status {
        /// The method.
        method: Method,
        /// The gRPC code as the driver sent it; never 0.
        code: i32,
        /// What the driver says, at most 4 KiB, with the secrets of the call taken out.
        message: String,
    },
    /// No answer in time. The call may still be running.
    #[error("{} was not answered within {bound:?}; it may still be running", method.name())]
    Late {
        /// The method.
        method: Method,
        /// The time that it had.
        bound: Duration,
    },
    /// The connection broke before the answer was whole. The call may still be running.
    #[error("the connection broke during {}: {reason}; it may still be running", method.name())]
    Broken {
        /// The method.
        method: Method,
        /// How, at most 1 KiB.
        reason: String,
    },
    /// The driver said OK, and the rest of the answer cannot be right.
    #[error("the answer of {} cannot be used: {reason}", method.name())]
    Answer {
        /// The method.
        method: Method,
        /// What is wrong with it, at most 1 KiB.
        reason: String,
    },
}

impl CallError {
    /// The gRPC code, if the driver answered with an error. Codes that were made up on the way are none.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the driver may have seen the call. A call that was not sent changed nothing; but an earlier one of its
    /// kind may still be running.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        match self {
            Self::Request { .. } | Self::Secret { .. } | Self::NotSent { .. } => false,
            Self::Status { .. } | Self::Late { .. } | Self::Broken { .. } | Self::Answer { .. } => true,
        }
    }

    /// The method that was called, or should have been.
    #[must_use]
    pub fn method(&self) -> Method {
        match self {
            Self::Request { method, .. }
            | Self::Secret { method, .. }
            | Self::NotSent { method, .. }
            | Self::Status { method, .. }
            | Self::Late { method, .. }
            | Self::Broken { method, .. }
            | Self::Answer { method, .. } => *method,
        }
    }
}

/// Why an operation cannot be asked of a driver at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The volume is another driver's.
    #[error("the volume belongs to driver {expected}, and this is {found}; ask the other one")]
    Driver {
        /// The volume's driver.
        expected: DriverName,
        /// The driver that was asked.
        found: DriverName,
    },
    /// The driver does not have the call.
    #[error("the driver lacks {capability}; leave the call out")]
    Capability {
        /// The capability, as the spec names it.
        capability: &'static str,
    },
    /// A volume of an ephemeral kind has no such call.
    #[error("the volume is ephemeral, which is only ever published and unpublished")]
    Ephemeral,
    /// The driver does not take such a volume.
    #[error(
        "volumeLifecycleModes of the driver has no {mode}, as the volume is; use a driver that takes such volumes"
    )]
    LifecycleMode {
        /// `Persistent` or `Ephemeral`.
        mode: &'static str,
    },
    /// There is no id to attach to or detach from.
    #[error("the driver has no id of this node; it needs NodeGetInfo to attach volumes")]
    NoNodeId,
    /// The driver wants tokens of a pod, and there is no pod.
    #[error("the driver asks for service-account tokens, and {consumer} is no pod; give its PodInfo")]
    NoPod {
        /// Who it is for.
        consumer: ConsumerId,
    },
}

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
