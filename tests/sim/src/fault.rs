//! What goes wrong.

use std::time::Duration;

use crate::chance::Chance;
use crate::plan::{Place, Way};
use crate::world::World;

/// One fault, with all that chance has to say about it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The link of a peer ends at both ends; so many of ten frames on their way still come.
    Cut { place: Place, kept: usize },
    /// The network of a peer is gone: no link can be made, and both ends of the one there is hear nothing.
    Away { place: Place, lasts: Duration },
    /// A peer loses its link to one hub and cannot reach that hub, so that it moves to another one if there is one, and back.
    Refused { place: Place, hub: usize, kept: usize, lasts: Duration },
    /// One way of a link takes no frames for a time.
    Stall { place: Place, way: Way, lasts: Duration },
    /// Nothing arrives any more on one way of a link, or on both, and no end hears of it.
    HalfOpen { place: Place, up: bool, down: bool },
    /// What is sent is held up somewhere, and comes later.
    Held { place: Place, way: Way, lasts: Duration },
    /// A hub's process ends and another begins, which knows nothing.
    HubCrash { hub: usize, down: Duration, silent: bool },
    /// A peer's process ends and another begins.
    Crash { place: Place, down: Duration, silent: bool },
    /// A proxy's process ends and another begins, which knows nothing of its terms, and whose clock is behind.
    StateLost { place: Place, down: Duration, behind: Duration },
    /// Another process of a peer begins while the older one goes on for a time, as after a move of its pod.
    Twin { place: Place, lasts: Duration },
    /// A peer is asked to end in good order, and begins anew.
    Drain { place: Place, down: Duration },
    /// A hub is asked to end in good order, and begins anew.
    HubDrain { hub: usize, down: Duration },
    /// A driver's process ends and another begins.
    DriverCrash { place: Place, driver: usize, down: Duration },
}

impl Fault {
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 14;

    /// A fault of a kind.
    pub(crate) fn of(kind: usize, chance: &mut Chance, agents: usize, places: usize, hubs: usize) -> Self {
        // Where work is done, faults show most.
        let place = if chance.happens(600) { chance.below(agents) } else { chance.below(places) };
        let way = if chance.happens(500) { Way::Up } else { Way::Down };
        let lasts = if chance.happens(200) { chance.millis(9_000, 25_000) } else { chance.millis(5, 3_000) };
        let (silent, hub) = (chance.happens(300), chance.below(hubs));
        // Long enough for all to meet at another hub, if there is one.
        let hub_down = chance.millis(1, if hubs > 1 { 15_000 } else { 4_000 });
        match kind {
            0 | 1 => Self::Cut { place, kept: chance.below(11) },
            2 => Self::Away { place, lasts },
            3 => Self::Stall { place, way, lasts },
            4 => {
                let both = chance.happens(600);
                Self::HalfOpen { place, up: both || way == Way::Up, down: both || way == Way::Down }
            }
            5 => Self::Held { place, way, lasts },
            6 => Self::HubCrash { hub, down: hub_down, silent },
            7 => Self::Crash { place, down: chance.millis(1, 4_000), silent },
            8 => Self::Twin { place, lasts },
            9 => Self::DriverCrash {
                place: chance.below(agents),
                driver: chance.below(places - agents),
                down: chance.millis(0, 1_500),
            },
            10 => Self::StateLost {
                place: agents + chance.below(places - agents),
                down: chance.millis(1, 4_000),
                behind: if chance.happens(300) { chance.millis(1, 10_000) } else { Duration::ZERO },
            },
            11 => Self::Refused { place, hub, kept: chance.below(11), lasts },
            _ if chance.happens(700) => Self::Drain { place, down: chance.millis(1, 2_000) },
            _ => Self::HubDrain { hub, down: hub_down },
        }
    }
}

impl World {
    /// Makes a fault happen.
    pub(crate) async fn fault(&mut self, fault: Fault) {
        self.context.note("fault", || format!("{fault:?}"));
        let now = tokio::time::Instant::now();
        match fault {
            Fault::Cut { place, kept } => {
                let mut chance = self.chance.fork();
                for link in self.context.links_of(place) {
                    link.cut(kept, &mut chance);
                }
            }
            Fault::Away { place, lasts } => {
                self.context.with(|inner| inner.away.insert(place, now + lasts));
                for link in self.context.links_of(place) {
                    link.hold(Way::Up, Some(now + lasts));
                    link.hold(Way::Down, Some(now + lasts));
                }
            }
            Fault::Refused { place, hub, kept, lasts } => {
                self.context.with(|inner| inner.refused.insert((place, hub), now + lasts));
                let mut chance = self.chance.fork();
                for link in self.context.links_to(place, hub) {
                    link.cut(kept, &mut chance);
                }
            }
            Fault::Stall { place, way, lasts } => {
                for link in self.context.links_of(place) {
                    link.stall(way, now + lasts);
                }
            }
            Fault::HalfOpen { place, up, down } => {
                for link in self.context.links_of(place) {
                    for (way, dead) in [(Way::Up, up), (Way::Down, down)] {
                        if dead {
                            link.hold(way, None);
                        }
                    }
                }
            }
            Fault::Held { place, way, lasts } => {
                for link in self.context.links_of(place) {
                    link.hold(way, Some(now + lasts));
                }
            }
            Fault::HubCrash { hub, down, silent } => self.hub_crashes(hub, silent, down),
            Fault::Crash { place, down, silent } => {
                if self.ends(place, silent) {
                    self.later(down, crate::world::Step::Start { place });
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
                    self.later(down, crate::world::Step::Start { place });
                }
            }
            Fault::Twin { place, lasts } => self.twin(place, lasts).await,
            Fault::Drain { place, down } => self.drain(place, down),
            Fault::HubDrain { hub, down } => self.hub_drains(hub, down),
            Fault::DriverCrash { place, driver, down } => self.driver_crashes(place, driver, down),
        }
    }
}
