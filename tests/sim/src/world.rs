//! The run itself: what happens next, and who is told.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use csi_proxy::operation::journal::JournalSettings;
use csi_proxy::operation::{self as desk, Limits};
use edge_transport::frame::{DEFAULT_MAX_FRAME, FEATURE_RESUME, Hello};
use edge_transport::hub::HubSettings;
use edge_transport::peer::Backoff;
use edge_transport::session::{Event, Session, Settings};
use edge_transport::{Epoch, InvalidName, PeerId, ServiceName};

use crate::chance::Chance;
use crate::clock::Clock;
use crate::desk::Desk;
use crate::hub::Hub;
use crate::journal::Disk;
use crate::link::{Link, LinkIndex};
use crate::oracle::{Leftovers, Oracle, Violation};
use crate::peer::Peer;
use crate::plan::{Place, Plan, Roads, Way};
use crate::sidecar::Sidecar;
use crate::trace::Trace;
use crate::vendor::Execution;

/// A life of a peer. Never used twice.
pub(crate) type PeerIndex = usize;

/// What agents answer.
pub(crate) const SERVICE: &str = "csi";

/// Waits of peers between attempts to connect, as in `edge_transport::PeerSettings`.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_CAP: Duration = Duration::from_secs(10);

/// How long tables get to empty once all is done: a dead link noticed at both ends, the last words on the way, and answers forgotten
/// of which nobody says that they have come.
const SETTLING: Duration = Duration::from_secs(60);

/// More happenings than any run needs.
const ENDLESS: u64 = 400_000;

/// What happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// The fault of this index in the plan.
    Fault {
        index: usize,
    },
    /// Faults stop.
    Calm,
    /// Everything should be well.
    Healed,
    /// Everything should be forgotten.
    Settled,
    HubStarts,
    HubTicks {
        link: LinkIndex,
    },
    HubDrained {
        life: u32,
        down: Duration,
    },
    PeerStarts {
        place: Place,
    },
    PeerEnds {
        peer: PeerIndex,
    },
    PeerTicks {
        peer: PeerIndex,
    },
    Dials {
        peer: PeerIndex,
    },
    Arrives {
        link: LinkIndex,
        way: Way,
        flight: u64,
    },
    Released {
        link: LinkIndex,
        way: Way,
    },
    TakesAgain {
        link: LinkIndex,
        way: Way,
    },
    Asks {
        order: usize,
    },
    Leaves {
        order: usize,
        peer: PeerIndex,
        number: u64,
    },
    Reads {
        peer: PeerIndex,
        number: u64,
    },
    Executed {
        execution: usize,
    },
    JournalDue {
        peer: PeerIndex,
    },
    Committed {
        peer: PeerIndex,
    },
    JournalReopens {
        peer: PeerIndex,
    },
    DeskTicks {
        peer: PeerIndex,
    },
}

/// All parts of a run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Duration,
    pub(crate) chance: Chance,
    base: Instant,
    queue: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    queued: u64,
    pub(crate) happened: u64,
    pub(crate) hub: Option<Hub>,
    hub_lives: u32,
    pub(crate) links: BTreeMap<LinkIndex, Link>,
    pub(crate) next_link: LinkIndex,
    pub(crate) plain_roads: Roads,
    pub(crate) peers: Vec<Peer>,
    /// The latest life of each place.
    latest: Vec<Option<PeerIndex>>,
    /// Until when a place is cut off.
    pub(crate) away: BTreeMap<Place, Duration>,
    pub(crate) sidecars: Vec<Sidecar>,
    /// Orders that have no answer.
    pub(crate) unfinished: usize,
    pub(crate) executions: Vec<Execution>,
    /// When the work of an operation is done, once it has begun.
    pub(crate) done: BTreeMap<usize, Duration>,
    /// The disks of the nodes, by place.
    pub(crate) disks: Vec<Disk>,
    /// Nodes of which two lives ran at once: what one does the other does not know.
    pub(crate) twinned: BTreeSet<Place>,
    pub(crate) credit: u64,
    limits: Limits,
    settings: Settings,
    hub_settings: HubSettings,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    /// When every table must be empty.
    settles_by: Option<Duration>,
    over: bool,
}

