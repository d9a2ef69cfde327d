//! The file: created under a temporary name, and renamed when it is complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ::redb::Database;
use ::redb::backends::FileBackend;

use super::salvage::salvage;
use super::tables::{self, Layout, ReplacedTable, open_error};
use super::{open_backend, recreate};
use crate::store::OpenStoreError;

/// The magic number at the start of every redb file.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The supported version of redb's file format.
const FORMAT: u8 = 3;

/// The offsets of the format version in redb's two headers, the same in every version.
const FORMAT_OFFSETS: [usize; 2] = [64, 192];

/// Opens the store, or creates it if the file is missing.
pub(super) fn open_or_create(
    path: &Path,
    layout: &Layout,
) -> Result<(Database, Vec<ReplacedTable>), OpenStoreError> {
    match open(path, layout) {
        Err(OpenStoreError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            match recreate::last_kept(path).map_err(OpenStoreError::disk(path))? {
                None => Ok((create(path, layout)?, Vec::new())),
                Some((_, kept)) => Err(recreate::unfinished(path, &kept)),
            }
        }
        outcome => {
            if outcome.is_ok() {
                // Removes the leftover of an interrupted creation, which is harmless if it cannot be removed.
                let _ = fs::remove_file(sibling(path, ".new"));
            }
            outcome
        }
    }
}

/// Opens an existing store.
pub(super) fn open(path: &Path, layout: &Layout) -> Result<(Database, Vec<ReplacedTable>), OpenStoreError> {
    let disk = OpenStoreError::disk(path);
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(&disk)?;
    let mut head = Vec::new();
    file.by_ref().take(256).read_to_end(&mut head).map_err(&disk)?;
    if !head.starts_with(&MAGIC) {
        head.truncate(MAGIC.len());
        return Err(invalid_magic(path, &head));
    }
    if let Some(found) = other_format(&head) {
        return Err(OpenStoreError::OtherFormat { path: path.into(), found, supported: FORMAT });
    }
    let database = database(file).map_err(open_error(path))?;
    let replaced = tables::check(&database, layout, path)?;
    // The process that renamed the file may have been killed before the directory was synced.
    sync_directory(path).map_err(&disk)?;
    Ok((database, replaced))
}

/// The unsupported format of a file; `None` if it is supported or corrupt.
fn other_format(head: &[u8]) -> Option<u8> {
    let [first, second] = FORMAT_OFFSETS.map(|offset| head.get(offset).copied());
    let (first, second) = (first?, second?);
    if first == second {
        // Unwritten or erased blocks are all zeros or all ones.
        return (!matches!(first, 0 | FORMAT | u8::MAX)).then_some(first);
    }
    // A newer version may have started to convert the file. A single flipped bit in `FORMAT` never results in
    // one of these formats.
    [first, second].into_iter().find(|format| (FORMAT + 1..FORMAT + 4).contains(format))
}

/// Returns the error of a file with the wrong magic number: a store with a corrupt beginning, or a foreign file.
fn invalid_magic(path: &Path, magic: &[u8]) -> OpenStoreError {
    let damaged = |what: &str| OpenStoreError::Damaged { path: path.into(), what: what.into() };
    if magic.is_empty() {
        return damaged("it is empty");
    }
    if MAGIC.starts_with(magic) {
        return damaged("it is truncated");
    }
    if magic.iter().all(|byte| *byte == 0) || salvage(path).is_ok_and(|salvage| !salvage.records.is_empty()) {
        return damaged("its beginning was overwritten");
    }
    OpenStoreError::Foreign {
        path: path.into(),
        what: format!("it begins with \"{}\"", magic.escape_ascii()),
    }
}

fn database(file: File) -> Result<Database, ::redb::Error> {
    open_backend(FileBackend::new(file)?)
}

/// Creates an empty store. Its name appears when it is complete and durable, and never replaces another file.
fn create(path: &Path, layout: &Layout) -> Result<Database, OpenStoreError> {
    let disk = OpenStoreError::disk(path);
    let (new, file) = claim(path)?;
    let database = make(file, layout).map_err(open_error(path))?;
    rename_new(&new, path).map_err(&disk)?;
    sync_directory(path).map_err(&disk)?;
    Ok(database)
}

/// Creates an empty store in a [claimed](claim) file.
pub(super) fn make(file: File, layout: &Layout) -> Result<Database, ::redb::Error> {
    let database = database(file)?;
    tables::make(&database, layout)?;
    Ok(database)
}

/// Opens and locks the temporary file for the creation of a store. One process at a time has the lock.
pub(super) fn claim(path: &Path) -> Result<(PathBuf, File), OpenStoreError> {
    let disk = OpenStoreError::disk(path);
    let new = sibling(path, ".new");
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let file = options.open(&new).map_err(&disk)?;
    // The process with the lock creates the store, if the locked file still has that name.
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(OpenStoreError::InUse { path: path.into() }),
        Err(TryLockError::Error(error)) => return Err(disk(error)),
        Ok(()) => {}
    }
    let here = file.metadata().map_err(&disk)?;
    let named = fs::metadata(&new).map_err(&disk)?;
    if (here.dev(), here.ino()) != (named.dev(), named.ino()) || here.nlink() != 1 {
        return Err(OpenStoreError::InUse { path: path.into() });
    }
    file.set_len(0).and_then(|()| file.set_permissions(Permissions::from_mode(0o600))).map_err(&disk)?;
    Ok((new, file))
}

/// Renames a file, unless the name is taken.
fn rename_new(new: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(new, path) {
        Ok(()) => fs::remove_file(new),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // A filesystem without hard links.
        Err(_) if !path.try_exists()? => fs::rename(new, path),
        Err(error) => Err(error),
    }
}

/// Syncs the directory of a file.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// The directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Returns the path with a suffix appended to its file name.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(suffix);
    name.into()
}
