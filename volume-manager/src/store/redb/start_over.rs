//! A new store in the place of a damaged one, with all that was found in it.
//!
//! The new one is made whole under another name first, with the records in quarantine, and on the disk before the
//! damaged one loses its name. Whenever this is cut off, either the damaged file is still there to be found, or the
//! new one is there with everything.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ::redb::Database;

use super::salvage::{Salvage, Salvaged, salvage};
use super::tables::{Layout, TableSetAside, Tables, failed, unopened};
use super::{RedbStore, begin, file};
use crate::store::quarantine::{Origin, keep_aside, pack};
use crate::store::rows::{Counter, Rows, Totals};
use crate::store::{OpenError, StoreError, envelope};

/// What became of a damaged store.
#[derive(Debug)]
#[non_exhaustive]
pub struct StartedOver {
    /// Why.
    pub reason: OpenError,
    /// Where the damaged file is now. It is never deleted.
    pub kept: PathBuf,
    /// How many records were found in it. All of them are in the new store's quarantine.
    pub salvaged: usize,
    /// Whether there may be more in the damaged file, beyond the bounds of [`salvage`].
    pub truncated: bool,
}

/// Opens a store as [`RedbStore::open`] does; but if its file is damaged, keeps that under another name and starts
/// over with a new one. What can be [salvaged](salvage) is in the quarantine of the new store, each record with the
/// reason [`Defect::Salvaged`](crate::store::Defect::Salvaged), until it is released or discarded: compare it with the
/// mount table and the driver first.
///
/// Whenever this is cut off, calling it again does the rest. It says that it started over to one caller only, but what
/// is in quarantine is there for every later one.
///
/// # Errors
/// As [`RedbStore::open`], but not for damage; and if the damaged file cannot be read or renamed, or the new one cannot
/// be written: then the damaged one is left as it is.
pub fn open_or_start_over(path: impl Into<PathBuf>) -> Result<(RedbStore, Option<StartedOver>), OpenError> {
    let path = path.into();
    let OpenedFile { database, started_over, .. } = open_file(&path, &Layout::only())?;
    Ok((RedbStore::only_of_file(path, database), started_over))
}

/// A file that is open.
pub(super) struct OpenedFile {
    pub(super) database: Database,
    pub(super) started_over: Option<StartedOver>,
    pub(super) set_aside: Vec<TableSetAside>,
}

/// Opens a file, or starts over with a new one in place of one that is damaged.
pub(super) fn open_file(path: &Path, layout: &Layout) -> Result<OpenedFile, OpenError> {
    let whole = |(database, set_aside)| OpenedFile { database, started_over: None, set_aside };
    match file::open_or_create(path, layout) {
        Err(OpenError::Damaged { .. }) => {}
        outcome => return outcome.map(whole),
    }
    let disk = OpenError::disk(path);
    let new = file::sibling(path, ".new");
    if same_file(&new, path).map_err(&disk)? {
        // The making of the one that is damaged now was cut off, after it had got its name.
        fs::remove_file(&new).map_err(&disk)?;
    }
    let (new, made) = file::claim(path)?;
    // Another process may have been quicker: only what is damaged still is replaced.
    let reason = match file::open(path, layout) {
        Ok(opened) => {
            let _ = fs::remove_file(&new);
            return Ok(whole(opened));
        }
        Err(error @ OpenError::Damaged { .. }) => error,
        Err(error) => match (is_not_found(&error), last_kept(path).map_err(&disk)?) {
            (true, Some((_, kept))) => unfinished(path, &kept),
            _ => return Err(error),
        },
    };
    let kept = kept_as(path).map_err(&disk)?;
    let damaged = if path.try_exists().map_err(&disk)? { path } else { &kept };
    let salvage = salvage(damaged).map_err(&disk)?;
    let database = file::make(made, layout).map_err(unopened(path))?;
    keep(&database, layout, &salvage).map_err(|error| not_kept(error, path))?;
    replace(path, &new, &kept).map_err(&disk)?;
    let Salvage { records, truncated } = salvage;
    let over = StartedOver { reason, kept, salvaged: records.len(), truncated };
    Ok(OpenedFile { database, started_over: Some(over), set_aside: Vec::new() })
}

fn is_not_found(error: &OpenError) -> bool {
    matches!(error, OpenError::Disk { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Why a store is not made anew though there is no file.
pub(super) fn unfinished(path: &Path, kept: &Path) -> OpenError {
    let what = format!("it is not there, but {} is, and no other has taken its place", kept.display());
    OpenError::Damaged { path: path.into(), what }
}

/// The last damaged file that was kept of this path, with its number.
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

/// What the damaged file of this path is, or is to be, kept as.
fn kept_as(path: &Path) -> io::Result<PathBuf> {
    match last_kept(path)? {
        // A start that was cut off has kept it already.
        Some((_, kept)) if !path.try_exists()? || same_file(path, &kept)? => Ok(kept),
        Some((u32::MAX, _)) => Err(io::ErrorKind::AlreadyExists.into()),
        Some((number, _)) => Ok(numbered(path, number + 1)),
        None => Ok(numbered(path, 1)),
    }
}

/// Whether both names are of one file. A name that is of none is not.
fn same_file(one: &Path, other: &Path) -> io::Result<bool> {
    let identity = |path| match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let one = identity(one)?;
    Ok(one.is_some() && one == identity(other)?)
}

/// Puts what was salvaged into the quarantine of the new tables, each record into that of its kind; what is of none, into that
/// of the first.
fn keep(database: &Database, layout: &Layout, salvage: &Salvage) -> Result<(), StoreError> {
    const ACTION: &str = "starting over";
    if salvage.records.is_empty() {
        return Ok(());
    }
    let of_table = |one: &&Salvaged| {
        layout.tables.iter().position(|table| table.kind == one.key.kind()).unwrap_or_default()
    };
    let transaction = begin(database).map_err(failed(ACTION))?;
    for (number, table) in layout.tables.iter().enumerate() {
        let records = || salvage.records.iter().filter(|one| of_table(one) == number);
        let Some(last) = records().map(|one| one.sequence).max() else { continue };
        let mut parts = Tables::open(&transaction, &table.names(), Some(Totals::default()), ACTION)?;
        // Later commits are to have higher numbers, in case this file is damaged too.
        parts.set_counter(Counter::Sequence, last)?;
        for one in records() {
            let sealed = envelope::seal(&one.key, one.sequence, &one.payload);
            keep_aside(&mut parts, &pack(Origin::Salvaged, one.key.as_row(), &sealed))?;
        }
    }
    transaction.commit().map_err(failed(ACTION))
}

fn not_kept(error: StoreError, path: &Path) -> OpenError {
    match error {
        StoreError::Disk { source, .. } => OpenError::Disk { path: path.into(), source },
        other => OpenError::disk(path)(io::Error::other(other)),
    }
}

/// Keeps the damaged file under another name, and gives its own to the new one.
fn replace(path: &Path, new: &Path, kept: &Path) -> io::Result<()> {
    if path.try_exists()? && !same_file(path, kept)? {
        match fs::hard_link(path, kept) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) => {}
            // A filesystem without hard links. If this is cut off now, the kept file tells of it.
            Err(_) => fs::rename(path, kept)?,
        }
        file::sync_directory(path)?;
    }
    fs::rename(new, path)?;
    file::sync_directory(path)
}
