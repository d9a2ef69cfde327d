//! The shared state of a run: the plan, the present state of the network and the processes, and the facts so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use csi_proxy::Term;
use edge_transport::PeerId;
use edge_transport::advanced::frame::Frame;
use tokio::time::Instant;

use crate::answer::wanted;
use crate::attacker::Role;
use crate::driver::{QUICK, Vendor};
use crate::facts::{End, Facts};
use crate::ids::{AttemptId, ExecutionId, InstanceId, LinkId, Moment, OperationId, OrderId};
use crate::network::{Control, Door};
use crate::oracle::Oracle;
use crate::plan::{Hostile, Operation, Place, Plan, driver_name};
use crate::planted::Planted;
use crate::rng::Rng;
use crate::sidecar::ProxyEndpoint;
use crate::trace::Trace;

/// Shared by all tasks of a run, which take turns on one thread.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) planted: Option<Planted>,
    start: Instant,
    instances: Mutex<Vec<Arc<AtomicBool>>>,
    inner: Mutex<Inner>,
}

/// A link and its owner.
#[derive(Debug)]
pub(crate) struct LinkEntry {
    pub(crate) place: Place,
    pub(crate) instance: InstanceId,
    /// The index of the hub, and the number of the hub's process.
    pub(crate) hub: (usize, u32),
    pub(crate) control: Arc<Control>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) plan: Arc<Plan>,
    pub(crate) rng: Rng,
    pub(crate) calm: bool,
    /// The end of the outage of each place's network.
    pub(crate) outages: BTreeMap<Place, Instant>,
    /// The end of the time during which a place cannot reach a hub.
    pub(crate) unreachable: BTreeMap<(Place, usize), Instant>,
    /// By hub, the number of the process that listens, and its dialler.
    pub(crate) doors: Vec<Option<(u32, Door)>>,
    pub(crate) links: BTreeMap<LinkId, LinkEntry>,
    next_link: usize,
    /// The endpoints by driver, from the oldest process to the newest.
    pub(crate) endpoints: Vec<Vec<ProxyEndpoint>>,
    vendors: BTreeMap<(Place, usize), Vendor>,
    /// The end of the work of each operation that has begun.
    done: BTreeMap<OperationId, Instant>,
    /// The last term of each driver's proxies, unless it was lost.
    pub(crate) starts: BTreeMap<usize, Term>,
    /// The highest term of each driver's proxies, also of those that lost it.
    pub(crate) highest: BTreeMap<usize, Term>,
    /// How far the clock of a driver's proxies is behind.
    pub(crate) behind: BTreeMap<usize, Duration>,
    /// The highest term of each driver on the disk of each node.
    pub(crate) disks: BTreeMap<(Place, String), Term>,
    /// The number of orders without an answer.
    pub(crate) unfinished: usize,
    pub(crate) open: BTreeSet<OrderId>,
    /// The number of attempts that ended without the driver's answer.
    pub(crate) retries: u64,
    pub(crate) facts: Facts,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    order: u64,
}

impl Inner {
    /// Returns the present faults of links: none once `calm`.
    pub(crate) fn hostile(&self) -> Hostile {
        if self.calm { Hostile::default() } else { self.plan.hostile }
    }

    pub(crate) fn vendor(&mut self, place: Place, driver: usize) -> &mut Vendor {
        self.vendors.entry((place, driver)).or_default()
    }

    pub(crate) fn vendors(&mut self) -> impl Iterator<Item = (&(Place, usize), &mut Vendor)> {
        self.vendors.iter_mut()
    }

    /// Removes the endpoint of a process, so that sidecars call it no more.
    pub(crate) fn close_endpoint(&mut self, of: InstanceId) {
        for endpoints in &mut self.endpoints {
            endpoints.retain(|endpoint| endpoint.instance != of);
        }
    }

    fn forget_work(&mut self, operation: OperationId, wanted: &Operation) {
        let operations = &self.plan.operations;
        self.done.retain(|other, _| {
            *other == operation || !operations.get(other.0).is_some_and(|other| other.is_about(wanted))
        });
    }
}

