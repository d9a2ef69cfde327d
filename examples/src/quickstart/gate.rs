//! Holds a call at the edge on purpose, so that the link can be cut while the call is certainly under way.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use csi_proxy::{Call, Dispatcher, Fault, Relay, Replies};
use tokio::sync::Semaphore;

/// In front of a dispatcher: lets calls pass, or holds them until it is opened.
#[derive(Debug)]
pub(super) struct Gate {
    dispatcher: Dispatcher,
    closed: AtomicBool,
    arrived: Semaphore,
    passes: Semaphore,
}

impl Gate {
    /// An open gate.
    pub(super) fn new(dispatcher: Dispatcher) -> Self {
        Self {
            dispatcher,
            closed: AtomicBool::new(false),
            arrived: Semaphore::new(0),
            passes: Semaphore::new(0),
        }
    }

    /// Holds the next CreateVolume.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until a call is held.
    pub(super) async fn holds_a_call(&self) {
        if let Ok(arrived) = self.arrived.acquire().await {
            arrived.forget();
        }
    }

    /// Lets the held call pass.
    pub(super) fn open(&self) {
        self.passes.add_permits(1);
    }
}

#[async_trait]
impl Relay for Gate {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if call.method.as_str().ends_with("/CreateVolume") && self.closed.swap(false, Ordering::Relaxed) {
            self.arrived.add_permits(1);
            if let Ok(pass) = self.passes.acquire().await {
                pass.forget();
            }
        }
        self.dispatcher.relay(call).await
    }
}
