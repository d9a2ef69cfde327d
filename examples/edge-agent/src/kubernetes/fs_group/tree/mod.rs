//! Giving all files of a volume to a group, whatever is in it.
//!
//! Who writes to a volume may exchange its files at any time. So each is held by a descriptor before it is changed, no link
//! is followed, and nothing is entered that another mount shows. Directories on the way are held too, but no more than
//! [`MAX_OPEN`] of them: of those further up it is known which they were, and where their reading stopped.
//!
//! The root comes last, when all else is on the disk: if it is as it should be, so is the rest. A power cut leaves a root
//! that does not match.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use super::bits::{self, Change, Facts, FileKind};

/// The most directories that are held open.
const MAX_OPEN: usize = 32;

/// The most directories one within the other. No path has room for more, since it holds 4,096 bytes.
const MAX_DEPTH: usize = 4096;

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ENTRY: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);
const SEEN: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::MODE)
    .union(StatxFlags::GID)
    .union(StatxFlags::INO)
    .union(StatxFlags::MNT_ID);

/// Whom a volume is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gift {
    /// The group.
    pub(super) group: u32,
    /// Nothing is done if the root of the volume is the group's (`OnRootMismatch`).
    pub(super) only_if_root_differs: bool,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Given {
    /// Files that were looked at, with the root.
    pub(super) seen: u64,
    /// Files that were changed.
    pub(super) changed: u64,
    /// Files that could not be changed. As with kubelet, they do not hold up the pod.
    pub(super) failed: u64,
    /// Why not, for the first of them.
    pub(super) first_failure: Option<Errno>,
}

/// Why the files of a volume are not given to the group, or not all of them. It is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum GiveError {
    /// It was to end.
    #[error("it was ended before it was done")]
    Ended,
    /// Nothing is mounted there.
    #[error("nothing is mounted at the volume's place")]
    NotMounted,
    /// The root cannot be read.
    #[error("the volume cannot be opened: {0}")]
    Root(Errno),
    /// A directory cannot be read.
    #[error("a directory of the volume cannot be read: {0}")]
    Read(Errno),
    /// A directory is in another one than before.
    #[error("a directory of the volume was moved meanwhile")]
    Moved,
    /// What was done is not on the disk.
    #[error("the volume's changes do not reach its disk: {0}")]
    Sync(Errno),
}

/// Gives what is mounted at a path to a group. `ends` is asked before each file. May block for as long as the volume does.
pub(super) fn give_mounted(path: &Path, gift: Gift, ends: impl FnMut() -> bool) -> Result<Given, GiveError> {
    let root = rustix::fs::openat(CWD, path, READ, Mode::empty()).map_err(GiveError::Root)?;
    let parent = path.parent().unwrap_or(path);
    let parent = rustix::fs::openat(CWD, parent, PATH, Mode::empty()).map_err(GiveError::Root)?;
    let [own, above] = [&root, &parent].map(|held| look(held.as_fd(), c"", AtFlags::EMPTY_PATH));
    if Mount::of(&own.map_err(GiveError::Root)?) == Mount::of(&above.map_err(GiveError::Root)?) {
        return Err(GiveError::NotMounted);
    }
    drop(parent);
    give(root, gift, ends)
}

/// Gives a directory and all below it to a group.
pub(super) fn give(root: OwnedFd, gift: Gift, ends: impl FnMut() -> bool) -> Result<Given, GiveError> {
    let found = look(root.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(GiveError::Root)?;
    if gift.only_if_root_differs && bits::root_matches(facts(&found), gift.group) {
        return Ok(Given { seen: 1, ..Given::default() });
    }
    let mount = Mount::of(&found);
    let files = Files { group: gift.group, mount, given: Given::default() };
    let mut walk = Walk { ends, levels: Vec::new(), files };
    let directory = rustix::fs::openat(&root, c".", READ, Mode::empty()).map_err(GiveError::Root)?;
    walk.enter(Place::of(&found), directory)?;
    walk.all()?;
    let mut files = walk.files;
    if files.given.changed > 0 {
        rustix::fs::syncfs(&root).map_err(GiveError::Sync)?;
    }
    files.given.seen += 1;
    files.change(root.as_fd(), &found);
    Ok(files.given)
}

/// Which mount something is in: by its number, or by the device where the kernel has no numbers to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mount {
    Number(u64),
    Device(u32, u32),
}

impl Mount {
    fn of(found: &Statx) -> Self {
        if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) {
            Self::Number(found.stx_mnt_id)
        } else {
            Self::Device(found.stx_dev_major, found.stx_dev_minor)
        }
    }
}

/// Which directory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    mount: Mount,
    device: (u32, u32),
    inode: u64,
}

impl Place {
    fn of(found: &Statx) -> Self {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        Self { mount: Mount::of(found), device, inode: found.stx_ino }
    }
}

/// A directory that is being read.
struct Level {
    place: Place,
    /// `None` while too many are open.
    directory: Option<Dir>,
    /// Where its reading goes on.
    offset: u64,
}

struct Walk<F> {
    ends: F,
    levels: Vec<Level>,
    files: Files,
}

