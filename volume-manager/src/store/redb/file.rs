//! The file: made under another name, and given its own when it is whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ::redb::Database;
use ::redb::backends::FileBackend;

use super::rows::{self, Failure};
use super::salvage::salvage;
use super::{Settings, start};
use crate::store::OpenError;

/// What every redb file begins with.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Opens the store, or makes it if there is no file.
pub(super) fn open_or_create(path: &Path, settings: Settings) -> Result<Database, OpenError> {
    match open(path, settings) {
        Err(OpenError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            create(path, settings)
        }
        outcome => {
            if outcome.is_ok() {
                // What is left of a making that was cut off. If it cannot go, it does no harm.
                let _ = fs::remove_file(sibling(path, ".new"));
            }
            outcome
        }
    }
}

/// Opens the store that must be there.
pub(super) fn open(path: &Path, settings: Settings) -> Result<Database, OpenError> {
    let disk = |error: io::Error| Failure::Disk(error).on(path);
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(disk)?;
    let mut magic = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(disk)?;
    if magic != MAGIC {
        return Err(misbegun(path, &magic));
    }
    let database =
        backend(file).and_then(|backend| start(backend, settings)).map_err(|failure| failure.on(path))?;
    rows::check(&database, path)?;
    Ok(database)
}

/// What a file is that does not begin as it should: a store that has lost its beginning, or something else.
fn misbegun(path: &Path, magic: &[u8]) -> OpenError {
    let damaged = |what: &str| Failure::Damaged(what.into()).on(path);
    if magic.is_empty() {
        return damaged("it is empty");
    }
    if MAGIC.starts_with(magic) {
        return damaged("it ends too early");
    }
    if magic.iter().all(|byte| *byte == 0) || salvage(path).is_ok_and(|salvaged| !salvaged.is_empty()) {
        return damaged("its beginning was overwritten");
    }
    OpenError::Foreign { path: path.into(), what: format!("it begins with \"{}\"", magic.escape_ascii()) }
}

fn backend(file: File) -> Result<FileBackend, Failure> {
    Ok(FileBackend::new(file)?)
}

/// Makes an empty store. Its name appears when it is whole and on the disk, and never replaces another file.
fn create(path: &Path, settings: Settings) -> Result<Database, OpenError> {
    let disk = |error: io::Error| Failure::Disk(error).on(path);
    let new = sibling(path, ".new");
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let file = options.open(&new).map_err(disk)?;
    // Whoever holds the lock on the file of that name is the one who makes the store.
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.into() }),
        Err(TryLockError::Error(error)) => return Err(disk(error)),
        Ok(()) => {}
    }
    let here = file.metadata().map_err(disk)?;
    let named = fs::metadata(&new).map_err(disk)?;
    if (here.dev(), here.ino()) != (named.dev(), named.ino()) || here.nlink() != 1 {
        return Err(OpenError::InUse { path: path.into() });
    }
    file.set_len(0).and_then(|()| file.set_permissions(Permissions::from_mode(0o600))).map_err(disk)?;
    let database = backend(file)
        .and_then(|backend| start(backend, settings))
        .and_then(|database| rows::make(&database).map(|()| database))
        .map_err(|failure| failure.on(path))?;
    give_name(&new, path).map_err(disk)?;
    sync_directory(path).map_err(disk)?;
    Ok(database)
}

/// Gives a file its name, unless that is taken.
fn give_name(new: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(new, path) {
        Ok(()) => fs::remove_file(new),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // A filesystem without hard links.
        Err(_) if !path.try_exists()? => fs::rename(new, path),
        Err(error) => Err(error),
    }
}

/// Puts the names in the directory of a file on the disk.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(directory)?.sync_all()
}

/// The path with something after it.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(suffix);
    name.into()
}
