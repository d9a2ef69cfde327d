//! What goes wrong.

use std::time::Duration;

use crate::chance::Chance;
use crate::journal::CommitCrash;
use crate::plan::{Place, Way};
use crate::world::{Happening, World};

/// One fault, with all that chance has to say about it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The link of a peer ends at both ends; so many of ten frames on their way still come.
    Cut { place: Place, kept: usize },
    /// The network of a peer is gone: no link can be made, and both ends of the one there is hear nothing.
    Away { place: Place, lasts: Duration },
    /// One way of a link takes no frames for a time.
    Stall { place: Place, way: Way, lasts: Duration },
    /// Nothing arrives any more on one way of a link, or on both, and nobody is told.
    HalfOpen { place: Place, up: bool, down: bool },
    /// What is sent is held up somewhere, and comes later.
    Held { place: Place, way: Way, lasts: Duration },
    /// The hub's process ends and another begins, which knows nothing.
    HubCrash { down: Duration, silent: bool },
    /// A peer's process ends and another begins with a higher epoch.
    Crash { place: Place, down: Duration, silent: bool },
    /// Another life of a peer begins while the older one goes on for a time, as after a move of its pod.
    Twin { place: Place, lasts: Duration },
    /// A peer is told to end in good order, and begins anew.
    Drain { place: Place, down: Duration },
    /// The hub is told to end in good order, and begins anew.
    HubDrain { down: Duration },
    /// A driver's process ends and another begins.
    DriverCrash { place: Place },
    /// The next commit of an agent's journal fails, though it may have been written.
    JournalFails { place: Place, written: bool },
    /// An agent ends at a commit, which is on the disk or not.
    CrashAtCommit { place: Place, crash: CommitCrash },
}

impl Fault {
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 13;

    /// A fault of a kind.
    pub(crate) fn of(kind: usize, chance: &mut Chance, agents: usize, places: usize) -> Self {
        // Where work is done, faults tell most.
        let place = if chance.happens(600) { chance.below(agents) } else { chance.below(places) };
        let way = if chance.happens(500) { Way::Up } else { Way::Down };
        let lasts = if chance.happens(200) { chance.millis(9_000, 25_000) } else { chance.millis(5, 3_000) };
        let silent = chance.happens(300);
        match kind {
            0 | 1 => Self::Cut { place, kept: chance.below(11) },
            2 => Self::Away { place, lasts },
            3 => Self::Stall { place, way, lasts },
            4 => {
                let both = chance.happens(600);
                Self::HalfOpen { place, up: both || way == Way::Up, down: both || way == Way::Down }
            }
            5 => Self::Held { place, way, lasts },
            6 => Self::HubCrash { down: chance.millis(1, 4_000), silent },
            7 => Self::Crash { place, down: chance.millis(1, 4_000), silent },
            8 => Self::Twin { place, lasts },
            9 => Self::DriverCrash { place: chance.below(agents) },
            10 => Self::JournalFails { place: chance.below(agents), written: chance.happens(500) },
            11 => Self::CrashAtCommit {
                place: chance.below(agents),
                crash: CommitCrash {
                    written: chance.happens(400),
                    removal: chance.happens(600),
                    down: chance.millis(1, 2_000),
                },
            },
            _ if chance.happens(700) => Self::Drain { place, down: chance.millis(1, 2_000) },
            _ => Self::HubDrain { down: chance.millis(1, 2_000) },
        }
    }
}

impl World {
    /// Makes a fault happen.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.trace.note(self.now, || "fault".into(), || format!("{fault:?}"));
        match fault {
            Fault::Cut { place, kept } => {
                for link in self.links_of(place) {
                    self.cut(link, kept);
                }
            }
            Fault::Away { place, lasts } => {
                let until = self.now + lasts;
                self.away.insert(place, until);
                for link in self.links_of(place) {
                    self.hold(link, Way::Up, until);
                    self.hold(link, Way::Down, until);
                }
            }
            Fault::Stall { place, way, lasts } => {
                let until = self.now + lasts;
                for link in self.links_of(place) {
                    self.stall(link, way, until);
                }
            }
            Fault::HalfOpen { place, up, down } => {
                for link in self.links_of(place) {
                    for (way, dead) in [(Way::Up, up), (Way::Down, down)] {
                        if dead {
                            self.hold(link, way, Duration::MAX);
                        }
                    }
                }
            }
            Fault::Held { place, way, lasts } => {
                let until = self.now + lasts;
                for link in self.links_of(place) {
                    self.hold(link, way, until);
                }
            }
            Fault::HubCrash { down, silent } => {
                if self.hub.is_some() {
                    self.hub_ends(silent);
                    self.after(down, Happening::HubStarts);
                }
            }
            Fault::Crash { place, down, silent } => {
                if let Some(peer) = self.current(place) {
                    let written = self.chance.happens(500);
                    self.peer_ends_at_commit(peer, silent, written);
                    self.after(down, Happening::PeerStarts { place });
                }
            }
            Fault::Twin { place, lasts } => {
                if let Some(older) = self.current(place) {
                    self.twinned.insert(place);
                    self.after(lasts, Happening::PeerEnds { peer: older });
                    self.start_peer(place);
                }
            }
            Fault::Drain { place, down } => {
                if let Some(peer) = self.current(place) {
                    self.drain_peer(peer, down);
                }
            }
            Fault::HubDrain { down } => self.drain_hub(down),
            Fault::DriverCrash { place } => self.driver_crashes(place),
            Fault::JournalFails { place, written } => {
                if let Some(disk) = self.disks.get_mut(place) {
                    disk.fails = Some(written);
                }
            }
            Fault::CrashAtCommit { place, crash } => {
                if let Some(disk) = self.disks.get_mut(place) {
                    disk.crash = Some(crash);
                }
            }
        }
    }
}
