//! The network: what happens to frames between a peer's end of a link and the hub's. Both ends are memory links of
//! `edge_transport`; in between frames take their time, overtake each other, are held up, and get lost with their link.

mod direction;
mod gate;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Polling, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use edge_transport::frame::{Frame, Kind, Part, decode};
use edge_transport::link::{Dialer, Lane, Link, LinkError, WireFrame, faulty, memory};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use self::direction::{Cargo, Direction};
pub(crate) use self::gate::{Door, listen};
use crate::chance::Chance;
use crate::context::Context;
use crate::ids::{LifeId, LinkId};
use crate::plan::{Place, Road, Way};

/// Largest frame of a link.
pub(crate) const MAX_FRAME: usize = 64 * 1024;

/// Frames that are on their way at once before no more are taken.
const IN_FLIGHT: usize = 512;

/// The way of a process to one hub.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) context: Arc<Context>,
    pub(crate) place: Place,
    pub(crate) life: LifeId,
    pub(crate) hub: usize,
    pub(crate) road: Road,
    pub(crate) address: String,
}

#[async_trait::async_trait]
impl Dialer for Network {
    async fn dial(&self) -> Result<Link, LinkError> {
        let context = &self.context;
        while let Some(until) = context.away(self.place) {
            sleep_until(until).await;
        }
        sleep(2 * self.road.latency).await;
        if !context.is_alive(self.life) {
            std::future::pending::<()>().await;
        }
        let (hub_life, door) = context.door(self.place, self.hub).ok_or(LinkError::Cut)?;
        let (mut chance, hostile) = context.with(|inner| (inner.chance.fork(), inner.hostile()));
        let (far, brake) = door.dial(hostile, chance.number()).await?;
        let (near, end) = memory::pair(MAX_FRAME);
        let control = Arc::new(Control::new(brake));
        let link = context.link_begins(self.place, self.life, (self.hub, hub_life), Arc::clone(&control));
        let wire = Wire {
            context: Arc::clone(context),
            link,
            life: self.life,
            road: self.road,
            chance: chance.fork(),
            peer: Some(end),
            hub: Some(far),
            up: Direction::default(),
            down: Direction::default(),
            control,
            timer: Box::pin(sleep(Duration::ZERO)),
        };
        tokio::spawn(wire.run());
        Ok(near)
    }

    fn address(&self) -> &str {
        &self.address
    }
}

/// Commands to a link.
#[derive(Debug)]
pub(crate) struct Control {
    commands: Mutex<Commands>,
    /// Holds back what the hub writes, so that it waits there.
    brake: faulty::Handle,
}

#[derive(Debug, Default)]
struct Commands {
    /// Until when nothing arrives; the last entry of a way counts. `None`: for ever.
    holds: Vec<(Way, Option<Instant>)>,
    stalls: Vec<(Way, Instant)>,
    /// The link is cut, and so many of ten frames on their way still come.
    cuts: Vec<(usize, Chance)>,
    /// An end's process is gone, with a word to the other end or without.
    gone: Vec<(Way, bool)>,
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

    /// Holds up what is on its way and what will be.
    pub(crate) fn hold(&self, way: Way, until: Option<Instant>) {
        self.command(|commands| commands.holds.push((way, until)));
    }

    /// A way takes nothing until a moment.
    pub(crate) fn stall(&self, way: Way, until: Instant) {
        if way == Way::Down {
            self.brake.stall(faulty::Direction::Sending);
        }
        self.command(|commands| commands.stalls.push((way, until)));
    }

    /// Ends a link at both ends.
    pub(crate) fn cut(&self, kept: usize, chance: &mut Chance) {
        let chance = chance.fork();
        self.command(|commands| commands.cuts.push((kept, chance)));
    }

    /// The process that sends this way is gone at once. Its last frames may come, and then the link's end, unless it is silent.
    pub(crate) fn sender_gone(&self, way: Way, silent: bool) {
        self.command(|commands| commands.gone.push((way, silent)));
    }
}

