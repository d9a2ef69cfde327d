//! The faults of a run.

use std::time::Duration;

use crate::plan::{Direction, Place};
use crate::rng::Rng;
use crate::simulation::Simulation;

/// One fault with all its random parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The link of a peer ends at both ends; `kept` of ten frames in flight still arrive.
    Cut { place: Place, kept: usize },
    /// The network of a peer fails: no link can be made, and both ends of an existing link receive nothing.
    Outage { place: Place, lasts: Duration },
    /// A peer loses its link to one hub and cannot reach that hub for a time. The peer fails over if there is another
    /// hub, and fails back.
    Unreachable { place: Place, hub: usize, kept: usize, lasts: Duration },
    /// One direction of a link accepts no frames for a time.
    Stall { place: Place, direction: Direction, lasts: Duration },
    /// Frames no longer arrive in one or both directions of a link, and neither end is notified.
    HalfOpen { place: Place, up: bool, down: bool },
    /// Frames in flight are delayed.
    Delay { place: Place, direction: Direction, lasts: Duration },
    /// A hub's process ends and another begins, without the state of the first.
    HubCrash { hub: usize, down: Duration, silent: bool },
    /// A peer's process ends and another begins.
    Crash { place: Place, down: Duration, silent: bool },
    /// A proxy's process ends and another begins, without the stored terms and with a clock that is behind.
    StateLost { place: Place, down: Duration, behind: Duration },
    /// Another process of a peer begins while the older one continues for a time, as after a pod was moved.
    Duplicate { place: Place, lasts: Duration },
    /// A peer drains and ends, and another process begins.
    Drain { place: Place, down: Duration },
    /// A hub drains and ends, and another process begins.
    HubDrain { hub: usize, down: Duration },
    /// A driver's process ends and another begins.
    DriverCrash { place: Place, driver: usize, down: Duration },
}

impl Fault {
    /// The number of kinds for [`Fault::of`].
    pub(crate) const KINDS: usize = 14;

    /// Returns a random fault of a kind below [`Fault::KINDS`].
    pub(crate) fn of(kind: usize, rng: &mut Rng, agents: usize, places: usize, hubs: usize) -> Self {
        // Faults of agents have the most effects, since executions are there.
        let place = if rng.happens(600) { rng.below(agents) } else { rng.below(places) };
        let direction = if rng.happens(500) { Direction::Up } else { Direction::Down };
        let lasts = if rng.happens(200) { rng.millis(9_000, 25_000) } else { rng.millis(5, 3_000) };
        let (silent, hub) = (rng.happens(300), rng.below(hubs));
        // Long enough for all to connect to another hub, if there is one.
        let hub_down = rng.millis(1, if hubs > 1 { 15_000 } else { 4_000 });
        match kind {
            0 | 1 => Self::Cut { place, kept: rng.below(11) },
            2 => Self::Outage { place, lasts },
            3 => Self::Stall { place, direction, lasts },
            4 => {
                let both = rng.happens(600);
                Self::HalfOpen {
                    place,
                    up: both || direction == Direction::Up,
                    down: both || direction == Direction::Down,
                }
            }
            5 => Self::Delay { place, direction, lasts },
            6 => Self::HubCrash { hub, down: hub_down, silent },
            7 => Self::Crash { place, down: rng.millis(1, 4_000), silent },
            8 => Self::Duplicate { place, lasts },
            9 => Self::DriverCrash {
                place: rng.below(agents),
                driver: rng.below(places - agents),
                down: rng.millis(0, 1_500),
            },
            10 => Self::StateLost {
                place: agents + rng.below(places - agents),
                down: rng.millis(1, 4_000),
                behind: if rng.happens(300) { rng.millis(1, 10_000) } else { Duration::ZERO },
            },
            11 => Self::Unreachable { place, hub, kept: rng.below(11), lasts },
            _ if rng.happens(700) => Self::Drain { place, down: rng.millis(1, 2_000) },
            _ => Self::HubDrain { hub, down: hub_down },
        }
    }
}

impl Simulation {
    /// Makes a fault happen.
    pub(crate) async fn fault(&mut self, fault: Fault) {
        self.context.note("fault", || format!("{fault:?}"));
        let now = tokio::time::Instant::now();
        match fault {
            Fault::Cut { place, kept } => {
                let mut rng = self.rng.fork();
                for link in self.context.links_of(place) {
                    link.cut(kept, &mut rng);
                }
            }
            Fault::Outage { place, lasts } => {
                self.context.with(|inner| inner.outages.insert(place, now + lasts));
                for link in self.context.links_of(place) {
                    link.hold(Direction::Up, Some(now + lasts));
                    link.hold(Direction::Down, Some(now + lasts));
                }
            }
            Fault::Unreachable { place, hub, kept, lasts } => {
                self.context.with(|inner| inner.unreachable.insert((place, hub), now + lasts));
                let mut rng = self.rng.fork();
                for link in self.context.links_to(place, hub) {
                    link.cut(kept, &mut rng);
                }
            }
            Fault::Stall { place, direction, lasts } => {
                for link in self.context.links_of(place) {
                    link.stall(direction, now + lasts);
                }
            }
            Fault::HalfOpen { place, up, down } => {
                for link in self.context.links_of(place) {
                    for (direction, dead) in [(Direction::Up, up), (Direction::Down, down)] {
                        if dead {
                            link.hold(direction, None);
                        }
                    }
                }
            }
            Fault::Delay { place, direction, lasts } => {
                for link in self.context.links_of(place) {
                    link.hold(direction, Some(now + lasts));
                }
            }
            Fault::HubCrash { hub, down, silent } => self.hub_crashes(hub, silent, down),
            Fault::Crash { place, down, silent } => {
                if self.ends(place, silent) {
                    self.later(down, crate::simulation::Step::Start { place });
                }
            }
            Fault::StateLost { place, down, behind } => {
                if let Some(driver) = place.checked_sub(self.plan.agents)
                    && self.ends(place, false)
                {
                    self.context.with(|inner| {
                        inner.starts.remove(&driver);
                        inner.behind.insert(driver, behind);
                    });
                    self.later(down, crate::simulation::Step::Start { place });
                }
            }
            Fault::Duplicate { place, lasts } => self.duplicate(place, lasts).await,
            Fault::Drain { place, down } => self.drain(place, down),
            Fault::HubDrain { hub, down } => self.hub_drains(hub, down),
            Fault::DriverCrash { place, driver, down } => self.driver_crashes(place, driver, down),
        }
    }
}
