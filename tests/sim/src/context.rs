//! What all parts of a run share: what is decided, what is there, and what happened so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use csi_proxy::Term;
use edge_transport::frame::Frame;
use tokio::time::Instant;

use crate::answer::wanted;
use crate::driver::{QUICK, Vendor};
use crate::facts::{End, Facts};
use crate::ids::{AttemptId, ExecutionId, InstanceId, LinkId, Moment, OperationId, OrderId};
use crate::network::{Control, Door};
use crate::oracle::Oracle;
use crate::plan::{Hostile, Operation, Place, Plan};
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
    /// The hub, and which of its processes.
    pub(crate) hub: (usize, u32),
    pub(crate) control: Arc<Control>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) plan: Arc<Plan>,
    pub(crate) rng: Rng,
    pub(crate) calm: bool,
    /// Until when a place is cut off.
    pub(crate) away: BTreeMap<Place, Instant>,
    /// Until when a place cannot reach one hub.
    pub(crate) refused: BTreeMap<(Place, usize), Instant>,
    /// The hubs that listen, and which of their processes does.
    pub(crate) doors: Vec<Option<(u32, Door)>>,
    pub(crate) links: BTreeMap<LinkId, LinkEntry>,
    next_link: usize,
    /// By driver, those of older processes first.
    pub(crate) endpoints: Vec<Vec<ProxyEndpoint>>,
    vendors: BTreeMap<(Place, usize), Vendor>,
    /// When the work of an operation is done, once it has begun.
    done: BTreeMap<OperationId, Instant>,
    /// The last term of each driver's proxies, unless it was lost.
    pub(crate) starts: BTreeMap<usize, Term>,
    /// How much the clock of a driver's proxies is behind.
    pub(crate) behind: BTreeMap<usize, Duration>,
    /// The highest term of each driver on the disk of each node.
    pub(crate) disks: BTreeMap<(Place, String), Term>,
    /// Orders that have no answer.
    pub(crate) unfinished: usize,
    pub(crate) open: BTreeSet<OrderId>,
    /// Attempts that did not bring the driver's answer.
    pub(crate) retries: u64,
    pub(crate) facts: Facts,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    order: u64,
}

impl Inner {
    /// What links do to frames now.
    pub(crate) fn hostile(&self) -> Hostile {
        if self.calm { Hostile::default() } else { self.plan.hostile }
    }

    pub(crate) fn vendor(&mut self, place: Place, driver: usize) -> &mut Vendor {
        self.vendors.entry((place, driver)).or_default()
    }

    pub(crate) fn vendors(&mut self) -> impl Iterator<Item = (&(Place, usize), &mut Vendor)> {
        self.vendors.iter_mut()
    }

    /// A process takes no more calls of sidecars.
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
                away: BTreeMap::new(),
                refused: BTreeMap::new(),
                doors: vec![None; plan.hubs],
                links: BTreeMap::new(),
                next_link: 0,
                endpoints: vec![Vec::new(); plan.proxies],
                vendors: BTreeMap::new(),
                done: BTreeMap::new(),
                starts: BTreeMap::new(),
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

