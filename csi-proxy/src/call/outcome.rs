//! How a call ended, and which component decided.

use std::fmt;

use bytes::Bytes;

use crate::call::text::printable;
use crate::call::{Fault, Metadata};
use csi_proto::Code;

/// The component that decided an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The driver. The caller receives the outcome unchanged.
    Driver,
    /// The endpoint, for what is never relayed: a start-up call, a Node RPC, or a request that is not gRPC.
    Endpoint,
    /// A fault of the relay; the driver may not have received the call.
    Relay(Box<Fault>),
}

/// The status that ends a call.
///
/// `Debug` prints only the size of the details and the names of the trailers. Messages of the relay are printed,
/// but only the length of a driver's message, since drivers repeat requests in messages, including secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The component that decided the outcome.
    pub origin: Origin,
    /// The gRPC code.
    pub code: Code,
    /// The message, decoded from the percent-encoding of the wire.
    pub message: String,
    /// The bytes of `grpc-status-details-bin`, decoded from base64; empty if absent.
    pub details: Bytes,
    /// The driver's other trailers, at most [`MAX_METADATA`](crate::MAX_METADATA) bytes.
    pub trailers: Metadata,
}

impl Outcome {
    /// Creates a success of the driver.
    #[must_use]
    pub fn ok() -> Self {
        Self::from_driver(Code::OK, "")
    }

    /// Creates a status of the driver.
    #[must_use]
    pub fn from_driver(code: Code, message: impl Into<String>) -> Self {
        Self::new(Origin::Driver, code, message)
    }

    /// Creates a status of the endpoint itself.
    #[must_use]
    pub fn from_endpoint(code: Code, message: impl Into<String>) -> Self {
        Self::new(Origin::Endpoint, code, message)
    }

    /// Sets the detail bytes.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.details = details.into();
        self
    }

    /// Sets the trailers.
    #[must_use]
    pub fn with_trailers(mut self, trailers: Metadata) -> Self {
        self.trailers = trailers;
        self
    }

    /// Whether the call succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.code == Code::OK
    }

    /// The fault, if the relay failed.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        match &self.origin {
            Origin::Relay(fault) => Some(fault),
            Origin::Driver | Origin::Endpoint => None,
        }
    }

    /// The message for logs on one line, without the text of a driver.
    pub(crate) fn redacted_message(&self) -> String {
        match self.origin {
            Origin::Driver => format!("{} bytes, sent to the caller only", self.message.len()),
            Origin::Endpoint | Origin::Relay(_) => printable(&self.message),
        }
    }

    fn new(origin: Origin, code: Code, message: impl Into<String>) -> Self {
        Self { origin, code, message: message.into(), details: Bytes::new(), trailers: Metadata::default() }
    }
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        let (code, message) = (fault.code(), fault.to_string());
        Self::new(Origin::Relay(Box::new(fault)), code, message)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("origin", &self.origin)
            .field("code", &self.code)
            .field("message", &self.redacted_message())
            .field("details", &format_args!("{} bytes", self.details.len()))
            .field("trailers", &self.trailers)
            .finish()
    }
}
