//! The run: starts and ends processes, injects the faults of the plan, and checks the oracle after each step.

mod counts;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use csi_proxy::Dispatcher;
use edge_transport::{Hub, HubSet};
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::attacker::attack;
use crate::context::Context;
use crate::facts::Facts;
use crate::ids::{InstanceId, OrderId};
use crate::oracle::{Expect, Oracle, Violation};
use crate::plan::{Direction, Place, Plan};
use crate::planted::Planted;
use crate::process::{self, Bounds, DRAINING};
use crate::rng::Rng;
use crate::sidecar::{ProxyEndpoint, follow};
use crate::trace::Trace;

/// Time limit for tables to become empty once all orders are done: both ends notice a dead link, and the last frames
/// arrive.
const SETTLING: Duration = Duration::from_secs(60);

/// The interval between two checks of the bounds.
const MEASURED: Duration = Duration::from_millis(500);

/// A scheduled step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The fault of this index in the plan.
    Fault {
        index: usize,
    },
    /// Faults stop.
    Calm,
    /// A process of a place begins, unless one runs.
    Start {
        place: Place,
    },
    /// A process ends.
    End {
        instance: InstanceId,
    },
    /// A hub begins, unless it runs.
    StartHub {
        hub: usize,
    },
    Measure,
}

/// Schedules steps of other tasks, each after a wait.
pub(crate) type StepSender = mpsc::UnboundedSender<(Duration, Step)>;

/// A process of an agent or a proxy.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) instance: InstanceId,
    pub(crate) hubs: HubSet,
    pub(crate) kind: ProcessKind,
}

#[derive(Debug)]
pub(crate) enum ProcessKind {
    Agent { dispatcher: Dispatcher },
    Proxy { endpoint: ProxyEndpoint },
}

/// All parts of a run.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) context: Arc<Context>,
    pub(crate) plan: Arc<Plan>,
    seed: u64,
    pub(crate) rng: Rng,
    pub(crate) bounds: Bounds,
    steps: BinaryHeap<Reverse<(Instant, u64, Step)>>,
    queued: u64,
    /// Steps that other tasks schedule, each after a wait.
    requests: (StepSender, mpsc::UnboundedReceiver<(Duration, Step)>),
    hubs: Vec<Option<Hub>>,
    hub_instances: u32,
    /// The processes that clients use, by place.
    current: Vec<Option<Process>>,
    /// Processes that continue beside the current ones for a time.
    older: Vec<Process>,
    attackers: Vec<AbortHandle>,
}

impl Simulation {
    pub(crate) fn new(seed: u64, planted: Option<Planted>, tracing: bool) -> Self {
        let plan = Arc::new(Plan::new(seed));
        let mut rng = Rng::new(seed).fork();
        let bounds = Bounds::new(&plan);
        let oracle = Oracle::new(Expect::new(&plan, bounds.wait));
        let context = Context::new(Arc::clone(&plan), planted, rng.fork(), oracle, Trace::new(tracing));
        Self {
            context: Arc::new(context),
            seed,
            rng,
            bounds,
            steps: BinaryHeap::new(),
            queued: 0,
            requests: mpsc::unbounded_channel(),
            hubs: (0..plan.hubs).map(|_| None).collect(),
            hub_instances: 0,
            current: (0..plan.places()).map(|_| None).collect(),
            older: Vec::new(),
            attackers: Vec::new(),
            plan,
        }
    }

    fn at(&mut self, at: Instant, step: Step) {
        self.queued += 1;
        self.steps.push(Reverse((at, self.queued, step)));
    }

    pub(crate) fn later(&mut self, wait: Duration, step: Step) {
        self.at(Instant::now() + wait, step);
    }

    /// Runs from the first start until all tables are empty, or until a property is violated.
    pub(crate) async fn run(&mut self) -> Result<(), Violation> {
        self.begin();
        let healed = self.context.instant(self.plan.healed());
        let mut settles: Option<Instant> = None;
        loop {
            while let Some(Reverse((at, _, step))) = self.steps.peek().copied() {
                if at > Instant::now() {
                    break;
                }
                self.steps.pop();
                self.happens(step).await;
                if let Some(violation) = self.context.with(|inner| inner.oracle.violation()) {
                    return Err(violation);
                }
            }
            let now = Instant::now();
            if let Some(by) = settles {
                let left = self.leftovers();
                if left.found.is_empty() || now >= by {
                    let at = self.context.now();
                    self.context.with(|inner| inner.oracle.healing.done(at, &left));
                    return self.context.with(|inner| inner.oracle.violation()).map_or(Ok(()), Err);
                }
            } else if self.is_done() {
                settles = Some(now + SETTLING);
                // Nothing of an attacker stays after its links have ended.
                self.attackers.drain(..).for_each(|attacker| attacker.abort());
            } else if now >= healed && self.context.with(|inner| inner.unfinished) > 0 {
                let at = self.context.now();
                self.context.with(|inner| {
                    let open: Vec<OrderId> = inner.open.iter().copied().collect();
                    inner.oracle.healing.late(at, &open);
                });
            }
            let next = self.steps.peek().map_or(now + MEASURED, |Reverse((at, _, _))| *at);
            tokio::select! {
                biased;
                Some((wait, step)) = self.requests.1.recv() => self.later(wait, step),
                () = sleep_until(next) => {}
            }
        }
    }

