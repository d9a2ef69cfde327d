//! Which node a call goes to.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::{MethodPath, NodeId};
use crate::fault::Fault;
use crate::outcome::Outcome;

/// Chooses the node of a call. May decode a copy of the body; never changes it.
#[async_trait]
pub trait Route: Send + Sync {
    /// The node whose driver is to answer.
    ///
    /// # Errors
    /// If no node can be chosen, or the question is answered without any node.
    async fn route(&self, method: &MethodPath, body: &Bytes) -> Result<NodeId, RouteError>;
}

/// A call goes to no node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// None can be chosen now.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The router knows the answer itself. Its status reaches the caller as it is, so a final code is for it to justify.
    #[error("answered by the router: {} {}", .0.code, .0.message)]
    Answered(Box<Outcome>),
}

/// The router of an endpoint: one of ours, or any [`Route`]. Cheap to clone.
#[derive(Clone)]
pub struct Router(Mode);

#[derive(Clone)]
enum Mode {
    Fixed(NodeId),
    Other(Arc<dyn Route>),
}

impl Router {
    /// Every call goes to this node.
    #[must_use]
    pub fn fixed(node: NodeId) -> Self {
        Self(Mode::Fixed(node))
    }

    /// Asks this for every call.
    pub fn new(route: impl Route + 'static) -> Self {
        Self(Mode::Other(Arc::new(route)))
    }

    /// The node of every call, if there is one.
    pub(crate) fn only_node(&self) -> Option<&NodeId> {
        match &self.0 {
            Mode::Fixed(node) => Some(node),
            Mode::Other(_) => None,
        }
    }
}

#[async_trait]
impl Route for Router {
    async fn route(&self, method: &MethodPath, body: &Bytes) -> Result<NodeId, RouteError> {
        match &self.0 {
            Mode::Fixed(node) => Ok(node.clone()),
            Mode::Other(route) => route.route(method, body).await,
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Mode::Fixed(node) => f.debug_tuple("Fixed").field(node).finish(),
            Mode::Other(_) => f.write_str("Other"),
        }
    }
}
