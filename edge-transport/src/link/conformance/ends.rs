//! The cases for listeners and dialers. Each case gets a new listener and a dialer of its address.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt, StreamExt};

use super::Outcome;
use super::traffic::{check, numbered, receive, send};
use crate::link::incoming::Handshake;
use crate::link::{Dialer, Lane, Link, LinkError, Listener};

/// A listener, and a dialer that reaches it.
pub(super) type Ends = (Box<dyn Listener>, Box<dyn Dialer>);

/// Timeout for noticing that the other end is lost; longer than the handshake timeout of links.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(20);

/// Links that are dialed at once.
const AT_ONCE: usize = 32;

/// The most steps of a dial after which it stops; a dial that needs fewer is complete.
const STEPS: usize = 10;

/// Accepts connections and performs their handshakes at the same time, as a hub does.
struct Acceptor {
    listener: Box<dyn Listener>,
    handshakes: FuturesUnordered<Handshake>,
}

impl Acceptor {
    fn new(listener: Box<dyn Listener>) -> Self {
        Self { listener, handshakes: FuturesUnordered::new() }
    }

    /// Returns the next link whose handshake succeeds.
    async fn next(&mut self) -> Result<Link, String> {
        loop {
            tokio::select! {
                incoming = self.listener.accept() => {
                    let incoming = incoming.map_err(|error| format!("the listener failed: {error}"))?;
                    self.handshakes.push(incoming.into_future());
                }
                Some(done) = self.handshakes.next() => {
                    if let Ok(link) = done {
                        return Ok(link);
                    }
                }
            }
        }
    }

    /// Accepts until the work is complete, and returns its result and the accepted links.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<(T, Vec<Link>), String> {
        let mut work = pin!(work);
        let mut links = Vec::new();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok((done, links)),
                link = self.next() => links.push(link?),
            }
        }
    }

    /// Returns both ends of a new link, the dialed one first.
    async fn link(&mut self, dialer: &dyn Dialer) -> Result<(Link, Link), String> {
        let (dialed, accepted) = tokio::join!(dialer.dial(), self.next());
        Ok((dialed.map_err(|error| format!("dialing failed: {error}"))?, accepted?))
    }
}

/// Polls a dial a number of times, each time when it was woken, and keeps it as it is then.
struct Stopping<'a> {
    dial: Pin<Box<dyn Future<Output = Result<Link, LinkError>> + Send + 'a>>,
    steps: usize,
    complete: bool,
}

impl<'a> Stopping<'a> {
    fn new(dialer: &'a dyn Dialer, steps: usize) -> Self {
        Self { dial: dialer.dial(), steps, complete: false }
    }

