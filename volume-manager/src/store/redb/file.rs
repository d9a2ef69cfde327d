//! The file: made under another name, and given its own when it is whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ::redb::Database;
use ::redb::backends::FileBackend;

use super::salvage::salvage;
use super::tables::{self, Layout, TableSetAside, unopened};
use super::{start, start_over};
use crate::store::OpenError;

/// What every redb file begins with.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The format of redb's files that is read.
const FORMAT: u8 = 3;

/// Where each of the two headers of redb says its format. Every format has kept these places.
const FORMAT_PLACES: [usize; 2] = [64, 192];

/// Opens the store, or makes it if there is no file.
pub(super) fn open_or_create(
    path: &Path,
    layout: &Layout,
) -> Result<(Database, Vec<TableSetAside>), OpenError> {
    match open(path, layout) {
        Err(OpenError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            match start_over::last_kept(path).map_err(OpenError::disk(path))? {
                None => Ok((create(path, layout)?, Vec::new())),
                Some((_, kept)) => Err(start_over::unfinished(path, &kept)),
            }
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
pub(super) fn open(path: &Path, layout: &Layout) -> Result<(Database, Vec<TableSetAside>), OpenError> {
    let disk = OpenError::disk(path);
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(&disk)?;
    let mut head = Vec::new();
    file.by_ref().take(256).read_to_end(&mut head).map_err(&disk)?;
    if !head.starts_with(&MAGIC) {
        head.truncate(MAGIC.len());
        return Err(misbegun(path, &head));
    }
    if let Some(found) = other_format(&head) {
        return Err(OpenError::OtherFormat { path: path.into(), found, supported: FORMAT });
    }
    let database = database(file).map_err(unopened(path))?;
    let set_aside = tables::check(&database, layout, path)?;
    // Whoever gave the file its name may have been ended before it was on the disk.
    sync_directory(path).map_err(&disk)?;
    Ok((database, set_aside))
}

/// The format of a file, if it is another one and not merely damaged.
fn other_format(head: &[u8]) -> Option<u8> {
    let [first, second] = FORMAT_PLACES.map(|place| head.get(place).copied());
    let (first, second) = (first?, second?);
    if first == second {
        // What was never written, or was erased, has nothing but zeros or ones.
        return (!matches!(first, 0 | FORMAT | u8::MAX)).then_some(first);
    }
    // A newer version may have begun to change the format. One bit that turned makes none of these.
    [first, second].into_iter().find(|format| (FORMAT + 1..FORMAT + 4).contains(format))
}

/// What a file is that does not begin as it should: a store that has lost its beginning, or something else.
fn misbegun(path: &Path, magic: &[u8]) -> OpenError {
    let damaged = |what: &str| OpenError::Damaged { path: path.into(), what: what.into() };
    if magic.is_empty() {
        return damaged("it is empty");
    }
    if MAGIC.starts_with(magic) {
        return damaged("it ends too early");
    }
    if magic.iter().all(|byte| *byte == 0) || salvage(path).is_ok_and(|salvage| !salvage.records.is_empty()) {
        return damaged("its beginning was overwritten");
    }
    OpenError::Foreign { path: path.into(), what: format!("it begins with \"{}\"", magic.escape_ascii()) }
}

fn database(file: File) -> Result<Database, ::redb::Error> {
    start(FileBackend::new(file)?)
}

/// Makes an empty store. Its name appears when it is whole and on the disk, and never replaces another file.
fn create(path: &Path, layout: &Layout) -> Result<Database, OpenError> {
    let disk = OpenError::disk(path);
    let (new, file) = claim(path)?;
    let database = make(file, layout).map_err(unopened(path))?;
    give_name(&new, path).map_err(&disk)?;
    sync_directory(path).map_err(&disk)?;
    Ok(database)
}

/// Makes an empty store in a file that was [claimed](claim).
pub(super) fn make(file: File, layout: &Layout) -> Result<Database, ::redb::Error> {
    let database = database(file)?;
    tables::make(&database, layout)?;
    Ok(database)
}

/// The file in which a store of this path is made, under the name that it has until it is whole. One process at a time
/// has it.
pub(super) fn claim(path: &Path) -> Result<(PathBuf, File), OpenError> {
    let disk = OpenError::disk(path);
    let new = sibling(path, ".new");
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let file = options.open(&new).map_err(&disk)?;
    // Whoever holds the lock on the file of that name is the one who makes the store.
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.into() }),
        Err(TryLockError::Error(error)) => return Err(disk(error)),
        Ok(()) => {}
    }
    let here = file.metadata().map_err(&disk)?;
    let named = fs::metadata(&new).map_err(&disk)?;
    if (here.dev(), here.ino()) != (named.dev(), named.ino()) || here.nlink() != 1 {
        return Err(OpenError::InUse { path: path.into() });
    }
    file.set_len(0).and_then(|()| file.set_permissions(Permissions::from_mode(0o600))).map_err(&disk)?;
    Ok((new, file))
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
    File::open(directory(path))?.sync_all()
}

/// The directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// The path with something after it.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(suffix);
    name.into()
}
