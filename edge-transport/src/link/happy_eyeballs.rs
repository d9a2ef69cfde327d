//! Dials several addresses of one end with staggered starts, because some may drop all packets (RFC 8305).

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

/// Delay before the next address of a name is tried while earlier attempts are pending (RFC 8305, section 5). Short compared to
/// the timeout of a dialer.
#[cfg(any(feature = "ws", feature = "quic"))]
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Tries candidates in order, the next one when all earlier ones have failed or after `delay`. Returns the first success, or
/// the error of the attempt that failed last; `None` without candidates.
pub(crate) async fn first_ok<C, T, E, A: Future<Output = Result<T, E>>>(
    candidates: impl IntoIterator<Item = C>,
    delay: Duration,
    attempt: impl Fn(C) -> A,
) -> Option<Result<T, E>> {
    let (mut running, mut failed) = (FuturesUnordered::new(), None);
    for candidate in candidates {
        running.push(attempt(candidate));
        let next = Instant::now() + delay;
        while let Ok(Some(outcome)) = timeout_at(next, running.next()).await {
            if outcome.is_ok() {
                return Some(outcome);
            }
            failed = Some(outcome);
        }
    }
    while let Some(outcome) = running.next().await {
        if outcome.is_ok() {
            return Some(outcome);
        }
        failed = Some(outcome);
    }
    failed
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const DELAY: Duration = Duration::from_millis(250);

    /// Ports below ten drop everything, ports below twenty refuse, others answer.
    async fn attempt(candidate: u16) -> Result<u16, u16> {
        match candidate {
            0..10 => pending().await,
            port @ 10..20 => Err(port),
            port => Ok(port),
        }
    }

    async fn first(ports: &[u16]) -> Option<Result<u16, u16>> {
        let bound = Duration::from_secs(5);
        let found = first_ok(ports.iter().copied(), DELAY, attempt);
        tokio::time::timeout(bound, found).await.unwrap_or(None)
    }

    #[tokio::test(start_paused = true)]
    async fn tries_the_next_address_when_one_drops_all_packets() {
        assert_eq!(first(&[1, 20]).await, Some(Ok(20)));
        assert_eq!(first(&[1, 10, 2, 3, 20]).await, Some(Ok(20)));
        assert_eq!(first(&[20, 1]).await, Some(Ok(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_cost_no_time_and_the_last_is_returned() {
        let before = Instant::now();
        assert_eq!(first(&[10, 11, 12]).await, Some(Err(12)));
        assert_eq!(first(&[]).await, None);
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}
