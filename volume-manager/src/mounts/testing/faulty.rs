//! Fault injection for [`Mounts`].

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::mounts::{
    CreateError, Inspection, MountChanges, MountPath, MountTable, Mounts, PathState, ProbeError, RemoveError,
    Removed, SafeRemoval, TableError,
};

/// A method of [`Mounts`].
#[allow(clippy::exhaustive_enums, reason = "one variant for each method")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Mounts::table`].
    Table,
    /// [`Mounts::inspect`].
    Inspect,
    /// [`Mounts::create_directory`].
    CreateDirectory,
    /// [`Mounts::remove`].
    Remove,
}

/// A fault of a call.
#[allow(clippy::exhaustive_enums, reason = "tests match on every variant")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The call has no effect, and returns this errno.
    Fail(i32),
    /// The call has its effect, and returns this errno.
    DoAndFail(i32),
    /// The call has no effect, and reports a hang: `inspect` as [`PathState::Hung`], the others as [`ProbeError::Hung`].
    /// `table` cannot hang, and returns an error.
    Hang,
    /// The call has no effect, and never returns. The caller needs its own timeout.
    Stall,
    /// The call has no effect, and reports success. `table` returns its last result, `inspect` a missing path.
    Lie,
}

/// Wraps [`Mounts`] and injects faults.
#[derive(Debug)]
pub struct FaultyMounts<M> {
    mounts: M,
    script: Mutex<Script>,
}

#[derive(Debug, Default)]
struct Script {
    faults: Vec<Planned>,
    /// The last calls, at most [`FaultyMounts::MAX_CALLS`].
    calls: VecDeque<(Operation, PathBuf)>,
    last_table: Arc<MountTable>,
}

#[derive(Debug)]
struct Planned {
    operation: Operation,
    /// The number of successful calls before the fault.
    after: u32,
    fault: Fault,
}

impl<M: Mounts> FaultyMounts<M> {
    /// The maximum number of calls that are recorded.
    pub const MAX_CALLS: usize = 4096;

    /// Wraps mounts, without faults.
    pub fn new(mounts: M) -> Self {
        Self { mounts, script: Mutex::default() }
    }

    /// The wrapped mounts.
    pub fn inner(&self) -> &M {
        &self.mounts
    }

    /// Injects a fault into one call of an operation, after `after` further successful calls of it.
    pub fn inject(&self, operation: Operation, after: u32, fault: Fault) {
        self.script().faults.push(Planned { operation, after, fault });
    }

    /// The recorded calls with their paths, the oldest first; the path of `table` is empty.
    pub fn calls(&self) -> Vec<(Operation, PathBuf)> {
        self.script().calls.iter().cloned().collect()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        // A panic cannot leave the script inconsistent.
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call, and returns its fault.
    async fn begin(&self, operation: Operation, path: &Path) -> Option<Fault> {
        let fault = {
            let mut script = self.script();
            if script.calls.len() == Self::MAX_CALLS {
                script.calls.pop_front();
            }
            script.calls.push_back((operation, path.to_owned()));
            let due =
                script.faults.iter().position(|planned| planned.operation == operation && planned.after == 0);
            let others = script.faults.iter_mut().filter(|planned| planned.operation == operation);
            others.for_each(|planned| planned.after = planned.after.saturating_sub(1));
            due.map(|due| script.faults.remove(due).fault)
        };
        if fault == Some(Fault::Stall) {
            std::future::pending::<()>().await;
        }
        fault
    }
}

fn io_error(path: &Path, errno: i32) -> ProbeError {
    ProbeError::Io { path: path.to_owned(), source: io::Error::from_raw_os_error(errno) }
}

/// Makes a mutating call with its fault.
macro_rules! with_fault {
    ($self:ident, $operation:expr, $path:expr, $call:expr, $lie:expr) => {{
        let path = $path;
        match $self.begin($operation, path).await {
            Some(Fault::Fail(errno)) => Err(io_error(path, errno).into()),
            Some(Fault::DoAndFail(errno)) => {
                $call.await?;
                Err(io_error(path, errno).into())
            }
            Some(Fault::Hang | Fault::Stall) => Err(ProbeError::Hung { path: path.to_owned() }.into()),
            Some(Fault::Lie) => Ok($lie),
            None => $call.await,
        }
    }};
}

#[async_trait]
impl<M: Mounts> Mounts for FaultyMounts<M> {
    async fn table(&self) -> Result<Arc<MountTable>, TableError> {
        match self.begin(Operation::Table, Path::new("")).await {
            Some(Fault::Fail(errno) | Fault::DoAndFail(errno)) => {
                return Err(TableError::Read(io::Error::from_raw_os_error(errno)));
            }
            Some(Fault::Hang | Fault::Stall) => return Err(TableError::Read(io::ErrorKind::TimedOut.into())),
            Some(Fault::Lie) => return Ok(Arc::clone(&self.script().last_table)),
            None => {}
        }
        let table = self.mounts.table().await?;
        self.script().last_table = Arc::clone(&table);
        Ok(table)
    }

    async fn inspect(&self, path: &Path) -> Result<Inspection, ProbeError> {
        match self.begin(Operation::Inspect, path).await {
            Some(Fault::Fail(errno) | Fault::DoAndFail(errno)) => Err(io_error(path, errno)),
            Some(Fault::Hang | Fault::Stall) => Ok(Inspection::of(PathState::Hung)),
            Some(Fault::Lie) => Ok(Inspection::of(PathState::Missing)),
            None => self.mounts.inspect(path).await,
        }
    }

    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError> {
        let call = self.mounts.create_directory(path);
        with_fault!(self, Operation::CreateDirectory, path.as_path(), call, ())
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        let path = removal.path().as_path();
        with_fault!(self, Operation::Remove, path, self.mounts.remove(removal), Removed::Removed)
    }

    fn changes(&self) -> io::Result<Box<dyn MountChanges>> {
        self.mounts.changes()
    }
}
