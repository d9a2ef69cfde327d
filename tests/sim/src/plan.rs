//! What a seed decides before anything happens: who takes part, how the links are, which faults come when, and who asks for what.

use std::time::Duration;

use crate::chance::Chance;
use crate::fault::Fault;
use crate::ids::OperationId;

/// A link's two ways: up to the hub, down to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Up,
    Down,
}

/// A machine: agents first, then proxies.
pub(crate) type Place = usize;

/// How frames travel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Road {
    /// Calls may overtake each other, as streams of QUIC do.
    pub(crate) lanes: bool,
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
}

/// What no link of ours does, but a broken or hostile one may. In thousandths of the frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hostile {
    /// The frame comes twice.
    pub(crate) doubled: u16,
    /// The frame is lost.
    pub(crate) lost: u16,
    /// One bit of the frame is another, and may be in a body or a number.
    pub(crate) twisted: u16,
}

impl Hostile {
    /// Frames come as they were sent, once, or the link ends.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What a sidecar wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Two orders of the same operation want the same of the driver.
    pub(crate) operation: OperationId,
    pub(crate) starts: Duration,
    /// How long each attempt waits.
    pub(crate) patience: Option<Duration>,
    /// How long it takes to read a message.
    pub(crate) reading: Duration,
    /// It sometimes leaves before its time.
    pub(crate) restless: bool,
    /// After so many attempts nobody wants it any more, as with a claim that was deleted.
    pub(crate) attempts: Option<u32>,
}

/// What a driver can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Create,
    Delete,
    Publish,
    Unpublish,
    Snapshot,
    Expand,
    /// A call of the Node service, which changes something.
    Stage,
    /// A call of the Node service that changes nothing: each copy of it may be executed.
    Info,
    /// A stream, of a method that nobody knows: it changes nothing, and each call is executed.
    Watch,
}

/// What the driver of a node does for an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) agent: Place,
    /// The driver's number, which is its proxy's.
    pub(crate) driver: usize,
    pub(crate) kind: OperationKind,
    pub(crate) volume: usize,
    /// Makes two requests for the same volume different.
    pub(crate) variant: usize,
    /// From the first execution's start until the work is done.
    pub(crate) work: Duration,
    /// Messages of the answer; more than one for a stream.
    pub(crate) messages: usize,
    /// Bytes of each.
    pub(crate) size: usize,
    /// The driver answers with an error.
    pub(crate) fails: bool,
}

impl Operation {
    /// Whether it changes something, by what anybody knows of its method.
    pub(crate) const fn changes(&self) -> bool {
        !matches!(self.kind, OperationKind::Watch | OperationKind::Info)
    }

    /// Whether it is sent again where it may have begun.
    pub(crate) const fn repeats(&self) -> bool {
        !self.streams()
    }

    /// Whether its answer is a stream.
    pub(crate) const fn streams(&self) -> bool {
        matches!(self.kind, OperationKind::Watch)
    }

    /// Whether its result is there for a later call: not what was done on the node itself, which a reboot undoes.
    pub(crate) const fn is_kept(&self) -> bool {
        self.changes() && !matches!(self.kind, OperationKind::Stage)
    }

    /// Whether both do something to the same volume.
    pub(crate) fn is_about(&self, other: &Self) -> bool {
        self.changes()
            && other.changes()
            && (self.agent, self.driver, self.volume) == (other.agent, other.driver, other.volume)
    }

    /// Whether its answer says what was made.
    pub(crate) const fn creates(&self) -> bool {
        matches!(self.kind, OperationKind::Create)
    }
}

/// All that a seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// All peers want the first one most.
    pub(crate) hubs: usize,
    /// How often a peer looks whether a hub that it wants more is there again.
    pub(crate) better_road_every: Duration,
    pub(crate) agents: usize,
    /// As many as drivers.
    pub(crate) proxies: usize,
    /// By place.
    pub(crate) roads: Vec<Road>,
    pub(crate) hostile: Hostile,
    /// Bounds so low that they are met.
    pub(crate) narrow: bool,
    pub(crate) faults: Vec<(Duration, Fault)>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) orders: Vec<Order>,
    /// When faults stop.
    pub(crate) calm: Duration,
}

/// How long all may take to be well once the faults have stopped, beside the drivers' work: a dead link noticed, the longest wait of
/// a peer and of a sidecar, and some of each again, since a call may be begun just before its link is found dead, and since
/// sidecars that want different things of one volume wait for each other.
const HEALING: Duration = Duration::from_secs(180);

