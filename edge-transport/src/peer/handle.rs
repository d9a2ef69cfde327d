//! The handle of a running peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::runtime::{Command, ControlMessage, DriverHandle};
use super::{CallError, ConnectError, PeerBuilder, PeerSettings, PeerState, Refusal, ReplyStream};
use crate::frame::{HEADROOM, MAX_METADATA, Request};
use crate::name::PeerId;

/// A running peer. Cheap to clone; when the last clone is dropped the peer closes.
#[derive(Clone, Debug)]
pub struct Peer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: PeerId,
    handle: DriverHandle,
    state: watch::Receiver<PeerState>,
    settings: PeerSettings,
    numbers: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.handle.control.send(ControlMessage::Close);
    }
}

impl Peer {
    /// Builds a peer.
    pub fn builder(name: PeerId) -> PeerBuilder {
        PeerBuilder::new(name)
    }

    pub(super) fn new(
        name: PeerId,
        handle: DriverHandle,
        state: watch::Receiver<PeerState>,
        settings: PeerSettings,
    ) -> Self {
        Self { shared: Arc::new(Shared { name, handle, state, settings, numbers: AtomicU64::new(0) }) }
    }

    /// Whether both are handles of one running peer.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// This peer's name.
    #[must_use]
    pub fn name(&self) -> &PeerId {
        &self.shared.name
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> PeerState {
        self.shared.state.borrow().clone()
    }

    /// Watches the state of the connection.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<PeerState> {
        self.shared.state.clone()
    }

    /// Waits until a hub is connected, however long that takes: a refused peer tries again and again. See
    /// [`connected_within`](Self::connected_within). Dropping the future changes nothing.
    ///
    /// # Errors
    /// If the peer is closed.
    pub async fn connected(&self) -> Result<(), CallError> {
        let mut state = self.shared.state.clone();
        let reached = state.wait_for(|state| state.is_connected() || *state == PeerState::Closed).await;
        match reached.as_deref() {
            Ok(state) if state.is_connected() => Ok(()),
            _ => Err(CallError::Closed),
        }
    }

    /// Waits until a hub is connected, for at most `bound`, and returns at once with a [permanent](Refusal::is_permanent)
    /// refusal. The peer continues to connect in any case. Dropping the future changes nothing.
    ///
    /// # Errors
    /// [`ConnectError`]: why no hub is connected.
    pub async fn connected_within(&self, bound: Duration) -> Result<(), ConnectError> {
        let mut state = self.shared.state.clone();
        let is_decided = |state: &PeerState| match state {
            PeerState::Connecting { refusal, .. } => refusal.is_some_and(Refusal::is_permanent),
            PeerState::Connected { .. } | PeerState::Closed => true,
            PeerState::Draining { .. } => false,
        };
        // Without an answer in time, or after the peer's task has ended, the state says why.
        let _ = tokio::time::timeout(bound, state.wait_for(is_decided)).await;
        match self.state() {
            PeerState::Connected { .. } => Ok(()),
            PeerState::Connecting { refusal: Some(refusal), last_error, .. } => {
                Err(ConnectError::Refused { refusal, cause: last_error.unwrap_or_default() })
            }
            PeerState::Connecting { last_error, .. } => {
                Err(ConnectError::Unreachable { after: bound, last_error })
            }
            PeerState::Draining { .. } | PeerState::Closed => Err(ConnectError::Closed),
        }
    }

    /// The name of the connected hub: the target of calls to the hub itself.
    ///
    /// # Errors
    /// If no hub is connected.
    pub fn hub(&self) -> Result<PeerId, CallError> {
        self.connection(|hub, _| hub.clone())
    }

    /// Calls another peer. Returns as soon as the request is queued; the [`ReplyStream`] yields the response or the failure. A
    /// call ends with its link; without a link it fails at once.
    ///
    /// # Errors
    /// If the request is not sent.
    pub async fn call(&self, target: PeerId, mut request: Request) -> Result<ReplyStream, CallError> {
        // A deadline beyond the range of the clock means no deadline.
        let deadline = request.remaining.and_then(|remaining| Instant::now().checked_add(remaining));
        if request.metadata.len() > MAX_METADATA {
            return Err(CallError::MetadataTooLarge { found: request.metadata.len(), max: MAX_METADATA });
        }
        let found = request.body.len() + request.metadata.len();
        let max = self.max_request()?;
        if found > max {
            return Err(CallError::TooLarge { found, max });
        }
        request.credit = self.shared.settings.session.credit;
        let (sender, receiver) = mpsc::unbounded_channel();
        let handle = &self.shared.handle;
        let slot = match (handle.commands.try_reserve(), deadline) {
            (Ok(slot), _) => Ok(slot),
            (Err(_), None) => handle.commands.reserve().await,
            (Err(_), Some(deadline)) => {
                let slot = tokio::time::timeout_at(deadline, handle.commands.reserve()).await;
                slot.map_err(|_| CallError::Deadline)?
            }
        };
        let slot = slot.map_err(|_| CallError::Closed)?;
        // Assigned last, so that requests are sent nearly in the order of their numbers.
        let number = self.shared.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let deadline = deadline.map(Instant::into_std);
        let credit = request.credit;
        slot.send(Command { number, target, request: Box::new(request), deadline, sender });
        Ok(ReplyStream::new(number, receiver, credit, handle.clone()))
    }

    /// Returns the maximum number of bytes of a request, or why no request can be sent.
    fn max_request(&self) -> Result<usize, CallError> {
        self.connection(|_, max_request| max_request)
    }

    fn connection<T>(&self, read: impl FnOnce(&PeerId, usize) -> T) -> Result<T, CallError> {
        match &*self.shared.state.borrow() {
            PeerState::Connected { hub, max_request, .. } => Ok(read(hub, *max_request)),
            PeerState::Connecting { last_error, refusal, .. } => {
                Err(CallError::NotConnected { last_error: last_error.clone(), refusal: *refusal })
            }
            PeerState::Draining { reason } => Err(CallError::Draining { reason: reason.clone() }),
            PeerState::Closed => Err(CallError::Closed),
        }
    }

    /// Connects again while the present link stays in use, and then replaces it: a hub sees new credentials only on a new link.
    /// Open calls end with `LINK_LOST` at that moment; new calls wait. Does nothing without a link.
    pub fn redial(&self) {
        let _ = self.shared.handle.control.send(ControlMessage::Redial);
    }

    /// Drains and closes the peer: accepts and makes no new calls and waits for open ones for at most `drain_timeout` of the
    /// settings.
    pub async fn drain(&self, reason: impl Into<String>) {
        let _ = self.shared.handle.control.send(ControlMessage::Drain { reason: reason.into() });
        self.closed().await;
    }

    /// Closes at once. Open calls end with `LINK_LOST`; services run to completion.
    pub async fn close(&self) {
        let _ = self.shared.handle.control.send(ControlMessage::Close);
        self.closed().await;
    }

    /// Waits until the peer is closed.
    pub async fn closed(&self) {
        let mut state = self.shared.state.clone();
        // An error means that the peer's task has ended: the peer is closed.
        let _ = state.wait_for(|state| *state == PeerState::Closed).await;
    }
}

/// Returns the maximum number of bytes of body and metadata in a frame of at most `max_frame` bytes.
pub(super) const fn max_request(max_frame: usize) -> usize {
    max_frame.saturating_sub(HEADROOM)
}