    /// Since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The moment of a duration since the start.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.start + at
    }

    /// Something happens, at a moment of its own.
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

    /// A process begins.
    pub(crate) fn begins(&self, place: Place) -> InstanceId {
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.push(Arc::new(AtomicBool::new(true)));
        drop(instances);
        let instance = self.happens(|inner, moment| inner.facts.begins(place, moment));
        self.note(self.label(instance), || "begins".to_owned());
        instance
    }

    /// A process ends, whatever tasks of it are left.
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

    /// Until when a place is cut off.
    pub(crate) fn away(&self, place: Place) -> Option<Instant> {
        self.with(|inner| inner.away.get(&place).copied()).filter(|until| *until > Instant::now())
    }

    /// Where a hub listens, if a place can reach it.
    pub(crate) fn door(&self, place: Place, hub: usize) -> Option<(u32, Door)> {
        self.with(|inner| {
            let refused = inner.refused.get(&(place, hub)).is_some_and(|until| *until > Instant::now());
            inner.doors.get(hub).filter(|_| !refused)?.clone()
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

    /// The peer's end of a link is over.
    pub(crate) fn link_lost(&self, link: LinkId) {
        self.happens(|inner, moment| inner.facts.link_lost(link, moment));
    }

    /// The hub's end of a link is over.
    pub(crate) fn link_broken(&self, link: LinkId) {
        self.happens(|inner, moment| inner.facts.link_broken(link, moment));
    }

    /// A hub's process takes no more calls.
    pub(crate) fn hub_ends(&self, hub: (usize, u32)) {
        self.happens(|inner, moment| inner.facts.hub_ends(hub, moment));
    }

    /// A process is asked to end, or another one is begun beside it.
    pub(crate) fn leaves(&self, instance: InstanceId) {
        self.happens(|inner, moment| inner.facts.leaves(instance, moment));
    }

    /// Both ends are.
    pub(crate) fn link_over(&self, link: LinkId) {
        self.link_lost(link);
        self.with(|inner| inner.links.remove(&link));
    }

    /// The links of a place's processes.
    pub(crate) fn links_of(&self, place: Place) -> Vec<Arc<Control>> {
        (0..self.with(|inner| inner.plan.hubs)).flat_map(|hub| self.links_to(place, hub)).collect()
    }

    /// Those to one hub.
    pub(crate) fn links_to(&self, place: Place, hub: usize) -> Vec<Arc<Control>> {
        self.with(|inner| {
            let of = inner.links.values().filter(|entry| entry.place == place && entry.hub.0 == hub);
            of.map(|entry| Arc::clone(&entry.control)).collect()
        })
    }

    /// A peer has sent a frame to the hub.
    pub(crate) fn sent(&self, link: LinkId, instance: InstanceId, frame: &Frame) {
        self.happens(|inner, moment| {
            inner.note_frame(moment, "sends", link, instance, frame);
            if let Some(event) = inner.facts.sent(link, frame, moment) {
                inner.oracle.replies(moment, &inner.facts, event);
            }
        });
    }

    /// A frame has arrived at a peer.
    pub(crate) fn arrived(&self, link: LinkId, instance: InstanceId, frame: &Frame) {
        self.happens(|inner, moment| {
            inner.note_frame(moment, "gets", link, instance, frame);
            inner.facts.arrived(link, instance, frame, moment);
            inner.oracle.arrives(moment, &inner.facts);
        });
    }

    /// A driver is asked by an agent: what is begun, and when it is done.
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
            let (id, attempt) = wanted(&inner.plan.operations, place, driver, path, body)?;
            let operation = *inner.plan.operation_of(id)?;
            // A driver is idempotent: what is done is not done again, only answered again, until something else is done.
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

    /// The work of an execution is done, if it was not lost.
    pub(crate) fn executed(&self, execution: ExecutionId) -> Option<(OperationId, Operation)> {
        self.happens(|inner, moment| {
            let id = inner.facts.executed(execution, moment)?;
            let operation = *inner.plan.operation_of(id)?;
            inner.trace.note(moment.at, || "driver".into(), || format!("{execution:?} of {id:?} ends"));
            Some((id, operation))
        })
    }

    /// The agent that asked has the answer.
    pub(crate) fn answered(&self, execution: ExecutionId) {
        self.happens(|inner, moment| inner.facts.answered(execution, moment));
    }

    /// The work of a driver is lost.
    pub(crate) fn driver_loses(&self, place: Place, driver: usize) {
        let now = Instant::now();
        self.happens(|inner, moment| {
            inner.facts.driver_loses(place, driver, moment);
            let operations = &inner.plan.operations;
            let of = |operation: &Operation| (operation.agent, operation.driver) == (place, driver);
            inner.done.retain(|operation, done| *done <= now || !operations.get(operation.0).is_some_and(of));
        });
    }

    /// A sidecar makes a call.
    pub(crate) fn asks(&self, order: OrderId, proxy: InstanceId) -> Option<(AttemptId, Operation)> {
        self.happens(|inner, moment| {
            let (attempt, id) = inner.facts.asks(order, proxy, moment)?;
            let operation = *inner.plan.operation_of(id)?;
            let label = inner.facts.label(proxy);
            inner.trace.note(moment.at, || label, || format!("{order:?}: {attempt:?} for {id:?}"));
            Some((attempt, operation))
        })
    }

    /// A sidecar's call has ended. Says whether the sidecar has its driver's answer.
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
        use edge_transport::frame::Kind;
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
