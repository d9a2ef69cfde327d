//! Blocks a call at the edge, so that the link can be cut while the call is running.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use csi_proxy::{Call, Dispatcher, Fault, Relay, Replies};
use tokio::sync::Notify;

/// A relay in front of a dispatcher, which passes calls on or holds the next CreateVolume until it is opened.
#[derive(Debug)]
pub(super) struct Gate {
    dispatcher: Dispatcher,
    closed: AtomicBool,
    arrived: Notify,
    passes: Notify,
}

impl Gate {
    /// Creates an open gate.
    pub(super) fn new(dispatcher: Dispatcher) -> Self {
        Self { dispatcher, closed: AtomicBool::default(), arrived: Notify::new(), passes: Notify::new() }
    }

    /// Holds the next CreateVolume.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until a call is held.
    pub(super) async fn holds_a_call(&self) {
        self.arrived.notified().await;
    }

    /// Lets the held call pass.
    pub(super) fn open(&self) {
        self.passes.notify_one();
    }
}

#[async_trait]
impl Relay for Gate {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if call.method.as_str().ends_with("/CreateVolume") && self.closed.swap(false, Ordering::Relaxed) {
            self.arrived.notify_one();
            self.passes.notified().await;
        }
        self.dispatcher.relay(call).await
    }
}
