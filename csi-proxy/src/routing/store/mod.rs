//! Persistent stores of placements.
//!
//! [`RedbStore`] (feature `redb`) is one file of one proxy; it also stores driver info
//! ([`DriverInfoStore`](crate::DriverInfoStore)), the term of the proxy and its list of nodes.
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

/// Stores the placements of one driver.
///
/// # Contract
/// - A write is atomic and durable when it returns, and succeeds only if the row has the expected revision.
/// - After an error it is unknown whether the row was written. The next write of that row detects it by the
///   revision.
/// - A row that cannot be decoded is listed with a defect, and is not changed.
#[async_trait]
pub trait PlacementStore: fmt::Debug + Send + Sync {
    /// All rows, unordered.
    ///
    /// # Errors
    /// If the rows cannot be read.
    async fn list(&self) -> Result<Vec<Row>, StoreError>;

    /// Creates, replaces or removes a row. If the row does not have the expected revision, returns the current
    /// row: another proxy has written it.
    ///
    /// # Errors
    /// If the write may not be durable.
    async fn write(&self, change: &Change) -> Result<Written, StoreError>;

    /// The decommissioned nodes, unordered.
    ///
    /// # Errors
    /// If the nodes cannot be read.
    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError>;

    /// Stores whether a node is decommissioned.
    ///
    /// # Errors
    /// If the write may not be durable.
    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError>;

    /// The claims of the nodes, unordered, or why a claim cannot be read.
    ///
    /// # Errors
    /// If the claims cannot be read.
    async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError>;

    /// Replaces the claim of a node, or removes it for `None`.
    ///
    /// # Errors
    /// If the write may not be durable.
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
