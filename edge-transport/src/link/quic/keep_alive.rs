//! Keep-alives of a dialing end after calls.
//!
//! The other end sends to the address from which this end last sent. If an address translator has changed this end's port,
//! replies and requests are lost until this end sends a packet, and an end that waits for them sends nothing before the session's
//! ping after 3 s. Therefore this end sends a few packets after a call, each after twice the time: such a change delays a reply
//! about as long as the driver takes for it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Time before the first keep-alive after a frame of a call, and longest time between two.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The timer of keep-alives.
pub(super) struct KeepAlive {
    timer: Pin<Box<Sleep>>,
    /// The time between the last keep-alive and the next. `None`: no more until the next frame of a call.
    interval: Option<Duration>,
}

impl KeepAlive {
    pub(super) fn new() -> Self {
        Self { timer: Box::pin(sleep(INTERVAL.0)), interval: None }
    }

    /// Begins anew, because a frame of a call is sent.
    pub(super) fn on_call_frame(&mut self) {
        let first = Instant::now() + INTERVAL.0;
        if self.interval.replace(INTERVAL.0).is_none() || first < self.timer.deadline() {
            self.timer.as_mut().reset(first);
        }
    }

    /// Ready when a keep-alive is due.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(interval) = self.interval else { return Poll::Pending };
        ready!(self.timer.as_mut().poll(cx));
        let next = interval * 2;
        self.interval = (next <= INTERVAL.1).then_some(next);
        if self.interval.is_some() {
            self.timer.as_mut().reset(Instant::now() + next);
            // Registers the wake-up.
            let _ = self.timer.as_mut().poll(cx);
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sends_a_few_times_after_a_call() {
        let mut keep_alive = KeepAlive::new();
        let minute = Duration::from_secs(60);
        for _ in 0..2 {
            keep_alive.on_call_frame();
            let called = Instant::now();
            let mut sent_after = Vec::new();
            while tokio::time::timeout(minute, poll_fn(|cx| keep_alive.poll_due(cx))).await.is_ok() {
                sent_after.push(called.elapsed());
            }
            let expected = [250, 750, 1750, 3750].map(Duration::from_millis);
            assert!(
                sent_after
                    .iter()
                    .zip(expected)
                    .all(|(sent, due)| sent.abs_diff(due) < Duration::from_millis(5))
            );
            assert_eq!(sent_after.len(), expected.len(), "{sent_after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sends_nothing_before_the_first_call() {
        let mut keep_alive = KeepAlive::new();
        let due = poll_fn(|cx| keep_alive.poll_due(cx));
        tokio::time::timeout(Duration::from_secs(60), due).await.unwrap_err();
    }
}
