//! The state that the agent keeps over a restart: one database file in `--state-dir`, with a table for each part.
//!
//! A table that is not usable is quarantined within the file, and an unreadable record stays in its table's quarantine, so
//! that damage to one part stops no other. A file with a damaged structure is kept under another name; its readable
//! volumes and terms are copied into the new file. The other tables start empty, as when they are damaged themselves.

mod document;
mod terms;

use std::path::{Path, PathBuf};

use tokio::task::JoinError;
use volume_manager::node::RECORD_KIND;
use volume_manager::store::redb::{self, OpenedTables, Recreated, RedbStore, Table};
use volume_manager::store::{InvalidRecordKey, OpenError, RecordKind, Store, StoreError};

pub(super) use self::document::{Content, Document};
pub(super) use self::terms::TermTable;

/// The file in the state directory.
const FILE: &str = "agent.redb";

/// The tables. The numbers of their kinds are on disks: none is ever given to another table.
const TABLES: [Table; 5] = [
    Table::new("volumes", RECORD_KIND),
    Table::new("desired-volumes", RecordKind(2)),
    Table::new("kubernetes-objects", RecordKind(3)),
    Table::new("fs-groups", RecordKind(4)),
    Table::new("terms", RecordKind(5)),
];

/// A table is not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No record can have this name.
    #[error(transparent)]
    Name(#[from] InvalidRecordKey),
    /// What was to do it has panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// The durable state of an agent, a table for each part.
#[derive(Debug)]
pub(super) struct AgentStore {
    /// A record for each volume.
    pub(super) volumes: RedbStore,
    /// The latest set of volumes that is wanted, as it came.
    pub(super) desired: Document,
    /// The node's objects, as sent by the hub.
    pub(super) objects: Document,
    /// Which volumes were given to their fsGroup in this boot.
    pub(super) groups: Document,
    /// The highest term of each driver's proxy.
    pub(super) terms: TermTable,
}

impl AgentStore {
    /// Opens the file in a state directory, or makes it. What had to be set aside is logged. Blocks.
    ///
    /// # Errors
    /// If the file cannot be opened, or what is damaged cannot be kept.
    pub(super) fn open(directory: &Path) -> Result<Self, OpenError> {
        let opened = redb::open_tables(path(directory), &TABLES)?;
        let OpenedTables { stores, recreated, replaced, .. } = opened;
        if let Some(Recreated { reason, kept, salvaged, truncated, .. }) = recreated {
            tracing::error!(
                salvaged,
                truncated,
                "--state-dir: the store is damaged and kept as {}; what was found of its volumes and terms is taken over: {reason}",
                kept.display()
            );
        }
        for table in replaced {
            tracing::error!(
                "--state-dir: the table {} cannot be used, is kept as {} and begun anew: {}",
                table.table,
                table.kept,
                table.reason
            );
        }
        Self::of(stores, directory)
    }

    /// Opens the file without changes, for inspection: damage is an error. Blocks.
    ///
    /// # Errors
    /// If the file, or one of its tables, cannot be opened.
    pub(super) fn open_intact(directory: &Path) -> Result<Self, OpenError> {
        let stores = redb::open_intact_tables(path(directory), &TABLES)?;
        Self::of(stores, directory)
    }

    fn of(stores: Vec<RedbStore>, directory: &Path) -> Result<Self, OpenError> {
        // As many are opened as are asked for.
        let Ok([volumes, desired, objects, groups, terms]) = <[RedbStore; TABLES.len()]>::try_from(stores)
        else {
            let what = "tables are missing".to_owned();
            return Err(OpenError::Damaged { path: path(directory), what });
        };
        let [_, desired_table, objects_table, groups_table, terms_table] = TABLES;
        Ok(Self {
            volumes,
            desired: Document::new(desired, desired_table.kind),
            objects: Document::new(objects, objects_table.kind),
            groups: Document::new(groups, groups_table.kind),
            terms: TermTable::new(terms, terms_table.kind),
        })
    }
}

/// Calls a store, which is opened again if an earlier failure has stopped it. That may have been of any table of the file, and
/// may be over.
fn reopening<T>(
    store: &mut dyn Store,
    call: impl Fn(&mut dyn Store) -> Result<T, StoreError>,
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

/// Whether nothing was ever kept in a state directory.
pub(super) fn is_missing(directory: &Path) -> bool {
    !path(directory).exists()
}