impl Context {
    pub(crate) fn new(
        plan: Arc<Plan>,
        planted: Option<Planted>,
        rng: Rng,
        oracle: Oracle,
        mut trace: Trace,
    ) -> Self {
        trace.note(Duration::ZERO, || "plan".into(), || format!("{plan:#?}"));
        Self {
            planted,
            start: Instant::now(),
            instances: Mutex::default(),
            inner: Mutex::new(Inner {
                rng,
                calm: false,
                outages: BTreeMap::new(),
                unreachable: BTreeMap::new(),
                doors: vec![None; plan.hubs],
                links: BTreeMap::new(),
                next_link: 0,
                endpoints: vec![Vec::new(); plan.proxies],
                vendors: BTreeMap::new(),
                done: BTreeMap::new(),
                starts: BTreeMap::new(),
                highest: BTreeMap::new(),
                behind: BTreeMap::new(),
                disks: BTreeMap::new(),
                unfinished: plan.orders.len(),
                open: (0..plan.orders.len()).map(OrderId).collect(),
                retries: 0,
                facts: Facts::new(Arc::clone(&plan)),
                oracle,
                trace,
                order: 0,
                plan,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<T>(&self, read: impl FnOnce(&mut Inner) -> T) -> T {
        read(&mut self.lock())
    }

    /// Returns the time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the instant at a time since the start of the run.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.start + at
    }

    /// Records an event with a new moment, and marks its time in the fingerprint.
    fn happens<T>(&self, what: impl FnOnce(&mut Inner, Moment) -> T) -> T {
        let at = self.now();
        let mut inner = self.lock();
        inner.order += 1;
        let moment = Moment { order: inner.order, at };
        inner.trace.mark(at.as_nanos() as u64);
        what(&mut inner, moment)
    }

    pub(crate) fn note(&self, source: impl AsRef<str>, what: impl FnOnce() -> String) {
        let now = self.now();
        self.with(|inner| inner.trace.note(now, || source.as_ref().to_owned(), what));
    }

    /// Records that a process begins.
    pub(crate) fn begins(&self, place: Place) -> InstanceId {
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.push(Arc::new(AtomicBool::new(true)));
        drop(instances);
        let instance = self.happens(|inner, moment| inner.facts.begins(place, moment));
        self.note(self.label(instance), || "begins".to_owned());
        instance
    }

    /// Records that a process ends. Its remaining tasks have no more effect.
    pub(crate) fn dies(&self, instance: InstanceId) {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(alive) = instances.get(instance.0) {
            alive.store(false, Ordering::Relaxed);
        }
        drop(instances);
        self.note(self.label(instance), || "ends".to_owned());
        self.happens(|inner, moment| inner.facts.dies(instance, moment));
    }

    pub(crate) fn is_alive(&self, instance: InstanceId) -> bool {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.get(instance.0).is_some_and(|alive| alive.load(Ordering::Relaxed))
    }

    pub(crate) fn label(&self, instance: InstanceId) -> String {
        self.with(|inner| inner.facts.label(instance))
    }

    /// Returns the end of the present outage of a place's network.
    pub(crate) fn outage(&self, place: Place) -> Option<Instant> {
        self.with(|inner| inner.outages.get(&place).copied()).filter(|until| *until > Instant::now())
    }

    /// Returns the process of a hub and its dialler, if the hub listens and the place can reach it.
    pub(crate) fn door(&self, place: Place, hub: usize) -> Option<(u32, Door)> {
        self.with(|inner| {
            let unreachable =
                inner.unreachable.get(&(place, hub)).is_some_and(|until| *until > Instant::now());
            inner.doors.get(hub).filter(|_| !unreachable)?.clone()
        })
    }

    pub(crate) fn link_begins(
        &self,
        place: Place,
        instance: InstanceId,
        hub: (usize, u32),
        control: Arc<Control>,
    ) -> LinkId {
        self.happens(|inner, moment| {
            let link = LinkId(inner.next_link);
            inner.next_link += 1;
            inner.links.insert(link, LinkEntry { place, instance, hub, control });
            inner.facts.link_begins(link, instance, hub, moment);
            link
        })
    }

    /// Records that the peer's end of a link has ended.
    pub(crate) fn link_lost(&self, link: LinkId) {
        self.happens(|inner, moment| inner.facts.link_lost(link, moment));
    }

    /// Records that the hub's end of a link has ended.
    pub(crate) fn link_broken(&self, link: LinkId) {
        self.happens(|inner, moment| inner.facts.link_broken(link, moment));
    }

    /// Records that a hub's process accepts no more calls.
    pub(crate) fn hub_ends(&self, hub: (usize, u32)) {
        self.happens(|inner, moment| inner.facts.hub_ends(hub, moment));
    }

    /// Records that a process is asked to end, or that another process of its place begins.
    pub(crate) fn leaves(&self, instance: InstanceId) {
        self.happens(|inner, moment| inner.facts.leaves(instance, moment));
    }

    /// Records that both ends of a link have ended.
    pub(crate) fn link_over(&self, link: LinkId) {
        self.link_lost(link);
        self.with(|inner| inner.links.remove(&link));
    }

    /// Returns the links of a place's processes to all hubs.
    pub(crate) fn links_of(&self, place: Place) -> Vec<Arc<Control>> {
        (0..self.with(|inner| inner.plan.hubs)).flat_map(|hub| self.links_to(place, hub)).collect()
    }

    /// Returns the links of a place's processes to one hub.
    pub(crate) fn links_to(&self, place: Place, hub: usize) -> Vec<Arc<Control>> {
        self.with(|inner| {
            let of = inner.links.values().filter(|entry| entry.place == place && entry.hub.0 == hub);
            of.map(|entry| Arc::clone(&entry.control)).collect()
        })
    }

    /// Records that a peer has sent a frame to the hub.
    pub(crate) fn sent(&self, link: LinkId, instance: InstanceId, frame: &Frame) {
        self.happens(|inner, moment| {
            inner.note_frame(moment, "sends", link, instance, frame);
            if let Some(event) = inner.facts.sent(link, frame, moment) {
                inner.oracle.replies(moment, &inner.facts, event);
            }
        });
    }

    /// Records that a frame has arrived at a peer.
    pub(crate) fn arrived(&self, link: LinkId, instance: InstanceId, frame: &Frame) {
        self.happens(|inner, moment| {
            inner.note_frame(moment, "gets", link, instance, frame);
            inner.facts.arrived(link, instance, frame, moment);
            inner.oracle.arrives(moment, &inner.facts);
        });
    }

    /// Records the bytes that an attacker has read.
    pub(crate) fn attacker_reads(&self, role: Role, bytes: &Bytes) {
        self.happens(|inner, moment| inner.oracle.attack.reads(moment, role, bytes));
    }

    /// Records that the hub has admitted an attacker.
    pub(crate) fn attacker_admitted(&self, role: Role, claimed: &PeerId) {
        self.note(role.name(), || format!("is admitted as {claimed}"));
        self.happens(|inner, moment| inner.oracle.attack.admitted(moment, role, claimed));
    }

    /// Records that a proxy ends because it was replaced.
    pub(crate) fn replaced(&self, proxy: InstanceId) {
        self.happens(|inner, moment| inner.oracle.attack.replaced(moment, &inner.facts, proxy));
    }

    /// Records that a proxy cannot begin because there is no term for it.
    pub(crate) fn has_no_term(&self, proxy: InstanceId) {
        self.happens(|inner, moment| inner.oracle.attack.has_no_term(moment, &inner.facts, proxy));
    }

    /// Records a term on the disk of a node.
    pub(crate) fn records(&self, place: Place, driver: &str, term: Term) {
        // With this fault the proxies themselves send terms that they do not have.
        let is_checked = self.planted != Some(Planted::NoTerm);
        self.happens(|inner, moment| {
            let number = (0..inner.plan.proxies).find(|number| driver_name(*number) == driver);
            if let Some(number) = number.filter(|_| is_checked) {
                let highest = inner.highest.get(&number).map(|term| term.get());
                inner.oracle.attack.records(moment, driver, term.get(), highest);
            }
            let known = inner.disks.entry((place, driver.to_owned())).or_insert(term);
            *known = term.max(*known);
        });
    }

    /// Begins an execution in a driver. Returns the execution and the end of its work.
    pub(crate) fn executes(
        &self,
        place: Place,
        driver: usize,
        agent: InstanceId,
        path: &str,
        body: &Bytes,
    ) -> Option<(ExecutionId, Instant)> {
        let now = Instant::now();
        self.happens(|inner, moment| {
            if driver < inner.plan.proxies {
                inner.oracle.attack.executes(moment, path, body);
            }
            let (id, attempt) = wanted(&inner.plan.operations, place, driver, path, body)?;
            let operation = *inner.plan.operation_of(id)?;
            // A driver is idempotent: a repeated operation is answered at once, until another operation of the volume
            // begins.
            inner.forget_work(id, &operation);
            let done = *inner.done.entry(id).or_insert(now + operation.work);
            let execution = inner.facts.executes(id, attempt, agent, moment);
            inner.trace.mark(execution.0 as u64);
            inner.trace.note(
                moment.at,
                || format!("driver-{}-{driver}", place + 1),
                || format!("{execution:?} of {id:?} begins with {attempt:?}"),
            );
            inner.oracle.began(moment, &inner.facts, execution);
            Some((execution, done.max(now + QUICK)))
        })
    }

    /// Ends an execution. Returns its operation, unless the execution was lost.
    pub(crate) fn executed(&self, execution: ExecutionId) -> Option<(OperationId, Operation)> {
        self.happens(|inner, moment| {
            let id = inner.facts.executed(execution, moment)?;
            let operation = *inner.plan.operation_of(id)?;
            inner.trace.note(moment.at, || "driver".into(), || format!("{execution:?} of {id:?} ends"));
            Some((id, operation))
        })
    }

    /// Records that the agent has the answer of an execution.
    pub(crate) fn answered(&self, execution: ExecutionId) {
        self.happens(|inner, moment| inner.facts.answered(execution, moment));
    }

    /// Ends all executions of a driver, and forgets their unfinished work.
    pub(crate) fn driver_loses(&self, place: Place, driver: usize) {
        let now = Instant::now();
        self.happens(|inner, moment| {
            inner.facts.driver_loses(place, driver, moment);
            let operations = &inner.plan.operations;
            let of = |operation: &Operation| (operation.agent, operation.driver) == (place, driver);
            inner.done.retain(|operation, done| *done <= now || !operations.get(operation.0).is_some_and(of));
        });
    }

    /// Records that a sidecar makes a call. Returns the attempt and its operation.
    pub(crate) fn asks(&self, order: OrderId, proxy: InstanceId) -> Option<(AttemptId, Operation)> {
        self.happens(|inner, moment| {
            let (attempt, id) = inner.facts.asks(order, proxy, moment)?;
            let operation = *inner.plan.operation_of(id)?;
            let label = inner.facts.label(proxy);
            inner.trace.note(moment.at, || label, || format!("{order:?}: {attempt:?} for {id:?}"));
            Some((attempt, operation))
        })
    }

    /// Records the end of a sidecar's call. Returns whether the sidecar has its driver's answer.
    pub(crate) fn ends(&self, attempt: AttemptId, end: End, messages: &[Bytes]) -> bool {
        self.happens(|inner, moment| {
            inner.trace.note(moment.at, || "sidecar".into(), || format!("{attempt:?} ends: {end:?}"));
            let done = matches!(end, End::Answered(_));
            inner.oracle.ends(moment, &inner.facts, attempt, &end, messages);
            inner.facts.ends(attempt, end, moment);
            done
        })
    }
}

impl Inner {
    fn note_frame(&mut self, moment: Moment, what: &str, link: LinkId, instance: InstanceId, frame: &Frame) {
        use edge_transport::advanced::frame::Kind;
        let liveness = matches!(frame.kind, Kind::Ping { .. } | Kind::Pong { .. });
        if self.trace.is_on() && !liveness {
            let label = self.facts.label(instance);
            let from = frame.source.as_ref().map_or("-", |name| name.as_str());
            let to = frame.target.as_ref().map_or("-", |name| name.as_str());
            let text = format!("{what} on {} [{from} > {to}] {:?}", link.0, frame.kind);
            self.trace.note(moment.at, || label, || text);
        }
        self.trace.mark(link.0 as u64);
    }
}
