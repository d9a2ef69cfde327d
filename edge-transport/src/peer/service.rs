//! What a peer answers.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;

use super::flow_control::Gate;
use super::runtime::{Command, Inbox, Note};
use crate::frame::{End, Failure, Reason, Request, cost};
use crate::name::PeerId;
use crate::session::ServingId;

/// Answers calls. Each call runs to its end, even if the caller has left, the link is lost or the peer is closed: a deadline
/// ends the wait, never the work.
///
/// All calls of a peer are polled in its own task, beside the link. What blocks, or computes for longer than a millisecond,
/// belongs into a task of its own ([`tokio::spawn`], [`tokio::task::spawn_blocking`]): it would hold up the link.
#[async_trait::async_trait]
pub trait Service: Send + Sync + 'static {
    /// Answers one call of `source`, as the hub has authenticated it. If this returns or panics without having ended the call through `replies`, the caller gets
    /// `SERVICE_LOST`.
    async fn call(&self, source: PeerId, request: Request, replies: ReplySender);
}

/// Nobody waits for this answer any more: the caller has left, its time is over, or the link was lost. The work may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody waits for the answer any more")]
#[non_exhaustive]
pub struct CallerGone;

/// Sends the answer of one call.
pub struct ReplySender {
    serving: ServingId,
    gate: Arc<Gate>,
    inbox: Inbox,
    ended: bool,
}

impl ReplySender {
    pub(super) const fn new(serving: ServingId, gate: Arc<Gate>, inbox: Inbox) -> Self {
        Self { serving, gate, inbox, ended: false }
    }

    /// Whether nobody waits for the answer any more.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.gate.is_closed()
    }

    /// Waits until nobody waits for the answer any more. Costs next to nothing, so that it can be looked at beside the work.
    pub async fn abandoned(&mut self) {
        poll_fn(|cx| self.gate.poll_closed(cx)).await;
    }

    /// Sends a message; waits while the caller has not read enough of the earlier ones.
    ///
    /// # Errors
    /// If nobody waits for the answer any more.
    pub async fn message(&mut self, body: Bytes) -> Result<(), CallerGone> {
        self.spend(&body).await?;
        self.answer(Some(body), None).await
    }

    /// Ends the call with closing bytes of the service's own, at most [`crate::frame::MAX_CLOSING`].
    ///
    /// # Errors
    /// If nobody waits for the answer any more.
    pub async fn finish(mut self, closing: Bytes) -> Result<(), CallerGone> {
        self.end(None, End::Finished(closing)).await
    }

    /// Sends the only or last message and ends the call, in one frame.
    ///
    /// # Errors
    /// If nobody waits for the answer any more.
    pub async fn message_and_finish(mut self, body: Bytes, closing: Bytes) -> Result<(), CallerGone> {
        if let Err(gone) = self.spend(&body).await {
            // The session must know that the work is done.
            let _ = self.end(None, End::Finished(Bytes::new())).await;
            return Err(gone);
        }
        self.end(Some(body), End::Finished(closing)).await
    }

    /// Ends the call with a failure of the transport.
    ///
    /// # Errors
    /// If nobody waits for the answer any more.
    pub async fn fail(mut self, reason: Reason, detail: impl Into<String> + Send) -> Result<(), CallerGone> {
        self.end(None, End::Failed(Failure::new(reason, detail))).await
    }

    async fn spend(&self, body: &Bytes) -> Result<(), CallerGone> {
        poll_fn(|cx| self.gate.poll_spend(cost(body), cx)).await
    }

    async fn end(&mut self, message: Option<Bytes>, end: End) -> Result<(), CallerGone> {
        let wanted = !self.gate.is_closed();
        self.answer(message, Some(end)).await?;
        if wanted { Ok(()) } else { Err(CallerGone) }
    }

    async fn answer(&mut self, message: Option<Bytes>, end: Option<End>) -> Result<(), CallerGone> {
        let ends = end.is_some();
        let serving = self.serving;
        let sent = self.inbox.commands.send(Command::Answer { serving, message, end }).await;
        // Only now: if this future is dropped while it waits, the call must still end.
        self.ended |= ends;
        sent.map_err(|_| CallerGone)
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if !self.ended {
            // A peer that has stopped has no caller to tell.
            let _ = self.inbox.notes.send(Note::ServiceLost { serving: self.serving });
        }
    }
}

impl std::fmt::Debug for ReplySender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplySender").field("serving", &self.serving).finish_non_exhaustive()
    }
}
