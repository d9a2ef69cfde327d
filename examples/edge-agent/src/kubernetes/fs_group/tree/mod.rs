//! Changes the group of all files of a volume, whatever its content.
//!
//! Other processes may replace the volume's files at any time. So each file is held by a descriptor before it is changed, no
//! link is followed, and no other mount is entered. Parent directories are held open too, but at most
//! [`MAX_OPEN`] of them: for those further up, their identity and read position are kept.
//!
//! The root is changed last, after everything else is synced: if the root matches, so does the rest. A power cut leaves a
//! root that does not match.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use super::bits::{self, Change, Facts, FileKind};

/// The maximum number of directories that are held open.
const MAX_OPEN: usize = 32;

/// The maximum depth of directories. A path of 4,096 bytes has no room for more.
const MAX_DEPTH: usize = 4096;

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ENTRY: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);
const STATX_MASK: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::MODE)
    .union(StatxFlags::GID)
    .union(StatxFlags::INO)
    .union(StatxFlags::MNT_ID);

/// A pod's fsGroup and its change policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FsGroup {
    /// The group id.
    pub(super) group: u32,
    /// Whether to skip a volume whose root matches the group already (`OnRootMismatch`).
    pub(super) only_if_root_differs: bool,
}

/// The counts of a finished walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Applied {
    /// The number of visited files, including the root.
    pub(super) seen: u64,
    /// The number of changed files.
    pub(super) changed: u64,
    /// The number of files that could not be changed. As with kubelet, the pod gets the volume anyway.
    pub(super) failed: u64,
    /// The error of the first of these files.
    pub(super) first_failure: Option<Errno>,
}

/// An error that ends a walk. The job is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApplyError {
    /// The walk was cancelled.
    #[error("the walk over the volume was cancelled")]
    Cancelled,
    /// Nothing is mounted at the path.
    #[error("nothing is mounted at the volume's target path")]
    NotMounted,
    /// The root cannot be read.
    #[error("the volume cannot be opened: {0}")]
    Root(Errno),
    /// A directory cannot be read.
    #[error("a directory of the volume cannot be read: {0}")]
    Read(Errno),
    /// A directory was moved during the walk.
    #[error("a directory of the volume was moved during the walk")]
    Moved,
    /// The changes cannot be synced to the disk.
    #[error("cannot sync the volume: {0}")]
    Sync(Errno),
}

/// Applies a group to the filesystem mounted at a path. `cancelled` is called before each file. Blocks.
pub(super) fn apply_at(
    path: &Path,
    spec: FsGroup,
    cancelled: impl FnMut() -> bool,
) -> Result<Applied, ApplyError> {
    let root = rustix::fs::openat(CWD, path, READ, Mode::empty()).map_err(ApplyError::Root)?;
    let parent = path.parent().unwrap_or(path);
    let parent = rustix::fs::openat(CWD, parent, PATH, Mode::empty()).map_err(ApplyError::Root)?;
    let [own, above] = [&root, &parent].map(|held| stat(held.as_fd(), c"", AtFlags::EMPTY_PATH));
    if Mount::of(&own.map_err(ApplyError::Root)?) == Mount::of(&above.map_err(ApplyError::Root)?) {
        return Err(ApplyError::NotMounted);
    }
    drop(parent);
    apply(root, spec, cancelled)
}

/// Applies a group to a directory and everything below it.
pub(super) fn apply(
    root: OwnedFd,
    spec: FsGroup,
    cancelled: impl FnMut() -> bool,
) -> Result<Applied, ApplyError> {
    let found = stat(root.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(ApplyError::Root)?;
    if spec.only_if_root_differs && bits::root_matches(facts(&found), spec.group) {
        return Ok(Applied { seen: 1, ..Applied::default() });
    }
    let mount = Mount::of(&found);
    let files = Files { group: spec.group, mount, applied: Applied::default() };
    let mut walk = Walk { cancelled, levels: Vec::new(), files };
    let directory = rustix::fs::openat(&root, c".", READ, Mode::empty()).map_err(ApplyError::Root)?;
    walk.enter(DirectoryId::of(&found), directory)?;
    walk.run()?;
    let mut files = walk.files;
    if files.applied.changed > 0 {
        rustix::fs::syncfs(&root).map_err(ApplyError::Sync)?;
    }
    files.applied.seen += 1;
    files.change(root.as_fd(), &found);
    Ok(files.applied)
}

/// The mount of a file: its mount id, or its device where the kernel has no mount ids.
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

/// The identity of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirectoryId {
    mount: Mount,
    device: (u32, u32),
    inode: u64,
}

impl DirectoryId {
    fn of(found: &Statx) -> Self {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        Self { mount: Mount::of(found), device, inode: found.stx_ino }
    }
}

/// A directory that is being read.
struct Level {
    id: DirectoryId,
    /// `None` while too many are open.
    directory: Option<Dir>,
    /// The position at which reading resumes.
    offset: u64,
}

struct Walk<F> {
    cancelled: F,
    levels: Vec<Level>,
    files: Files,
}

