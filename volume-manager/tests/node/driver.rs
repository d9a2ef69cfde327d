//! A driver without a socket: does what it is told, and holds every call against the rules of the spec.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use tokio::sync::watch;
use volume_manager::driver::{
    CallError, CallOutcome, DriverFacts, DriverPolicy, Operation, VolumeSpec, VolumeStats,
};
use volume_manager::lifecycle::{Base, TargetState};
use volume_manager::mounts::{MemoryFileSystem, MemoryMounts, Mounts as _};
use volume_manager::node::{Connection, Drivers, Record};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::Store as _;
use volume_manager::store::memory::MemoryDisk;

/// What the driver does with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// As it should.
    Good,
    /// Answers this code, and does nothing.
    Fail(i32),
    /// Does it, and answers this code.
    FailAfter(i32),
    /// Does it, and the connection breaks before the answer. The driver goes on.
    Break,
    /// Says OK, and does nothing.
    Lie,
    /// Mounts something else, and says OK.
    Another,
    /// Mounts it twice, and says OK.
    Twice,
    /// Takes so long.
    Slow(Duration),
    /// Answers nothing, ever, and does nothing.
    Hang,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) volume: String,
    pub(crate) target: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Book {
    acts: HashMap<Method, VecDeque<Act>>,
    calls: Vec<Seen>,
    violations: Vec<String>,
    volumes: BTreeMap<String, VolumeBook>,
    attached: BTreeSet<String>,
    detached_from: Vec<Option<String>>,
    /// How often anything had an effect, and when the node crashes.
    effects: usize,
    crash_at: Option<usize>,
    most_in_flight: usize,
    in_flight: usize,
}

#[derive(Debug, Default)]
struct VolumeBook {
    file_system: Option<MemoryFileSystem>,
    /// NodeStageVolume said OK since the last attempt to unstage.
    staged: bool,
    published: BTreeSet<PathBuf>,
    in_flight: usize,
    /// A downward call that did not end with OK.
    owed: BTreeSet<(u8, Option<PathBuf>)>,
    bytes: u64,
}

/// What stays when the node's process goes: the driver, its storage and its book of what it was asked.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) name: DriverName,
    pub(crate) facts: Arc<Mutex<DriverFacts>>,
    pub(crate) policy: DriverPolicy,
    pub(crate) fs_type: &'static str,
    pub(crate) mounts: MemoryMounts,
    pub(crate) disk: MemoryDisk,
    book: Arc<Mutex<Book>>,
    /// Counts the crashes of the node: calls of an earlier process reach nobody.
    pub(crate) process: Arc<watch::Sender<u64>>,
    pub(crate) crashed: Arc<watch::Sender<bool>>,
    /// Counts the processes of the driver.
    pub(crate) generation: Arc<watch::Sender<u64>>,
}

pub(crate) fn facts(name: &DriverName, attach: bool, stage: bool) -> DriverFacts {
    let mut facts = DriverFacts::new(name.clone());
    facts.node_id = Some("node-1".into());
    facts.capabilities.controller.publish_unpublish = attach;
    facts.capabilities.controller.expand = true;
    facts.capabilities.node.stage_unstage = stage;
    facts.capabilities.node.expand = true;
    facts.capabilities.node.volume_stats = true;
    facts
}

