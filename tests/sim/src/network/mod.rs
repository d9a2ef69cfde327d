//! The network between the two ends of a link, which are memory links of `edge_transport`. Frames on the way are
//! delayed, overtake each other, are held up, and are lost with their link.

mod gate;
mod pipe;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Polling, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use edge_transport::PeerId;
use edge_transport::advanced::frame::{Frame, Kind, Part, decode};
use edge_transport::link::{Dialer, Lane, Link, LinkError, WireFrame, faulty, memory};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

pub(crate) use self::gate::{Door, listen};
use self::pipe::{Cargo, Pipe};
use crate::context::Context;
use crate::ids::{InstanceId, LinkId};
use crate::plan::{Direction, LinkProfile, Place};
use crate::rng::Rng;

/// Largest frame of a link.
pub(crate) const MAX_FRAME: usize = 64 * 1024;

/// Largest number of frames in flight in one direction; the sender waits beyond it.
const IN_FLIGHT: usize = 512;

/// How often the links are pinged that are not checked often at all times.
const IDLE_PING: Duration = Duration::from_secs(20);

/// The network between a process and one hub.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) context: Arc<Context>,
    pub(crate) place: Place,
    pub(crate) instance: InstanceId,
    /// The name that the process can prove, with all names below it.
    pub(crate) proven: PeerId,
    pub(crate) hub: usize,
    pub(crate) profile: LinkProfile,
    pub(crate) address: String,
}

#[async_trait::async_trait]
impl Dialer for Network {
    async fn dial(&self) -> Result<Link, LinkError> {
        let context = &self.context;
        while let Some(until) = context.outage(self.place) {
            sleep_until(until).await;
        }
        sleep(2 * self.profile.latency).await;
        if !context.is_alive(self.instance) {
            std::future::pending::<()>().await;
        }
        let (hub_instance, door) = context.door(self.place, self.hub).ok_or(LinkError::Lost)?;
        let (mut rng, hostile) = context.with(|inner| (inner.rng.fork(), inner.hostile()));
        let idle_ping = rng.happens(500).then_some(IDLE_PING);
        let (far, brake) = door.dial(self.proven.clone(), hostile, rng.number()).await?;
        let (near, end) = memory::pair(MAX_FRAME);
        let control = Arc::new(Control::new(brake));
        let link =
            context.link_begins(self.place, self.instance, (self.hub, hub_instance), Arc::clone(&control));
        let wire = Wire {
            context: Arc::clone(context),
            link,
            instance: self.instance,
            profile: self.profile,
            rng: rng.fork(),
            peer: Some(end),
            hub: Some(far),
            up: Pipe::default(),
            down: Pipe::default(),
            control,
            timer: Box::pin(sleep(Duration::ZERO)),
        };
        tokio::spawn(wire.run());
        Ok(match idle_ping {
            Some(every) => near.with_idle_ping(every),
            None => near,
        })
    }

    fn address(&self) -> &str {
        &self.address
    }
}

/// Commands to a link.
#[derive(Debug)]
pub(crate) struct Control {
    commands: Mutex<Commands>,
    /// Holds back the frames that the hub writes at the hub's end.
    brake: faulty::Handle,
}

#[derive(Debug, Default)]
struct Commands {
    /// The instants until which no frame arrives in a direction. `None`: permanently.
    holds: Vec<(Direction, Option<Instant>)>,
    stalls: Vec<(Direction, Instant)>,
    /// Cuts of the link. This many of ten frames in flight still arrive.
    cuts: Vec<(usize, Rng)>,
    /// The directions whose sender has ended, and whether silently, without a notification of the other end.
    closed: Vec<(Direction, bool)>,
    waker: Option<Waker>,
}

impl Control {
    fn new(brake: faulty::Handle) -> Self {
        Self { commands: Mutex::default(), brake }
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, change: impl FnOnce(&mut Commands)) {
        let mut commands = self.lock();
        change(&mut commands);
        if let Some(waker) = commands.waker.take() {
            waker.wake();
        }
    }

