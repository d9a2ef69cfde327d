//! Several ways to the same end, of which some may swallow what is sent to them.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

/// How long one address of a name may take before the next is tried beside it (RFC 8305, section 5). Short beside what a dialler has
/// in all.
#[cfg(any(feature = "ws", feature = "quic"))]
pub(crate) const ADDRESS_STAGGER: Duration = Duration::from_millis(250);

/// Tries one after the other, the next when those before it have failed or after `stagger`. The first that answers, or what was wrong
/// with the one that failed last; `None` if there are none.
pub(crate) async fn first_of<C, T, E, A: Future<Output = Result<T, E>>>(
    candidates: impl IntoIterator<Item = C>,
    stagger: Duration,
    attempt: impl Fn(C) -> A,
) -> Option<Result<T, E>> {
    let (mut running, mut failed) = (FuturesUnordered::new(), None);
    for candidate in candidates {
        running.push(attempt(candidate));
        let next = Instant::now() + stagger;
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

    const STAGGER: Duration = Duration::from_millis(250);

    /// Those below ten swallow everything, those below twenty refuse, the others answer.
    async fn attempt(candidate: u16) -> Result<u16, u16> {
        match candidate {
            0..10 => pending().await,
            port @ 10..20 => Err(port),
            port => Ok(port),
        }
    }

    async fn first(ports: &[u16]) -> Option<Result<u16, u16>> {
        let bound = Duration::from_secs(5);
        let found = first_of(ports.iter().copied(), STAGGER, attempt);
        tokio::time::timeout(bound, found).await.unwrap_or(None)
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_swallows_everything_does_not_keep_the_next_from_being_tried() {
        assert_eq!(first(&[1, 20]).await, Some(Ok(20)));
        assert_eq!(first(&[1, 10, 2, 3, 20]).await, Some(Ok(20)));
        assert_eq!(first(&[20, 1]).await, Some(Ok(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_refuse_cost_no_time_and_the_last_of_them_is_told() {
        let before = Instant::now();
        assert_eq!(first(&[10, 11, 12]).await, Some(Err(12)));
        assert_eq!(first(&[]).await, None);
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}
