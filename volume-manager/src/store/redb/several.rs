//! A file of several tables, with a store in each.

use std::path::PathBuf;
use std::sync::Arc;

use ::redb::Database;

use super::recreate::{self, OpenedFile, Recreated};
use super::rows::RedbRows;
use super::tables::{Layout, ReplacedTable, Table};
use super::{OpenFile, file};
use crate::store::{OpenStoreError, Store};

/// The result of [`open_tables`].
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenedTables {
    /// A store for each table, in the requested order.
    pub stores: Vec<Store>,
    /// The report about a corrupt file that was recreated.
    pub recreated: Option<Recreated>,
    /// The unusable tables. Each was replaced by an empty one.
    pub replaced: Vec<ReplacedTable>,
}

/// Opens a file of several tables, and creates the file and missing tables. The directory must exist.
///
/// A table with a newer layout, or with missing or invalid parts, is renamed and replaced by an empty one. A file with a corrupt
/// structure is renamed and recreated as by [`open_or_recreate`](super::open_or_recreate); salvaged records are in the quarantine
/// of the table of their kind.
///
/// A commit to one table is durable before one to another starts. A disk failure stops the store that noticed it,
/// and every other store of the file that is used before one of them was reopened.
///
/// # Errors
/// If the file cannot be opened, is in use or is not a store, or a corrupt file cannot be renamed.
pub fn open_tables(path: impl Into<PathBuf>, tables: &[Table]) -> Result<OpenedTables, OpenStoreError> {
    let (path, layout) =
        (path.into(), Layout { tables: tables.to_vec(), replace_unusable: true, exclusive: false });
    let OpenedFile { database, recreated, replaced } = recreate::open_file(&path, &layout)?;
    let stores = stores(path, layout, database);
    Ok(OpenedTables { stores, recreated, replaced })
}

/// Opens a file of several tables for inspection: unlike with [`open_tables`], a corrupt file or an unusable table is an error,
/// and left unchanged.
///
/// # Errors
/// As [`open_tables`], and if the file is corrupt or one of the tables is unusable.
pub fn open_intact_tables(path: impl Into<PathBuf>, tables: &[Table]) -> Result<Vec<Store>, OpenStoreError> {
    let (path, layout) =
        (path.into(), Layout { tables: tables.to_vec(), replace_unusable: false, exclusive: false });
    let (database, _) = file::open_or_create(&path, &layout)?;
    Ok(stores(path, layout, database))
}

/// Creates a store for each table of a file.
fn stores(path: PathBuf, layout: Layout, database: Database) -> Vec<Store> {
    let tables = layout.tables.clone();
    let file = OpenFile::new(path, layout, database);
    tables.into_iter().map(|table| Store::new(RedbRows::new(table.names(), Arc::clone(&file)))).collect()
}
