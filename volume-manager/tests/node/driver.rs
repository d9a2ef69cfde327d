//! A scripted driver without a socket, which checks every call against the rules of the CSI spec.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use tokio::sync::watch;
use volume_manager::advanced::driver::{
    CallError, CallOutcome, ConnectError, Connection, DriverConnector, Operation,
};
use volume_manager::advanced::lifecycle::{Base, TargetState};
use volume_manager::advanced::node::Record;
use volume_manager::driver::{DriverFacts, DriverPolicy, VolumeSpec, VolumeStats};
use volume_manager::mounts::{MemoryFileSystem, MemoryMounts, Mounts as _};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::memory::MemoryDisk;

/// The behavior of the driver in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Executes the call and returns OK.
    Good,
    /// Returns this code without an effect.
    Fail(i32),
    /// Executes the call and returns this code.
    FailAfter(i32),
    /// Executes the call, and the connection breaks before the response. The driver keeps running.
    Break,
    /// Returns OK without an effect.
    FalseOk,
    /// Mounts another file system and returns OK.
    Another,
    /// Mounts the volume twice and returns OK.
    Twice,
    /// Returns OK after this delay.
    Slow(Duration),
    /// Never returns, and has no effect.
    Hang,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) volume: String,
    pub(crate) target: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct State {
    acts: HashMap<Method, VecDeque<Act>>,
    calls: Vec<Seen>,
    violations: Vec<String>,
    volumes: BTreeMap<String, VolumeState>,
    attached: BTreeSet<String>,
    detached_from: Vec<Option<String>>,
    /// The number of effects, and the one at which the node crashes.
    effects: usize,
    crash_at: Option<usize>,
    most_in_flight: usize,
    in_flight: usize,
}

#[derive(Debug, Default)]
struct VolumeState {
    file_system: Option<MemoryFileSystem>,
    /// NodeStageVolume returned OK since the last attempt to unstage.
    staged: bool,
    published: BTreeSet<PathBuf>,
    in_flight: usize,
    /// Teardown calls that have not returned OK.
    owed: BTreeSet<(u8, Option<PathBuf>)>,
    bytes: u64,
}

