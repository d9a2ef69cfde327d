//! The store on disk: one redb database file of one proxy, of mode 0600, with a table for each kind of thing.
//!
//! A thread of its own writes, and puts what waits into one commit. A commit is made in two phases and synced twice, so that an
//! earlier one can never be lost to a later one that was cut off.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

use ::redb::backends::FileBackend;
use ::redb::{
    Builder, CommitError, Database, DatabaseError, ReadableTable, StorageError, TableDefinition, TableError,
    TransactionError, WriteTransaction,
};
use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::DriverName;
use tokio::sync::oneshot;

use super::{OpenStoreError, PlacementStore, StoreError, Written};
use crate::call::{NodeId, Term};
use crate::driver_info::DriverInfoStore;
use crate::operation::Subject;
use crate::relay::{TermError, TermSource, next_term};
use crate::route::placements::{Placement, Revision, Row};

/// What every redb file begins with.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Most bytes of the file that are kept in memory.
const CACHE: usize = 1 << 20;

/// Most writes in one commit.
const GROUP: usize = 256;

/// The versions of the tables, by their names, and the last revision.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// By kind and name or id: revision and placement.
const PLACEMENTS: TableDefinition<'_, (u8, &str), (u64, &[u8])> = TableDefinition::new("placements");
/// By node; empty where the node is decided call by call.
const DRIVER_INFO: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("driver_info");
/// The last term of the proxy, by driver.
const TERMS: TableDefinition<'_, &str, u64> = TableDefinition::new("terms");
/// Decommissioned nodes.
const DECOMMISSIONED: TableDefinition<'_, &str, ()> = TableDefinition::new("decommissioned");
/// Nodes that had a socket.
const NODES: TableDefinition<'_, &str, ()> = TableDefinition::new("nodes");

/// The tables with the versions that are written. The version of `layout` is that of the whole; 1 was written before placements had rows of their own.
const VERSIONS: [(&str, u64); 6] =
    [("layout", 2), ("placements", 1), ("driver_info", 1), ("terms", 1), ("nodes", 1), ("decommissioned", 1)];

/// The name of the last revision among the numbers.
const REVISION: &str = "revision";

/// A redb database file with all that a proxy keeps. One process at a time has it open.
///
/// A file or table of a version that this program does not know, and a damaged file, is an error and stays as it is. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RedbStore {
    driver: DriverName,
    thread: Arc<Thread>,
}

/// The thread that writes, which ends with this.
#[derive(Debug)]
struct Thread {
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl RedbStore {
    /// Opens the store of a driver's proxy, and makes it if there is no file. The directory must be there. Blocks while the file is
    /// checked; a thread writes it from now on, and ends with the last clone.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, another driver's, of another version, or damaged.
    pub fn open(path: impl Into<PathBuf>, driver: &DriverName) -> Result<Self, OpenStoreError> {
        let path = path.into();
        let database = open(&path, driver)?;
        let (queue, jobs) = mpsc::channel();
        let writer = Writer { path, driver: driver.clone(), database: Some(database), failing: false };
        let thread =
            std::thread::Builder::new().name("csi-store".to_owned()).spawn(move || writer.run(&jobs));
        let thread = Some(thread.map_err(OpenStoreError::Thread)?);
        Ok(Self { driver: driver.clone(), thread: Arc::new(Thread { queue: Some(queue), thread }) })
    }

    /// The nodes that had a socket.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn nodes(&self) -> Result<Vec<NodeId>, StoreError> {
        self.names(NODES).await
    }

    async fn names(&self, table: TableDefinition<'static, &str, ()>) -> Result<Vec<NodeId>, StoreError> {
        self.write(move |transaction| {
            let mut nodes = Vec::new();
            for node in transaction.open_table(table)?.iter()? {
                nodes.extend(NodeId::new(node?.0.value()));
            }
            Ok(nodes)
        })
        .await
    }

