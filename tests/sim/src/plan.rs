//! The plan that a seed decides before the run: the processes, the links, the faults and their times, and the orders.

use std::time::Duration;

use crate::attacker::Role;
use crate::fault::Fault;
use crate::ids::OperationId;
use crate::rng::Rng;

/// A direction of a link: `Up` to the hub, `Down` to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// The number of a machine: those of agents come first, then those of proxies.
pub(crate) type Place = usize;

/// How frames travel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkProfile {
    /// Calls may overtake each other, as streams of QUIC do.
    pub(crate) lanes: bool,
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
}

/// Faults of a broken or hostile link, which no shipped link has, in thousandths of the frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hostile {
    /// The frame arrives twice.
    pub(crate) duplicated: u16,
    /// The frame is lost.
    pub(crate) lost: u16,
    /// One bit of the frame is flipped, which may be in a body or a number.
    pub(crate) corrupted: u16,
}

impl Hostile {
    /// Returns whether frames arrive unchanged and once, or the link ends.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// The goal of a sidecar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Two orders may have the same operation.
    pub(crate) operation: OperationId,
    pub(crate) starts: Duration,
    /// The timeout of each attempt.
    pub(crate) timeout: Option<Duration>,
    /// The longest time in which the sidecar reads a message.
    pub(crate) reading: Duration,
    /// The sidecar sometimes cancels a call before its timeout.
    pub(crate) cancels: bool,
    /// The number of attempts after which the sidecar gives up, as with a claim that was deleted.
    pub(crate) attempts: Option<u32>,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Create,
    Delete,
    Publish,
    Unpublish,
    Snapshot,
    Expand,
    /// A call of the Node service that changes something.
    Stage,
    /// A call of the Node service that changes nothing: each copy of it may be executed.
    Info,
    /// A stream of an unknown method that changes nothing: each call is executed.
    Watch,
}

/// An operation of a node's driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) agent: Place,
    /// The number of the driver and of its proxy.
    pub(crate) driver: usize,
    pub(crate) kind: OperationKind,
    pub(crate) volume: usize,
    /// Makes two requests for the same volume different.
    pub(crate) variant: usize,
    /// The time from the start of the first execution until the work is done.
    pub(crate) work: Duration,
    /// The number of the answer's messages; more than one only for a stream.
    pub(crate) messages: usize,
    /// The number of padding bytes in each message.
    pub(crate) size: usize,
    /// The driver answers with an error.
    pub(crate) fails: bool,
}

impl Operation {
    /// Returns whether the operation changes something, according to its method.
    pub(crate) const fn changes(&self) -> bool {
        !matches!(self.kind, OperationKind::Watch | OperationKind::Info)
    }

    /// Returns whether a call that may have begun is sent again.
    pub(crate) const fn repeats(&self) -> bool {
        !self.streams()
    }

    /// Returns whether the answer is a stream.
    pub(crate) const fn streams(&self) -> bool {
        matches!(self.kind, OperationKind::Watch)
    }

    /// Returns whether the result is kept for a later call. Results of node calls are not, since a reboot undoes their
    /// work.
    pub(crate) const fn is_kept(&self) -> bool {
        self.changes() && !matches!(self.kind, OperationKind::Stage)
    }

    /// Returns whether both operations change the same volume.
    pub(crate) fn is_about(&self, other: &Self) -> bool {
        self.changes()
            && other.changes()
            && (self.agent, self.driver, self.volume) == (other.agent, other.driver, other.volume)
    }

    /// Returns whether the answer contains the id of the created volume.
    pub(crate) const fn creates(&self) -> bool {
        matches!(self.kind, OperationKind::Create)
    }
}

/// All that a seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The number of hubs. An agent is at any of them, a proxy at all.
    pub(crate) hubs: usize,
    pub(crate) agents: usize,
    /// The number of proxies and of drivers.
    pub(crate) proxies: usize,
    /// The profiles by place.
    pub(crate) profiles: Vec<LinkProfile>,
    pub(crate) hostile: Hostile,
    /// The attackers, each a peer of its own with valid credentials; none in a quarter of the seeds.
    pub(crate) attackers: Vec<Role>,
    /// Whether bounds are so low that they are reached.
    pub(crate) narrow: bool,
    pub(crate) faults: Vec<(Duration, Fault)>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) orders: Vec<Order>,
    /// The time at which the faults stop.
    pub(crate) calm: Duration,
}

/// Time limit of the recovery after the faults have stopped, in addition to the drivers' work. It covers the detection
/// of a dead link, and the longest backoff of a peer and of a sidecar, each several times: a call may begin just before
/// its link is found dead, and sidecars with different operations on one volume wait for each other.
const HEALING: Duration = Duration::from_secs(180);

/// How long a proxy asks the other nodes when one of them refuses its term.
const ASKING: Duration = Duration::from_secs(360);

