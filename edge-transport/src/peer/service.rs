//! Services of a peer.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use super::credit_window::{CountedBytes, CreditWindow, Waiting};
use super::runtime::{ControlMessage, DriverHandle};
use crate::frame::{End, Failure, Reason, Request, cost};
use crate::name::PeerId;
use crate::session::InboundCallId;

/// Handles calls. Each call runs to completion, even if the call is cancelled, the link is lost or the peer is closed: a
/// deadline ends the wait, never the work.
///
/// The peer's task polls all calls together with the link. Work that blocks, or computes for longer than a millisecond, would
/// delay the link: run it in a separate task ([`tokio::spawn`], [`tokio::task::spawn_blocking`]).
#[async_trait::async_trait]
pub trait Service: Send + Sync + 'static {
    /// Handles one call of `source`, which the hub has authenticated. If the future completes or panics before it has ended the
    /// call through `replies`, the caller receives `SERVICE_LOST`.
    ///
    /// Calls run at the same time, in no order, at most `max_inbound_calls` of the session's settings. The future is never
    /// dropped before it completes, except with its runtime; `replies` reports a cancel. A request has at most `max_frame`
    /// bytes.
    async fn call(&self, source: PeerId, request: Request, replies: ReplySender);
}

/// The call was cancelled: by the caller, by its deadline, or because the link was lost. The work may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("call cancelled")]
#[non_exhaustive]
pub struct Cancelled;

/// Sends the response of one call.
pub struct ReplySender {
    inbound: InboundCallId,
    window: Arc<CreditWindow>,
    /// The caller, without names below its own.
    caller: PeerId,
    waiting: Waiting,
    handle: DriverHandle,
    ended: bool,
}

/// Why a message was not sent.
enum Unsent {
    Cancelled,
    /// Too many bytes wait for this caller.
    Overloaded,
}

impl ReplySender {
    pub(super) const fn new(
        inbound: InboundCallId,
        caller: PeerId,
        window: Arc<CreditWindow>,
        waiting: Waiting,
        handle: DriverHandle,
    ) -> Self {
        Self { inbound, window, caller, waiting, handle, ended: false }
    }

    /// Whether the call was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.window.is_closed()
    }

    /// Waits until the call is cancelled. Cheap enough to poll concurrently with the work.
    pub async fn cancelled(&mut self) {
        poll_fn(|cx| self.window.poll_closed(cx)).await;
    }

    /// Sends a message. Waits while the call has no credit, until the caller has read earlier messages, and while the link has
    /// much to send for this caller. If too many bytes wait already for callers that do not read, ends the call with
    /// `OVERLOADED`.
    ///
    /// # Errors
    /// If the call was cancelled, or ended for that reason.
    pub async fn send(&mut self, body: Bytes) -> Result<(), Cancelled> {
        match self.spend(&body).await {
            Ok(counted) => self.answer(Some((body, counted)), None),
            Err(Unsent::Cancelled) => Err(Cancelled),
            Err(Unsent::Overloaded) => self.end_overloaded(&body),
        }
    }

    /// Ends the call with closing bytes of the service, at most [`MAX_CLOSING`](crate::MAX_CLOSING).
    ///
    /// # Errors
    /// If the call was cancelled.
    pub async fn finish(mut self, closing: Bytes) -> Result<(), Cancelled> {
        self.end(None, End::Finished(closing))
    }

    /// Sends the only or last message and ends the call, in one frame. Waits and ends as [`ReplySender::send`] does.
    ///
    /// # Errors
    /// If the call was cancelled, or ended because too many bytes wait for callers that do not read.
    pub async fn send_and_finish(mut self, body: Bytes, closing: Bytes) -> Result<(), Cancelled> {
        match self.spend(&body).await {
            Ok(counted) => self.end(Some((body, counted)), End::Finished(closing)),
            Err(Unsent::Cancelled) => {
                // The session must count the call as completed.
                let _ = self.end(None, End::Finished(Bytes::new()));
                Err(Cancelled)
            }
            Err(Unsent::Overloaded) => self.end_overloaded(&body),
        }
    }

    /// Ends the call with a transport failure.
    ///
    /// # Errors
    /// If the call was cancelled.
    pub async fn fail(mut self, reason: Reason, detail: impl Into<String> + Send) -> Result<(), Cancelled> {
        self.end(None, End::Failed(Failure::new(reason, detail)))
    }

    async fn spend(&self, body: &Bytes) -> Result<CountedBytes, Unsent> {
        let mut waits = None;
        poll_fn(|cx| {
            if let Poll::Ready(spent) = self.window.poll_spend(cost(body), cx) {
                return Poll::Ready(spent.map_err(|Cancelled| Unsent::Cancelled));
            }
            if waits.is_none() {
                waits = self.waiting.for_credit(&self.caller, body.len());
            }
            if waits.is_some() { Poll::Pending } else { Poll::Ready(Err(Unsent::Overloaded)) }
        })
        .await?;
        if let Some(queued) = self.waiting.try_for_link(&self.caller, body.len()) {
            return Ok(queued);
        }
        drop(waits);
        let _waits = self.waiting.for_turn(&self.caller, body.len()).ok_or(Unsent::Overloaded)?;
        let mut turn = pin!(self.waiting.for_link(&self.caller, body.len()));
        poll_fn(|cx| match self.window.poll_closed(cx) {
            Poll::Ready(()) => Poll::Ready(Err(Unsent::Cancelled)),
            Poll::Pending => turn.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    /// Ends a call whose message cannot wait for its caller.
    fn end_overloaded(&mut self, body: &Bytes) -> Result<(), Cancelled> {
        let detail = format!(
            "a message of {} bytes cannot wait until {} reads: too many wait already; read messages, or call again later",
            body.len(),
            self.caller
        );
        self.end(None, End::Failed(Failure::new(Reason::Overloaded, detail)))?;
        Err(Cancelled)
    }

    fn end(&mut self, message: Option<(Bytes, CountedBytes)>, end: End) -> Result<(), Cancelled> {
        let wanted = !self.window.is_closed();
        self.answer(message, Some(end))?;
        if wanted { Ok(()) } else { Err(Cancelled) }
    }

    fn answer(&mut self, message: Option<(Bytes, CountedBytes)>, end: Option<End>) -> Result<(), Cancelled> {
        self.ended |= end.is_some();
        let inbound = self.inbound;
        self.handle.control.send(ControlMessage::Answer { inbound, message, end }).map_err(|_| Cancelled)
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if !self.ended {
            // Fails only if the peer has stopped, and then its calls have already ended.
            let _ = self.handle.control.send(ControlMessage::ServiceLost { inbound: self.inbound });
        }
    }
}

impl std::fmt::Debug for ReplySender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplySender").field("serving", &self.inbound).finish_non_exhaustive()
    }
}
