//! No way at all: the far end is in this process.

use async_trait::async_trait;

use super::{Relay, RelayError};
use crate::call::Call;
use crate::dispatcher::Dispatcher;
use crate::replies::Replies;

/// Hands calls straight to the far end, usually a [`Dispatcher`]. With an [`Endpoint`](crate::Endpoint) in front this is the
/// edge shim: the agent's own socket before a driver's.
#[derive(Debug, Clone)]
pub struct MemoryRelay<R = Dispatcher> {
    far: R,
}

impl<R: Relay> MemoryRelay<R> {
    /// A relay to this far end.
    #[must_use]
    pub fn new(far: R) -> Self {
        Self { far }
    }
}

#[async_trait]
impl<R: Relay> Relay for MemoryRelay<R> {
    async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
        self.far.relay(call).await
    }
}
