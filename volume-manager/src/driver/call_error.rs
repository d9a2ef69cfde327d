//! Why a call is not known to be good.

use std::time::Duration;

use csi_proto::Method;

use super::request_error::RequestError;
use super::secret_error::SecretError;

/// How a call to a driver failed. No variant holds a secret: what a driver wrote is searched for the values it was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not sent: this cannot be asked of this driver.
    #[error("{} was not sent: {reason}", method.name())]
    Request {
        /// The method.
        method: Method,
        /// Why.
        reason: RequestError,
    },
    /// Not sent: a secret could not be had.
    #[error("{} was not sent: {reason}", method.name())]
    Secret {
        /// The method.
        method: Method,
        /// Why.
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