    /// Delays frames in flight and later ones until an instant. `None`: permanently.
    pub(crate) fn hold(&self, direction: Direction, until: Option<Instant>) {
        self.command(|commands| commands.holds.push((direction, until)));
    }

    /// Makes a direction accept no frames until an instant.
    pub(crate) fn stall(&self, direction: Direction, until: Instant) {
        if direction == Direction::Down {
            self.brake.stall(faulty::Direction::Sending);
        }
        self.command(|commands| commands.stalls.push((direction, until)));
    }

    /// Ends a link at both ends.
    pub(crate) fn cut(&self, kept: usize, rng: &mut Rng) {
        let rng = rng.fork();
        self.command(|commands| commands.cuts.push((kept, rng)));
    }

    /// Ends the sender of a direction at once. Its last frames may arrive, and then the link's end, unless `silent`.
    pub(crate) fn sender_closed(&self, direction: Direction, silent: bool) {
        self.command(|commands| commands.closed.push((direction, silent)));
    }
}

/// A link in transit through the network.
struct Wire {
    context: Arc<Context>,
    link: LinkId,
    instance: InstanceId,
    profile: LinkProfile,
    rng: Rng,
    peer: Option<Link>,
    hub: Option<Link>,
    up: Pipe,
    down: Pipe,
    control: Arc<Control>,
    timer: Pin<Box<Sleep>>,
}