impl World {
    pub(crate) fn new(seed: u64, tracing: bool) -> Self {
        let plan = Plan::new(seed);
        let mut settings = Settings::default();
        settings.max_frame = 64 * 1024;
        let mut hub_settings = HubSettings::default();
        let mut limits = Limits::default();
        if !plan.resumes {
            settings.resume_window = Duration::ZERO;
        }
        if plan.narrow {
            settings.max_kept = 2_000;
            (limits.kept, limits.kept_bytes, limits.askers) = (1, 1_000, 4);
            limits.kept_for = Duration::from_secs(5);
            (limits.waiting, limits.waiting_on_one) = (2, 1);
            settings.max_requests = 3;
            settings.max_serving = 3;
            hub_settings.max_calls = 2;
            hub_settings.queue_frames = 8;
            hub_settings.queue_bytes = 4 * 1024;
            hub_settings.total_queue_bytes = 16 * 1024;
        } else {
            hub_settings.max_calls = 64;
        }
        hub_settings.session = settings.clone();
        let whole = plan.hostile.twisted == 0;
        let strict = plan.resumes && plan.hostile.is_none() && !plan.narrow;
        let window = strict.then_some(settings.resume_window);
        let unfinished = plan.orders.len();
        let sidecars = plan.orders.iter().map(|_| Sidecar::default()).collect();
        let plain_roads = Roads { lanes: false, latency: Duration::ZERO, jitter: Duration::ZERO };
        let mut trace = Trace::new(tracing);
        trace.note(Duration::ZERO, || "plan".into(), || format!("{plan:#?}"));
        Self {
            now: Duration::ZERO,
            chance: Chance::new(seed).fork(),
            base: Instant::now(),
            queue: BinaryHeap::new(),
            queued: 0,
            happened: 0,
            hub: None,
            hub_lives: 0,
            links: BTreeMap::new(),
            next_link: 0,
            plain_roads,
            peers: Vec::new(),
            latest: vec![None; plan.places()],
            away: BTreeMap::new(),
            sidecars,
            unfinished,
            executions: Vec::new(),
            done: BTreeMap::new(),
            disks: (0..plan.agents).map(|_| Disk::default()).collect(),
            twinned: BTreeSet::new(),
            credit: 2000,
            limits,
            settings,
            hub_settings,
            oracle: Oracle::new(whole, window, !plan.narrow, plan.resumes, limits.wait),
            trace,
            settles_by: None,
            over: false,
            plan,
        }
    }

    pub(crate) fn at(&mut self, at: Duration, happening: Happening) {
        self.queued += 1;
        self.queue.push(Reverse((at, self.queued, happening)));
    }

    pub(crate) fn after(&mut self, wait: Duration, happening: Happening) {
        self.at(self.now + wait, happening);
    }

    /// From the first start to the last thing forgotten.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        self.begin();
        while !self.over
            && let Some(Reverse((at, _, happening))) = self.queue.pop()
        {
            self.now = at;
            self.happened += 1;
            self.trace.mark(at.as_nanos() as u64);
            self.happens(happening);
            self.measure();
            if let Some(violation) = self.oracle.violation() {
                return Err(violation);
            }
            if self.happened > ENDLESS {
                let what = format!("{ENDLESS} things have happened: {happening:?} is the last");
                return Err(Violation { property: "a run ends", at, what });
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.at(Duration::ZERO, Happening::HubStarts);
        for place in 0..self.plan.places() {
            let at = self.chance.millis(0, 200);
            self.at(at, Happening::PeerStarts { place });
        }
        let starts: Vec<Duration> = self.plan.orders.iter().map(|order| order.starts).collect();
        for (order, starts) in starts.into_iter().enumerate() {
            self.at(starts, Happening::Asks { order });
        }
        let faults: Vec<Duration> = self.plan.faults.iter().map(|(at, _)| *at).collect();
        for (index, at) in faults.into_iter().enumerate() {
            self.at(at, Happening::Fault { index });
        }
        self.at(self.plan.calm, Happening::Calm);
        self.at(self.plan.healed(), Happening::Healed);
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Fault { index } => {
                if let Some((_, fault)) = self.plan.faults.get(index).copied() {
                    self.fault(fault);
                }
            }
            Happening::Calm => self.calm(),
            Happening::Healed => self.healed(),
            Happening::Settled => self.settled(),
            Happening::HubStarts => self.start_hub(),
            Happening::HubTicks { link } => {
                self.oracle.bounds.ticked(self.now, "the hub");
                self.hub_ticks(link);
            }
            Happening::HubDrained { life, down } => {
                if self.hub.as_ref().is_some_and(|hub| hub.life == life) {
                    self.hub_ends(false);
                    self.after(down, Happening::HubStarts);
                }
            }
            Happening::PeerStarts { place } => {
                if self.current(place).is_none() {
                    self.start_peer(place);
                }
            }
            Happening::PeerEnds { peer } => self.peer_ends(peer, false),
            Happening::PeerTicks { peer } => {
                self.oracle.bounds.ticked(self.now, "a peer");
                self.peer_ticks(peer);
            }
            Happening::Dials { peer } => self.dial(peer),
            Happening::Arrives { link, way, flight } => self.arrives(link, way, flight),
            Happening::Released { link, way } => self.released(link, way),
            Happening::TakesAgain { link, way } => match way {
                Way::Down => {
                    self.hub_serves(link);
                    self.hub_wakes();
                }
                Way::Up => {
                    if let Some(peer) = self.links.get(&link).map(|link| link.peer) {
                        self.peer_event(peer, Event::Tick);
                    }
                }
            },
            Happening::Asks { order } => self.ask(order),
            Happening::Leaves { order, peer, number } => self.leaves(order, peer, number),
            Happening::Reads { peer, number } => self.reads(peer, number),
            Happening::Executed { execution } => self.executed(execution),
            Happening::JournalDue { peer } => self.journal_due(peer),
            Happening::Committed { peer } => self.committed(peer),
            Happening::JournalReopens { peer } => self.journal_reopens(peer),
            Happening::DeskTicks { peer } => self.desk_event(peer, desk::Event::Tick),
        }
    }

