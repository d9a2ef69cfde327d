//! A CSI call as a message, its answer and its failures, for the endpoint and the dispatcher.

mod digest;
mod drained;
pub(crate) mod fault;
mod fence;
mod id;
mod metadata;
mod method;
mod node;
mod outcome;
pub(crate) mod protobuf;
mod replies;
pub(crate) mod subject;
pub(crate) mod text;
pub mod wire;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use self::digest::Digest;
pub use self::drained::Drained;
pub use self::fault::Fault;
pub use self::fence::{CallNumber, Fence, GivenUp, InvalidFence, MAX_GIVEN_UP, NodeSession, Term};
pub use self::id::CallId;
pub use self::metadata::{MAX_METADATA, Metadata, MetadataError};
pub use self::method::{InvalidMethodPath, MAX_METHOD_PATH, MethodPath};
pub use self::node::{InvalidNodeId, MAX_NODE_ID, NodeId};
pub use self::outcome::{Origin, Outcome};
pub use self::replies::{Replies, Reply};
pub use self::subject::{BadRequest, Key, MAX_SUBJECT, MAX_SUBJECTS, Subject};
#[cfg(feature = "runtime")]
pub(crate) use self::subject::{created_subjects, request_subjects};
use csi_proto::DriverName;

/// Every call needs dozens of lookups. The hash has a random key, so that no caller can choose names that collide.
#[cfg(feature = "runtime")]
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A call to one driver on one node, with the request not decoded.
///
/// The body is the protobuf message as the caller sent it, forwarded byte for byte: unknown fields and methods
/// pass unchanged. The body may contain secrets, so `Debug` prints its length only.
#[derive(Clone)]
#[non_exhaustive]
pub struct Call {
    /// Identifies this call in every log.
    pub id: CallId,
    /// The node of the driver.
    pub node: NodeId,
    /// The driver that executes the call.
    pub driver: DriverName,
    /// The gRPC method.
    pub method: MethodPath,
    /// How long the caller still waits; `None` without a deadline. Does not limit the execution in the driver.
    pub remaining: Option<Duration>,
    /// The forwarded request headers, at most [`MAX_METADATA`] bytes.
    pub metadata: Metadata,
    /// Prevents a stale copy of the call from beginning at the node. `None` for a call made on the node itself.
    pub fence: Option<Fence>,
    /// Whether the call came from another host, as every [decoded](Self::decode) call did. Limits how much of the node's
    /// capacity the call may use; not part of the [wire] form.
    pub remote: bool,
    /// The session of the node that the call is addressed to; `None` for any. Used by the underlying relay and not
    /// part of the [wire] form.
    pub session: Option<NodeSession>,
    /// The request message.
    pub body: Bytes,
}

impl Call {
    /// Creates a call without a deadline and without metadata.
    #[must_use]
    pub fn new(id: CallId, node: NodeId, driver: DriverName, method: MethodPath, body: Bytes) -> Self {
        let metadata = Metadata::default();
        Self {
            id,
            node,
            driver,
            method,
            remaining: None,
            metadata,
            fence: None,
            remote: false,
            session: None,
            body,
        }
    }

    /// Sets how long the caller still waits.
    #[must_use]
    pub fn with_remaining(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// Sets the headers.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sets the fence.
    #[must_use]
    pub fn with_fence(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("node", &self.node)
            .field("driver", &self.driver)
            .field("method", &self.method)
            .field("remaining", &self.remaining)
            .field("metadata", &self.metadata)
            .field("fence", &self.fence)
            .field("remote", &self.remote)
            .field("session", &self.session)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_print_the_body() {
        let call = Call::new(
            CallId::from_bytes([7; 16]),
            NodeId::new("edge-1").unwrap(),
            DriverName::new("csi-hostpath").unwrap(),
            MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap(),
            Bytes::from_static(b"canary"),
        );
        for text in [format!("{call:?}"), format!("{call:#?}")] {
            assert!(!text.contains("canary") && !text.contains("99, 97"), "{text}");
            assert!(text.contains("6 bytes"), "{text}");
        }
    }
}
