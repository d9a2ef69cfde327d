//! Planted faults: each breaks one rule of the delivery guarantee, and the oracle has to find it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csi_proxy::advanced::call::{CallNumber, Fence, GivenUp};
use csi_proxy::{Call, CallId, Delivery, Fault, Relay, Replies, Term};

/// A deliberate fault in a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[non_exhaustive]
pub enum Planted {
    /// A proxy sends a call that may have begun to another instance of its agent.
    OtherInstance,
    /// A proxy reports a call that may have been sent as not sent.
    CalledNotSent,
    /// A proxy gives up calls without the reconnect grace.
    NoGrace,
    /// Calls have no fence, and each copy has a new id.
    NoFence,
    /// The fence of a call does not contain the calls that were given up.
    NoGivenUp,
    /// All proxies have the same term.
    NoTerm,
    /// Calls are not addressed to a session of their node.
    NoSession,
    /// Each copy of a call has a new number and a new id.
    FreshNumbers,
}

impl Planted {
    /// Wraps the relay below the retries of a proxy.
    pub(crate) fn below<R: Relay + 'static>(planted: Option<Self>, relay: R) -> Arc<dyn Relay> {
        match planted {
            Some(Self::NoFence | Self::NoGivenUp | Self::NoTerm | Self::NoSession | Self::FreshNumbers) => {
                Arc::new(Below { relay, planted, numbers: AtomicU64::new(1 << 32) })
            }
            _ => Arc::new(relay),
        }
    }

    /// Wraps the relay above the retries of a proxy.
    pub(crate) fn above<R: Relay + 'static>(planted: Option<Self>, relay: R) -> Arc<dyn Relay> {
        match planted {
            Some(Self::OtherInstance | Self::CalledNotSent) => Arc::new(Above { relay, planted }),
            _ => Arc::new(relay),
        }
    }
}

/// A relay below the one that retries.
struct Below<R> {
    relay: R,
    planted: Option<Planted>,
    numbers: AtomicU64,
}

impl<R> Below<R> {
    fn changed(&self, fence: &Fence) -> Option<Fence> {
        let (mut term, mut number) = (fence.term(), fence.number());
        let (mut lowest, mut given_up) = (fence.lowest_open(), fence.given_up().clone());
        match self.planted {
            Some(Planted::NoGivenUp) => (lowest, given_up) = (CallNumber::FIRST, GivenUp::default()),
            Some(Planted::NoTerm) => term = Term::CLOCK_MAX,
            Some(Planted::FreshNumbers) => {
                number = CallNumber::new(self.numbers.fetch_add(1, Ordering::Relaxed))?;
                (lowest, given_up) = (CallNumber::FIRST, GivenUp::default());
            }
            _ => return None,
        }
        Fence::new(term, number, lowest, given_up).ok()
    }
}

#[async_trait::async_trait]
impl<R: Relay> Relay for Below<R> {
    async fn relay(&self, mut call: Call) -> Result<Replies, Fault> {
        if let Some(Planted::NoFence | Planted::FreshNumbers) = self.planted {
            // The attempt is in the first half of the id.
            let mut id = *call.id.as_bytes();
            id[8..].copy_from_slice(&self.numbers.fetch_add(1, Ordering::Relaxed).to_le_bytes());
            call.id = CallId::from_bytes(id);
        }
        match self.planted {
            Some(Planted::NoSession) => call.session = None,
            _ => call.fence = call.fence.as_ref().and_then(|fence| self.changed(fence)),
        }
        self.relay.relay(call).await
    }
}

/// A relay above the one that retries.
struct Above<R> {
    relay: R,
    planted: Option<Planted>,
}

#[async_trait::async_trait]
impl<R: Relay> Relay for Above<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let lost = |error: &Fault| error.delivery() == Delivery::Unknown;
        match self.relay.relay(call.clone()).await {
            Err(error) if lost(&error) && self.planted == Some(Planted::CalledNotSent) => {
                Err(Fault::NodeOffline { node: call.node })
            }
            Err(error) if lost(&error) => self.relay.relay(call).await,
            end => end,
        }
    }
}