const LONGEST_WORK: u64 = 60_000;
const SHORT: Duration = Duration::from_millis(500);

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let (hubs, agents, proxies) = (1 + chance.below(5) / 3, 1 + chance.below(3), 1 + chance.below(2));
        let better_road_every = chance.millis(1_000, 5_000);
        let calm = chance.millis(5_000, 30_000);
        let roads = (0..agents + proxies).map(|_| Self::road(&mut chance)).collect();
        let hostile = match chance.below(10) {
            0 => Hostile { doubled: 60, ..Hostile::default() },
            1 => Hostile { lost: 40, ..Hostile::default() },
            2 => Hostile { doubled: 30, lost: 20, twisted: 30 },
            _ => Hostile::default(),
        };
        let narrow = chance.happens(200);
        let faults = Self::faults(&mut chance.fork(), agents, agents + proxies, hubs, calm);
        let mut chance = chance.fork();
        let operations = Self::operations(&mut chance, agents, proxies);
        let mut orders = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            for _ in 0..1 + chance.below(8) / 4 + chance.below(8) / 7 {
                let hostile = !hostile.is_none();
                orders.push(Self::order(&mut chance, OperationId(index), operation, hostile, calm));
            }
        }
        Self {
            hubs,
            better_road_every,
            agents,
            proxies,
            roads,
            hostile,
            narrow,
            faults,
            operations,
            orders,
            calm,
        }
    }

    fn road(chance: &mut Chance) -> Road {
        let slow = chance.happens(250);
        Road {
            lanes: chance.happens(500),
            latency: if slow { chance.millis(50, 200) } else { chance.millis(0, 20) },
            jitter: if slow { chance.millis(0, 400) } else { chance.millis(0, 10) },
        }
    }

    fn operations(chance: &mut Chance, agents: usize, drivers: usize) -> Vec<Operation> {
        let mut operations: Vec<Operation> = Vec::new();
        for variant in 0..3 + chance.below(10) {
            let mut wanted = Self::operation(chance, agents, drivers, variant);
            // Two that both take longer than their sidecars wait could void each other's answers for ever.
            if operations.iter().any(|other| wanted.is_about(other) && other.work > SHORT) {
                wanted.work = wanted.work.min(SHORT);
            }
            let known = |other: &Operation| {
                wanted.is_about(other) && (wanted.kind, wanted.variant) == (other.kind, other.variant)
            };
            if !operations.iter().any(known) {
                operations.push(wanted);
            }
        }
        operations
    }

    fn operation(chance: &mut Chance, agents: usize, drivers: usize, watch: usize) -> Operation {
        let work = match chance.below(20) {
            0..=11 => chance.millis(0, 50),
            12..=16 => chance.millis(100, 5_000),
            17..=18 => chance.millis(5_000, 25_000),
            _ => chance.millis(25_000, LONGEST_WORK),
        };
        let (kind, variant) = match chance.below(23) {
            0..=6 => (OperationKind::Create, chance.below(2)),
            7..=9 => (OperationKind::Delete, 0),
            10..=12 => (OperationKind::Publish, chance.below(2)),
            13..=14 => (OperationKind::Unpublish, chance.below(2)),
            15 => (OperationKind::Snapshot, chance.below(2)),
            16 => (OperationKind::Expand, chance.below(2)),
            17..=18 => (OperationKind::Stage, chance.below(2)),
            19 => (OperationKind::Info, watch),
            _ => (OperationKind::Watch, watch),
        };
        let stream = kind == OperationKind::Watch;
        Operation {
            agent: chance.below(agents),
            driver: chance.below(drivers),
            kind,
            volume: if matches!(kind, OperationKind::Watch | OperationKind::Info) {
                0
            } else {
                chance.below(2)
            },
            variant,
            work,
            messages: if stream { 1 + chance.below(12) } else { 1 },
            size: if chance.happens(300) { chance.below(900) } else { chance.below(60) },
            fails: chance.happens(150),
        }
    }

    fn order(
        chance: &mut Chance,
        id: OperationId,
        operation: &Operation,
        hostile: bool,
        calm: Duration,
    ) -> Order {
        // A stream takes several round trips.
        let longer = if operation.messages > 1 { 15_000 } else { 0 };
        Order {
            operation: id,
            starts: chance.time(Duration::ZERO, calm),
            // With frames lost on links that stay, only the time ends some calls.
            patience: (hostile || !chance.happens(200))
                .then(|| chance.millis(2_000 + longer, 15_000 + longer)),
            reading: if chance.happens(200) { chance.millis(10, 500) } else { Duration::ZERO },
            restless: chance.happens(300),
            attempts: chance.happens(250).then(|| 1 + chance.below(3) as u32),
        }
    }

    fn faults(
        chance: &mut Chance,
        agents: usize,
        places: usize,
        hubs: usize,
        calm: Duration,
    ) -> Vec<(Duration, Fault)> {
        // Some seeds know one kind of fault only: what goes wrong there is easier to read.
        let only = chance.happens(300).then(|| chance.below(Fault::KINDS));
        let count = chance.below(14);
        let mut faults: Vec<(Duration, Fault)> = (0..count)
            .map(|_| {
                let at = chance.time(Duration::from_millis(10), calm);
                let kind = only.unwrap_or_else(|| chance.below(Fault::KINDS));
                (at, Fault::of(kind, chance, agents, places, hubs))
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    /// When everything must be well. Works of one volume are done one after the other, and perhaps twice.
    pub(crate) fn healed(&self) -> Duration {
        let works: Duration = self.operations.iter().map(|operation| operation.work).sum();
        // A peer and another one meet at the hub that both want most, which is dialled less and less often.
        let meeting = if self.hubs > 1 { 64 * self.better_road_every } else { Duration::ZERO };
        self.calm + HEALING + meeting + 2 * works
    }

    pub(crate) fn operation_of(&self, id: OperationId) -> Option<&Operation> {
        self.operations.get(id.0)
    }

    pub(crate) const fn places(&self) -> usize {
        self.agents + self.proxies
    }

    pub(crate) const fn is_agent(&self, place: Place) -> bool {
        place < self.agents
    }

    /// The name of a place's peer.
    pub(crate) fn name(&self, place: Place) -> String {
        if self.is_agent(place) {
            format!("edge-{}", place + 1)
        } else {
            format!("proxy-{}", place + 1 - self.agents)
        }
    }
}

/// The name of a driver.
pub(crate) fn driver_name(driver: usize) -> String {
    format!("sim-{driver}.csi.example.com")
}
