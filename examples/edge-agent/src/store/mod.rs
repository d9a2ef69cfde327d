//! The state of the agent that survives a restart: one database file in `--state-dir`, with a table for each part.
//!
//! A table that is not usable is quarantined within the file, and an unreadable record stays in its table's quarantine, so
//! that damage to one table does not affect the others. A file with a damaged structure is kept under another
//! name; its readable volumes and terms are copied into the new file. Its other tables start empty.

mod document;
mod terms;

use std::path::{Path, PathBuf};

use tokio::task::JoinError;
use volume_manager::advanced::store::{OpenedTables, Table, open_intact_tables, open_tables};
use volume_manager::node::RECORD_KIND;
use volume_manager::store::redb::Recreated;
use volume_manager::store::{InvalidRecordKey, OpenStoreError, RecordKind, Store, StoreError};

pub(super) use self::document::{Content, Document};
pub(super) use self::terms::TermTable;

/// The file in the state directory.
const FILE: &str = "agent.redb";

/// The tables. The record kinds are stored on disks, so a number is never used for another table.
const TABLES: [Table; 6] = [
    Table::new("volumes", RECORD_KIND),
    Table::new("desired-volumes", RecordKind(2)),
    Table::new("kubernetes-objects", RecordKind(3)),
    Table::new("fs-groups", RecordKind(4)),
    Table::new("terms", RecordKind(5)),
    Table::new("starts", RecordKind(6)),
];

/// A table cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name of a record is invalid.
    #[error(transparent)]
    Name(#[from] InvalidRecordKey),
    /// The thread that accesses the table panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// The durable state of an agent, a table for each part.
#[derive(Debug)]
pub(super) struct AgentStore {
    /// A record for each volume.
    pub(super) volumes: Store,
    /// The latest desired set, as received.
    pub(super) desired: Document,
    /// The node's objects, as sent by the hub.
    pub(super) objects: Document,
    /// The fsGroup jobs that were done in this boot.
    pub(super) groups: Document,
    /// The highest term of each driver's proxy.
    pub(super) terms: TermTable,
    /// The number of starts of the plugin for pods.
    pub(super) starts: Document,
}

impl AgentStore {
    /// Opens the file in a state directory, or creates it. Damaged tables are quarantined and logged. Blocks.
    ///
    /// # Errors
    /// If the file cannot be opened, or a damaged table cannot be quarantined.
    pub(super) fn open(directory: &Path) -> Result<Self, OpenStoreError> {
        let opened = open_tables(path(directory), &TABLES)?;
        let OpenedTables { stores, recreated, replaced, .. } = opened;
        if let Some(Recreated { reason, kept, salvaged, truncated, .. }) = recreated {
            tracing::error!(
                salvaged,
                truncated,
                "--state-dir: the store is damaged and kept as {}; its readable volumes and terms are copied to a new store: {reason}",
                kept.display()
            );
        }
        for table in replaced {
            tracing::error!(
                "--state-dir: the table {} cannot be used, is kept as {} and starts empty: {}",
                table.table,
                table.kept,
                table.reason
            );
        }
        Self::from_stores(stores, directory)
    }

    /// Opens the file without changes, for inspection: damage is an error. Blocks.
    ///
    /// # Errors
    /// If the file, or one of its tables, cannot be opened.
    pub(super) fn open_intact(directory: &Path) -> Result<Self, OpenStoreError> {
        let stores = open_intact_tables(path(directory), &TABLES)?;
        Self::from_stores(stores, directory)
    }

    fn from_stores(stores: Vec<Store>, directory: &Path) -> Result<Self, OpenStoreError> {
        // One store is opened for each table.
        let Ok([volumes, desired, objects, groups, terms, starts]) =
            <[Store; TABLES.len()]>::try_from(stores)
        else {
            let what = "tables are missing".to_owned();
            return Err(OpenStoreError::Damaged { path: path(directory), what });
        };
        let [_, desired_table, objects_table, groups_table, terms_table, starts_table] = TABLES;
        Ok(Self {
            volumes,
            desired: Document::new(desired, desired_table.kind),
            objects: Document::new(objects, objects_table.kind),
            groups: Document::new(groups, groups_table.kind),
            terms: TermTable::new(terms, terms_table.kind),
            starts: Document::new(starts, starts_table.kind),
        })
    }
}

/// Calls a store. If an earlier failure of any table has stopped the file, reopens the store and repeats the call.
fn with_reopen<T>(
    store: &mut Store,
    call: impl Fn(&mut Store) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match call(store) {
        Err(StoreError::Stopped { .. }) => {
            store.reopen()?;
            call(store)
        }
        outcome => outcome,
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Whether a state directory has no store.
pub(super) fn is_missing(directory: &Path) -> bool {
    !path(directory).exists()
}