const LONGEST_WORK: u64 = 60_000;
const SHORT: Duration = Duration::from_millis(500);

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (hubs, agents, proxies) = (1 + rng.below(6) / 2, 1 + rng.below(3), 1 + rng.below(2));
        let calm = rng.millis(5_000, 30_000);
        let profiles = (0..agents + proxies).map(|_| Self::profile(&mut rng)).collect();
        let hostile = match rng.below(10) {
            0 => Hostile { duplicated: 60, ..Hostile::default() },
            1 => Hostile { lost: 40, ..Hostile::default() },
            2 => Hostile { duplicated: 30, lost: 20, corrupted: 30 },
            _ => Hostile::default(),
        };
        let narrow = rng.happens(200);
        let faults = Self::faults(&mut rng.fork(), agents, agents + proxies, hubs, calm);
        let mut rng = rng.fork();
        let operations = Self::operations(&mut rng, agents, proxies);
        let mut orders = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            for _ in 0..1 + rng.below(8) / 4 + rng.below(8) / 7 {
                let hostile = !hostile.is_none();
                orders.push(Self::order(&mut rng, OperationId(index), operation, hostile, calm));
            }
        }
        Self {
            hubs,
            agents,
            proxies,
            profiles,
            hostile,
            attackers: Self::attackers(seed),
            narrow,
            faults,
            operations,
            orders,
            calm,
        }
    }

    /// Draws the attackers from numbers of their own, so that the rest of a plan does not depend on them.
    fn attackers(seed: u64) -> Vec<Role> {
        let mut rng = Rng::new(!seed);
        match rng.below(8) {
            0 | 1 => Vec::new(),
            2..=4 => vec![Role::Node],
            5 | 6 => vec![Role::Caller],
            _ => vec![Role::Node, Role::Caller],
        }
    }

    /// Returns whether a node lies to the proxies that call it.
    pub(crate) fn has_lying_node(&self) -> bool {
        self.attackers.contains(&Role::Node)
    }

    fn profile(rng: &mut Rng) -> LinkProfile {
        let slow = rng.happens(250);
        LinkProfile {
            lanes: rng.happens(500),
            latency: if slow { rng.millis(50, 200) } else { rng.millis(0, 20) },
            jitter: if slow { rng.millis(0, 400) } else { rng.millis(0, 10) },
        }
    }

    fn operations(rng: &mut Rng, agents: usize, drivers: usize) -> Vec<Operation> {
        let mut operations: Vec<Operation> = Vec::new();
        for variant in 0..3 + rng.below(10) {
            let mut wanted = Self::operation(rng, agents, drivers, variant);
            // Two operations with work longer than their sidecars' timeouts could void each other's results forever.
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

    fn operation(rng: &mut Rng, agents: usize, drivers: usize, watch: usize) -> Operation {
        let work = match rng.below(20) {
            0..=11 => rng.millis(0, 50),
            12..=16 => rng.millis(100, 5_000),
            17..=18 => rng.millis(5_000, 25_000),
            _ => rng.millis(25_000, LONGEST_WORK),
        };
        let (kind, variant) = match rng.below(23) {
            0..=6 => (OperationKind::Create, rng.below(2)),
            7..=9 => (OperationKind::Delete, 0),
            10..=12 => (OperationKind::Publish, rng.below(2)),
            13..=14 => (OperationKind::Unpublish, rng.below(2)),
            15 => (OperationKind::Snapshot, rng.below(2)),
            16 => (OperationKind::Expand, rng.below(2)),
            17..=18 => (OperationKind::Stage, rng.below(2)),
            19 => (OperationKind::Info, watch),
            _ => (OperationKind::Watch, watch),
        };
        let stream = kind == OperationKind::Watch;
        Operation {
            agent: rng.below(agents),
            driver: rng.below(drivers),
            kind,
            volume: if matches!(kind, OperationKind::Watch | OperationKind::Info) { 0 } else { rng.below(2) },
            variant,
            work,
            messages: if stream { 1 + rng.below(12) } else { 1 },
            size: if rng.happens(300) { rng.below(900) } else { rng.below(60) },
            fails: rng.happens(150),
        }
    }

    fn order(rng: &mut Rng, id: OperationId, operation: &Operation, hostile: bool, calm: Duration) -> Order {
        // A stream takes several round trips.
        let longer = if operation.messages > 1 { 15_000 } else { 0 };
        Order {
            operation: id,
            starts: rng.time(Duration::ZERO, calm),
            // If frames are lost on links that stay open, only the timeout ends some calls.
            timeout: (hostile || !rng.happens(200)).then(|| rng.millis(2_000 + longer, 15_000 + longer)),
            reading: if rng.happens(200) { rng.millis(10, 500) } else { Duration::ZERO },
            cancels: rng.happens(300),
            attempts: rng.happens(250).then(|| 1 + rng.below(3) as u32),
        }
    }

    fn faults(
        rng: &mut Rng,
        agents: usize,
        places: usize,
        hubs: usize,
        calm: Duration,
    ) -> Vec<(Duration, Fault)> {
        // Some seeds have one kind of fault only, since their violations are easier to analyze.
        let only = rng.happens(300).then(|| rng.below(Fault::KINDS));
        let count = rng.below(14);
        let mut faults: Vec<(Duration, Fault)> = (0..count)
            .map(|_| {
                let at = rng.time(Duration::from_millis(10), calm);
                let kind = only.unwrap_or_else(|| rng.below(Fault::KINDS));
                (at, Fault::of(kind, rng, agents, places, hubs))
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    /// Returns the time at which the system must have recovered. Operations on one volume run one after the other,
    /// perhaps twice.
    pub(crate) fn healed(&self) -> Duration {
        let works: Duration = self.operations.iter().map(|operation| operation.work).sum();
        // A proxy may have to ask all nodes before it raises its term above that of one of them.
        let asking = if self.agents > 1 { ASKING } else { Duration::ZERO };
        self.calm + HEALING + asking + 2 * works
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

    /// Returns the name of a place's peer.
    pub(crate) fn name(&self, place: Place) -> String {
        if self.is_agent(place) {
            format!("edge-{}", place + 1)
        } else {
            format!("proxy-{}", place + 1 - self.agents)
        }
    }
}

/// Returns the CSI name of a driver.
pub(crate) fn driver_name(driver: usize) -> String {
    format!("sim-{driver}.csi.example.com")
}