    fn poll_steps(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.steps > 0 && !self.complete {
            self.steps -= 1;
            self.complete = self.dial.as_mut().poll(cx).is_ready();
            if self.steps > 0 && !self.complete {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

/// One frame each way shows that two ends belong together.
async fn exchange(one: &mut Link, other: &mut Link, number: u64) -> Outcome {
    send(one, [numbered(Lane::Call(number), 0, true, 100)]).await?;
    check(other, 1).await?;
    send(other, [numbered(Lane::Call(number), 0, true, 100)]).await?;
    check(one, 1).await
}

/// Waits until a link ends, however it does.
async fn ended(link: &mut Link) -> Outcome {
    let ended = async { while let Some(Ok(_)) = link.next().await {} };
    let within = tokio::time::timeout(NOTICE_TIMEOUT, ended).await;
    within.map_err(|_| format!("the other end did not notice it within {NOTICE_TIMEOUT:?}"))
}

pub(super) async fn everything_is_stated((listener, dialer): Ends) -> Outcome {
    if listener.local_address().is_empty() || dialer.address().is_empty() {
        return Err("the address is empty".to_owned());
    }
    let (kind, mut acceptor) = (listener.kind(), Acceptor::new(listener));
    let (dialed, accepted) = acceptor.link(&*dialer).await?;
    if kind != accepted.kind() || kind != dialed.kind() {
        let (dialed, accepted) = (dialed.kind(), accepted.kind());
        return Err(format!("the listener states {kind}, its link {accepted} and the dialer's {dialed}"));
    }
    if dialed.remote().is_empty() || accepted.remote().is_empty() {
        return Err("a link does not state its other end".to_owned());
    }
    Ok(())
}

pub(super) async fn cancelled_accepts_lose_nothing((mut listener, dialer): Ends) -> Outcome {
    let accepting = async {
        loop {
            // Each attempt is polled once, and dropped when it is woken.
            let mut accept = listener.accept();
            let mut polled = false;
            let attempt = poll_fn(|cx| {
                if std::mem::replace(&mut polled, true) {
                    return Poll::Ready(None);
                }
                accept.as_mut().poll(cx).map(Some)
            });
            if let Some(incoming) = attempt.await {
                drop(accept);
                break incoming.map_err(|error| error.to_string())?.await;
            }
        }
        .map_err(|error| format!("handshake failed: {error}"))
    };
    let dialing = async { dialer.dial().await.map_err(|error| format!("dialing failed: {error}")) };
    let both = tokio::time::timeout(NOTICE_TIMEOUT, async { tokio::try_join!(accepting, dialing) });
    let (mut accepted, mut dialed) =
        both.await.map_err(|_| "the connection was lost with a dropped accept".to_owned())??;
    exchange(&mut dialed, &mut accepted, 1).await
}

pub(super) async fn silent_connections_delay_no_other((listener, dialer): Ends) -> Outcome {
    let mut acceptor = Acceptor::new(listener);
    for steps in 1..=STEPS {
        let mut silent = Stopping::new(&*dialer, steps);
        acceptor.during(poll_fn(|cx| silent.poll_steps(cx))).await?;
        let dialing = acceptor.during(dialer.dial());
        let dialed = tokio::time::timeout(NOTICE_TIMEOUT, dialing).await.map_err(|_| {
            format!("a connection that stopped after {steps} steps of its dial delays the next")
        })?;
        dialed?.0.map_err(|error| format!("dialing beside a silent connection failed: {error}"))?;
        drop(silent);
    }
    Ok(())
}

pub(super) async fn many_at_once((listener, dialer): Ends) -> Outcome {
    let mut acceptor = Acceptor::new(listener);
    let dialing = async {
        let dials = (0..AT_ONCE).map(|_| dialer.dial());
        try_join_all(dials).await.map_err(|error| format!("dialing failed: {error}"))
    };
    let accepting = async {
        let mut links = Vec::new();
        while links.len() < AT_ONCE {
            links.push(acceptor.next().await?);
        }
        Ok(links)
    };
    let (mut dialed, mut accepted) = tokio::try_join!(dialing, accepting)?;
    // Each link sends its number; the other ends return what they receive.
    let numbered_links = dialed.iter_mut().zip(0_u64..);
    let sent =
        join_all(numbered_links.map(|(link, number)| async move {
            send(link, [numbered(Lane::Call(number), 0, true, 10)]).await
        }));
    sent.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let received = try_join_all(accepted.iter_mut().map(receive)).await?;
    let mut numbers: Vec<_> = received.iter().map(|frame| frame.slice(..8)).collect();
    numbers.sort();
    numbers.dedup();
    if numbers.len() == AT_ONCE { Ok(()) } else { Err(format!("{} links of {AT_ONCE}", numbers.len())) }
}

pub(super) async fn dropping_refuses((mut listener, dialer): Ends) -> Outcome {
    let refusing = async {
        let incoming = listener.accept().await.map_err(|error| error.to_string())?;
        drop(incoming);
        Ok::<_, String>(listener)
    };
    let dialing = async {
        match dialer.dial().await {
            Ok(mut link) => ended(&mut link).await,
            Err(_) => Ok(()),
        }
    };
    // A dialer may try several addresses of the listener.
    let mut refusing = pin!(refusing);
    let both = async {
        let mut dialing = pin!(dialing);
        let listener = tokio::select! {
            listener = &mut refusing => listener?,
            dialed = &mut dialing => return Err(format!("dialing ended before the refusal: {dialed:?}")),
        };
        dialing.await?;
        Ok(listener)
    };
    let listener = tokio::time::timeout(NOTICE_TIMEOUT, both)
        .await
        .map_err(|_| "a dropped connection is not refused".to_owned())??;
    let (mut dialed, mut accepted) = Acceptor::new(listener).link(&*dialer).await?;
    exchange(&mut dialed, &mut accepted, 1).await
}

pub(super) async fn a_dropped_listener_is_noticed((listener, dialer): Ends) -> Outcome {
    drop(listener);
    let dialing = async {
        match dialer.dial().await {
            Ok(mut link) => ended(&mut link).await,
            Err(error) if error.to_string().is_empty() => Err("the error has no text".to_owned()),
            Err(_) => Ok(()),
        }
    };
    let dialed = tokio::time::timeout(NOTICE_TIMEOUT, dialing).await;
    dialed.unwrap_or_else(|_| Err(format!("dialing did not end within {NOTICE_TIMEOUT:?}")))
}

pub(super) async fn each_dial_is_a_new_link((listener, dialer): Ends) -> Outcome {
    let mut acceptor = Acceptor::new(listener);
    let (mut first, mut first_far) = acceptor.link(&*dialer).await?;
    let (second, mut second_far) = acceptor.link(&*dialer).await?;
    drop(second);
    ended(&mut second_far).await?;
    exchange(&mut first, &mut first_far, 1).await?;
    let (mut third, mut third_far) = acceptor.link(&*dialer).await?;
    // Closing may wait until the other end has read everything and is dropped.
    let (closed, read) = tokio::join!(first.close(), async move { ended(&mut first_far).await });
    closed.map_err(|error| format!("closing failed: {error}"))?;
    read?;
    exchange(&mut third, &mut third_far, 2).await
}

pub(super) async fn dropped_dials_leave_no_link((listener, dialer): Ends) -> Outcome {
    let mut acceptor = Acceptor::new(listener);
    for steps in 1..=STEPS {
        let mut dial = Stopping::new(&*dialer, steps);
        let ((), mut links) = acceptor.during(poll_fn(|cx| dial.poll_steps(cx))).await?;
        drop(dial);
        // The links of both dials end, also if that of the dropped one is accepted late.
        let (dialed, later) = acceptor.during(dialer.dial()).await?;
        drop(dialed.map_err(|error| format!("dialing failed: {error}"))?);
        links.extend(later);
        for link in &mut links {
            ended(link).await.map_err(|error| format!("a dial was dropped after {steps} steps: {error}"))?;
        }
    }
    Ok(())
}

pub(super) async fn a_stopped_dial_delays_no_other((listener, dialer): Ends) -> Outcome {
    let mut acceptor = Acceptor::new(listener);
    let mut stopped = Stopping::new(&*dialer, 1);
    acceptor.during(poll_fn(|cx| stopped.poll_steps(cx))).await?;
    let next = tokio::time::timeout(NOTICE_TIMEOUT, acceptor.during(dialer.dial()));
    let dialed = next.await.map_err(|_| "a dial waits for another one".to_owned())?;
    drop(stopped);
    dialed?.0.map(drop).map_err(|error| format!("dialing failed: {error}"))
}
