//! A CSI call as a message, its answer, and how either fails. Both sides use it.

pub(crate) mod fault;
mod fence;
mod id;
mod metadata;
mod method;
mod node;
mod outcome;
pub(crate) mod protobuf;
mod replies;
pub mod wire;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use self::fault::Fault;
pub use self::fence::{CallNumber, Fence, GivenUp, InvalidFence, MAX_GIVEN_UP, NodeSession, Term};
pub use self::id::CallId;
pub use self::metadata::{MAX_METADATA, Metadata, MetadataError};
pub use self::method::{InvalidMethodPath, MAX_METHOD_PATH, MethodPath};
pub use self::node::{InvalidNodeId, MAX_NODE_ID, NodeId};
pub use self::outcome::{Origin, Outcome};
pub use self::replies::{Replies, Reply};
use csi_proto::DriverName;

/// One call of one driver on one node, with nothing decoded.
///
/// The body is the protobuf message as the caller sent it, and goes on byte for byte: a field or a method that these
/// bindings do not know passes untouched. It may hold secrets, so `Debug` prints its length only.
#[derive(Clone)]
#[non_exhaustive]
pub struct Call {
    /// Names this call in every log on its way.
    pub id: CallId,
    /// The node whose driver is to answer.
    pub node: NodeId,
    /// The driver that is to answer.
    pub driver: DriverName,
    /// The gRPC method.
    pub method: MethodPath,
    /// How long the caller still waits; `None` if it set no limit. It ends the wait, never the work.
    pub remaining: Option<Duration>,
    /// The request headers that travel, at most [`MAX_METADATA`] bytes.
    pub metadata: Metadata,
    /// What keeps a stale copy of the call from beginning at the node. `None` for a call that is made on the node
    /// itself.
    pub fence: Option<Fence>,
    /// The session of the node that the call is for, or any. It is for the relay underneath, and not part of the
    /// [wire] form.
    pub session: Option<NodeSession>,
    /// The request message.
    pub body: Bytes,
}

impl Call {
    /// A call without a deadline and without metadata.
    #[must_use]
    pub fn new(id: CallId, node: NodeId, driver: DriverName, method: MethodPath, body: Bytes) -> Self {
        let metadata = Metadata::default();
        Self { id, node, driver, method, remaining: None, metadata, fence: None, session: None, body }
    }

    /// The same call from a caller who waits this long.
    #[must_use]
    pub fn with_remaining(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// The same call with these headers.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// The same call with this fence.
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
            .field("session", &self.session)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_never_prints_the_body() {
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