/// The driver, its storage and its recorded calls, which survive the node's process.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) name: DriverName,
    pub(crate) facts: Arc<Mutex<DriverFacts>>,
    pub(crate) policy: DriverPolicy,
    pub(crate) fs_type: &'static str,
    pub(crate) mounts: MemoryMounts,
    pub(crate) disk: MemoryDisk,
    state: Arc<Mutex<State>>,
    /// The number of crashes of the node; calls of an earlier process are dropped.
    pub(crate) process: Arc<watch::Sender<u64>>,
    pub(crate) crashed: Arc<watch::Sender<bool>>,
    /// The number of processes of the driver.
    pub(crate) driver_process: Arc<watch::Sender<u64>>,
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
            state: Arc::default(),
            process: Arc::new(watch::Sender::new(0)),
            crashed: Arc::new(watch::Sender::new(false)),
            driver_process: Arc::new(watch::Sender::new(0)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Scripts the next calls of a method; later ones succeed.
    pub(crate) fn act(&self, method: Method, acts: impl IntoIterator<Item = Act>) {
        self.state().acts.entry(method).or_default().extend(acts);
    }

    pub(crate) fn behave(&self) {
        self.state().acts.clear();
    }

    pub(crate) fn calls(&self) -> Vec<Seen> {
        self.state().calls.clone()
    }

    pub(crate) fn count(&self, method: Method) -> usize {
        self.state().calls.iter().filter(|seen| seen.method == method).count()
    }

    pub(crate) fn detached_from(&self) -> Vec<Option<String>> {
        self.state().detached_from.clone()
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.state().most_in_flight
    }

    /// Panics if a rule of the spec was broken.
    pub(crate) fn assert_lawful(&self, about: &str) {
        let driver_state = self.state();
        assert!(
            driver_state.violations.is_empty(),
            "{about}: {:#?}\nafter {:#?}",
            driver_state.violations,
            driver_state.calls
        );
    }

    pub(crate) fn crash_at(&self, effect: Option<usize>) {
        let mut driver_state = self.state();
        driver_state.effects = 0;
        driver_state.crash_at = effect;
    }

    /// Counts an effect. Returns `false` if the node has crashed, in which case the effect is dropped.
    pub(crate) fn effect(&self) -> bool {
        if *self.crashed.borrow() {
            return false;
        }
        let mut driver_state = self.state();
        driver_state.effects += 1;
        if driver_state.crash_at == Some(driver_state.effects) {
            self.crashed.send_replace(true);
            return false;
        }
        true
    }

    /// Reboots the node: the mounts and the driver's state about them are lost.
    pub(crate) fn reboot(&self) {
        self.mounts.reboot();
        for volume in self.state().volumes.values_mut() {
            volume.staged = false;
            volume.published.clear();
            volume.owed.clear();
        }
        self.driver_process.send_modify(|driver_process| *driver_process += 1);
    }

    /// Replaces the process of the driver.
    pub(crate) fn redeploy(&self) {
        for volume in self.state().volumes.values_mut() {
            volume.in_flight = 0;
        }
        self.driver_process.send_modify(|driver_process| *driver_process += 1);
    }

    pub(crate) fn file_system(&self, volume: &str) -> MemoryFileSystem {
        let mut driver_state = self.state();
        let volume = driver_state.volumes.entry(volume.to_owned()).or_default();
        *volume.file_system.get_or_insert_with(|| self.mounts.file_system(self.fs_type, "/dev/vol", false))
    }

    /// Checks the caller's obligations in the spec, and that the intent is on disk.
    fn check_rules(&self, spec: &VolumeSpec, operation: &Operation) {
        let volume = spec.key().id.as_str().to_owned();
        let recorded = self.recorded(spec);
        let stages = self.facts.lock().unwrap().capabilities.node.stage_unstage && !spec.is_ephemeral();
        let mut driver_state = self.state();
        driver_state.calls.push(Seen {
            method: operation.method(),
            volume: volume.clone(),
            target: target(operation),
        });
        let state = driver_state.volumes.entry(volume.clone()).or_default();
        let mut wrong = Vec::new();
        if state.in_flight > 0 {
            wrong.push("I1: another call is in flight");
        }
        let this = (rank(operation), target(operation));
        // Another target is independent; the staging and the attach are not.
        let owed = state.owed.iter().any(|owed| *owed != this && (owed.0 != 0 || owed.1 == this.1));
        if owed && !matches!(operation, Operation::Stats { .. }) {
            wrong.push("I4: an earlier teardown call has not returned OK");
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
        driver_state.violations.extend(wrong);
        driver_state.in_flight += 1;
        driver_state.most_in_flight = driver_state.most_in_flight.max(driver_state.in_flight);
    }

    fn recorded(&self, spec: &VolumeSpec) -> Option<Record> {
        let loaded = self.disk.open().load().unwrap();
        let records = loaded.records.iter().filter_map(|(_, payload)| Record::decode(payload).ok());
        records.into_iter().find(|record| record.spec.key() == spec.key())
    }

    /// Applies the effect of the call.
    fn execute(&self, spec: &VolumeSpec, operation: &Operation, act: Act) {
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
                self.state().attached.insert(volume);
            }
            Operation::ControllerUnpublish { node_id } => {
                self.state().detached_from.push(node_id.clone());
                self.state().attached.remove(&volume);
            }
            Operation::NodeStage { .. } if spec.access().is_block() => {}
            Operation::NodeStage { staging_path } => {
                // The server of the mount is restarted.
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
                self.state().volumes.entry(volume).or_default().published.insert(path.to_owned());
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
                self.state().volumes.entry(volume).or_default().published.insert(path.to_owned());
            }
            Operation::NodeUnpublish { target_path } if spec.access().is_block() => {
                let _ = self.mounts.destroy(target_path.as_path());
                let mut driver_state = self.state();
                driver_state.volumes.entry(volume).or_default().published.remove(target_path.as_path());
            }
            // Leaves the directory behind, like some drivers.
            Operation::NodeUnpublish { target_path } => {
                while self.mounts.detach(target_path.as_path()) {}
                let mut driver_state = self.state();
                driver_state.volumes.entry(volume).or_default().published.remove(target_path.as_path());
            }
            Operation::ControllerExpand { required_bytes } => {
                self.state().volumes.entry(volume).or_default().bytes = *required_bytes;
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
        let mut driver_state = self.state();
        let state = driver_state.volumes.entry(volume.to_owned()).or_default();
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

/// Returns the mount table of the in-memory mounts, which never waits.
pub(crate) fn futures_table(mounts: &MemoryMounts) -> Arc<volume_manager::mounts::MountTable> {
    use std::task::{Context, Poll, Waker};
    let mut table = mounts.table();
    match table.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(table) => table.unwrap(),
        Poll::Pending => panic!("the table of mounts in memory waits"),
    }
}

/// Returns 0 to 2 for downward calls, lowest for the call closest to the consumer.
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
impl DriverConnector for Driver {
    async fn connect(
        &self,
        name: &DriverName,
        _: &DriverEndpoint,
        _: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, ConnectError> {
        assert_eq!(*name, self.name);
        let driver = self.clone();
        let facts = driver.facts.lock().unwrap().clone();
        let (process, driver_process) = (*driver.process.borrow(), *driver.driver_process.borrow());
        Ok(Arc::new(Connected { driver, facts, process, driver_process }))
    }
}

struct Connected {
    driver: Driver,
    facts: DriverFacts,
    /// The number of the node's process.
    process: u64,
    driver_process: u64,
}

/// Counts a call as in flight until it is dropped.
struct InFlight<'a>(&'a Driver, String);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut driver_state = self.0.state();
        driver_state.in_flight = driver_state.in_flight.saturating_sub(1);
        if let Some(volume) = driver_state.volumes.get_mut(&self.1) {
            volume.in_flight = volume.in_flight.saturating_sub(1);
        }
    }
}