    fn start_hub(&mut self) {
        if self.hub.is_some() {
            return;
        }
        let Ok(name) = PeerId::new("hub") else { return };
        self.hub_lives += 1;
        let mut hello = Hello::new(name, Epoch::new(u64::from(self.hub_lives)));
        hello.max_frame = DEFAULT_MAX_FRAME;
        hello.features = self.features();
        let clock = self.fresh_clock();
        self.trace.note(self.now, || "hub".into(), || format!("life {} begins", self.hub_lives));
        self.hub = Some(Hub::new(self.hub_lives, hello, self.hub_settings.clone(), clock));
    }

    fn features(&self) -> Vec<String> {
        if self.plan.resumes { vec![FEATURE_RESUME.to_owned()] } else { Vec::new() }
    }

    /// A clock that may be an hour ahead.
    fn fresh_clock(&mut self) -> Clock {
        let ahead = self.chance.pick(&[0, 1, 59, 3600], 0);
        let drift = self.chance.pick(&[-200, 0, 200], 0);
        Clock::new(self.base, Duration::from_secs(ahead), drift)
    }

    /// The life of a place that its clients use.
    pub(crate) fn current(&self, place: Place) -> Option<PeerIndex> {
        let index = (*self.latest.get(place)?)?;
        self.peers.get(index).filter(|peer| peer.alive).map(|_| index)
    }

    /// Whether only this life of its place runs.
    pub(crate) fn is_alone(&self, index: PeerIndex) -> bool {
        let Some(place) = self.peers.get(index).map(|peer| peer.place) else { return false };
        let lives = self.peers.iter().filter(|peer| peer.alive && peer.place == place).count();
        self.current(place) == Some(index) && lives == 1
    }

    /// Whether no other life of its place has ever run beside this one.
    pub(crate) fn is_untwinned(&self, index: PeerIndex) -> bool {
        self.peers.get(index).is_some_and(|peer| !self.twinned.contains(&peer.place))
    }

    /// For how long two peers have had links to the same hub, made after the faults had stopped.
    pub(crate) fn sound(&self, one: PeerIndex, other: PeerIndex) -> Option<Duration> {
        let linked = |index: PeerIndex| {
            let peer = self.peers.get(index)?;
            Some((self.links.get(&peer.link?)?.hub, peer.opened.filter(|opened| *opened > self.plan.calm)?))
        };
        let ((hub, since), (other_hub, later)) = (linked(one)?, linked(other)?);
        (hub == other_hub).then(|| self.now - since.max(later))
    }

    /// Another life of a peer begins.
    pub(crate) fn start_peer(&mut self, place: Place) {
        match self.fresh_peer(place) {
            Ok(peer) => {
                let index = self.peers.len();
                self.trace.note(self.now, || peer.label(), || "begins".into());
                self.peers.push(peer);
                if let Some(latest) = self.latest.get_mut(place) {
                    *latest = Some(index);
                }
                self.dial(index);
            }
            Err(error) => self.trace.note(self.now, || "plan".into(), || error.to_string()),
        }
    }

    fn fresh_peer(&mut self, place: Place) -> Result<Peer, InvalidName> {
        let name = PeerId::new(self.plan.name(place))?;
        // As wall time gives them: later lives have higher ones, and nobody counts from one.
        let epoch = Epoch::new(1000 + self.peers.len() as u64);
        let mut hello = Hello::new(name.clone(), epoch);
        hello.max_frame = self.settings.max_frame;
        hello.features = self.features();
        if self.plan.is_agent(place) {
            hello.services = vec![ServiceName::new(SERVICE)?];
        }
        let session = Session::new(hello, self.settings.clone());
        let backoff = Backoff::new(RETRY_FIRST, RETRY_CAP, self.chance.number());
        let clock = self.fresh_clock();
        let mut peer = Peer::new(place, name, epoch, session, clock, backoff);
        if let Some(disk) = self.disks.get(place) {
            let mut journal = JournalSettings::default();
            if self.plan.eager {
                journal.linger = Duration::ZERO;
            }
            peer.desk = Some(Desk::new(self.limits, journal, disk, &clock, self.now));
        }
        Ok(peer)
    }

