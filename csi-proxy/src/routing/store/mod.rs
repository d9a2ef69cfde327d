//! Where placements are kept over a restart.
//!
//! [`RedbStore`] (feature `redb`) is one file of one proxy; it keeps what drivers say of themselves too
//! ([`DriverInfoStore`](crate::driver_info::DriverInfoStore)), the proxy's term and its list of nodes. [`MemoryStore`] is for tests, and
//! where a restart may forget. The feature `testing` has `FaultyStore`, which fails on purpose, and `conformance`, which tests a store of
//! your own.

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
use super::placements::{Change, Revision, Row};
use crate::call::NodeId;

/// Keeps the placements of one driver.
///
/// # Contract
/// - A write is atomic and durable when it returns, and is made only if the row is as the caller believes.
/// - After an error it is not known whether it was made. The next write of that row finds out, by its revision.
/// - A row that cannot be read is listed as such, and stays as it is.
#[async_trait]
pub trait PlacementStore: fmt::Debug + Send + Sync {
    /// All rows, in no order.
    ///
    /// # Errors
    /// If they cannot be read.
    async fn list(&self) -> Result<Vec<Row>, StoreError>;

    /// Makes, replaces or removes a row. If there is another one than the change expects, that is the answer: somebody else has written.
    ///
    /// # Errors
    /// If it is not certain that it is durable.
    async fn write(&self, change: &Change) -> Result<Written, StoreError>;

    /// The decommissioned nodes, in no order.
    ///
    /// # Errors
    /// If they cannot be read.
    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError>;

    /// Keeps that a node is decommissioned, or is not any more.
    ///
    /// # Errors
    /// If it is not certain that it is durable.
    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError>;
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "made or not")]
pub enum Written {
    /// It is durable. The row has this revision; of one that was removed it means nothing.
    Done(Revision),
    /// Nothing was written: this row is there, or none is.
    Conflict(Option<Row>),
}

/// A store did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk, or whatever it is on, failed.
    #[error("the store cannot be read or written: {0}")]
    Failed(#[source] Arc<io::Error>),
    /// What is on the disk is not what was written.
    #[error("the store is damaged: {0}")]
    Damaged(Arc<str>),
    /// The store has ended.
    #[error("the store has ended")]
    Ended,
    /// The store does not answer.
    #[error("the store does not answer")]
    Late,
}

/// A store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// Another process has the file.
    #[error("the store {path:?} is in use by another process; give each its own")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else, or another driver's.
    #[error("{path:?} is no store of this driver: {what}; give another path, or take the file away")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
    /// A table was written by a version that this one does not know.
    #[error(
        "the table {table:?} in {path:?} has version {found}, and this program knows {supported}; use the program that wrote it, or a backup of before the upgrade"
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The table.
        table: &'static str,
        /// Its version.
        found: u64,
        /// The one that is known.
        supported: u64,
    },
    /// The disk failed.
    #[error("the store {path:?} cannot be opened: {source}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is damaged.
    #[error(
        "the store {path:?} is damaged: {what}; restore it, or take it away: then a volume that was being made may be made on another node too"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The thread that writes cannot be started.
    #[error("the store's thread cannot be started: {0}")]
    Thread(io::Error),
}
