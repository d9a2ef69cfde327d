//! Persistent stores of placements.
//!
//! [`RedbStore`] (feature `redb`) is one file of one proxy; it also stores driver info
//! ([`DriverInfoStore`](crate::DriverInfoStore)), the term of the proxy and its list of nodes. `KubernetesStore` (feature
//! `kubernetes`) is for one or several proxies of a driver, as objects at the API server.
//! [`MemoryStore`] is for tests, and for proxies that may lose their state at a restart. The feature `testing` has
//! `FaultyStore`, which injects faults, and `conformance`, which tests a custom store.

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
mod faulty;
mod memory;
#[cfg(feature = "redb")]
mod redb;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

#[cfg(feature = "testing")]
pub use self::faulty::{FaultyStore, Handle, StoreFault};
pub use self::memory::MemoryStore;
#[cfg(feature = "redb")]
pub use self::redb::RedbStore;
use super::claims::Claim;
use super::placements::{Change, Defect, Revision, Row};
use crate::call::NodeId;

/// Stores the placements of one driver, for [`TopologyRouterBuilder::open`](crate::TopologyRouterBuilder::open), which
/// takes one value for this and for [`DriverInfoStore`](crate::DriverInfoStore).
///
/// # Contract
/// - A write is atomic and durable when it returns, and succeeds only if the row has the expected revision.
/// - After an error it is unknown whether the row was written. The next write of that row detects it by the
///   revision.
/// - A row that cannot be decoded is listed with a defect, and is not changed.
/// - Methods run in tasks of the runtime and must not block a thread. Nothing limits their time: a store that may hang ends
///   with an error.
///
/// `conformance` (feature `testing`) tests the contract.
///
/// # Example
///
/// The rows of any database that compares and sets, here a map:
///
/// ```
/// use std::collections::{BTreeMap, BTreeSet};
/// use std::sync::{Arc, Mutex};
///
/// use bytes::Bytes;
/// use csi_proxy::advanced::call::Subject;
/// use csi_proxy::advanced::routing::{
///     Change, Claim, Defect, Placement, PlacementStore, Revision, Row, Written, conformance,
/// };
/// use csi_proxy::{DriverInfoStore, NodeId, StoreError};
///
/// /// Replaces your database. A failure of it is `StoreError::Failed(Arc::new(io::Error::other(error)))`.
/// #[derive(Debug, Default)]
/// struct Tables {
///     placements: BTreeMap<(u8, String), (u64, Vec<u8>)>,
///     claims: BTreeMap<NodeId, Bytes>,
///     driver_info: BTreeMap<NodeId, Bytes>,
///     decommissioned: BTreeSet<NodeId>,
///     revision: u64,
/// }
///
/// #[derive(Debug, Clone, Default)]
/// struct OwnStore(Arc<Mutex<Tables>>);
///
/// fn row(key: Subject, (revision, bytes): &(u64, Vec<u8>)) -> Row {
///     let placement = Placement::decode(&key, bytes);
///     Row { key, revision: Revision(revision.to_string().into()), placement }
/// }
///
/// fn kind(key: &Subject) -> u8 {
///     match key {
///         Subject::VolumeName(_) => 1,
///         Subject::Volume(_) => 2,
///         Subject::Snapshot(_) => 3,
///         Subject::GroupSnapshot(_) => 4,
///     }
/// }
///
/// fn subject((kind, id): &(u8, String)) -> Result<Subject, StoreError> {
///     let id = id.as_str().into();
///     match kind {
///         1 => Ok(Subject::VolumeName(id)),
///         2 => Ok(Subject::Volume(id)),
///         3 => Ok(Subject::Snapshot(id)),
///         4 => Ok(Subject::GroupSnapshot(id)),
///         other => Err(StoreError::Damaged(format!("a placement of kind {other}").into())),
///     }
/// }
///
/// #[async_trait::async_trait]
/// impl PlacementStore for OwnStore {
///     async fn list(&self) -> Result<Vec<Row>, StoreError> {
///         self.0.lock().unwrap().placements.iter().map(|(key, found)| Ok(row(subject(key)?, found))).collect()
///     }
///
///     async fn write(&self, change: &Change) -> Result<Written, StoreError> {
///         let (mut tables, key) = (self.0.lock().unwrap(), (kind(&change.key), change.key.id().to_owned()));
///         let found = tables.placements.get(&key).map(|found| row(change.key.clone(), found));
///         if found.as_ref().map(|row| &row.revision) != change.expected.as_ref() {
///             return Ok(Written::Conflict(found));
///         }
///         // Never used again, so that a later row of the same key has another one.
///         tables.revision += 1;
///         let revision = tables.revision;
///         match &change.placement {
///             Some(new) => drop(tables.placements.insert(key, (revision, new.encode(&change.key)))),
///             None => drop(tables.placements.remove(&key)),
///         }
///         Ok(Written::Done(Revision(revision.to_string().into())))
///     }
///
///     async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
///         Ok(self.0.lock().unwrap().decommissioned.iter().cloned().collect())
///     }
///
///     async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
///         let nodes = &mut self.0.lock().unwrap().decommissioned;
///         if decommissioned { nodes.insert(node.clone()) } else { nodes.remove(node) };
///         Ok(())
///     }
///
///     async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError> {
///         let claims = &self.0.lock().unwrap().claims;
///         Ok(claims.iter().map(|(node, bytes)| (node.clone(), Claim::decode(node, bytes))).collect())
///     }
///
///     async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError> {
///         let claims = &mut self.0.lock().unwrap().claims;
///         match claim {
///             Some(claim) => claims.insert(node.clone(), claim.encode(node)),
///             None => claims.remove(node),
///         };
///         Ok(())
///     }
/// }
///
/// #[async_trait::async_trait]
/// impl DriverInfoStore for OwnStore {
///     async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError> {
///         Ok(self.0.lock().unwrap().driver_info.clone().into_iter().collect())
///     }
///
///     async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError> {
///         let records = &mut self.0.lock().unwrap().driver_info;
///         match record {
///             Some(record) => records.insert(node.clone(), record),
///             None => records.remove(node),
///         };
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = OwnStore::default();
/// conformance::check(|| store.clone()).await?;
/// let router = csi_proxy::TopologyRouter::builder("csi-hostpath".parse()?, ["edge-1".parse()?]);
/// let router = router.open(OwnStore::default()).await?;
/// # drop(router);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait PlacementStore: fmt::Debug + Send + Sync {
    /// All rows, unordered. Awaited once, before the route opens.
    ///
    /// # Errors
    /// If the rows cannot be read. Then the route does not open.
    async fn list(&self) -> Result<Vec<Row>, StoreError>;

    /// Creates, replaces or removes a row. If the row does not have the expected revision, returns the current
    /// row: another proxy has written it.
    ///
    /// A route writes different rows concurrently, at most 256, and one row after another. It awaits each write to its end,
    /// even if no call waits for it any more.
    ///
    /// # Errors
    /// If the write may not be durable. Then the call fails, and is not sent if it would create a volume.
    async fn write(&self, change: &Change) -> Result<Written, StoreError>;

    /// The decommissioned nodes, unordered. Awaited once, before the route opens.
    ///
    /// # Errors
    /// If the nodes cannot be read. Then the route does not open.
    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError>;

    /// Stores whether a node is decommissioned; no error if it is already stored. Calls may overlap, with writes too.
    ///
    /// # Errors
    /// If the write may not be durable. Then the decommission fails, to be repeated.
    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError>;

    /// The claims of the nodes, unordered, or why a claim cannot be read. Awaited once, before the route opens.
    ///
    /// # Errors
    /// If the claims cannot be read. Then the route does not open.
    async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError>;

    /// Replaces the claim of a node, or removes it for `None`. Calls do not overlap, but a dropped one may still be running.
    ///
    /// # Errors
    /// If the write may not be durable. Then the node gets no calls until a repetition succeeds.
    async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError>;
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a write is done or not")]
pub enum Written {
    /// The write is durable. The row has this revision, which is meaningless after a removal.
    Done(Revision),
    /// Nothing was written. Contains the current row; `None` if it does not exist.
    Conflict(Option<Row>),
}

