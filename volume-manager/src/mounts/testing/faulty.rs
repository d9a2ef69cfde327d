//! Mounts that fail when they are told to.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::mounts::{
    CreateError, Inspection, MountChanges, MountPath, MountTable, Mounts, Presence, RemoveError, Removed,
    SafeRemoval, TableError, Trouble,
};

/// Which function of [`Mounts`].
#[allow(clippy::exhaustive_enums, reason = "one for each function that does something")]
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

/// What goes wrong with a call.
#[allow(clippy::exhaustive_enums, reason = "a test has to know each")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing is done, and the error with this number is told.
    Fail(i32),
    /// It is done, and the error with this number is told.
    DoAndFail(i32),
    /// Nothing is done, and it is told as hung: as the presence [`Presence::Hung`] by `inspect`, by the others as
    /// [`Trouble::Hung`]. A table cannot hang and tells an error.
    Hang,
    /// Nothing is done, and the call never ends. Who calls has to have a bound of his own.
    Stall,
    /// Nothing is done, and success is told. `table` tells the table that it told last, `inspect` that nothing is there.
    Lie,
}

/// Other mounts, with faults that were put in their way.
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
    /// How many calls pass before.
    after: u32,
    fault: Fault,
}

impl<M: Mounts> FaultyMounts<M> {
    /// How many calls are remembered.
    pub const MAX_CALLS: usize = 4096;

    /// Without a fault yet.
    pub fn new(mounts: M) -> Self {
        Self { mounts, script: Mutex::default() }
    }

    /// What the calls go to.
    pub fn inner(&self) -> &M {
        &self.mounts
    }

    /// Lets one call of an operation go wrong, after `after` calls of it that go well, counted from now.
    pub fn inject(&self, operation: Operation, after: u32, fault: Fault) {
        self.script().faults.push(Planned { operation, after, fault });
    }

    /// The last calls, the oldest first, with their paths; `table` has an empty one.
    pub fn calls(&self) -> Vec<(Operation, PathBuf)> {
        self.script().calls.iter().cloned().collect()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        // A script is whole between any two of its statements.
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call. The fault that is due for it.
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

fn trouble(path: &Path, errno: i32) -> Trouble {
    Trouble::Io { path: path.to_owned(), source: io::Error::from_raw_os_error(errno) }
}

/// What the fault makes of a call that changes something.
macro_rules! with_fault {
    ($self:ident, $operation:expr, $path:expr, $call:expr, $lie:expr) => {{
        let path = $path;
        match $self.begin($operation, path).await {
            Some(Fault::Fail(errno)) => Err(trouble(path, errno).into()),
            Some(Fault::DoAndFail(errno)) => {
                $call.await?;
                Err(trouble(path, errno).into())
            }
            Some(Fault::Hang | Fault::Stall) => Err(Trouble::Hung { path: path.to_owned() }.into()),
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

    async fn inspect(&self, path: &Path) -> Result<Inspection, Trouble> {
        match self.begin(Operation::Inspect, path).await {
            Some(Fault::Fail(errno) | Fault::DoAndFail(errno)) => Err(trouble(path, errno)),
            Some(Fault::Hang | Fault::Stall) => Ok(Inspection::of(Presence::Hung)),
            Some(Fault::Lie) => Ok(Inspection::of(Presence::Missing)),
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
