//! One link of a peer, from its hello to its end.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;

use super::dialing::{DialedLink, Probe};
use super::{Driver, Ending, Redial};
use crate::frame_io::{FrameIo, now};
use crate::link::{Link, LinkError};
use crate::peer::Refusal;
use crate::session::{CloseReason, Event};

/// Frames read before the task yields. After a small batch the results are sent early, so that the next process works
/// on them while this one continues to read. A frame in a write of eight costs hardly more than in a write of a
/// hundred.
const READ_BATCH: usize = 8;
/// Calls and answers handled before they are sent and the task yields, for the same reason.
const COMMAND_BATCH: usize = 8;
/// Queued frames above which no more are read: responses to frames, such as pongs, must not accumulate.
const WAITING_FRAMES: usize = 16 * 1024;

/// How a link ended.
pub(super) struct Ended {
    /// When the link's session was established, if it was.
    pub(super) opened: Option<Instant>,
    /// The link that replaces the ended link.
    pub(super) next: Option<DialedLink>,
}

impl Driver {
    /// Drives a link until it ends or another one replaces it.
    pub(super) async fn connection(&mut self, link: Link) -> Ended {
        if let Some(name) = link.name() {
            self.session.set_name(name.clone());
            self.name = name.clone();
        }
        self.session.set_idle_ping(link.idle_ping());
        self.io = Some(FrameIo::new(link));
        self.batch = 0;
        self.handle(Event::LinkUp);
        let mut timer = Box::pin(tokio::time::sleep(self.settings.session.hello_timeout));
        let mut opened = None;
        let mut failback = None;
        let mut redial = None;
        self.redial = None;
        let mut next = None;
        let mut leaving = None;
        let ended = poll_fn(|cx| {
            let polled = self.poll_link(cx, timer.as_mut());
            if opened.is_none() && self.session.is_open() {
                opened = Some(now());
                let preferred = self.paths.preferred_to(self.current_dialer);
                failback = Probe::failback(preferred, self.failed_failbacks, &self.settings);
            }
            match self.redial.take().filter(|_| opened.is_some()) {
                Some(Redial::Requested) => {
                    let order = self.paths.order(Some(self.current_dialer));
                    redial = Some(Probe::redial(order, &self.settings));
                }
                Some(Redial::Leaving { reason }) => {
                    let order = self.paths.order_with_last(self.current_dialer);
                    redial = Some(Probe::redial(order, &self.settings));
                    leaving = Some(reason);
                }
                None => {}
            }
            if polled.is_pending()
                && self.ending == Ending::NotRequested
                && (redial.is_some() || !self.session.is_draining())
                && let Some(probe) = redial.as_mut().or(failback.as_mut())
            {
                if let Poll::Ready(dialed) = probe.poll(self.paths.dialers(), &self.settings, cx) {
                    next = Some(dialed);
                    return Poll::Ready(Ok(()));
                }
                if probe.has_failed()
                    && let Some(reason) = leaving.take()
                {
                    // There is no other hub: this end drains too, so that the link ends with its calls.
                    self.handle(Event::Drain { reason });
                    cx.waker().wake_by_ref();
                }
            }
            polled
        })
        .await;
        if let Some(DialedLink { index, .. }) = &next {
            let (from, to) = (self.paths.address(self.current_dialer), self.paths.address(*index));
            let why = match (self.session.is_draining(), redial.is_some()) {
                (true, _) => "the hub drains",
                (_, true) => "redialed",
                _ => "preferred path available",
            };
            tracing::info!(from, to, why, "switching to a new link");
            self.io = None;
            drop(self.queue.clear());
            self.handle(Event::LinkLost);
            if redial.is_none() {
                // The failback counts as failed until the new link has lasted for `failback_interval`.
                self.failed_failbacks += 1;
            }
            self.failing_back = true;
            return Ended { opened, next };
        }
        self.failing_back = false;
        let mut io = self.io.take();
        self.handle(Event::LinkLost);
        while let Some(queued) = self.queue.pop() {
            if let Some(io) = &mut io {
                io.push(queued.frame);
            }
        }
        let closed = self.closed.take();
        let why = match (&closed, &ended) {
            (Some(reason), _) => reason.to_string(),
            (None, Err(error)) => error.to_string(),
            (None, Ok(())) => "the hub closed the link".to_owned(),
        };
        let address = self.paths.address(self.current_dialer);
        let refusal = closed.as_ref().and_then(Refusal::of_close);
        match refusal {
            Some(Refusal::NameInUse) => {
                tracing::warn!(address, name = %self.name, %why, "another process uses the name of this peer");
            }
            _ => tracing::info!(address, %why, "link ended"),
        }
        if self.ending == Ending::NotRequested {
            self.set_connecting(why, refusal);
        }
        // Flushing is useless on a dead or lost link.
        if let Some(io) = io
            && closed.is_some_and(|reason| !matches!(reason, CloseReason::Dead { .. }))
        {
            let closing = io.flush_and_close(self.drain_by);
            if self.ending == Ending::NotRequested {
                self.offline(closing).await;
            } else {
                self.detach_services();
                closing.await;
            }
        }
        Ended { opened, next }
    }

