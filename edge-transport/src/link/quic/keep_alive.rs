//! Keep-alives of a dialling end after calls.
//!
//! The other end answers to where this end last sent from. If an address translator has given this end another port meanwhile, answers
//! and requests are lost until this end sends something, and one that waits for them sends nothing. So for some seconds
//! after a call it does so often. Always would cost a link 40 MB a day: an idle one has [`KEEP_ALIVE`](super::config) alone.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// How often.
const EVERY: Duration = Duration::from_millis(250);

/// For how long after a frame of a call.
const AFTER_CALL: Duration = Duration::from_secs(5);

/// When the next one is due.
pub(super) struct KeepAlive {
    timer: Pin<Box<Sleep>>,
    until: Instant,
}

impl KeepAlive {
    pub(super) fn new() -> Self {
        Self { timer: Box::pin(sleep(EVERY)), until: Instant::now() }
    }

    /// A frame of a call goes out.
    pub(super) fn called(&mut self) {
        let now = Instant::now();
        self.until = now + AFTER_CALL;
        if self.timer.is_elapsed() {
            self.timer.as_mut().reset(now + EVERY);
        }
    }

    /// Ready when something is to be sent.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(cx));
        let now = Instant::now();
        if now > self.until {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(now + EVERY);
        // Arranges the wake-up.
        let _ = self.timer.as_mut().poll(cx);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_end_speaks_often_for_some_seconds_after_a_call_and_then_no_more() {
        let mut keep_alive = KeepAlive::new();
        let minute = Duration::from_secs(60);
        for _ in 0..2 {
            keep_alive.called();
            let called = Instant::now();
            let mut spoken = Vec::new();
            while tokio::time::timeout(minute, poll_fn(|cx| keep_alive.poll_due(cx))).await.is_ok() {
                spoken.push(called.elapsed());
            }
            assert_eq!(spoken.len(), 20, "{spoken:?}");
            assert!(spoken.iter().all(|after| *after < AFTER_CALL + EVERY), "{spoken:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_first_call_it_does_not_speak() {
        let mut keep_alive = KeepAlive::new();
        let due = poll_fn(|cx| keep_alive.poll_due(cx));
        tokio::time::timeout(Duration::from_secs(60), due).await.unwrap_err();
    }
}