impl Wire {
    async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
        self.context.link_over(self.link);
    }

    fn poll(&mut self, cx: &mut Polling<'_>) -> Poll<()> {
        self.commands(cx);
        loop {
            let now = Instant::now();
            let mut progress = false;
            if self.down.stalled.is_some_and(|until| until <= now) {
                self.down.stalled = None;
                self.control.brake.heal();
            }
            for direction in [Direction::Up, Direction::Down] {
                progress |= self.take(direction, now, cx);
                progress |= self.give(direction, now, cx);
            }
            if self.is_over() {
                return Poll::Ready(());
            }
            if progress {
                continue;
            }
            let Some(due) = self.up.due(now).into_iter().chain(self.down.due(now)).min() else {
                return Poll::Pending;
            };
            // A frame that is due but not delivered waits for its receiver, which wakes this task.
            if due <= now {
                return Poll::Pending;
            }
            self.timer.as_mut().reset(due);
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Whether no receiver is left.
    fn is_over(&self) -> bool {
        (self.peer.is_none() && self.hub.is_none()) || (self.up.spent && self.down.spent)
    }

    fn commands(&mut self, cx: &Polling<'_>) {
        let control = Arc::clone(&self.control);
        let mut commands = control.lock();
        match &mut commands.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let now = Instant::now();
        for (direction, until) in commands.holds.drain(..) {
            let pipe = self.pipe(direction);
            // A permanent hold stays permanent.
            if pipe.held != Some(None) {
                let longest = pipe.held.flatten().max(until);
                pipe.held = Some(until.and(longest));
            }
        }
        for (direction, until) in commands.stalls.drain(..) {
            let pipe = self.pipe(direction);
            pipe.stalled = pipe.stalled.max(Some(until));
        }
        let profile = self.profile;
        for (kept, mut rng) in commands.cuts.drain(..) {
            self.up.cut(now, kept, &profile, &mut rng);
            self.down.cut(now, kept, &profile, &mut rng);
        }
        for (direction, silent) in commands.closed.drain(..) {
            match direction {
                Direction::Up => self.peer = None,
                Direction::Down => self.hub = None,
            }
            let mut rng = self.rng.fork();
            let kept = rng.below(11);
            let pipe = self.pipe(direction);
            pipe.spent = true;
            if silent {
                pipe.flights.clear();
                pipe.ended = true;
            } else {
                pipe.cut(now, kept, &profile, &mut rng);
            }
            match direction {
                Direction::Up => self.context.link_lost(self.link),
                Direction::Down => self.context.link_broken(self.link),
            }
        }
    }

    const fn pipe(&mut self, direction: Direction) -> &mut Pipe {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// Takes one frame from its sender.
    fn take(&mut self, direction: Direction, now: Instant, cx: &mut Polling<'_>) -> bool {
        let (pipe, from) = match direction {
            Direction::Up => (&mut self.up, &mut self.peer),
            Direction::Down => (&mut self.down, &mut self.hub),
        };
        let full = pipe.flights.len() >= IN_FLIGHT && !pipe.ended;
        // A stall of the hub's frames is done by the brake at the hub's end.
        if pipe.spent || full || (direction == Direction::Up && pipe.is_stalled(now)) {
            return false;
        }
        let Some(link) = from else {
            pipe.spent = true;
            return true;
        };
        let (lane, cargo) = match Pin::new(link).poll_next(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(bytes))) => {
                let frame = decode(bytes.clone(), usize::MAX).ok().map(Box::new);
                // This includes frames that the link loses, since the sender does not observe the loss.
                if let Some(frame) = frame.as_deref().filter(|_| direction == Direction::Up) {
                    self.context.sent(self.link, self.instance, frame);
                }
                (frame.as_deref().map_or(Lane::Control, lane_of), Cargo::Frame(bytes, frame))
            }
            Poll::Ready(None) => (Lane::Control, Cargo::End),
            Poll::Ready(Some(Err(_))) => (Lane::Control, Cargo::Broken),
        };
        if !matches!(cargo, Cargo::Frame(..)) {
            pipe.spent = true;
            match direction {
                Direction::Up => self.context.link_lost(self.link),
                Direction::Down => self.context.link_broken(self.link),
            }
        }
        pipe.fly(now, lane, cargo, &self.profile, &mut self.rng);
        true
    }

    /// Delivers the frames that are due to their receiver.
    fn give(&mut self, direction: Direction, now: Instant, cx: &mut Polling<'_>) -> bool {
        let (pipe, to) = match direction {
            Direction::Up => (&mut self.up, &mut self.hub),
            Direction::Down => (&mut self.down, &mut self.peer),
        };
        if pipe.is_held(now) {
            return false;
        }
        let mut progress = false;
        while let Some(flight) = pipe.flights.first_entry().filter(|flight| flight.key().0 <= now) {
            let Some(link) = to else {
                pipe.flights.clear();
                return true;
            };
            let mut pinned = Pin::new(link);
            match &flight.get().1 {
                Cargo::Frame(..) => match pinned.as_mut().poll_ready(cx) {
                    Poll::Pending => return progress,
                    Poll::Ready(Ok(())) => {
                        let (lane, cargo) = flight.remove();
                        let Cargo::Frame(bytes, frame) = cargo else { continue };
                        if let Some(frame) = frame.filter(|_| direction == Direction::Down) {
                            self.context.arrived(self.link, self.instance, &frame);
                        }
                        let wire = WireFrame::new(lane, false, bytes, Bytes::new());
                        if pinned.as_mut().start_send(wire).is_err() {
                            pipe.flights.clear();
                            return true;
                        }
                    }
                    Poll::Ready(Err(_)) => {
                        pipe.flights.clear();
                        return true;
                    }
                },
                Cargo::End => {
                    if pinned.as_mut().poll_close(cx).is_pending() {
                        return progress;
                    }
                    flight.remove();
                }
                Cargo::Broken => {
                    flight.remove();
                    match direction {
                        Direction::Up => self.context.link_broken(self.link),
                        Direction::Down => self.context.link_lost(self.link),
                    }
                    *to = None;
                }
            }
            progress = true;
        }
        progress
    }
}

/// Returns the lane of a frame. Frames of one lane keep their order on a link with a stream for each call.
fn lane_of(frame: &Frame) -> Lane {
    match &frame.kind {
        Kind::Call(id, Part::Request(_) | Part::Reply(_)) => Lane::Call(*id),
        _ => Lane::Control,
    }
}