    /// Ready when the link has ended or must be closed.
    fn poll_link(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<Result<(), LinkError>> {
        let mut progress = self.poll_read(cx)?;
        if progress == Progress::Ended {
            return Poll::Ready(Ok(()));
        }
        // Services run first, so that immediate replies are sent in the same poll.
        self.poll_services(cx);
        if self.poll_work(cx) == Progress::More {
            progress = Progress::More;
        }
        if let Some(next) = self.session.next_wakeup() {
            // Received frames postpone the wake-up. The timer is not reset for every frame: it fires early and is reset then.
            // It is reset if it would wake an idle device for nothing.
            let (next, deadline) = (next.into(), timer.deadline());
            if next < deadline || next > deadline + self.settings.session.liveness_timeout {
                timer.as_mut().reset(next);
            }
            while timer.as_mut().poll(cx).is_ready() {
                let max = self.settings.session.frame_timeout();
                if self.io.as_mut().is_some_and(|io| io.is_receiving(max)) {
                    self.handle(Event::Excused);
                }
                self.handle(Event::Tick);
                let Some(next) = self.session.next_wakeup() else { break };
                timer.as_mut().reset(next.into());
            }
        }
        if self.closed.is_some() || self.ending == Ending::Close {
            return Poll::Ready(Ok(()));
        }
        let queue_full = self.is_queue_full();
        let sent = loop {
            self.fill_link();
            let Some(io) = &mut self.io else { return Poll::Ready(Ok(())) };
            let sent = io.poll_send(cx)?;
            for (lane, head) in io.take_refused() {
                // A lane must not have a gap.
                self.queue.retain(|queued| queued.frame.lane != lane);
                self.handle(Event::Refused(head));
                progress = Progress::More;
            }
            if sent.is_pending() || self.queue.len() == 0 {
                break sent;
            }
        };
        if sent.is_ready() && queue_full {
            progress = Progress::More;
        }
        // All frames are written, including the last replies.
        if sent.is_ready() && self.session.is_draining() {
            self.handle(Event::Flushed);
            if self.closed.is_some() {
                return Poll::Ready(Ok(()));
            }
        }
        if progress == Progress::More {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<Progress, LinkError> {
        for _ in 0..READ_BATCH {
            let Some(io) = &mut self.io else { return Ok(Progress::Ended) };
            if io.waiting() + self.queue.len() > WAITING_FRAMES {
                return Ok(Progress::Waiting);
            }
            match io.poll_receive(cx) {
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

    /// Handles what services send, and the commands of callers while their queue is not full.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Progress {
        for _ in 0..COMMAND_BATCH {
            let taken = if self.is_queue_full() || self.is_failing_back() {
                self.poll_control(cx)
            } else {
                self.poll_messages(cx)
            };
            if taken.is_pending() {
                return Progress::Waiting;
            }
        }
        Progress::More
    }

    /// Whether callers wait for the link that replaces another one.
    fn is_failing_back(&self) -> bool {
        self.failing_back && !self.session.is_open()
    }

    fn is_queue_full(&self) -> bool {
        self.queue.bytes_of(&self.name) > self.settings.max_queued_bytes || self.queue.len() > WAITING_FRAMES
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing to do now; a wake-up is registered.
    Waiting,
    /// There may be more to do at once.
    More,
    /// The other end has closed the link.
    Ended,
}
