//! A call on its way to a node.

use std::fmt;

use bytes::Bytes;
use csi_proto::{DriverName, Method};
use tokio::time::Instant;

use crate::call::{
    BadRequest, Call, CallId, Metadata, MethodPath, NodeId, Subject, protobuf, request_subjects,
};
use crate::observe::Abandoned;
use crate::relay::Relay;

/// A call whose node is not selected yet.
#[derive(Clone)]
pub(crate) struct InboundCall {
    pub(crate) method: MethodPath,
    pub(crate) metadata: Metadata,
    pub(crate) body: Bytes,
    /// The deadline of the caller.
    pub(crate) end: Instant,
    /// Why the answer is not read to its end.
    pub(crate) abandoned: Abandoned,
}

impl InboundCall {
    /// Creates the call to a node.
    pub(crate) fn call(&self, node: NodeId, driver: DriverName) -> Call {
        let remaining = self.end.saturating_duration_since(Instant::now());
        let call = Call::new(CallId::new(), node, driver, self.method.clone(), self.body.clone());
        call.with_remaining(remaining).with_metadata(self.metadata.clone())
    }
}

impl fmt::Debug for InboundCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InboundCall({}, {} bytes)", self.method, self.body.len())
    }
}

/// A call of a known method that is being routed, and the relay to the nodes.
#[derive(Clone, Copy)]
pub(super) struct RoutedCall<'a> {
    pub(super) relay: &'a dyn Relay,
    pub(super) inbound: &'a InboundCall,
    pub(super) method: Method,
}

impl<'a> RoutedCall<'a> {
    /// The same call with other contents.
    pub(super) fn with(self, inbound: &'a InboundCall) -> Self {
        Self { inbound, ..self }
    }

    /// The subjects that the request names.
    pub(super) fn subjects(self) -> Result<Vec<Subject>, BadRequest> {
        subjects(self.method, &self.inbound.body)
    }

    /// Whether the request has secrets.
    pub(super) fn has_secrets(self) -> bool {
        let field = self.method.secrets_field();
        field.is_some_and(|field| protobuf::count(&self.inbound.body, field.number) > 0)
    }

    /// The call without its secrets.
    ///
    /// # Errors
    /// If the request is not a message.
    pub(super) fn without_secrets(self) -> Result<InboundCall, BadRequest> {
        let Some(field) = self.method.secrets_field() else { return Ok(self.inbound.clone()) };
        let body = protobuf::remove_field(&self.inbound.body, field.number);
        let body = body.ok_or(BadRequest::NotAMessage)?.into();
        Ok(InboundCall { body, ..self.inbound.clone() })
    }
}

/// The subjects that a request names.
pub(super) fn subjects(method: Method, body: &[u8]) -> Result<Vec<Subject>, BadRequest> {
    request_subjects(method, &protobuf::fields(body).ok_or(BadRequest::NotAMessage)?)
}
