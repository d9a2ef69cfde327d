//! Writes what is queued for a peer, and closes the link of a peer that does not read, or of one that drains and is idle.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::{Connection, ReceiveShare};
use crate::frame::{Frame, Lane, encode};
use crate::frame_io::{WRITE_BATCH, now};
use crate::session::{CloseReason, LinkEvent, LinkState, time_to_transfer};

/// How long an idle peer that was asked to leave may take to connect to another hub.
const LEAVE_TIME: Duration = Duration::from_secs(3);

impl Connection {
    /// Writes until nothing is queued, or the link accepts no more. Ready when the link has ended or must be closed.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.take_frames(cx);
            // After the waker is registered, so that no request for a check is missed.
            self.check_identity(false);
            self.poll_recheck(cx);
            if self.closed.is_some() {
                return Poll::Ready(());
            }
            if !self.io.has_unwritten() {
                self.stalled = None;
                self.check_idle();
                return if self.closed.is_some() { Poll::Ready(()) } else { Poll::Pending };
            }
            let sent = self.io.poll_send(cx);
            for (_, head) in self.io.take_refused() {
                if let Some(key) = self.key {
                    self.shared.with_core(|core| core.refused(key, head));
                }
            }
            match sent {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    tracing::debug!(remote = self.io.link().remote(), %error, "link failed");
                    self.is_lost = true;
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    self.record_stall();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Returns when a stalled link is closed. A large frame gets the time that it needs on a slow link.
    pub(super) fn stall_deadline(&self) -> Option<Instant> {
        let writing = time_to_transfer(self.io.last_taken());
        self.stalled.map(|since| since + self.shared.settings.session.liveness_timeout + writing)
    }

    /// Records that the link did not accept all frames. Stalls are limited, because queued frames use memory of all peers.
    fn record_stall(&mut self) {
        if self.io.take_progress() || self.stalled.is_none() {
            self.stalled = Some(now());
        }
    }

    pub(super) fn check_stall(&mut self) {
        if let Some(since) = self.stalled
            && self.stall_deadline().is_some_and(|deadline| now() >= deadline)
            && self.closed.is_none()
        {
            self.link_event(LinkEvent::Refuse(CloseReason::Stalled { after: now().duration_since(since) }));
        }
    }

    /// Takes frames from the routing table if the previous ones are written, and registers a wake-up for the next.
    fn take_frames(&mut self, cx: &Context<'_>) {
        let room = if self.io.waiting() == 0 { WRITE_BATCH } else { 0 };
        if room > 0
            && let Some(pong) = self.pong.take()
        {
            self.io.push(encode(Frame::link(pong), Lane::Control));
        }
        let Some(key) = self.key else { return };
        let mut table = self.shared.table();
        if room > 0 {
            table.core.written(key, self.io.unwritten());
        }
        // Called even if there is no room: closing a link must not wait for its peer to read.
        if let Err(reason) = table.core.take(key, self.io.queue(), room, now()) {
            drop(table);
            return self.link_event(LinkEvent::Refuse(reason));
        }
        table.wake();
        match table.wakers.get_mut(&key) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(table.wakers.insert(key, cx.waker().clone())),
        }
        let drain = table.core.draining(key).map(ToOwned::to_owned);
        let may_move = drain.is_some() && table.core.has_services(key);
        let (call_waits, is_challenged) = (table.core.call_waits(key), table.core.take_challenge(key));
        drop(table);
        if is_challenged {
            self.link_event(LinkEvent::Check);
        }
        // The silence of a peer whose frame is arriving proves something only if bytes stop: it is checked often.
        let call_waits = call_waits || self.receive_share.as_ref().is_some_and(ReceiveShare::is_in_use);
        if call_waits != std::mem::replace(&mut self.call_waits, call_waits) {
            self.link_event(LinkEvent::Waiting(call_waits));
        }
        if let Some(reason) = drain
            && !matches!(self.core.state(), LinkState::Draining { deadline: Some(_), .. })
        {
            self.drain_by = Some(now() + self.shared.settings.session.drain_timeout);
            // A peer that drains too has nowhere to go.
            let is_draining = matches!(self.core.state(), LinkState::Draining { .. });
            self.leave_by = (may_move && !is_draining).then(|| now() + LEAVE_TIME);
            self.link_event(LinkEvent::Drain { reason });
        }
    }

    /// Closes a draining link as soon as it is idle.
    fn check_idle(&mut self) {
        if let (Some(key), LinkState::Draining { .. }) = (self.key, self.core.state())
            && self.leave_by.is_none_or(|until| now() >= until)
            && self.shared.table().core.is_idle(key)
        {
            self.link_event(LinkEvent::Idle);
        }
    }
}