    fn begin(&mut self) {
        for hub in 0..self.plan.hubs {
            self.later(Duration::ZERO, Step::StartHub { hub });
        }
        for place in 0..self.plan.places() {
            let wait = self.rng.millis(0, 200);
            self.later(wait, Step::Start { place });
        }
        let plan = Arc::clone(&self.plan);
        for (index, (at, _)) in plan.faults.iter().enumerate() {
            self.later(*at, Step::Fault { index });
        }
        self.later(plan.calm, Step::Calm);
        self.later(MEASURED, Step::Measure);
        // Numbers of their own, so that a plan without attackers is otherwise the same.
        let mut rng = Rng::new(!self.seed).fork();
        for role in &plan.attackers {
            let attacking = tokio::spawn(attack(Arc::clone(&self.context), *role, rng.fork()));
            self.attackers.push(attacking.abort_handle());
        }
        for (index, order) in plan.orders.iter().enumerate() {
            let driver = plan.operation_of(order.operation).map_or(0, |operation| operation.driver);
            let rng = self.rng.fork();
            tokio::spawn(follow(Arc::clone(&self.context), OrderId(index), *order, driver, rng));
        }
    }

    async fn happens(&mut self, step: Step) {
        match step {
            Step::Fault { index } => {
                if let Some((_, fault)) = self.plan.faults.get(index).copied() {
                    self.fault(fault).await;
                }
            }
            Step::Calm => self.calm(),
            Step::Start { place } => {
                if self.current.get(place).is_some_and(Option::is_none) {
                    self.start(place).await;
                }
            }
            Step::End { instance } => {
                if let Some(at) = self.older.iter().position(|process| process.instance == instance) {
                    let process = self.older.remove(at);
                    self.kill(process, false);
                } else if let Some(place) = self.place_of(instance) {
                    // The process is restarted, as its container is.
                    self.ends(place, false);
                    self.later(Duration::from_secs(1), Step::Start { place });
                }
            }
            Step::StartHub { hub } => self.start_hub(hub),
            Step::Measure => {
                self.measure();
                self.later(MEASURED, Step::Measure);
            }
        }
    }

    fn place_of(&self, instance: InstanceId) -> Option<Place> {
        self.current
            .iter()
            .position(|process| process.as_ref().is_some_and(|process| process.instance == instance))
    }

    fn start_hub(&mut self, index: usize) {
        if self.hubs.get(index).is_none_or(Option::is_some) {
            return;
        }
        self.hub_instances += 1;
        let instance = self.hub_instances;
        match process::hub(&self.plan, &self.bounds, index) {
            Ok((hub, door)) => {
                self.context.note("hub", || format!("instance {instance} of hub {index} begins"));
                self.hubs[index] = Some(hub);
                self.context.with(|inner| inner.doors[index] = Some((instance, door)));
            }
            Err(error) => self.context.note("hub", || error.to_string()),
        }
    }

    /// Removes a hub, so that it accepts no more links.
    fn take_hub(&mut self, index: usize) -> Option<(Hub, u32)> {
        let hub = self.hubs.get_mut(index)?.take()?;
        let door = self.context.with(|inner| inner.doors.get_mut(index).and_then(Option::take));
        let instance = door.map(|(instance, _)| instance)?;
        self.context.hub_ends((index, instance));
        Some((hub, instance))
    }

    pub(crate) fn hub_crashes(&mut self, index: usize, silent: bool, down: Duration) {
        let Some((hub, instance)) = self.take_hub(index) else { return };
        self.context.with(|inner| {
            for link in inner.links.values().filter(|link| link.hub == (index, instance)) {
                link.control.sender_closed(Direction::Down, silent);
            }
        });
        tokio::spawn(async move { hub.close().await });
        self.later(down, Step::StartHub { hub: index });
    }