impl Driver {
    pub(crate) fn new(name: &str, mounts: MemoryMounts, disk: MemoryDisk) -> Self {
        let name = DriverName::new(name).unwrap();
        Self {
            facts: Arc::new(Mutex::new(facts(&name, true, true))),
            name,
            policy: DriverPolicy::default(),
            fs_type: "ext4",
            mounts,
            disk,
            book: Arc::default(),
            process: Arc::new(watch::Sender::new(0)),
            crashed: Arc::new(watch::Sender::new(false)),
            generation: Arc::new(watch::Sender::new(0)),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// The next calls of a method are treated so, one after the other; then well again.
    pub(crate) fn act(&self, method: Method, acts: impl IntoIterator<Item = Act>) {
        self.book().acts.entry(method).or_default().extend(acts);
    }

    pub(crate) fn behave(&self) {
        self.book().acts.clear();
    }

    pub(crate) fn calls(&self) -> Vec<Seen> {
        self.book().calls.clone()
    }

    pub(crate) fn count(&self, method: Method) -> usize {
        self.book().calls.iter().filter(|seen| seen.method == method).count()
    }

    pub(crate) fn detached_from(&self) -> Vec<Option<String>> {
        self.book().detached_from.clone()
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.book().most_in_flight
    }

    /// Panics if a rule of the spec was broken.
    pub(crate) fn assert_lawful(&self, about: &str) {
        let book = self.book();
        assert!(book.violations.is_empty(), "{about}: {:#?}\nafter {:#?}", book.violations, book.calls);
    }

    pub(crate) fn crash_at(&self, effect: Option<usize>) {
        let mut book = self.book();
        book.effects = 0;
        book.crash_at = effect;
    }

    /// Counts an effect. `false` if the node has crashed, so that the effect does not reach anybody.
    pub(crate) fn effect(&self) -> bool {
        if *self.crashed.borrow() {
            return false;
        }
        let mut book = self.book();
        book.effects += 1;
        if book.crash_at == Some(book.effects) {
            self.crashed.send_replace(true);
            return false;
        }
        true
    }

    /// The node was booted: the mounts are gone, and so is what this driver knew of them.
    pub(crate) fn reboot(&self) {
        self.mounts.reboot();
        for volume in self.book().volumes.values_mut() {
            volume.staged = false;
            volume.published.clear();
            volume.owed.clear();
        }
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Another process of the driver.
    pub(crate) fn redeploy(&self) {
        for volume in self.book().volumes.values_mut() {
            volume.in_flight = 0;
        }
        self.generation.send_modify(|generation| *generation += 1);
    }

    pub(crate) fn file_system(&self, volume: &str) -> MemoryFileSystem {
        let mut book = self.book();
        let volume = book.volumes.entry(volume.to_owned()).or_default();
        *volume.file_system.get_or_insert_with(|| self.mounts.file_system(self.fs_type, "/dev/vol", false))
    }

    /// The spec's obligations of the one who calls, and that the intent is on disk.
    fn judge(&self, spec: &VolumeSpec, operation: &Operation) {
        let volume = spec.key().id.as_str().to_owned();
        let recorded = self.recorded(spec);
        let stages = self.facts.lock().unwrap().capabilities.node.stage_unstage && !spec.is_ephemeral();
        let mut book = self.book();
        book.calls.push(Seen {
            method: operation.method(),
            volume: volume.clone(),
            target: target(operation),
        });
        let state = book.volumes.entry(volume.clone()).or_default();
        let mut wrong = Vec::new();
        if state.in_flight > 0 {
            wrong.push("I1: another call is in flight");
        }
        let this = (rank(operation), target(operation));
        // Another target has nothing to do with it; the staging and the attach have.
        let owed = state.owed.iter().any(|owed| *owed != this && (owed.0 != 0 || owed.1 == this.1));
        if owed && !matches!(operation, Operation::Stats { .. }) {
            wrong.push("I4: a downward call without OK is owed");
        }
        let on_disk = |fits: &dyn Fn(&Record) -> bool| recorded.as_ref().is_some_and(fits);
        let intended = match operation {
            Operation::ControllerPublish => {
                on_disk(&|record| record.snapshot.base == Base::ControllerPublish)
            }
            Operation::ControllerUnpublish { .. } => {
                on_disk(&|record| record.snapshot.base == Base::ControllerUnpublish)
            }
            Operation::NodeStage { .. } => on_disk(&|record| record.snapshot.base == Base::NodeStage),
            Operation::NodeUnstage { .. } => {
                if !state.published.is_empty() {
                    wrong.push("I3: unstage under a published target");
                }
                state.staged = false;
                on_disk(&|record| record.snapshot.base == Base::NodeUnstage)
            }
            Operation::NodePublish { consumer, .. } => {
                if stages && !state.staged {
                    wrong.push("I2: publish without stage");
                }
                on_disk(&|record| {
                    let state = record.snapshot.targets.get(consumer.id()).map(|target| target.state);
                    matches!(state, Some(TargetState::NodePublish | TargetState::Republish))
                })
            }
            Operation::NodeUnpublish { target_path } => on_disk(&|record| {
                record.consumers.iter().any(|(id, consumer)| {
                    let state = record.snapshot.targets.get(id).map(|target| target.state);
                    consumer.spec.target_path() == target_path && state == Some(TargetState::NodeUnpublish)
                })
            }),
            _ => true,
        };
        if !intended {
            wrong.push("I6: the intent is not on disk");
        }
        if rank(operation) < 3 {
            state.owed.insert(this);
        }
        state.in_flight += 1;
        let wrong: Vec<_> = wrong.into_iter().map(|rule| format!("{rule}: {operation:?}")).collect();
        book.violations.extend(wrong);
        book.in_flight += 1;
        book.most_in_flight = book.most_in_flight.max(book.in_flight);
    }

    fn recorded(&self, spec: &VolumeSpec) -> Option<Record> {
        let loaded = self.disk.open().load().unwrap();
        let records = loaded.records.iter().filter_map(|(_, payload)| Record::decode(payload).ok());
        records.into_iter().find(|record| record.spec.key() == spec.key())
    }

    /// Does what the call is for.
    fn carry_out(&self, spec: &VolumeSpec, operation: &Operation, act: Act) {
        let volume = spec.key().id.as_str().to_owned();
        let file_system = if act == Act::Another {
            self.mounts.file_system("ext4", "/dev/another", false)
        } else {
            self.file_system(&volume)
        };
        let stages = self.facts.lock().unwrap().capabilities.node.stage_unstage && !spec.is_ephemeral();
        let times = if act == Act::Twice { 2 } else { 1 };
        match operation {
            Operation::ControllerPublish => {
                self.book().attached.insert(volume);
            }
            Operation::ControllerUnpublish { node_id } => {
                self.book().detached_from.push(node_id.clone());
                self.book().attached.remove(&volume);
            }
            Operation::NodeStage { .. } if spec.access().is_block() => {}
            Operation::NodeStage { staging_path } => {
                // Whatever serves it is started anew.
                self.mounts.revive(file_system);
                let path = staging_path.as_path();
                let times = if self.is_mounted(path) { 0 } else { times };
                for _ in 0..times {
                    self.mounts.mount(file_system, path, false).unwrap();
                }
            }
            Operation::NodeUnstage { staging_path } => while self.mounts.detach(staging_path.as_path()) {},
            Operation::NodePublish { consumer, .. } if spec.access().is_block() => {
                let path = consumer.target_path().as_path();
                self.mounts.make_block_device(path, file_system.device()).unwrap();
                self.book().volumes.entry(volume).or_default().published.insert(path.to_owned());
            }
            Operation::NodePublish { consumer, staging_path } => {
                let path = consumer.target_path().as_path();
                if !self.is_mounted(path) {
                    self.mounts.make_directory(path).unwrap();
                    let read_only = consumer.is_read_only();
                    for _ in 0..times {
                        if stages && act != Act::Another {
                            self.mounts.bind_over(staging_path.as_path(), path, read_only).unwrap();
                        } else {
                            self.mounts.mount(file_system, path, read_only).unwrap();
                        }
                    }
                }
                self.book().volumes.entry(volume).or_default().published.insert(path.to_owned());
            }
            Operation::NodeUnpublish { target_path } if spec.access().is_block() => {
                let _ = self.mounts.destroy(target_path.as_path());
                let mut book = self.book();
                book.volumes.entry(volume).or_default().published.remove(target_path.as_path());
            }
            // It leaves the directory behind, as some do.
            Operation::NodeUnpublish { target_path } => {
                while self.mounts.detach(target_path.as_path()) {}
                let mut book = self.book();
                book.volumes.entry(volume).or_default().published.remove(target_path.as_path());
            }
            Operation::ControllerExpand { required_bytes } => {
                self.book().volumes.entry(volume).or_default().bytes = *required_bytes;
            }
            _ => {}
        }
    }

    fn is_mounted(&self, path: &std::path::Path) -> bool {
        let table = futures_table(&self.mounts);
        table.at(path).is_some()
    }

    fn answer(&self, spec: &VolumeSpec, operation: &Operation) -> CallOutcome {
        let volume = spec.key().id.as_str();
        let mut book = self.book();
        let state = book.volumes.entry(volume.to_owned()).or_default();
        state.owed.remove(&(rank(operation), target(operation)));
        match operation {
            Operation::ControllerPublish => CallOutcome::Attached {
                publish_context: [("device".to_owned(), "/dev/vol".to_owned())].into(),
            },
            Operation::NodeStage { .. } => {
                state.staged = true;
                CallOutcome::Done
            }
            Operation::ControllerExpand { required_bytes } => {
                CallOutcome::Expanded { capacity_bytes: *required_bytes, node_expansion_required: true }
            }
            Operation::NodeExpand { required_bytes, .. } => {
                CallOutcome::Expanded { capacity_bytes: *required_bytes, node_expansion_required: false }
            }
            Operation::Stats { .. } => CallOutcome::Stats(VolumeStats::default()),
            _ => CallOutcome::Done,
        }
    }
}

/// The table of mounts in memory, which never waits.
pub(crate) fn futures_table(mounts: &MemoryMounts) -> Arc<volume_manager::mounts::MountTable> {
    use std::task::{Context, Poll, Waker};
    let mut table = mounts.table();
    match table.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(table) => table.unwrap(),
        Poll::Pending => panic!("the table of mounts in memory waits"),
    }
}

/// 0 to 2 for downward calls, the nearest to the user first.
fn rank(operation: &Operation) -> u8 {
    match operation {
        Operation::NodeUnpublish { .. } => 0,
        Operation::NodeUnstage { .. } => 1,
        Operation::ControllerUnpublish { .. } => 2,
        _ => 9,
    }
}

fn target(operation: &Operation) -> Option<PathBuf> {
    match operation {
        Operation::NodePublish { consumer, .. } => Some(consumer.target_path().as_path().to_owned()),
        Operation::NodeUnpublish { target_path } => Some(target_path.as_path().to_owned()),
        _ => None,
    }
}

#[async_trait]
impl Drivers for Driver {
    async fn connect(
        &self,
        name: &DriverName,
        _: &DriverEndpoint,
        _: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, String> {
        assert_eq!(*name, self.name);
        let driver = self.clone();
        let facts = driver.facts.lock().unwrap().clone();
        let (process, generation) = (*driver.process.borrow(), *driver.generation.borrow());
        Ok(Arc::new(Connected { driver, facts, process, generation }))
    }
}

struct Connected {
    driver: Driver,
    facts: DriverFacts,
    /// Of the node.
    process: u64,
    generation: u64,
}

/// Counts a call as in flight as long as somebody waits for it.
struct InFlight<'a>(&'a Driver, String);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut book = self.0.book();
        book.in_flight = book.in_flight.saturating_sub(1);
        if let Some(volume) = book.volumes.get_mut(&self.1) {
            volume.in_flight = volume.in_flight.saturating_sub(1);
        }
    }
}

