//! Open calls: their numbers and buffered bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call_numbers::{Closed, MAX_OPEN, Numbers};
use crate::call::{Call, CallNumber, Fault, Fence, NodeId, Term};

/// The maximum size of the buffered requests of all open calls together. A call beyond this size is sent once and
/// never waits.
pub(super) const MAX_BUFFERED_BYTES: usize = 64 << 20;

/// The size of a buffered call in bytes, without its body and metadata.
const CALL_OVERHEAD: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    numbers: Mutex<Numbers>,
    buffered: AtomicUsize,
}

impl OpenCalls {
    /// Opens a call: assigns its number, and reserves the bytes of its request if they fit.
    pub(super) fn open(self: &Arc<Self>, call: &Call) -> Result<OpenCall, Fault> {
        let Some(number) = self.numbers().open(&call.node) else {
            let what = format!("the proxy's table of open calls to node {}", call.node);
            return Err(Fault::Overloaded { what, max: MAX_OPEN as u64 });
        };
        let bytes = CALL_OVERHEAD + call.body.len() + call.metadata.bytes();
        let fits =
            |buffered: usize| buffered.checked_add(bytes).filter(|buffered| *buffered <= MAX_BUFFERED_BYTES);
        let buffered =
            self.buffered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_or(0, |_| bytes);
        let (calls, node) = (Arc::clone(self), call.node.clone());
        Ok(OpenCall { calls, node, number, buffered, closed: Closed::GivenUp })
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open call. A call that is dropped before [`Self::answered`] is given up.
#[derive(Debug)]
pub(super) struct OpenCall {
    calls: Arc<OpenCalls>,
    node: NodeId,
    number: CallNumber,
    /// The buffered bytes; 0 if the request cannot be buffered.
    buffered: usize,
    closed: Closed,
}

impl OpenCall {
    /// Whether the request may be buffered, so that the call can wait or be sent again.
    pub(super) const fn may_be_buffered(&self) -> bool {
        self.buffered > 0
    }

    /// The fence of the next attempt.
    pub(super) fn fence(&self, term: Term) -> Result<Fence, Fault> {
        let fence = self.calls.numbers().fence(&self.node, term, self.number);
        fence.map_err(|error| Fault::Protocol { reason: error.to_string() })
    }

    /// Marks the call as answered.
    pub(super) fn answered(&mut self) {
        self.closed = Closed::Answered;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.numbers().close(&self.node, self.number, self.closed);
        self.calls.buffered.fetch_sub(self.buffered, Ordering::Relaxed);
    }
}
