//! How a call ended, and who says so.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::call::{Fault, Metadata};
use csi_proto::Code;

/// Who decided an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The driver. The caller gets it unchanged.
    Driver,
    /// The endpoint, about a question that never travels: a start-up call, a Node RPC, or a request that is not gRPC.
    Endpoint,
    /// A fault on our own way; the driver may not even have seen the call.
    Relay(Box<Fault>),
}

/// The status that ends a call.
///
/// `Debug` prints the size of the details only, and of the trailers the names. Of the message it prints our own words; of
/// the driver's only how long they are, since drivers repeat requests in them, secrets and all.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Who decided it.
    pub origin: Origin,
    /// The gRPC code.
    pub code: Code,
    /// The message as text; what goes over the wire percent-encoded is decoded here.
    pub message: String,
    /// The bytes of `grpc-status-details-bin`, decoded from base64; empty if there were none.
    pub details: Bytes,
    /// The driver's other trailers, at most [`MAX_METADATA`](crate::MAX_METADATA) bytes.
    pub trailers: Metadata,
}

impl Outcome {
    /// The driver succeeded.
    #[must_use]
    pub fn ok() -> Self {
        Self::from_driver(Code::OK, "")
    }

    /// The driver said so.
    #[must_use]
    pub fn from_driver(code: Code, message: impl Into<String>) -> Self {
        Self::new(Origin::Driver, code, message)
    }

    /// The endpoint itself answers so.
    #[must_use]
    pub fn from_endpoint(code: Code, message: impl Into<String>) -> Self {
        Self::new(Origin::Endpoint, code, message)
    }

    /// The same outcome with these detail bytes.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.details = details.into();
        self
    }

    /// The same outcome with these trailers.
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

    /// The fault, if it is one of ours.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        match &self.origin {
            Origin::Relay(fault) => Some(fault),
            Origin::Driver | Origin::Endpoint => None,
        }
    }

    /// What of the message may stand in a log.
    pub(crate) fn loggable(&self) -> Cow<'_, str> {
        match self.origin {
            Origin::Driver => format!("{} bytes, told to the caller only", self.message.len()).into(),
            Origin::Endpoint | Origin::Relay(_) => self.message.as_str().into(),
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
            .field("message", &self.loggable())
            .field("details", &format_args!("{} bytes", self.details.len()))
            .field("trailers", &self.trailers)
            .finish()
    }
}