/// The next step of a walk.
enum Step {
    Finish,
    Skip,
    Enter(DirectoryId, OwnedFd),
    Leave,
}

impl<F: FnMut() -> bool> Walk<F> {
    fn enter(&mut self, id: DirectoryId, directory: OwnedFd) -> Result<(), ApplyError> {
        let directory = Dir::new(directory).map_err(ApplyError::Read)?;
        self.levels.push(Level { id, directory: Some(directory), offset: 0 });
        if let Some(far) = self.levels.len().checked_sub(MAX_OPEN + 1)
            && let Some(level) = self.levels.get_mut(far)
        {
            level.directory = None;
        }
        Ok(())
    }

    /// Changes all files but the root.
    fn run(&mut self) -> Result<(), ApplyError> {
        loop {
            if (self.cancelled)() {
                return Err(ApplyError::Cancelled);
            }
            match self.step()? {
                Step::Finish => return Ok(()),
                Step::Skip => {}
                Step::Enter(id, directory) => self.enter(id, directory)?,
                Step::Leave => self.leave()?,
            }
        }
    }

    fn step(&mut self) -> Result<Step, ApplyError> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return Ok(Step::Finish) };
        let Some(directory) = &mut level.directory else { return Err(ApplyError::Moved) };
        let entry = match directory.read() {
            None | Some(Err(Errno::NOENT)) => return Ok(Step::Leave),
            Some(entry) => entry.map_err(ApplyError::Read)?,
        };
        level.offset = entry.offset().cast_unsigned();
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(Step::Skip);
        }
        let held = directory.fd().map_err(ApplyError::Read)?;
        Ok(match self.files.entry(held, entry.file_name(), depth) {
            Ok(step) => step,
            // The file was removed meanwhile.
            Err(Errno::NOENT) => Step::Skip,
            Err(errno) => {
                self.files.fail(errno);
                Step::Skip
            }
        })
    }

    /// Resumes the parent directory, and reopens it if it was closed.
    fn leave(&mut self) -> Result<(), ApplyError> {
        let Some(left) = self.levels.pop() else { return Ok(()) };
        let Some(above) = self.levels.last_mut().filter(|above| above.directory.is_none()) else {
            return Ok(());
        };
        let left = left.directory.as_ref().ok_or(ApplyError::Moved)?.fd().map_err(ApplyError::Read)?;
        let opened = rustix::fs::openat(left, c"..", READ, Mode::empty()).map_err(ApplyError::Read)?;
        let found = stat(opened.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(ApplyError::Read)?;
        if DirectoryId::of(&found) != above.id {
            return Err(ApplyError::Moved);
        }
        rustix::fs::seek(&opened, SeekFrom::Start(above.offset)).map_err(ApplyError::Read)?;
        above.directory = Some(Dir::new(opened).map_err(ApplyError::Read)?);
        Ok(())
    }
}

/// Changes files and counts them.
struct Files {
    group: u32,
    mount: Mount,
    applied: Applied,
}

impl Files {
    /// Changes an entry of a directory at `depth`; the volume's root has depth 1.
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<Step, Errno> {
        let found = stat(directory, name, ENTRY)?;
        if Mount::of(&found) != self.mount {
            return Ok(Step::Skip);
        }
        self.applied.seen += 1;
        let file = facts(&found);
        if file.kind != FileKind::Directory && bits::change(file, self.group).is_nothing() {
            return Ok(Step::Skip);
        }
        let held = rustix::fs::openat(directory, name, PATH, Mode::empty())?;
        // Read again: the file may have been replaced.
        let found = stat(held.as_fd(), c"", AtFlags::EMPTY_PATH)?;
        if Mount::of(&found) != self.mount {
            return Ok(Step::Skip);
        }
        self.change(held.as_fd(), &found);
        if facts(&found).kind != FileKind::Directory {
            return Ok(Step::Skip);
        }
        if depth >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let opened = rustix::fs::openat(&held, c".", READ, Mode::empty())?;
        Ok(Step::Enter(DirectoryId::of(&found), opened))
    }

    /// Changes the file of an open descriptor.
    fn change(&mut self, held: BorrowedFd<'_>, found: &Statx) {
        let change = bits::change(facts(found), self.group);
        if change.is_nothing() {
            return;
        }
        match set_attributes(held, change, self.group) {
            Ok(()) => self.applied.changed += 1,
            Err(errno) => self.fail(errno),
        }
    }

    fn fail(&mut self, errno: Errno) {
        self.applied.failed += 1;
        self.applied.first_failure.get_or_insert(errno);
    }
}

fn set_attributes(held: BorrowedFd<'_>, change: Change, group: u32) -> Result<(), Errno> {
    if change.group {
        let group = Some(Gid::from_raw(group));
        rustix::fs::chownat(held, c"", None, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = change.mode {
        // fchmod does not accept an O_PATH descriptor; chmod of its path in /proc works.
        let path = format!("/proc/self/fd/{}", held.as_raw_fd());
        rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

fn stat(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Statx, Errno> {
    rustix::fs::statx(directory, name, flags, STATX_MASK)
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