#[async_trait]
impl Connection for Connected {
    fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    fn predecessors_ended(&self) -> bool {
        true
    }

    async fn closed(&self) {
        let mut generation = self.driver.generation.subscribe();
        let _ = generation.wait_for(|generation| *generation != self.generation).await;
    }

    async fn call(&self, spec: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        let (driver, method) = (&self.driver, operation.method());
        let gone = || *driver.crashed.borrow() || *driver.process.borrow() != self.process;
        if gone() || !driver.effect() {
            return std::future::pending().await;
        }
        if *driver.generation.borrow() != self.generation {
            return Err(CallError::NotSent { method, reason: "the connection is gone".into() });
        }
        driver.judge(spec, operation);
        let _in_flight = InFlight(driver, spec.key().id.as_str().to_owned());
        let act = driver.book().acts.get_mut(&method).and_then(VecDeque::pop_front).unwrap_or(Act::Good);
        match act {
            Act::Good | Act::FailAfter(_) | Act::Break | Act::Another | Act::Twice => {
                driver.carry_out(spec, operation, act);
            }
            Act::Slow(time) => {
                tokio::time::sleep(time).await;
                driver.carry_out(spec, operation, act);
            }
            Act::Fail(_) | Act::Lie => {}
            Act::Hang => {
                let mut generation = driver.generation.subscribe();
                let _ = generation.wait_for(|generation| *generation != self.generation).await;
                return Err(CallError::Broken { method, reason: "the driver was killed".into() });
            }
        }
        if gone() || !driver.effect() {
            return std::future::pending().await;
        }
        match act {
            Act::Fail(code) | Act::FailAfter(code) => {
                if code == 5 && rank(operation) < 3 {
                    driver.answer(spec, operation);
                }
                Err(CallError::Status { method, code, message: "as scripted".into() })
            }
            Act::Break => Err(CallError::Broken { method, reason: "as scripted".into() }),
            _ => Ok(driver.answer(spec, operation)),
        }
    }
}
