//! Dials the paths to a hub, also while a link is open: for a failback to a preferred path, and for a redial.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Sleep, sleep, timeout};

use crate::link::happy_eyeballs::first_ok;
use crate::link::{Dialer, Link, LinkError};
use crate::peer::{PeerSettings, Refusal};

/// A link and the index of its dialer.
#[derive(Debug)]
pub(super) struct DialedLink {
    pub(super) index: usize,
    pub(super) link: Link,
}

/// Why no address was reached.
#[derive(Debug, Default)]
pub(super) struct DialError {
    /// The error, with its address.
    pub(super) cause: String,
    pub(super) refusal: Option<Refusal>,
}

/// The dialers, in order of preference.
pub(in crate::peer) struct Paths {
    dialers: Arc<[Box<dyn Dialer>]>,
    /// For each dialer, the index of the first one of equal preference.
    equal_to: Vec<usize>,
    rng: Rng,
}

impl Paths {
    pub(in crate::peer) fn new(dialers: Vec<Box<dyn Dialer>>, equal_to: Vec<usize>, rng: Rng) -> Self {
        Self { dialers: dialers.into(), equal_to, rng }
    }

    pub(super) fn dialers(&self) -> &Arc<[Box<dyn Dialer>]> {
        &self.dialers
    }

    pub(super) fn address(&self, index: usize) -> &str {
        self.dialers[index].address()
    }

    /// The first path, if there is one, then the others in order; those of equal preference in random order.
    pub(super) fn order(&mut self, first: Option<usize>) -> Vec<usize> {
        let mut others: Vec<_> = (0..self.dialers.len()).filter(|index| Some(*index) != first).collect();
        self.rng.shuffle(&mut others);
        others.sort_by_key(|index| self.equal_to[*index]);
        first.into_iter().chain(others).collect()
    }

    /// All paths in order, this one last.
    pub(super) fn order_with_last(&mut self, last: usize) -> Vec<usize> {
        let mut order = self.order(Some(last));
        order.rotate_left(1);
        order
    }

    /// The paths that are preferred to this one.
    pub(super) fn preferred_to(&mut self, index: usize) -> Vec<usize> {
        let mut order = self.order(None);
        order.retain(|other| self.equal_to[*other] < self.equal_to[index]);
        order
    }
}

/// Resolves to the first link, or to the error of the address that failed last.
pub(super) type DialFuture = Pin<Box<dyn Future<Output = Result<DialedLink, DialError>> + Send>>;

/// Delay before the next address is dialed while earlier attempts are pending. A network that drops the packets of one
/// kind of link then costs this delay and not a whole timeout.
const PATH_ATTEMPT_DELAY: Duration = Duration::from_secs(1);

/// Dials addresses in order, each for at most `bound`, and counts the attempts.
pub(super) fn dial_in_order(
    dialers: Arc<[Box<dyn Dialer>]>,
    order: Vec<usize>,
    bound: Duration,
    attempts: Arc<AtomicU64>,
) -> DialFuture {
    Box::pin(async move {
        let attempt = async |index: usize| {
            attempts.fetch_add(1, Ordering::Relaxed);
            let dialer = &dialers[index];
            let dialed = timeout(bound, dialer.dial()).await.unwrap_or_else(|_| {
                let source =
                    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {bound:?}"));
                Err(LinkError::Io { doing: format!("connect to {}", dialer.address()), source })
            });
            dialed.map(|link| DialedLink { index, link }).map_err(|error| {
                let address = dialer.address();
                tracing::info!(%address, %error, "connection failed");
                let (text, refusal) = (error.to_string(), Refusal::of_dial(&error));
                // Most errors name the address.
                let cause = if text.contains(address) { text } else { format!("{address}: {text}") };
                DialError { cause, refusal }
            })
        };
        first_ok(order, PATH_ATTEMPT_DELAY, attempt).await.unwrap_or_else(|| Err(DialError::default()))
    })
}

/// Periodically dials paths while another link is open.
pub(super) struct Probe {
    /// Indexes of the dialers, in the order of the attempts.
    order: Vec<usize>,
    every: Duration,
    state: State,
    has_failed: bool,
}

enum State {
    Waiting(Pin<Box<Sleep>>),
    Dialing(DialFuture),
}

/// Failed failbacks after which the interval no longer doubles. The interval is then 64 times as long as at first.
const MAX_DOUBLINGS: u32 = 6;

impl Probe {
    /// Creates a probe of these paths, which are preferred to the one in use. Returns `None` if there are none, or if failback
    /// is disabled.
    pub(super) fn failback(
        order: Vec<usize>,
        failed_failbacks: u32,
        settings: &PeerSettings,
    ) -> Option<Self> {
        let every = settings.failback_interval.saturating_mul(1 << failed_failbacks.min(MAX_DOUBLINGS));
        let can_fail_back = !order.is_empty() && !every.is_zero();
        can_fail_back.then(|| Self { order, every, state: Self::waiting(every), has_failed: false })
    }

    /// Creates a probe that dials these paths at once.
    pub(super) fn redial(order: Vec<usize>, settings: &PeerSettings) -> Self {
        let state = Self::waiting(Duration::ZERO);
        Self { order, every: settings.backoff_max, state, has_failed: false }
    }

    /// Whether all paths were dialed once without success.
    pub(super) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn waiting(every: Duration) -> State {
        State::Waiting(Box::pin(sleep(every)))
    }

    /// Ready with a link over one of the paths.
    pub(super) fn poll(
        &mut self,
        dialers: &Arc<[Box<dyn Dialer>]>,
        settings: &PeerSettings,
        cx: &mut Context<'_>,
    ) -> Poll<DialedLink> {
        loop {
            match &mut self.state {
                State::Waiting(wait) => {
                    if wait.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let (dialers, order) = (Arc::clone(dialers), self.order.clone());
                    let dial_future = dial_in_order(dialers, order, settings.dial_timeout, Arc::default());
                    self.state = State::Dialing(dial_future);
                }
                State::Dialing(dial_future) => match dial_future.as_mut().poll(cx) {
                    Poll::Ready(Ok(dialed)) => return Poll::Ready(dialed),
                    Poll::Ready(Err(_)) => {
                        self.has_failed = true;
                        self.state = Self::waiting(self.every);
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}
