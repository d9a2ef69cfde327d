//! Counts the steps of a node, and kills the process at one of them. There is a step before and after every effect.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use csi_proto::DriverName;
use rustix::process::{Signal, getpid, kill_process};
use volume_manager::advanced::driver::{
    CallError, CallOutcome, ConnectError, Connection, Driver, DriverConnector, Operation,
};
use volume_manager::driver::{DriverFacts, DriverPolicy, MountPath, NoSecrets, VolumeSpec};
use volume_manager::mounts::{
    CreateError, Inspection, MountChanges, MountTable, Mounts, ProbeError, RemoveError, Removed, SafeRemoval,
    TableError,
};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::{RowTable, RowWrite, Rows, StoreError};

/// Counts steps, and kills the process at the step `kill_at`.
#[derive(Debug)]
pub(super) struct Steps {
    taken: AtomicU64,
    kill_at: Option<u64>,
}

impl Steps {
    pub(super) fn new(kill_at: Option<u64>) -> Self {
        Self { taken: AtomicU64::new(0), kill_at }
    }

    /// Returns the number of steps so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    fn step(&self, what: &str) {
        let number = self.taken.fetch_add(1, Ordering::SeqCst) + 1;
        eprintln!("step {number}: {what}");
        if self.kill_at == Some(number) {
            eprintln!("killed");
            // SIGKILL: no destructor, no flush and no other task runs afterwards.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    fn around<T>(&self, what: &str, effect: impl FnOnce() -> T) -> T {
        self.step(&format!("before {what}"));
        let outcome = effect();
        self.step(&format!("after {what}"));
        outcome
    }

    async fn around_async<T>(&self, what: &str, effect: impl Future<Output = T>) -> T {
        self.step(&format!("before {what}"));
        let outcome = effect.await;
        self.step(&format!("after {what}"));
        outcome
    }
}

/// Rows with a step before and after every commit.
pub(super) struct SteppedRows {
    rows: Box<dyn Rows>,
    steps: Arc<Steps>,
}

impl SteppedRows {
    pub(super) fn new(rows: Box<dyn Rows>, steps: Arc<Steps>) -> Self {
        Self { rows, steps }
    }
}

impl Rows for SteppedRows {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.rows.get(table, key)
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.rows.scan(table, visit)
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        self.steps.around("a commit", || self.rows.write(batch))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.rows.reopen()
    }
}

/// Mounts with a step before and after every change.
pub(super) struct SteppedMounts<M> {
    mounts: M,
    steps: Arc<Steps>,
}

impl<M> SteppedMounts<M> {
    pub(super) fn new(mounts: M, steps: Arc<Steps>) -> Self {
        Self { mounts, steps }
    }
}

#[async_trait]
impl<M: Mounts> Mounts for SteppedMounts<M> {
    async fn table(&self) -> Result<Arc<MountTable>, TableError> {
        self.mounts.table().await
    }

    async fn inspect(&self, path: &Path) -> Result<Inspection, ProbeError> {
        self.mounts.inspect(path).await
    }

    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError> {
        self.steps.around_async("a creation", self.mounts.create_directory(path)).await
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        self.steps.around_async("a removal", self.mounts.remove(removal)).await
    }

    fn changes(&self) -> io::Result<Box<dyn MountChanges>> {
        self.mounts.changes()
    }
}

/// Drivers with a step before and after every call.
pub(super) struct SteppedConnector {
    steps: Arc<Steps>,
    known: Mutex<BTreeMap<DriverName, Arc<Driver>>>,
}

impl SteppedConnector {
    pub(super) fn new(steps: Arc<Steps>) -> Self {
        Self { steps, known: Mutex::default() }
    }

    fn driver(&self, name: &DriverName) -> Arc<Driver> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Driver::new(name.clone(), Arc::new(NoSecrets)));
        Arc::clone(known.entry(name.clone()).or_insert_with(new))
    }
}

struct SteppedConnection(Arc<dyn Connection>, Arc<Steps>);

#[async_trait]
impl DriverConnector for SteppedConnector {
    async fn connect(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, ConnectError> {
        let connection = Arc::new(self.driver(name).connect(endpoint, policy).await?);
        Ok(Arc::new(SteppedConnection(connection, Arc::clone(&self.steps))))
    }
}

#[async_trait]
impl Connection for SteppedConnection {
    fn facts(&self) -> &DriverFacts {
        self.0.facts()
    }

    fn earlier_processes_ended(&self) -> bool {
        self.0.earlier_processes_ended()
    }

    async fn closed(&self) {
        self.0.closed().await;
    }

    async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        self.1.around_async(operation.method().name(), self.0.call(volume, operation)).await
    }
}
