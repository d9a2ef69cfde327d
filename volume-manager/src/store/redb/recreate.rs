//! Replaces a corrupt file by a new store with the salvaged records.
//!
//! The new file is first completed under a temporary name, with the records in quarantine, and durable before the corrupt file
//! is renamed. After an interruption at any point, either the corrupt file still exists, or the new one is complete.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ::redb::Database;

use super::salvage::{Salvage, Salvaged, salvage};
use super::tables::{self, Layout, ReplacedTable, open_error};
use super::{file, store};
use crate::store::batch::Counter;
use crate::store::quarantine::{Origin, pack};
use crate::store::{OpenStoreError, RowTable, RowWrite, Store, envelope};

/// The report about a corrupt store that was recreated.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recreated {
    /// The corruption.
    pub reason: OpenStoreError,
    /// The new path of the corrupt file. It is never deleted.
    pub kept: PathBuf,
    /// The number of salvaged records, all in the new store's quarantine.
    pub salvaged: usize,
    /// Whether the corrupt file may have more records, beyond the limits of the search.
    pub truncated: bool,
}

/// Opens a store like [`open`](super::open), but renames a corrupt file and creates a new one. The salvaged records
/// are in the quarantine of the new store, with the reason [`Defect::Salvaged`](crate::store::Defect::Salvaged), until they
/// are released or discarded: compare them with the mount table and the driver first.
///
/// After an interruption, calling it again completes the replacement. The report is returned only once; the quarantined
/// records are in every later load.
///
/// # Errors
/// As [`open`](super::open), except for corruption; and if the corrupt file cannot be read or renamed, or the new one cannot be
/// written. The corrupt file is then unchanged.
pub fn open_or_recreate(path: impl Into<PathBuf>) -> Result<(Store, Option<Recreated>), OpenStoreError> {
    let path = path.into();
    let OpenedFile { database, recreated, .. } = open_file(&path, &Layout::only())?;
    Ok((store(path, database), recreated))
}

/// An open file.
pub(super) struct OpenedFile {
    pub(super) database: Database,
    pub(super) recreated: Option<Recreated>,
    pub(super) replaced: Vec<ReplacedTable>,
}

/// Opens a file, or recreates a corrupt one.
pub(super) fn open_file(path: &Path, layout: &Layout) -> Result<OpenedFile, OpenStoreError> {
    let intact = |(database, replaced)| OpenedFile { database, recreated: None, replaced };
    match file::open_or_create(path, layout) {
        Err(OpenStoreError::Damaged { .. }) => {}
        outcome => return outcome.map(intact),
    }
    let disk = OpenStoreError::disk(path);
    let new = file::sibling(path, ".new");
    if same_file(&new, path).map_err(&disk)? {
        // The creation of the now corrupt file was interrupted after its rename.
        fs::remove_file(&new).map_err(&disk)?;
    }
    let (new, new_file) = file::claim(path)?;
    // Another process may have replaced the corrupt file meanwhile: check again under the lock.
    let reason = match file::open(path, layout) {
        Ok(opened) => {
            let _ = fs::remove_file(&new);
            return Ok(intact(opened));
        }
        Err(error @ OpenStoreError::Damaged { .. }) => error,
        Err(error) => match (is_not_found(&error), last_kept(path).map_err(&disk)?) {
            (true, Some((_, kept))) => unfinished(path, &kept),
            _ => return Err(error),
        },
    };
    let kept = kept_path(path).map_err(&disk)?;
    let damaged = if path.try_exists().map_err(&disk)? { path } else { &kept };
    let salvage = salvage(damaged).map_err(&disk)?;
    let database = file::make(new_file, layout).map_err(open_error(path))?;
    quarantine_salvaged(&database, layout, &salvage).map_err(open_error(path))?;
    replace(path, &new, &kept).map_err(&disk)?;
    let Salvage { records, truncated } = salvage;
    let recreated = Recreated { reason, kept, salvaged: records.len(), truncated };
    Ok(OpenedFile { database, recreated: Some(recreated), replaced: Vec::new() })
}

