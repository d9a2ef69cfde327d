//! Keep-alives of a dialing end after calls.
//!
//! The other end sends to the address from which this end last sent. If an address translator has changed this end's port,
//! replies and requests are lost until this end sends a packet, and an end that waits for them sends nothing. Therefore this
//! end sends often for some seconds after a call. Sending always would cost 40 MB per day and link: an idle link has only the
//! session's pings.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Interval of keep-alives after a call.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long keep-alives continue after a frame of a call.
const AFTER_CALL: Duration = Duration::from_secs(5);

/// The timer of keep-alives.
pub(super) struct KeepAlive {
    timer: Pin<Box<Sleep>>,
    until: Instant,
}

impl KeepAlive {
    pub(super) fn new() -> Self {
        Self { timer: Box::pin(sleep(INTERVAL)), until: Instant::now() }
    }

    /// Extends the keep-alives, because a frame of a call is sent.
    pub(super) fn on_call_frame(&mut self) {
        let now = Instant::now();
        self.until = now + AFTER_CALL;
        if self.timer.is_elapsed() {
            self.timer.as_mut().reset(now + INTERVAL);
        }
    }

    /// Ready when a keep-alive is due.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(cx));
        let now = Instant::now();
        if now > self.until {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(now + INTERVAL);
        // Registers the wake-up.
        let _ = self.timer.as_mut().poll(cx);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sends_often_for_some_seconds_after_a_call() {
        let mut keep_alive = KeepAlive::new();
        let minute = Duration::from_secs(60);
        for _ in 0..2 {
            keep_alive.on_call_frame();
            let called = Instant::now();
            let mut sent_after = Vec::new();
            while tokio::time::timeout(minute, poll_fn(|cx| keep_alive.poll_due(cx))).await.is_ok() {
                sent_after.push(called.elapsed());
            }
            assert_eq!(sent_after.len(), 20, "{sent_after:?}");
            assert!(sent_after.iter().all(|after| *after < AFTER_CALL + INTERVAL), "{sent_after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sends_nothing_before_the_first_call() {
        let mut keep_alive = KeepAlive::new();
        let due = poll_fn(|cx| keep_alive.poll_due(cx));
        tokio::time::timeout(Duration::from_secs(60), due).await.unwrap_err();
    }
}
