//! The store on disk: one redb database file of one proxy with mode 0600, with a table for each kind of data.
//!
//! A dedicated thread writes and groups waiting jobs into one commit. A commit has two phases and is synced twice, so
//! that a torn commit never loses an earlier one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

use ::redb::backends::FileBackend;
use ::redb::{Builder, Database, ReadableTable, TableDefinition, WriteTransaction};
use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::DriverName;
use tokio::sync::oneshot;

use super::{OpenStoreError, PlacementStore, StoreError, Written};
use crate::call::Subject;
use crate::call::{NodeId, Term};
use crate::driver_info::DriverInfoStore;
use crate::relay::{TermError, TermSource, next_term};
use crate::routing::Claim;
use crate::routing::placements::{Change, Defect, Placement, Revision, Row};

/// The magic number of redb files.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The size of the page cache in bytes.
const CACHE_SIZE: usize = 1 << 20;

/// The maximum number of jobs in one commit.
const MAX_GROUP: usize = 256;

/// The table versions by name, and the last revision.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Revision and placement, by kind and name or id.
const PLACEMENTS: TableDefinition<'_, (u8, &str), (u64, &[u8])> = TableDefinition::new("placements");
/// A table with one record for each node.
type NodeRecords = TableDefinition<'static, &'static str, &'static [u8]>;

/// Driver info by node.
const DRIVER_INFO: NodeRecords = TableDefinition::new("driver_info");
/// The last term of the proxy, by driver.
const TERMS: TableDefinition<'_, &str, u64> = TableDefinition::new("terms");
/// Decommissioned nodes.
const DECOMMISSIONED: TableDefinition<'_, &str, ()> = TableDefinition::new("decommissioned");
/// What each node owns.
const CLAIMS: NodeRecords = TableDefinition::new("claims");
/// Nodes with a socket.
const NODES: TableDefinition<'_, &str, ()> = TableDefinition::new("nodes");

/// The supported table versions. `layout` is the version of the whole file; version 1 had no rows for placements.
const VERSIONS: [(&str, u64); 7] = [
    ("layout", 2),
    ("placements", 1),
    ("driver_info", 2),
    ("terms", 1),
    ("nodes", 1),
    ("decommissioned", 1),
    ("claims", 1),
];

/// The name of the last revision in the table of numbers.
const REVISION: &str = "revision";

/// A redb database file with the state of a proxy. Only one process at a time can open the file.
///
/// An unknown version of the file or a table, or a damaged file, is an error, and no row is changed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RedbStore {
    driver: DriverName,
    thread: Arc<Thread>,
}

/// A job of a commit, and the channel that reports when it is durable.
type Job = (
    Box<dyn FnOnce(&WriteTransaction) -> Result<(), ::redb::Error> + Send>,
    oneshot::Sender<Result<(), StoreError>>,
);