/// A link on its way through the network.
struct Wire {
    context: Arc<Context>,
    link: LinkId,
    life: LifeId,
    road: Road,
    chance: Chance,
    peer: Option<Link>,
    hub: Option<Link>,
    up: Direction,
    down: Direction,
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
            for way in [Way::Up, Way::Down] {
                progress |= self.take(way, now, cx);
                progress |= self.give(way, now, cx);
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
            // What is due and was not given waits for its receiver, who wakes this task.
            if due <= now {
                return Poll::Pending;
            }
            self.timer.as_mut().reset(due);
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Nobody is left to hear anything.
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
        for (way, until) in commands.holds.drain(..) {
            let direction = self.direction(way);
            // What is held for ever stays so.
            if direction.held != Some(None) {
                let longest = direction.held.flatten().max(until);
                direction.held = Some(until.and(longest));
            }
        }
        for (way, until) in commands.stalls.drain(..) {
            let direction = self.direction(way);
            direction.stalled = direction.stalled.max(Some(until));
        }
        let road = self.road;
        for (kept, mut chance) in commands.cuts.drain(..) {
            self.up.cut(now, kept, &road, &mut chance);
            self.down.cut(now, kept, &road, &mut chance);
        }
        for (way, silent) in commands.gone.drain(..) {
            match way {
                Way::Up => self.peer = None,
                Way::Down => self.hub = None,
            }
            let mut chance = self.chance.fork();
            let kept = chance.below(11);
            let direction = self.direction(way);
            direction.spent = true;
            if silent {
                direction.flights.clear();
                direction.ended = true;
            } else {
                direction.cut(now, kept, &road, &mut chance);
            }
            match way {
                Way::Up => self.context.link_lost(self.link),
                Way::Down => self.context.link_broken(self.link),
            }
        }
    }

    const fn direction(&mut self, way: Way) -> &mut Direction {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }

    /// Takes one frame from its sender.
    fn take(&mut self, way: Way, now: Instant, cx: &mut Polling<'_>) -> bool {
        let (direction, from) = match way {
            Way::Up => (&mut self.up, &mut self.peer),
            Way::Down => (&mut self.down, &mut self.hub),
        };
        let full = direction.flights.len() >= IN_FLIGHT && !direction.ended;
        // What the hub writes is held back at its own end.
        if direction.spent || full || (way == Way::Up && direction.is_stalled(now)) {
            return false;
        }
        let Some(link) = from else {
            direction.spent = true;
            return true;
        };
        let (lane, cargo) = match Pin::new(link).poll_next(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(bytes))) => {
                let frame = decode(bytes.clone(), usize::MAX).ok().map(Box::new);
                // Also what the link has lost already: its sender cannot know.
                if let Some(frame) = frame.as_deref().filter(|_| way == Way::Up) {
                    self.context.sent(self.link, self.life, frame);
                }
                (frame.as_deref().map_or(Lane::Control, lane_of), Cargo::Frame(bytes, frame))
            }
            Poll::Ready(None) => (Lane::Control, Cargo::End),
            Poll::Ready(Some(Err(_))) => (Lane::Control, Cargo::Broken),
        };
        if !matches!(cargo, Cargo::Frame(..)) {
            direction.spent = true;
            match way {
                Way::Up => self.context.link_lost(self.link),
                Way::Down => self.context.link_broken(self.link),
            }
        }
        direction.fly(now, lane, cargo, &self.road, &mut self.chance);
        true
    }

    /// Hands what has arrived to its receiver.
    fn give(&mut self, way: Way, now: Instant, cx: &mut Polling<'_>) -> bool {
        let (direction, to) = match way {
            Way::Up => (&mut self.up, &mut self.hub),
            Way::Down => (&mut self.down, &mut self.peer),
        };
        if direction.is_held(now) {
            return false;
        }
        let mut progress = false;
        while let Some(flight) = direction.flights.first_entry().filter(|flight| flight.key().0 <= now) {
            let Some(link) = to else {
                direction.flights.clear();
                return true;
            };
            let mut pinned = Pin::new(link);
            match &flight.get().1 {
                Cargo::Frame(..) => match pinned.as_mut().poll_ready(cx) {
                    Poll::Pending => return progress,
                    Poll::Ready(Ok(())) => {
                        let (lane, cargo) = flight.remove();
                        let Cargo::Frame(bytes, frame) = cargo else { continue };
                        if let Some(frame) = frame.filter(|_| way == Way::Down) {
                            self.context.arrived(self.link, self.life, &frame);
                        }
                        let wire = WireFrame::new(lane, false, bytes, Bytes::new());
                        if pinned.as_mut().start_send(wire).is_err() {
                            direction.flights.clear();
                            return true;
                        }
                    }
                    Poll::Ready(Err(_)) => {
                        direction.flights.clear();
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
                    match way {
                        Way::Up => self.context.link_broken(self.link),
                        Way::Down => self.context.link_lost(self.link),
                    }
                    *to = None;
                }
            }
            progress = true;
        }
        progress
    }
}

/// Which frames keep their order, on a link with a stream for each call.
fn lane_of(frame: &Frame) -> Lane {
    match &frame.kind {
        Kind::Call(id, Part::Request(_) | Part::Reply(_)) => Lane::Call(*id),
        _ => Lane::Control,
    }
}
