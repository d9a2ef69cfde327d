//! One link of a peer, from its hello to its end.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;

use super::dialing::{Road, Scout};
use super::{Driver, Ending};
use crate::link::{Link, LinkError};
use crate::pump::{Pump, now};
use crate::session::{CloseReason, Event};

/// Frames read in a row before others on the same thread get their turn. Few, so that what they set going leaves early and the
/// next process works on it meanwhile; eight frames a write cost hardly more than a hundred.
const BATCH: usize = 8;
/// Commands taken in a row.
const COMMAND_BATCH: usize = 256;
/// Frames that may wait to be written before no more are read: answers to frames, such as pongs, must not pile up.
const WAITING_FRAMES: usize = 16 * 1024;

/// How a link ended.
pub(super) struct Ended {
    /// When its session was opened.
    pub(super) opened: Option<Instant>,
    /// It was left for this one.
    pub(super) next: Option<Road>,
}

impl Driver {
    /// Drives a link to its end, or to where a better road is found.
    pub(super) async fn connection(&mut self, link: Link) -> Ended {
        self.pump = Some(Pump::new(link));
        self.handle(Event::LinkUp);
        let mut timer = Box::pin(tokio::time::sleep(self.settings.session.hello_timeout));
        let mut opened = None;
        let mut scout = None;
        let mut next = None;
        let ended = poll_fn(|cx| {
            let polled = self.poll_link(cx, timer.as_mut());
            if opened.is_none() && self.session.is_open() {
                opened = Some(now());
                scout = Scout::new(self.dialled, self.disappointments, &self.settings);
            }
            if polled.is_pending()
                && self.ending == Ending::No
                && !self.session.is_draining()
                && let Some(scout) = &mut scout
                && let Poll::Ready(road) = scout.poll(&self.dialers, &self.settings, cx)
            {
                next = Some(road);
                return Poll::Ready(Ok(()));
            }
            polled
        })
        .await;
        if let Some(Road { index, .. }) = &next {
            let (from, to) = (self.dialers[self.dialled].address(), self.dialers[*index].address());
            tracing::info!(from, to, "a better road is there");
            self.pump = None;
            self.handle(Event::LinkLost);
            // Counted until it has shown that it holds.
            self.disappointments += 1;
            self.switching = true;
            return Ended { opened, next };
        }
        self.switching = false;
        let pump = self.pump.take();
        self.handle(Event::LinkLost);
        let closed = self.closed.take();
        let why = match (&closed, &ended) {
            (Some(reason), _) => reason.to_string(),
            (None, Err(error)) => error.to_string(),
            (None, Ok(())) => "the hub has closed the link".to_owned(),
        };
        tracing::info!(address = self.dialers[self.dialled].address(), %why, "link ended");
        if self.ending == Ending::No {
            self.connecting(why);
        }
        // Nobody hears the last words on a link that is dead or gone.
        if let Some(pump) = pump
            && closed.is_some_and(|reason| !matches!(reason, CloseReason::Dead { .. }))
        {
            let farewell = pump.farewell(self.drain_by);
            if self.ending == Ending::No {
                self.offline(farewell).await;
            } else {
                self.leave_services();
                farewell.await;
            }
        }
        Ended { opened, next }
    }

    /// Ready when the link has ended, or is to be closed.
    fn poll_link(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<Result<(), LinkError>> {
        let mut again = self.poll_read(cx)?;
        if again == Progress::Ended {
            return Poll::Ready(Ok(()));
        }
        // First, so that what they answer at once leaves with this turn.
        self.poll_services(cx);
        if self.poll_work(cx) == Progress::More {
            again = Progress::More;
        }
        if let Some(next) = self.session.next_wakeup() {
            // Being heard moves the wake-up back; that is found out when the timer fires, not at every frame.
            if tokio::time::Instant::from_std(next) < timer.deadline() {
                timer.as_mut().reset(next.into());
            }
            while timer.as_mut().poll(cx).is_ready() {
                self.handle(Event::Tick);
                let Some(next) = self.session.next_wakeup() else { break };
                timer.as_mut().reset(next.into());
            }
        }
        if self.closed.is_some() || self.ending == Ending::Close {
            return Poll::Ready(Ok(()));
        }
        let held_back = self.is_held_back();
        let Some(pump) = &mut self.pump else { return Poll::Ready(Ok(())) };
        let sent = pump.poll_send(cx)?;
        if sent.is_ready() && held_back {
            again = Progress::More;
        }
        for head in pump.take_refused() {
            self.handle(Event::Refused(head));
            again = Progress::More;
        }
        // Only now is it known that the last answers are out.
        if sent.is_ready() && self.session.is_draining() {
            self.handle(Event::Flushed);
            if self.closed.is_some() {
                return Poll::Ready(Ok(()));
            }
        }
        if again == Progress::More {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<Progress, LinkError> {
        for _ in 0..BATCH {
            let Some(pump) = &mut self.pump else { return Ok(Progress::Ended) };
            if pump.waiting() > WAITING_FRAMES {
                return Ok(Progress::Waiting);
            }
            match pump.poll_receive(cx) {
                Poll::Ready(Some(Ok(bytes))) => self.handle(Event::Received(bytes)),
                Poll::Ready(Some(Err(error))) => return Err(error),
                Poll::Ready(None) => return Ok(Progress::Ended),
                Poll::Pending => return Ok(Progress::Waiting),
            }
            if self.closed.is_some() {
                return Ok(Progress::Waiting);
            }
        }
        Ok(Progress::More)
    }

    /// Takes what callers and services ask, as long as the link keeps up.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Progress {
        for _ in 0..COMMAND_BATCH {
            let taken = if self.is_held_back() || self.is_switching() {
                self.poll_note(cx)
            } else {
                self.poll_inbox(cx)
            };
            if taken.is_pending() {
                return Progress::Waiting;
            }
        }
        Progress::More
    }

    /// Callers wait for the better road to be in use.
    fn is_switching(&self) -> bool {
        self.switching && !self.session.is_open()
    }

    fn is_held_back(&self) -> bool {
        self.pump.as_ref().is_some_and(|pump| {
            pump.waiting_bytes() > self.settings.outgoing_bytes || pump.waiting() > WAITING_FRAMES
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing left for now; a wake-up is arranged.
    Waiting,
    /// There may be more at once.
    More,
    /// The other end has closed the link.
    Ended,
}