    pub(crate) fn hub_drains(&mut self, index: usize, down: Duration) {
        let Some((hub, _)) = self.take_hub(index) else { return };
        let requests = self.requests.0.clone();
        tokio::spawn(async move {
            hub.drain("the hub is updated").await;
            let _ = requests.send((down, Step::StartHub { hub: index }));
        });
    }

    async fn start(&mut self, place: Place) {
        let seed = self.rng.number();
        let process = if self.plan.is_agent(place) {
            process::agent(&self.context, &self.bounds, place, seed)
        } else {
            process::proxy(&self.context, &self.bounds, place, seed, &self.requests.0).await
        };
        match process {
            Ok(process) => {
                if let ProcessKind::Proxy { endpoint } = &process.kind {
                    let driver = place - self.plan.agents;
                    self.context.with(|inner| inner.endpoints[driver].push(endpoint.clone()));
                }
                self.current[place] = Some(process);
            }
            Err(error) => self.context.note("plan", || error.to_string()),
        }
    }

    fn take(&mut self, place: Place) -> Option<Process> {
        self.current.get_mut(place)?.take()
    }

    /// Ends the process of a place at once. Returns whether there was one.
    pub(crate) fn ends(&mut self, place: Place, silent: bool) -> bool {
        let Some(process) = self.take(place) else { return false };
        self.kill(process, silent);
        true
    }

    fn kill(&self, process: Process, silent: bool) {
        kill(&self.context, process, silent);
    }

    /// Starts another process of a peer while the older one continues for a time. An older proxy keeps its own sidecars, which
    /// still call it.
    pub(crate) async fn duplicate(&mut self, place: Place, lasts: Duration) {
        let Some(older) = self.take(place) else { return };
        self.context.leaves(older.instance);
        self.later(lasts, Step::End { instance: older.instance });
        self.older.push(older);
        self.start(place).await;
    }

    pub(crate) fn drain(&mut self, place: Place, down: Duration) {
        let Some(process) = self.take(place) else { return };
        self.context.leaves(process.instance);
        self.context.with(|inner| inner.close_endpoint(process.instance));
        let (context, requests) = (Arc::clone(&self.context), self.requests.0.clone());
        tokio::spawn(async move {
            if let ProcessKind::Agent { dispatcher } = &process.kind {
                dispatcher.drain(DRAINING).await;
            }
            join_all(process.hubs.peers().iter().map(|peer| peer.drain("the process is updated"))).await;
            kill(&context, process, false);
            let _ = requests.send((down, Step::Start { place }));
        });
    }

    pub(crate) fn driver_crashes(&mut self, place: Place, driver: usize, down: Duration) {
        self.context.with(|inner| {
            let vendor = inner.vendor(place, driver);
            vendor.down = Some(Instant::now() + down);
            vendor.hang_up(|_| true);
        });
        self.context.driver_loses(place, driver);
    }

    /// Stops all faults: networks work, and each place runs one process.
    fn calm(&mut self) {
        self.context.note("calm", || "no more faults".to_owned());
        self.context.with(|inner| {
            inner.calm = true;
            inner.outages.clear();
            inner.unreachable.clear();
        });
        if !self.plan.hostile.is_none() {
            // Links keep the faults with which they were dialled, so they are replaced.
            for place in 0..self.plan.places() {
                let mut rng = self.rng.fork();
                for link in self.context.links_of(place) {
                    link.cut(10, &mut rng);
                }
            }
        }
        for process in std::mem::take(&mut self.older) {
            self.kill(process, false);
        }
        for place in 0..self.plan.places() {
            if self.plan.hostile.corrupted > 0 {
                self.ends(place, false);
            }
            self.later(Duration::ZERO, Step::Start { place });
        }
    }

    fn is_done(&self) -> bool {
        let works = |facts: &Facts| facts.executions.iter().any(|run| run.ended.is_none());
        self.context.with(|inner| inner.calm && inner.unfinished == 0 && !works(&inner.facts))
    }
}

/// Ends a process at once. Its remaining tasks have no more effect.
fn kill(context: &Arc<Context>, process: Process, silent: bool) {
    let instance = process.instance;
    context.dies(instance);
    context.with(|inner| {
        inner.close_endpoint(instance);
        for link in inner.links.values().filter(|link| link.instance == instance) {
            link.control.sender_closed(Direction::Up, silent);
        }
        for (_, vendor) in inner.vendors() {
            vendor.hang_up(|of| of == instance);
        }
    });
    if let ProcessKind::Proxy { endpoint } = &process.kind {
        endpoint.ended.notify_waiters();
    }
}