    /// Faults stop: networks are there, every process runs once.
    fn calm(&mut self) {
        self.trace.note(self.now, || "calm".into(), || "no more faults".into());
        self.away.clear();
        if !self.plan.hostile.is_none() {
            // A link that has swallowed or doubled frames is broken for good: only its end tells both ends so.
            let broken: Vec<LinkIndex> = self.links.keys().copied().collect();
            for link in broken {
                self.cut(link, 10);
            }
        }
        for place in 0..self.plan.places() {
            // A twisted epoch fences a peer off for good, at whoever has seen it.
            let latest = self.current(place).filter(|_| self.plan.hostile.twisted == 0);
            let older: Vec<PeerIndex> = (0..self.peers.len())
                .filter(|index| Some(*index) != latest)
                .filter(|index| self.peers.get(*index).is_some_and(|peer| peer.alive && peer.place == place))
                .collect();
            for peer in older {
                self.peer_ends(peer, false);
            }
            self.at(self.now, Happening::PeerStarts { place });
        }
    }

    fn healed(&mut self) {
        if self.unfinished > 0 {
            let open = |(_, sidecar): &(usize, &Sidecar)| !sidecar.done;
            let orders: Vec<usize> =
                self.sidecars.iter().enumerate().filter(open).map(|(index, _)| index).collect();
            self.oracle.healing.late(self.now, &orders);
        }
    }

    /// After everything that happens: are the bounds kept, and is the run over?
    fn measure(&mut self) {
        let (now, places) = (self.now, self.plan.places());
        for peer in self.peers.iter().filter(|peer| peer.alive) {
            let (session, name) = (&peer.session, peer.name.as_str());
            let bounds = &mut self.oracle.bounds;
            bounds.within(now, name, "open requests", session.open_requests(), self.settings.max_requests);
            if let Some(desk) = &peer.desk {
                let counts = desk.core.counts();
                bounds.within(now, name, "waiting operations", desk.turns.len(), self.limits.waiting);
                let (kept, limits) = (counts.kept + counts.sent + counts.uncertain, &self.limits);
                bounds.within(now, name, "operations kept", kept, limits.kept);
                bounds.within(now, name, "bytes of operations", counts.bytes, limits.kept_bytes);
                bounds.within(now, name, "calls that ask", counts.askers, limits.askers);
            }
            bounds.within(now, name, "bytes kept", session.kept_bytes(), self.settings.max_kept);
            bounds.within(now, name, "calls to work on", session.open_serving(), self.settings.max_serving);
        }
        if let Some(hub) = &self.hub {
            let (stats, bounds) = (hub.core.stats(), &mut self.oracle.bounds);
            bounds.within(now, "the hub", "open calls", stats.open_calls, hub.most_calls(places));
            bounds.within(now, "the hub", "bytes that wait", stats.queued_bytes, hub.most_queued(places));
        }
        if self.unfinished == 0 && now >= self.plan.calm && self.settles_by.is_none() && !self.is_working() {
            self.settles_by = Some(now + SETTLING);
            self.at(now, Happening::Settled);
        }
        if self.happened.is_multiple_of(64) {
            self.forget_links();
        }
    }

    /// Whether a driver is still at work.
    fn is_working(&self) -> bool {
        self.executions.iter().any(|run| run.ended.is_none())
    }

    fn settled(&mut self) {
        let mut left = Leftovers::default();
        for peer in self.peers.iter().filter(|peer| peer.alive) {
            let (requests, serving) = (peer.session.open_requests(), peer.session.open_serving());
            if requests + serving > 0 {
                left.found.push(format!("{} keeps {requests} requests and works on {serving}", peer.name));
            }
            if let Some(counts) = peer.desk.as_ref().map(|desk| desk.core.counts())
                && counts.running + counts.askers > 0
            {
                left.found.push(format!("{} has operations without end: {counts:?}", peer.name));
            }
        }
        if let Some(hub) = &self.hub {
            let stats = hub.core.stats();
            if stats.open_calls > 0 || stats.peers != self.plan.places() {
                left.found.push(format!("the hub keeps {} calls of {} peers", stats.open_calls, stats.peers));
            }
        }
        if left.found.is_empty() || self.settles_by.is_none_or(|by| by <= self.now) {
            self.oracle.healing.done(self.now, &left);
            self.over = true;
        } else {
            self.after(Duration::from_secs(1), Happening::Settled);
        }
    }
}
