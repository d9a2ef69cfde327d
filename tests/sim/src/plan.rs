//! What a seed decides before anything happens: who takes part, how the links are, which faults come when, and who asks for what.

use std::time::Duration;

use crate::chance::Chance;
use crate::fault::Fault;

/// A link's two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Up,
    Down,
}

/// A peer by its place: agents first, then proxies.
pub(crate) type Place = usize;

/// How frames travel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Roads {
    /// Lanes may overtake each other, as streams of QUIC do.
    pub(crate) lanes: bool,
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
}

/// What no link of ours does, but a broken or hostile one may. In thousandths of the frames.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hostile {
    /// The frame comes twice.
    pub(crate) doubled: u64,
    /// The frame's header cannot be read.
    pub(crate) garbled: u64,
    /// One bit of the frame is another, and may be in a body or a number.
    pub(crate) twisted: u64,
}

impl Hostile {
    /// Frames come as they were sent, once, or the link ends.
    pub(crate) const fn is_none(self) -> bool {
        self.doubled == 0 && self.garbled == 0 && self.twisted == 0
    }
}

/// What a sidecar wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) proxy: Place,
    pub(crate) agent: Place,
    /// Two orders of the same operation want the same of the driver.
    pub(crate) operation: usize,
    pub(crate) starts: Duration,
    /// How long each attempt waits.
    pub(crate) patience: Option<Duration>,
    /// How long it takes to read a message.
    pub(crate) reading: Duration,
    /// It sometimes leaves before its time.
    pub(crate) restless: bool,
}

/// What a driver can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Create,
    Delete,
    Publish,
    /// A stream, of a method that nobody knows: it changes nothing, and each call is executed.
    Watch,
}

/// What the driver of a node does for an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) agent: Place,
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
    /// Whether both do something to the same volume.
    pub(crate) fn is_about(&self, other: &Self) -> bool {
        let changes = self.kind != OperationKind::Watch && other.kind != OperationKind::Watch;
        changes && (self.agent, self.volume) == (other.agent, other.volume)
    }
}

/// All that a seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) agents: usize,
    pub(crate) proxies: usize,
    /// By place.
    pub(crate) roads: Vec<Roads>,
    pub(crate) hostile: Hostile,
    /// Calls outlive their links. Otherwise they end with them, as with a part that does not know how.
    pub(crate) resumes: bool,
    /// Bounds so low that they are met.
    pub(crate) narrow: bool,
    pub(crate) faults: Vec<(Duration, Fault)>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) orders: Vec<Order>,
    /// When faults stop.
    pub(crate) calm: Duration,
    /// The journals write before a driver is called.
    pub(crate) eager: bool,
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
        let agents = 1 + chance.below(3);
        let proxies = 1 + chance.below(2);
        let calm = chance.millis(5_000, 30_000);
        let mut roads = Vec::new();
        for _ in 0..agents + proxies {
            let slow = chance.happens(250);
            roads.push(Roads {
                lanes: chance.happens(500),
                latency: if slow { chance.millis(50, 200) } else { chance.millis(0, 20) },
                jitter: if slow { chance.millis(0, 150) } else { chance.millis(0, 10) },
            });
        }
        let hostile = match chance.below(10) {
            0 => Hostile { doubled: 60, ..Hostile::default() },
            1 => Hostile { garbled: 40, ..Hostile::default() },
            2 => Hostile { doubled: 30, garbled: 20, twisted: 30 },
            _ => Hostile::default(),
        };
        let (resumes, narrow, eager) = (chance.happens(850), chance.happens(200), chance.happens(250));
        let faults = Self::faults(&mut chance.fork(), agents, agents + proxies, calm);
        let mut chance = chance.fork();
        let mut operations: Vec<Operation> = Vec::new();
        for variant in 0..3 + chance.below(10) {
            let mut wanted = Self::operation(&mut chance, agents, variant);
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
        let mut orders = Vec::new();
        for (operation, Operation { agent, messages, .. }) in operations.iter().enumerate() {
            // A stream takes several round trips.
            let longer = if *messages > 1 { 15_000 } else { 0 };
            for _ in 0..1 + chance.below(8) / 4 + chance.below(8) / 7 {
                orders.push(Order {
                    proxy: agents + chance.below(proxies),
                    agent: *agent,
                    operation,
                    starts: chance.time(Duration::ZERO, calm),
                    // With frames lost on links that stay, only the time ends some calls.
                    patience: (!hostile.is_none() || !chance.happens(200))
                        .then(|| chance.millis(2_000 + longer, 15_000 + longer)),
                    reading: if chance.happens(200) { chance.millis(10, 500) } else { Duration::ZERO },
                    restless: chance.happens(300),
                });
            }
        }
        Self { agents, proxies, roads, hostile, resumes, narrow, faults, operations, orders, calm, eager }
    }

    fn operation(chance: &mut Chance, agents: usize, watch: usize) -> Operation {
        let work = match chance.below(20) {
            0..=11 => chance.millis(0, 50),
            12..=16 => chance.millis(100, 5_000),
            17..=18 => chance.millis(5_000, 25_000),
            _ => chance.millis(25_000, LONGEST_WORK),
        };
        let (kind, variant) = match chance.below(10) {
            0..=3 => (OperationKind::Create, chance.below(2)),
            4..=5 => (OperationKind::Delete, 0),
            6..=7 => (OperationKind::Publish, chance.below(2)),
            _ => (OperationKind::Watch, watch),
        };
        let stream = kind == OperationKind::Watch;
        Operation {
            agent: chance.below(agents),
            kind,
            volume: if stream { 0 } else { chance.below(2) },
            variant,
            work,
            messages: if stream { 1 + chance.below(12) } else { 1 },
            size: if chance.happens(300) { chance.below(900) } else { chance.below(60) },
            fails: chance.happens(150),
        }
    }

    fn faults(chance: &mut Chance, agents: usize, places: usize, calm: Duration) -> Vec<(Duration, Fault)> {
        // Some seeds know one kind of fault only: what goes wrong there is easier to read.
        let only = chance.happens(300).then(|| chance.below(Fault::KINDS));
        let count = chance.below(14);
        let mut faults: Vec<(Duration, Fault)> = (0..count)
            .map(|_| {
                let at = chance.time(Duration::from_millis(10), calm);
                let kind = only.unwrap_or_else(|| chance.below(Fault::KINDS));
                (at, Fault::of(kind, chance, agents, places))
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    /// When everything must be well. Works of one volume are done one after the other, and perhaps twice.
    pub(crate) fn healed(&self) -> Duration {
        let works: Duration = self.operations.iter().map(|operation| operation.work).sum();
        self.calm + HEALING + 2 * works
    }

    pub(crate) const fn places(&self) -> usize {
        self.agents + self.proxies
    }

    pub(crate) const fn is_agent(&self, place: Place) -> bool {
        place < self.agents
    }

    pub(crate) fn name(&self, place: Place) -> String {
        if self.is_agent(place) {
            format!("edge-{}", place + 1)
        } else {
            format!("proxy-{}", place + 1 - self.agents)
        }
    }
}