    /// Keeps that these nodes have a socket, unless they are decommissioned.
    ///
    /// # Errors
    /// If it is not certain that it is durable.
    pub async fn keep_nodes(&self, nodes: Vec<NodeId>) -> Result<(), StoreError> {
        self.write(move |transaction| {
            let decommissioned = transaction.open_table(DECOMMISSIONED)?;
            let mut table = transaction.open_table(NODES)?;
            for node in &nodes {
                if decommissioned.get(node.as_str())?.is_none() {
                    table.insert(node.as_str(), ())?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Has the thread do something in its next commit, and waits until that is durable.
    async fn write<T: Send + 'static>(
        &self,
        act: impl FnOnce(&WriteTransaction) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, written) = oneshot::channel();
        let task = Task { act: Some(act), found: None, done };
        if let Some(queue) = &self.thread.queue {
            // The thread has ended if this fails, which the answer says.
            let _ = queue.send(Box::new(task));
        }
        written.await.unwrap_or(Err(StoreError::Ended))
    }

    async fn put(
        &self,
        key: &Subject,
        expected: Option<&Revision>,
        new: Option<&Placement>,
    ) -> Result<Written, StoreError> {
        let (key, expected) = (key.clone(), expected.cloned());
        let new = new.map(|placement| placement.encode(&key));
        self.write(move |transaction| {
            let mut table = transaction.open_table(PLACEMENTS)?;
            let place = (kind(&key), key.id());
            let found = table.get(place)?.map(|found| row(key.clone(), found.value()));
            if found.as_ref().map(|row| &row.revision) != expected.as_ref() {
                return Ok(Written::Conflict(found));
            }
            let mut numbers = transaction.open_table(NUMBERS)?;
            let revision = numbers.get(REVISION)?.map_or(0, |last| last.value()).saturating_add(1);
            numbers.insert(REVISION, revision)?;
            match &new {
                Some(bytes) => drop(table.insert(place, (revision, bytes.as_slice()))?),
                None => drop(table.remove(place)?),
            }
            Ok(Written::Done(Revision::new(revision.to_string())))
        })
        .await
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It has said by itself how it ended.
            let _ = thread.join();
        }
    }
}

fn kind(key: &Subject) -> u8 {
    match key {
        Subject::VolumeName(_) => 1,
        Subject::Volume(_) => 2,
        Subject::Snapshot(_) => 3,
        Subject::GroupSnapshot(_) => 4,
    }
}

fn row(key: Subject, (revision, bytes): (u64, &[u8])) -> Row {
    let placement = Placement::decode(&key, bytes);
    Row { key, revision: Revision::new(revision.to_string()), placement }
}

#[async_trait]
impl PlacementStore for RedbStore {
    async fn list(&self) -> Result<Vec<Row>, StoreError> {
        self.write(|transaction| {
            let mut rows = Vec::new();
            for found in transaction.open_table(PLACEMENTS)?.iter()? {
                let (place, value) = found?;
                let (kind, id) = place.value();
                let key = match kind {
                    1 => Subject::VolumeName(id.into()),
                    2 => Subject::Volume(id.into()),
                    3 => Subject::Snapshot(id.into()),
                    4 => Subject::GroupSnapshot(id.into()),
                    other => return Err(Failure::Damaged(format!("a placement of kind {other}"))),
                };
                rows.push(row(key, value.value()));
            }
            Ok(rows)
        })
        .await
    }

    async fn create(&self, key: &Subject, placement: &Placement) -> Result<Written, StoreError> {
        self.put(key, None, Some(placement)).await
    }

    async fn replace(
        &self,
        key: &Subject,
        revision: &Revision,
        placement: &Placement,
    ) -> Result<Written, StoreError> {
        self.put(key, Some(revision), Some(placement)).await
    }

    async fn remove(&self, key: &Subject, revision: &Revision) -> Result<Written, StoreError> {
        self.put(key, Some(revision), None).await
    }

    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
        self.names(DECOMMISSIONED).await
    }

    /// A node that is decommissioned has no socket any more, either.
    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
        let node = node.clone();
        self.write(move |transaction| {
            let mut table = transaction.open_table(DECOMMISSIONED)?;
            if decommissioned {
                table.insert(node.as_str(), ())?;
                transaction.open_table(NODES)?.remove(node.as_str())?;
            } else {
                table.remove(node.as_str())?;
            }
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl TermSource for RedbStore {
    async fn raise(&self, above: Option<Term>) -> Result<Term, TermError> {
        let driver = self.driver.clone();
        let raised = self.write(move |transaction| {
            let mut terms = transaction.open_table(TERMS)?;
            let last = terms.get(driver.as_str())?.and_then(|term| Term::new(term.value()));
            let next = next_term(last, above, SystemTime::now());
            if let Ok(term) = next {
                terms.insert(driver.as_str(), term.get())?;
            }
            Ok(next)
        });
        raised.await.map_err(|error| TermError::Store(Box::new(error)))?
    }
}

#[async_trait]
impl DriverInfoStore for RedbStore {
    async fn load(&self) -> Result<Vec<(Option<NodeId>, Bytes)>, StoreError> {
        self.write(|transaction| {
            let mut rows = Vec::new();
            for found in transaction.open_table(DRIVER_INFO)?.iter()? {
                let (node, record) = found?;
                let node = Some(node.value()).filter(|node| !node.is_empty()).map(NodeId::new);
                // What is no name has no node.
                let Ok(node) = node.transpose() else { continue };
                rows.push((node, Bytes::copy_from_slice(record.value())));
            }
            Ok(rows)
        })
        .await
    }

    async fn save(&self, node: Option<&NodeId>, record: Bytes) -> Result<(), StoreError> {
        let node = node.cloned();
        self.write(move |transaction| {
            let key = node.as_ref().map_or("", NodeId::as_str);
            transaction.open_table(DRIVER_INFO)?.insert(key, &*record)?;
            Ok(())
        })
        .await
    }

    async fn remove(&self, node: Option<&NodeId>) -> Result<(), StoreError> {
        let node = node.cloned();
        self.write(move |transaction| {
            transaction.open_table(DRIVER_INFO)?.remove(node.as_ref().map_or("", NodeId::as_str))?;
            Ok(())
        })
        .await
    }
}

/// What the thread does in a commit.
trait Job: Send {
    fn act(&mut self, transaction: &WriteTransaction) -> Result<(), Failure>;
    fn end(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Task<T, A> {
    act: Option<A>,
    found: Option<T>,
    done: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, A: FnOnce(&WriteTransaction) -> Result<T, Failure> + Send> Job for Task<T, A> {
    fn act(&mut self, transaction: &WriteTransaction) -> Result<(), Failure> {
        self.found = self.act.take().map(|act| act(transaction)).transpose()?;
        Ok(())
    }

    fn end(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { found, done, .. } = *self;
        // Who waited may have left; what it wanted is done all the same.
        let _ = done.send(committed.and_then(|()| found.ok_or(StoreError::Ended)));
    }
}

struct Writer {
    path: PathBuf,
    driver: DriverName,
    /// None after a failure: the next commit opens it anew.
    database: Option<Database>,
    failing: bool,
}

impl Writer {
    fn run(mut self, jobs: &mpsc::Receiver<Box<dyn Job>>) {
        while let Ok(first) = jobs.recv() {
            let mut group = vec![first];
            group.extend(jobs.try_iter().take(GROUP - 1));
            let committed = self.commit(&mut group);
            let failed = committed.as_ref().err();
            match failed {
                Some(error) if !self.failing => {
                    tracing::error!(path = ?self.path, %error, "the store cannot be written; no volume is made until it can");
                }
                None if self.failing => tracing::info!(path = ?self.path, "the store can be written again"),
                _ => {}
            }
            self.failing = failed.is_some();
            for job in group {
                job.end(committed.clone());
            }
        }
    }

    fn commit(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => open(&self.path, &self.driver).map_err(|error| match error {
                OpenStoreError::Disk { source, .. } => StoreError::Failed(Arc::new(source)),
                other => StoreError::Damaged(other.to_string().into()),
            })?,
        };
        let mut commit = || {
            let transaction = begin(&database)?;
            group.iter_mut().try_for_each(|job| job.act(&transaction))?;
            Ok(transaction.commit()?)
        };
        commit().map_err(Failure::error)?;
        self.database = Some(database);
        Ok(())
    }
}

/// In two phases, which quick repair implies: with one, redb would take a damaged last commit for one that was cut off, and
/// bring back what it removed.
fn begin(database: &Database) -> Result<WriteTransaction, Failure> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

fn open(path: &Path, driver: &DriverName) -> Result<Database, OpenStoreError> {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let mut file = options.open(path).map_err(disk(path))?;
    let mut head = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head).map_err(disk(path))?;
    if !MAGIC.starts_with(&head) {
        let what = format!("it begins with \"{}\"", head.escape_ascii());
        return Err(OpenStoreError::Foreign { path: path.to_owned(), what });
    }
    if !head.is_empty() && head.len() < MAGIC.len() {
        let what = "it ends within its first bytes".to_owned();
        return Err(OpenStoreError::Damaged { path: path.to_owned(), what });
    }
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    let backend = FileBackend::new(file).map_err(|error| Failure::from(error).on(path))?;
    let database = builder.create_with_backend(backend).map_err(|error| Failure::from(error).on(path))?;
    let other = prepare(&database, driver).map_err(|failure| failure.on(path))?;
    if let Some((table, found, supported)) = other {
        return Err(OpenStoreError::OtherVersion { path: path.to_owned(), table, found, supported });
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let synced =
        File::open(directory.unwrap_or_else(|| Path::new("."))).and_then(|directory| directory.sync_all());
    synced.map_err(disk(path))?;
    Ok(database)
}

/// Makes the tables that are missing. Or else says which one has a version that is not known, with that and the known one.
fn prepare(database: &Database, driver: &DriverName) -> Result<Option<(&'static str, u64, u64)>, Failure> {
    let transaction = begin(database)?;
    let is_new = transaction.list_tables()?.count() == 0;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        if !is_new && numbers.get("layout")?.is_none() {
            return Err(Failure::Foreign("it is another database of redb".to_owned()));
        }
        for (table, version) in VERSIONS {
            let found = numbers.get(table)?.map(|found| found.value());
            match found {
                Some(found) if found == version => {}
                // What drivers say of themselves is learnt again.
                Some(found) if table == "driver_info" => {
                    tracing::warn!(found, "driver info of another version is not used");
                    transaction.delete_table(DRIVER_INFO)?;
                    numbers.insert(table, version)?;
                }
                Some(found) => return Ok(Some((table, found, version))),
                None => drop(numbers.insert(table, version)?),
            }
        }
        let mut terms = transaction.open_table(TERMS)?;
        let other = terms.first()?.map(|(other, _)| other.value().to_owned());
        match other {
            Some(other) if other != driver.as_str() => {
                return Err(Failure::Foreign(format!("it is that of driver {other:?}")));
            }
            Some(_) => {}
            None => drop(terms.insert(driver.as_str(), 0)?),
        }
        transaction.open_table(PLACEMENTS)?;
        transaction.open_table(DRIVER_INFO)?;
        transaction.open_table(NODES)?;
        transaction.open_table(DECOMMISSIONED)?;
    }
    transaction.commit()?;
    Ok(None)
}

fn disk(path: &Path) -> impl Fn(io::Error) -> OpenStoreError {
    let path = path.to_owned();
    move |source| OpenStoreError::Disk { path: path.clone(), source }
}

/// What redb says, by what it means here.
#[derive(Debug)]
enum Failure {
    Disk(io::Error),
    InUse,
    Foreign(String),
    Damaged(String),
}

impl Failure {
    fn error(self) -> StoreError {
        match self {
            Self::Disk(source) => StoreError::Failed(Arc::new(source)),
            Self::InUse => StoreError::Failed(Arc::new(io::ErrorKind::ResourceBusy.into())),
            Self::Foreign(what) | Self::Damaged(what) => StoreError::Damaged(what.into()),
        }
    }

    fn on(self, path: &Path) -> OpenStoreError {
        let path = path.to_owned();
        match self {
            Self::Disk(source) => OpenStoreError::Disk { path, source },
            Self::Damaged(what) => OpenStoreError::Damaged { path, what },
            Self::InUse => OpenStoreError::InUse { path },
            Self::Foreign(what) => OpenStoreError::Foreign { path, what },
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io(error) => match error.kind() {
                // So a file shows itself that was cut.
                io::ErrorKind::UnexpectedEof => Self::Damaged("it ends too early".to_owned()),
                io::ErrorKind::InvalidData => Self::Damaged(error.to_string()),
                _ => Self::Disk(error),
            },
            StorageError::Corrupted(what) => Self::Damaged(what),
            other => Self::Disk(io::Error::other(other.to_string())),
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Self::InUse,
            DatabaseError::Storage(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            TableError::TableTypeMismatch { .. } => Self::Foreign("its tables are another's".to_owned()),
            other => Self::Damaged(other.to_string()),
        }
    }
}

macro_rules! by_storage {
    ($($error:ident),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                match error {
                    $error::Storage(error) => error.into(),
                    other => Self::Disk(io::Error::other(other.to_string())),
                }
            }
        }
    )*};
}

by_storage!(TransactionError, CommitError);

#[cfg(test)]
mod tests;