fn is_not_found(error: &OpenStoreError) -> bool {
    matches!(error, OpenStoreError::Disk { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Returns the error of a missing file while a renamed corrupt one exists.
pub(super) fn unfinished(path: &Path, kept: &Path) -> OpenStoreError {
    let what = format!("the file is missing, but {} exists and was not replaced", kept.display());
    OpenStoreError::Damaged { path: path.into(), what }
}

/// The last renamed corrupt file of this path, with its number.
pub(super) fn last_kept(path: &Path) -> io::Result<Option<(u32, PathBuf)>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let mut last = None;
    for entry in fs::read_dir(file::directory(path))? {
        let entry = entry?.file_name();
        let number = entry.as_bytes().strip_prefix(name.as_bytes()).and_then(|rest| {
            str::from_utf8(rest.strip_prefix(DAMAGED.as_bytes())?).ok()?.parse::<u32>().ok()
        });
        last = last.max(number);
    }
    Ok(last.map(|number| (number, numbered(path, number))))
}

const DAMAGED: &str = ".damaged-";

fn numbered(path: &Path, number: u32) -> PathBuf {
    file::sibling(path, &format!("{DAMAGED}{number}"))
}

/// Returns the path to which the corrupt file is renamed, or has been renamed already.
fn kept_path(path: &Path) -> io::Result<PathBuf> {
    match last_kept(path)? {
        // An earlier, interrupted call has renamed the file already.
        Some((_, kept)) if !path.try_exists()? || same_file(path, &kept)? => Ok(kept),
        Some((u32::MAX, _)) => Err(io::ErrorKind::AlreadyExists.into()),
        Some((number, _)) => Ok(numbered(path, number + 1)),
        None => Ok(numbered(path, 1)),
    }
}

/// Whether both paths are the same existing file.
fn same_file(one: &Path, other: &Path) -> io::Result<bool> {
    let identity = |path| match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let one = identity(one)?;
    Ok(one.is_some() && one == identity(other)?)
}

/// Quarantines the salvaged records in the table of their kind, or in the first table.
fn quarantine_salvaged(database: &Database, layout: &Layout, salvage: &Salvage) -> Result<(), ::redb::Error> {
    let table_of = |record: &&Salvaged| {
        layout.tables.iter().position(|table| table.kind == record.key.kind()).unwrap_or_default()
    };
    for (position, table) in layout.tables.iter().enumerate() {
        let records = || salvage.records.iter().filter(|record| table_of(record) == position);
        let Some(last) = records().map(|record| record.sequence).max() else { continue };
        // Later commits get higher sequence numbers, in case this file is corrupted too.
        let mut writes = vec![Counter::Sequence.set(last)];
        for (number, record) in (1_u64..).zip(records()) {
            let sealed = envelope::seal(&record.key, record.sequence, &record.payload);
            let packed = pack(Origin::Salvaged, record.key.as_row(), &sealed);
            let key = number.to_be_bytes().into();
            writes.push(RowWrite { table: RowTable::Aside, key, value: Some(packed) });
        }
        let count = u64::try_from(writes.len() - 1).unwrap_or(u64::MAX);
        writes.push(Counter::Aside.set(count));
        tables::write(database, &table.names(), &writes)?;
    }
    Ok(())
}

/// Renames the corrupt file, and renames the new one to its path.
fn replace(path: &Path, new: &Path, kept: &Path) -> io::Result<()> {
    if path.try_exists()? && !same_file(path, kept)? {
        match fs::hard_link(path, kept) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) => {}
            // A filesystem without hard links. After an interruption here, the renamed file is found.
            Err(_) => fs::rename(path, kept)?,
        }
        file::sync_directory(path)?;
    }
    fs::rename(new, path)?;
    file::sync_directory(path)
}