#[async_trait]
impl Connection for Connected {
    fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    fn earlier_processes_ended(&self) -> bool {
        true
    }

    async fn closed(&self) {
        let mut driver_process = self.driver.driver_process.subscribe();
        let _ = driver_process.wait_for(|driver_process| *driver_process != self.driver_process).await;
    }

    async fn call(&self, spec: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        let (driver, method) = (&self.driver, operation.method());
        let is_closed = || *driver.crashed.borrow() || *driver.process.borrow() != self.process;
        if is_closed() || !driver.effect() {
            return std::future::pending().await;
        }
        if *driver.driver_process.borrow() != self.driver_process {
            return Err(CallError::NotSent { method, reason: "the connection was closed".into() });
        }
        driver.check_rules(spec, operation);
        let _in_flight = InFlight(driver, spec.key().id.as_str().to_owned());
        let act = driver.state().acts.get_mut(&method).and_then(VecDeque::pop_front).unwrap_or(Act::Good);
        match act {
            Act::Good | Act::FailAfter(_) | Act::Break | Act::Another | Act::Twice => {
                driver.execute(spec, operation, act);
            }
            Act::Slow(time) => {
                tokio::time::sleep(time).await;
                driver.execute(spec, operation, act);
            }
            Act::Fail(_) | Act::FalseOk => {}
            Act::Hang => {
                let mut driver_process = driver.driver_process.subscribe();
                let _ =
                    driver_process.wait_for(|driver_process| *driver_process != self.driver_process).await;
                return Err(CallError::Broken { method, reason: "the driver was killed".into() });
            }
        }
        if is_closed() || !driver.effect() {
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