/// A store failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk or another backend failed.
    #[error("the store cannot be read or written: {0}")]
    Failed(#[source] Arc<io::Error>),
    /// The stored data is invalid.
    #[error("the store is damaged: {0}")]
    Damaged(Arc<str>),
    /// The store is closed.
    #[error("the store is closed")]
    Ended,
    /// The store did not answer in time.
    #[error("the store did not answer in time")]
    Late,
}

/// A store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// Another process has opened the file.
    #[error("the store {path:?} is in use by another process; use one store per process")]
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is not a store, or belongs to another driver.
    #[error("{path:?} is not a store of this driver: {what}; use another path, or remove the file")]
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// What the file contains instead.
        what: String,
    },
    /// A table has an unknown version.
    #[error(
        "the table {table:?} in {path:?} has version {found}; expected {supported}; use the program that wrote it, or a backup from before the upgrade"
    )]
    OtherVersion {
        /// The path of the file.
        path: PathBuf,
        /// The name of the table.
        table: &'static str,
        /// The version in the file.
        found: u64,
        /// The version that this program supports.
        supported: u64,
    },
    /// The disk failed.
    #[error("the store {path:?} cannot be opened: {source}")]
    Disk {
        /// The path of the file.
        path: PathBuf,
        /// The error of the disk.
        source: io::Error,
    },
    /// The file is damaged.
    #[error(
        "the store {path:?} is damaged: {what}; restore it, or remove it (then a volume that was being created may also be created on another node)"
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        what: String,
    },
    /// The writer thread cannot be started.
    #[error("the store's thread cannot be started: {0}")]
    Thread(io::Error),
}