/// The writer thread, which ends with the last clone.
#[derive(Debug)]
struct Thread {
    queue: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl RedbStore {
    /// Opens the store of a driver's proxy, and creates it if the file does not exist. The directory must exist.
    /// Blocks while the file is checked. A thread writes the file until the last clone is dropped.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, belongs to another driver, has an unknown version, or is damaged.
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

    /// The nodes with a socket.
    ///
    /// # Errors
    /// If the nodes cannot be read.
    pub async fn nodes(&self) -> Result<Vec<NodeId>, StoreError> {
        self.names(NODES).await
    }

    async fn names(&self, table: TableDefinition<'static, &str, ()>) -> Result<Vec<NodeId>, StoreError> {
        self.by_node(table, |_, ()| ()).await.map(|rows| rows.into_iter().map(|(node, ())| node).collect())
    }

    /// The rows of a table by node. A row under an invalid name is ignored.
    async fn by_node<V: ::redb::Value + Send + 'static, T: Send + 'static>(
        &self,
        table: TableDefinition<'static, &'static str, V>,
        read: impl Fn(&NodeId, V::SelfType<'_>) -> T + Send + 'static,
    ) -> Result<Vec<(NodeId, T)>, StoreError> {
        self.commit(move |transaction| {
            let mut rows = Vec::new();
            for found in transaction.open_table(table)?.iter()? {
                let (node, value) = found?;
                let Ok(node) = NodeId::new(node.value()) else { continue };
                let value = read(&node, value.value());
                rows.push((node, value));
            }
            Ok(rows)
        })
        .await
    }

    /// Replaces the record of a node, or removes it for `None`.
    async fn set(&self, table: NodeRecords, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError> {
        let node = node.clone();
        self.commit(move |transaction| {
            let mut table = transaction.open_table(table)?;
            match record {
                Some(record) => drop(table.insert(node.as_str(), &*record)?),
                None => drop(table.remove(node.as_str())?),
            }
            Ok(())
        })
        .await
    }

    /// Stores that these nodes have a socket, unless they are decommissioned.
    ///
    /// # Errors
    /// If the write may not be durable.
    pub async fn keep_nodes(&self, nodes: Vec<NodeId>) -> Result<(), StoreError> {
        self.commit(move |transaction| {
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

    /// Runs a job in the next commit, and waits until it is durable.
    async fn commit<T: Send + 'static>(
        &self,
        act: impl FnOnce(&WriteTransaction) -> Result<T, ::redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let ((found, answer), (done, durable)) = (oneshot::channel(), oneshot::channel());
        // The caller may have stopped waiting; the job runs anyway.
        let act = move |transaction: &WriteTransaction| act(transaction).map(|value| drop(found.send(value)));
        if let Some(queue) = &self.thread.queue {
            // Fails if the thread has ended, which the receiver reports.
            let _ = queue.send((Box::new(act), done));
        }
        durable.await.unwrap_or(Err(StoreError::Ended))?;
        answer.await.map_err(|_| StoreError::Ended)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // The thread has logged its error.
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
    Row { key, revision: Revision(revision.to_string().into()), placement }
}

#[async_trait]
impl PlacementStore for RedbStore {
    async fn list(&self) -> Result<Vec<Row>, StoreError> {
        self.commit(|transaction| {
            let mut rows = Vec::new();
            for found in transaction.open_table(PLACEMENTS)?.iter()? {
                let (place, value) = found?;
                let (kind, id) = place.value();
                let key = match kind {
                    1 => Subject::VolumeName(id.into()),
                    2 => Subject::Volume(id.into()),
                    3 => Subject::Snapshot(id.into()),
                    4 => Subject::GroupSnapshot(id.into()),
                    other => return Err(::redb::Error::Corrupted(format!("a placement of kind {other}"))),
                };
                rows.push(row(key, value.value()));
            }
            Ok(rows)
        })
        .await
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let (key, expected) = (change.key.clone(), change.expected.clone());
        let new = change.placement.as_ref().map(|placement| placement.encode(&key));
        self.commit(move |transaction| {
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
            Ok(Written::Done(Revision(revision.to_string().into())))
        })
        .await
    }

    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
        self.names(DECOMMISSIONED).await
    }

    /// Stores whether a node is decommissioned. A decommissioned node is also removed from the nodes with a
    /// socket.
    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
        let node = node.clone();
        self.commit(move |transaction| {
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

    async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError> {
        self.by_node(CLAIMS, Claim::decode).await
    }

    async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError> {
        self.set(CLAIMS, node, claim.map(|claim| claim.encode(node))).await
    }
}

#[async_trait]
impl TermSource for RedbStore {
    async fn raise(&self) -> Result<Term, TermError> {
        let driver = self.driver.clone();
        let raised = self.commit(move |transaction| {
            let mut terms = transaction.open_table(TERMS)?;
            let last = terms.get(driver.as_str())?.and_then(|term| Term::new(term.value()));
            let next = next_term(last, SystemTime::now());
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
    async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError> {
        self.by_node(DRIVER_INFO, |_, record| Bytes::copy_from_slice(record)).await
    }

    async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError> {
        self.set(DRIVER_INFO, node, record).await
    }
}

struct Writer {
    path: PathBuf,
    driver: DriverName,
    /// The open database; `None` after a failure: the next commit reopens the file.
    database: Option<Database>,
    failing: bool,
}

impl Writer {
    fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let group = std::iter::once(first).chain(jobs.try_iter().take(MAX_GROUP - 1));
            let (acts, waiting): (Vec<_>, Vec<_>) = group.unzip();
            let committed = self.commit(acts);
            let failed = committed.as_ref().err();
            match failed {
                Some(error) if !self.failing => {
                    tracing::error!(path = ?self.path, %error, "cannot write the store, no volume is created until it recovers");
                }
                None if self.failing => tracing::info!(path = ?self.path, "store is writable again"),
                _ => {}
            }
            self.failing = failed.is_some();
            for done in waiting {
                let _ = done.send(committed.clone());
            }
        }
    }

    fn commit(
        &mut self,
        acts: Vec<impl FnOnce(&WriteTransaction) -> Result<(), ::redb::Error>>,
    ) -> Result<(), StoreError> {
        let opened = self.database.take().map_or_else(|| open(&self.path, &self.driver), Ok);
        let committed = opened.and_then(|database| {
            let commit = || {
                let transaction = begin(&database)?;
                acts.into_iter().try_for_each(|act| act(&transaction))?;
                Ok(transaction.commit()?)
            };
            commit().map_err(|error| failed(&self.path, error))?;
            Ok(database)
        });
        self.database = Some(committed.map_err(|error| match error {
            OpenStoreError::Disk { source, .. } => StoreError::Failed(Arc::new(source)),
            other => StoreError::Damaged(other.to_string().into()),
        })?);
        Ok(())
    }
}

/// Begins a transaction with a two-phase commit, which quick repair implies. With one phase, redb would treat a damaged
/// last commit as a torn one and roll it back: the rows that it removed would return.
fn begin(database: &Database) -> Result<WriteTransaction, ::redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

fn open(path: &Path, driver: &DriverName) -> Result<Database, OpenStoreError> {
    try_open(path, driver).unwrap_or_else(|error| Err(failed(path, error)))
}

/// Opens the file. The outer error is of the disk or of redb; the inner error is why this file cannot be used.
fn try_open(path: &Path, driver: &DriverName) -> Result<Result<Database, OpenStoreError>, ::redb::Error> {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let mut file = options.open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head)?;
    if !MAGIC.starts_with(&head) {
        let what = format!("it starts with \"{}\"", head.escape_ascii());
        return Ok(Err(OpenStoreError::Foreign { path: path.to_owned(), what }));
    }
    if !head.is_empty() && head.len() < MAGIC.len() {
        return Err(::redb::Error::Corrupted("it is truncated within its magic number".to_owned()));
    }
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_SIZE).set_check_integrity_on_open(true);
    let database = builder.create_with_backend(FileBackend::new(file)?)?;
    if let Some(refused) = prepare(&database, path, driver)? {
        return Ok(Err(refused));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
    Ok(Ok(database))
}

/// Returns why a version in the table of numbers is not supported. Driver info of an older version is supported: it is
/// refreshed from the drivers.
fn other_version(
    numbers: &impl ReadableTable<&'static str, u64>,
    path: &Path,
) -> Result<Option<OpenStoreError>, ::redb::Error> {
    for (table, supported) in VERSIONS {
        let Some(found) = numbers.get(table)?.map(|found| found.value()) else { continue };
        if found != supported && !(table == "driver_info" && found < supported) {
            let path = path.to_owned();
            return Ok(Some(OpenStoreError::OtherVersion { path, table, found, supported }));
        }
    }
    Ok(None)
}

/// Creates missing tables, or returns why the file cannot be used.
fn prepare(
    database: &Database,
    path: &Path,
    driver: &DriverName,
) -> Result<Option<OpenStoreError>, ::redb::Error> {
    let foreign = |what: String| Ok(Some(OpenStoreError::Foreign { path: path.to_owned(), what }));
    let transaction = begin(database)?;
    let is_new = transaction.list_tables()?.count() == 0;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        if !is_new && numbers.get("layout")?.is_none() {
            return foreign("it is another redb database".to_owned());
        }
        if let Some(other) = other_version(&numbers, path)? {
            return Ok(Some(other));
        }
        for (table, supported) in VERSIONS {
            let found = numbers.insert(table, supported)?.map(|found| found.value());
            if found.is_some_and(|found| found != supported) {
                tracing::warn!(?found, "discarding driver info of an older version");
                transaction.delete_table(DRIVER_INFO)?;
            }
        }
        let mut terms = transaction.open_table(TERMS)?;
        let other = terms.first()?.map(|(other, _)| other.value().to_owned());
        match other {
            Some(other) if other != driver.as_str() => {
                return foreign(format!("it belongs to driver {other:?}"));
            }
            Some(_) => {}
            None => drop(terms.insert(driver.as_str(), 0)?),
        }
        transaction.open_table(PLACEMENTS)?;
        transaction.open_table(DRIVER_INFO)?;
        transaction.open_table(NODES)?;
        transaction.open_table(DECOMMISSIONED)?;
        transaction.open_table(CLAIMS)?;
    }
    transaction.commit()?;
    Ok(None)
}

/// Maps an error of redb to an error of the file.
fn failed(path: &Path, error: ::redb::Error) -> OpenStoreError {
    use ::redb::Error as E;
    let path = path.to_owned();
    match error {
        E::DatabaseAlreadyOpen | E::LockProtocolMismatch => OpenStoreError::InUse { path },
        E::TableTypeMismatch { .. } => {
            OpenStoreError::Foreign { path, what: "its tables have other types".to_owned() }
        }
        E::Corrupted(what) => OpenStoreError::Damaged { path, what },
        // A truncated file causes this error.
        E::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            OpenStoreError::Damaged { path, what: "it is truncated".to_owned() }
        }
        E::Io(source) if source.kind() != io::ErrorKind::InvalidData => OpenStoreError::Disk { path, source },
        E::ValueTooLarge(_) | E::PreviousIo | E::DatabaseClosed | E::LockPoisoned(_) | E::Unsupported => {
            OpenStoreError::Disk { path, source: io::Error::other(error) }
        }
        other => OpenStoreError::Damaged { path, what: other.to_string() },
    }
}

#[cfg(test)]
mod tests;