/// What there is of a directory next.
enum Step {
    Nothing,
    Further,
    Into(Place, OwnedFd),
    End,
}

impl<F: FnMut() -> bool> Walk<F> {
    fn enter(&mut self, place: Place, directory: OwnedFd) -> Result<(), GiveError> {
        let directory = Dir::new(directory).map_err(GiveError::Read)?;
        self.levels.push(Level { place, directory: Some(directory), offset: 0 });
        if let Some(far) = self.levels.len().checked_sub(MAX_OPEN + 1)
            && let Some(level) = self.levels.get_mut(far)
        {
            level.directory = None;
        }
        Ok(())
    }

    /// All but the root.
    fn all(&mut self) -> Result<(), GiveError> {
        loop {
            if (self.ends)() {
                return Err(GiveError::Ended);
            }
            match self.step()? {
                Step::Nothing => return Ok(()),
                Step::Further => {}
                Step::Into(place, directory) => self.enter(place, directory)?,
                Step::End => self.leave()?,
            }
        }
    }

    fn step(&mut self) -> Result<Step, GiveError> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return Ok(Step::Nothing) };
        let Some(directory) = &mut level.directory else { return Err(GiveError::Moved) };
        let entry = match directory.read() {
            None | Some(Err(Errno::NOENT)) => return Ok(Step::End),
            Some(entry) => entry.map_err(GiveError::Read)?,
        };
        level.offset = entry.offset().cast_unsigned();
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(Step::Further);
        }
        let held = directory.fd().map_err(GiveError::Read)?;
        Ok(match self.files.entry(held, entry.file_name(), depth) {
            Ok(step) => step,
            // Somebody has removed it.
            Err(Errno::NOENT) => Step::Further,
            Err(errno) => {
                self.files.fail(errno);
                Step::Further
            }
        })
    }

    /// Goes on with the directory above, which is opened again if it had to be let go.
    fn leave(&mut self) -> Result<(), GiveError> {
        let Some(left) = self.levels.pop() else { return Ok(()) };
        let Some(above) = self.levels.last_mut().filter(|above| above.directory.is_none()) else {
            return Ok(());
        };
        let left = left.directory.as_ref().ok_or(GiveError::Moved)?.fd().map_err(GiveError::Read)?;
        let opened = rustix::fs::openat(left, c"..", READ, Mode::empty()).map_err(GiveError::Read)?;
        let found = look(opened.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(GiveError::Read)?;
        if Place::of(&found) != above.place {
            return Err(GiveError::Moved);
        }
        rustix::fs::seek(&opened, SeekFrom::Start(above.offset)).map_err(GiveError::Read)?;
        above.directory = Some(Dir::new(opened).map_err(GiveError::Read)?);
        Ok(())
    }
}

/// Files, one by one.
struct Files {
    group: u32,
    mount: Mount,
    given: Given,
}

impl Files {
    /// Changes an entry of a directory that is `depth` below the volume's own place.
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<Step, Errno> {
        let found = look(directory, name, ENTRY)?;
        if Mount::of(&found) != self.mount {
            return Ok(Step::Further);
        }
        self.given.seen += 1;
        let file = facts(&found);
        if file.kind != FileKind::Directory && bits::change(file, self.group).is_nothing() {
            return Ok(Step::Further);
        }
        let held = rustix::fs::openat(directory, name, PATH, Mode::empty())?;
        // What it is now: it may have been exchanged.
        let found = look(held.as_fd(), c"", AtFlags::EMPTY_PATH)?;
        if Mount::of(&found) != self.mount {
            return Ok(Step::Further);
        }
        self.change(held.as_fd(), &found);
        if facts(&found).kind != FileKind::Directory {
            return Ok(Step::Further);
        }
        if depth >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let opened = rustix::fs::openat(&held, c".", READ, Mode::empty())?;
        Ok(Step::Into(Place::of(&found), opened))
    }

    /// Changes what is held.
    fn change(&mut self, held: BorrowedFd<'_>, found: &Statx) {
        let change = bits::change(facts(found), self.group);
        if change.is_nothing() {
            return;
        }
        match apply(held, change, self.group) {
            Ok(()) => self.given.changed += 1,
            Err(errno) => self.fail(errno),
        }
    }

    fn fail(&mut self, errno: Errno) {
        self.given.failed += 1;
        self.given.first_failure.get_or_insert(errno);
    }
}

fn apply(held: BorrowedFd<'_>, change: Change, group: u32) -> Result<(), Errno> {
    if change.group {
        let group = Some(Gid::from_raw(group));
        rustix::fs::chownat(held, c"", None, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = change.mode {
        // By the name of the descriptor: by itself, this kind of descriptor sets no mode.
        let itself = format!("/proc/self/fd/{}", held.as_raw_fd());
        rustix::fs::chmod(itself, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

fn look(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Statx, Errno> {
    rustix::fs::statx(directory, name, flags, SEEN)
}

fn facts(found: &Statx) -> Facts {
    let mode = u32::from(found.stx_mode);
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    };
    Facts { kind, group: found.stx_gid, mode }
}

#[cfg(test)]
mod tests;
