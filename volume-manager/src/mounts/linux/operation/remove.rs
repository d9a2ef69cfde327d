//! The one removal there is. See [`SafeRemoval`] for its rules.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::super::super::{Presence, Removable, RemoveError, Removed, SafeRemoval};
use super::super::entry::Entry;
use super::super::probe::Answer;

pub(super) fn remove(removal: &SafeRemoval) -> Result<Answer, Errno> {
    let path = removal.path();
    let held = match Entry::open(path) {
        Ok(held) => held,
        Err(Errno::NOENT) => return Ok(Answer::Removed(Removed::WasMissing)),
        Err(errno) => return Err(errno),
    };
    if held.mount()?.is_some() {
        return Ok(Answer::Mounted);
    }
    let flags = match (held.presence()?, removal.what()) {
        (Presence::Directory, _) => {
            if let Some((count, first)) = entries(&held)? {
                return Ok(Answer::NotEmpty { count, first });
            }
            AtFlags::REMOVEDIR
        }
        (Presence::RegularFile { size: 0 }, Removable::EmptyTarget) => AtFlags::empty(),
        (Presence::RegularFile { size }, Removable::EmptyTarget) => return Ok(Answer::HasBytes(size)),
        (found, _) => return Ok(Answer::Unfit(found)),
    };
    let Entry { parent, entry } = held;
    drop(entry);
    unlink(&parent, path.name(), flags)
}

fn unlink(parent: &OwnedFd, name: &OsStr, flags: AtFlags) -> Result<Answer, Errno> {
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) => Ok(Answer::Removed(Removed::Removed)),
        Err(Errno::NOENT) => Ok(Answer::Removed(Removed::WasMissing)),
        Err(Errno::BUSY) => Ok(Answer::Mounted),
        Err(errno) => Err(errno),
    }
}

/// How many entries a directory has, up to a bound, and one of them. `None` if there are none.
fn entries(held: &Entry) -> Result<Option<(usize, OsString)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Through the held directory itself, not by its name, which may be another's by now.
    let directory = rustix::fs::openat(&held.entry, ".", flags, Mode::empty())?;
    let (mut count, mut first) = (0, None);
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        count += 1;
        first.get_or_insert_with(|| name.to_owned());
        if count == RemoveError::MAX_COUNTED {
            break;
        }
    }
    Ok(first.map(|first| (count, first)))
}
