//! The ways to a hub: which is dialled when.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep, timeout};

use crate::link::candidates::first_of;
use crate::link::{Dialer, Link, LinkError};
use crate::peer::PeerSettings;

/// A link, and the address that it came from.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) index: usize,
    pub(super) link: Link,
}

/// The first link, or what was wrong with the address that failed last.
pub(super) type Dialling = Pin<Box<dyn Future<Output = Result<Road, String>> + Send>>;

/// When several addresses are dialled, how long one may take before the next is dialled beside it, so that a network which swallows the
/// packets of one kind of link costs that wait and not a whole timeout.
const ROAD_STAGGER: Duration = Duration::from_secs(1);

/// Dials addresses in an order, each for at most `bound`, and counts the attempts.
pub(super) fn dialling(
    dialers: Arc<[Box<dyn Dialer>]>,
    order: Vec<usize>,
    bound: Duration,
    attempts: Arc<AtomicU64>,
) -> Dialling {
    Box::pin(async move {
        let attempt = async |index: usize| {
            attempts.fetch_add(1, Ordering::Relaxed);
            let dialer = &dialers[index];
            let dialled = timeout(bound, dialer.dial()).await.unwrap_or_else(|_| {
                let cause = format!("no connection within {bound:?}");
                Err(LinkError::Address { address: dialer.address().to_owned(), cause })
            });
            dialled.map(|link| Road { index, link }).map_err(|error| {
                let address = dialer.address();
                tracing::info!(%address, %error, "no connection");
                format!("{address}: {error}")
            })
        };
        first_of(order, ROAD_STAGGER, attempt).await.unwrap_or_else(|| Err(String::new()))
    })
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
                    let order = (0..self.index).collect();
                    let dialling =
                        dialling(Arc::clone(dialers), order, settings.dial_timeout, Arc::default());
                    self.state = State::Dialling(dialling);
                }
                State::Dialling(dialling) => match dialling.as_mut().poll(cx) {
                    Poll::Ready(Ok(road)) => return Poll::Ready(road),
                    Poll::Ready(Err(_)) => self.state = Self::waiting(self.every),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}
