//! The ways to a hub: which is dialled when.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep, timeout};

use crate::link::{Dialer, Link, LinkError};
use crate::peer::PeerSettings;

/// A link, and the address that it came from.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) index: usize,
    pub(super) link: Link,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Link, LinkError>> + Send>>;

/// Dials addresses in an order. The next one gets its turn when the one before has failed or takes long, so that a network which
/// swallows the packets of one kind of link costs that wait and not a whole timeout.
pub(super) struct Dialling {
    dialers: Arc<[Box<dyn Dialer>]>,
    order: VecDeque<usize>,
    running: Vec<(usize, Attempt)>,
    next: Pin<Box<Sleep>>,
    stagger: Duration,
    bound: Duration,
    attempts: u64,
    error: String,
}

impl Dialling {
    pub(super) fn new(
        dialers: Arc<[Box<dyn Dialer>]>,
        order: impl Iterator<Item = usize>,
        settings: &PeerSettings,
    ) -> Self {
        Self {
            dialers,
            order: order.collect(),
            running: Vec::new(),
            next: Box::pin(sleep(Duration::ZERO)),
            stagger: settings.road_stagger,
            bound: settings.dial_timeout,
            attempts: 0,
            error: String::new(),
        }
    }

    /// Addresses that were dialled.
    pub(super) const fn attempts(&self) -> u64 {
        self.attempts
    }

    /// The first link, or what was wrong with the last address.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Road, String>> {
        loop {
            if let Some(road) = self.poll_running(cx) {
                return Poll::Ready(Ok(road));
            }
            let is_due = self.running.is_empty() || self.next.as_mut().poll(cx).is_ready();
            match self.order.front() {
                None if self.running.is_empty() => {
                    return Poll::Ready(Err(std::mem::take(&mut self.error)));
                }
                Some(_) if is_due => self.start_next(),
                _ => return Poll::Pending,
            }
        }
    }

    fn start_next(&mut self) {
        let Some(index) = self.order.pop_front() else { return };
        let (dialers, bound) = (Arc::clone(&self.dialers), self.bound);
        let attempt = async move {
            let dialer = &dialers[index];
            timeout(bound, dialer.dial()).await.unwrap_or_else(|_| {
                let cause = format!("no connection within {bound:?}");
                Err(LinkError::Address { address: dialer.address().to_owned(), cause })
            })
        };
        self.running.push((index, Box::pin(attempt)));
        self.attempts += 1;
        self.next = Box::pin(sleep(self.stagger));
    }

    fn poll_running(&mut self, cx: &mut Context<'_>) -> Option<Road> {
        let mut at = 0;
        while let Some((index, attempt)) = self.running.get_mut(at) {
            match attempt.as_mut().poll(cx) {
                Poll::Ready(Ok(link)) => return Some(Road { index: *index, link }),
                Poll::Ready(Err(error)) => {
                    let address = self.dialers[*index].address();
                    tracing::info!(%address, %error, "no connection");
                    self.error = format!("{address}: {error}");
                    drop(self.running.remove(at));
                }
                Poll::Pending => at += 1,
            }
        }
        None
    }
}

/// Looks from time to time whether a better road than the one in use can be had.
pub(super) struct Scout {
    /// Roads before this one are better.
    index: usize,
    every: Duration,
    state: State,
}

enum State {
    Waiting(Pin<Box<Sleep>>),
    Dialling(Dialling),
}

/// After so many disappointments the waits grow no more: 64 times as long.
const MAX_DOUBLINGS: u32 = 6;

impl Scout {
    /// `None` if the road in use is the best, or nobody is to look.
    pub(super) fn new(index: usize, disappointments: u32, settings: &PeerSettings) -> Option<Self> {
        let every = settings.better_road_every.saturating_mul(1 << disappointments.min(MAX_DOUBLINGS));
        (index > 0 && !every.is_zero()).then(|| Self { index, every, state: Self::waiting(every) })
    }

    fn waiting(every: Duration) -> State {
        State::Waiting(Box::pin(sleep(every)))
    }

    /// Ready with a link over a better road.
    pub(super) fn poll(
        &mut self,
        dialers: &Arc<[Box<dyn Dialer>]>,
        settings: &PeerSettings,
        cx: &mut Context<'_>,
    ) -> Poll<Road> {
        loop {
            match &mut self.state {
                State::Waiting(wait) => {
                    if wait.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let dialling = Dialling::new(Arc::clone(dialers), 0..self.index, settings);
                    self.state = State::Dialling(dialling);
                }
                State::Dialling(dialling) => match dialling.poll(cx) {
                    Poll::Ready(Ok(road)) => return Poll::Ready(road),
                    Poll::Ready(Err(_)) => self.state = Self::waiting(self.every),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}
