//! The in-memory tree of directories and mounts.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::MemoryFileSystem;
use crate::mounts::{
    DeviceNumber, Inspection, Mount, MountId, MountTable, PathState, ProbeError, RemoveError,
};

/// The errno values of Linux on all architectures but MIPS, Alpha, PA-RISC and SPARC.
mod errno {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EROFS: i32 = 30;
    pub(super) const ETIMEDOUT: i32 = 110;

    /// The errors of a dead mount: ENOTCONN, ESTALE, ECONNABORTED, ESHUTDOWN.
    pub(super) const DEAD: [i32; 4] = [107, 116, 103, 108];
}

/// Why an operation on the tree failed.
#[derive(Debug)]
pub(super) enum TreeError {
    /// A system error.
    Errno(i32),
    /// The path hangs.
    Hung,
    /// The path has an unexpected state.
    Found(PathState),
    /// The path is not a mount point.
    NotMounted,
}

impl TreeError {
    pub(super) fn into_io(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Self::Errno(errno) => errno,
            Self::Hung => errno::ETIMEDOUT,
            Self::Found(PathState::Dead { errno }) => errno,
            Self::Found(_) => errno::EEXIST,
            Self::NotMounted => errno::EINVAL,
        })
    }

    pub(super) fn at(self, path: &Path) -> ProbeError {
        match self {
            Self::Hung => ProbeError::Hung { path: path.to_owned() },
            other => ProbeError::Io { path: path.to_owned(), source: other.into_io() },
        }
    }
}

/// Whether a file system answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Alive,
    Dead(i32),
    Hung,
}

#[derive(Debug)]
enum Entry {
    Directory,
    File(Vec<u8>),
    BlockDevice(DeviceNumber),
}

#[derive(Debug)]
struct FileSystem {
    fs_type: String,
    source: String,
    state: State,
    /// By the path within the file system; `/` always exists.
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug)]
pub(super) struct Tree {
    file_systems: HashMap<DeviceNumber, FileSystem>,
    mounts: BTreeMap<MountId, Mount>,
    /// The child mount of a mount at a path.
    children: HashMap<(MountId, PathBuf), MountId>,
    next_id: u64,
    next_minor: u32,
    table: Option<Arc<MountTable>>,
}

/// The root mount, on the disk of the node.
const ROOT: MountId = MountId::new(1);
const ROOT_DEVICE: DeviceNumber = DeviceNumber { major: 254, minor: 0 };
const DISK: u32 = 8;

/// A resolved path: its mount, and the path within that mount's file system.
struct Resolved {
    mount: MountId,
    inner: PathBuf,
    is_mount_root: bool,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self {
            file_systems: HashMap::new(),
            mounts: BTreeMap::new(),
            children: HashMap::new(),
            next_id: ROOT.as_u64() + 1,
            next_minor: 1,
            table: None,
        };
        tree.file_systems.insert(ROOT_DEVICE, FileSystem::new("ext4", "/dev/root"));
        let root = tree.describe(ROOT, MountId::new(0), ROOT_DEVICE, Path::new("/"), Path::new("/"), false);
        tree.mounts.insert(ROOT, root);
        tree
    }

    pub(super) fn add_file_system(
        &mut self,
        fs_type: &str,
        source: &str,
        anonymous: bool,
    ) -> MemoryFileSystem {
        let device = DeviceNumber { major: if anonymous { 0 } else { DISK }, minor: self.next_minor };
        self.next_minor += 1;
        self.file_systems.insert(device, FileSystem::new(fs_type, source));
        MemoryFileSystem(device)
    }

    pub(super) fn set_state(&mut self, fs: MemoryFileSystem, state: State) {
        if let Some(found) = self.file_systems.get_mut(&fs.0) {
            found.state = state;
        }
    }

    pub(super) fn table(&mut self) -> Arc<MountTable> {
        let mounts = &self.mounts;
        let table =
            self.table.get_or_insert_with(|| Arc::new(MountTable::of(mounts.values().cloned().collect())));
        Arc::clone(table)
    }

    pub(super) fn inspect(&self, path: &Path) -> Result<Inspection, TreeError> {
        let place = match self.resolve(path) {
            Ok(place) => place,
            Err(TreeError::Errno(errno::ENOENT)) => return Ok(Inspection::of(PathState::Missing)),
            Err(TreeError::Hung) => return Ok(Inspection::of(PathState::Hung)),
            // A dead parent directory does not mean that the path is dead.
            Err(TreeError::Found(PathState::Dead { errno })) => return Err(TreeError::Errno(errno)),
            Err(other) => return Err(other),
        };
        let state = match self.entry(&place) {
            Ok(entry) => entry.state(),
            Err(TreeError::Errno(errno::ENOENT)) => PathState::Missing,
            Err(TreeError::Hung) => return Ok(Inspection::of(PathState::Hung)),
            Err(TreeError::Found(dead @ PathState::Dead { errno })) => {
                if !place.is_mount_root || !errno::DEAD.contains(&errno) {
                    return Err(TreeError::Errno(errno));
                }
                dead
            }
            Err(other) => return Err(other),
        };
        let mount = place.is_mount_root.then_some(place.mount);
        Ok(Inspection { state, mount })
    }

    pub(super) fn mount(
        &mut self,
        fs: MemoryFileSystem,
        target: &Path,
        ro: bool,
    ) -> Result<MountId, TreeError> {
        let place = self.resolve(target)?;
        // The covered mount is not accessed, and may be dead.
        if !place.is_mount_root && !matches!(self.entry(&place)?, Entry::Directory) {
            return Err(TreeError::Errno(errno::ENOTDIR));
        }
        Ok(self.attach(place.mount, fs.0, Path::new("/"), target, ro))
    }

    pub(super) fn bind(&mut self, source: &Path, target: &Path, ro: bool) -> Result<MountId, TreeError> {
        let (from, to) = (self.resolve(source)?, self.resolve(target)?);
        let is_directory = |place: &Resolved| Ok(matches!(self.entry(place)?, Entry::Directory));
        if is_directory(&from)? != is_directory(&to)? {
            return Err(TreeError::Errno(errno::ENOTDIR));
        }
        let original = self.mounts.get(&from.mount).ok_or(TreeError::NotMounted)?;
        let (device, ro) = (original.device, ro || original.is_read_only());
        Ok(self.attach(to.mount, device, &from.inner, target, ro))
    }

    pub(super) fn detach(&mut self, path: &Path) -> Result<(), TreeError> {
        let place = self.resolve(path)?;
        if !place.is_mount_root {
            return Err(TreeError::NotMounted);
        }
        if place.mount == ROOT {
            return Err(TreeError::Errno(errno::EBUSY));
        }
        self.drop_mount(place.mount);
        Ok(())
    }

    pub(super) fn create_directory(&mut self, path: &Path) -> Result<(), TreeError> {
        match self.inspect(path)?.state {
            PathState::Missing => {}
            PathState::Directory => return Ok(()),
            PathState::Hung => return Err(TreeError::Hung),
            found => return Err(TreeError::Found(found)),
        }
        if let Some(parent) = path.parent() {
            self.create_directory(parent)?;
        }
        self.add(path, Entry::Directory)
    }

    pub(super) fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<(), TreeError> {
        match self.inspect(path)?.state {
            PathState::Missing | PathState::RegularFile { .. } => self.add(path, Entry::File(bytes.to_vec())),
            PathState::Hung => Err(TreeError::Hung),
            found => Err(TreeError::Found(found)),
        }
    }

    pub(super) fn read(&self, path: &Path) -> Result<Vec<u8>, TreeError> {
        match self.entry(&self.resolve(path)?)? {
            Entry::File(bytes) => Ok(bytes.clone()),
            other => Err(TreeError::Found(other.state())),
        }
    }

    pub(super) fn make_block_device(&mut self, path: &Path, device: DeviceNumber) -> Result<(), TreeError> {
        match self.inspect(path)?.state {
            PathState::Missing => self.add(path, Entry::BlockDevice(device)),
            found => Err(TreeError::Found(found)),
        }
    }

    /// The number of entries of a directory, and the first one. `None` if it is empty or not a directory.
    pub(super) fn entries(&self, path: &Path) -> Option<(usize, OsString)> {
        let place = self.resolve(path).ok()?;
        let entries = &self.file_system(&place)?.entries;
        let below = entries.range::<Path, _>((Bound::Excluded(place.inner.as_path()), Bound::Unbounded));
        let mut below = below
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(&place.inner))
            .filter(|path| path.parent() == Some(place.inner.as_path()));
        let first = below.next()?.file_name()?.to_owned();
        Some((1 + below.take(RemoveError::MAX_COUNTED - 1).count(), first))
    }

    pub(super) fn destroy(&mut self, path: &Path) -> Result<(), TreeError> {
        let place = self.resolve(path)?;
        self.entry(&place)?;
        let at_or_below = self.mounts.values().any(|mount| mount.mount_point.starts_with(path));
        if at_or_below {
            return Err(TreeError::Errno(errno::EBUSY));
        }
        let entries = self.writable(&place)?;
        entries.retain(|found, _| !found.starts_with(&place.inner));
        Ok(())
    }

    pub(super) fn reboot(&mut self) {
        self.mounts.retain(|id, _| *id == ROOT);
        self.children.clear();
        self.table = None;
        self.file_systems.values_mut().for_each(|fs| fs.state = State::Alive);
    }

    /// Resolves a path through the mounts. The last component may be missing.
    fn resolve(&self, path: &Path) -> Result<Resolved, TreeError> {
        let mut place = Resolved { mount: ROOT, inner: PathBuf::from("/"), is_mount_root: true };
        let mut prefix = PathBuf::from("/");
        self.enter_topmost(&prefix, &mut place);
        let names = path.strip_prefix("/").map_err(|_| TreeError::Errno(errno::ENOENT))?;
        for name in names {
            if !matches!(self.entry(&place)?, Entry::Directory) {
                return Err(TreeError::Errno(errno::ENOTDIR));
            }
            prefix.push(name);
            place.inner.push(name);
            place.is_mount_root = false;
            self.enter_topmost(&prefix, &mut place);
        }
        Ok(place)
    }

    /// Enters the topmost mount at a path.
    fn enter_topmost(&self, prefix: &Path, place: &mut Resolved) {
        while let Some(&upper) = self.children.get(&(place.mount, prefix.to_owned())) {
            let Some(mount) = self.mounts.get(&upper) else { return };
            *place = Resolved { mount: upper, inner: mount.root.clone(), is_mount_root: true };
        }
    }

    fn file_system(&self, place: &Resolved) -> Option<&FileSystem> {
        self.file_systems.get(&self.mounts.get(&place.mount)?.device)
    }

    fn entry(&self, place: &Resolved) -> Result<&Entry, TreeError> {
        let fs = self.file_system(place).ok_or(TreeError::NotMounted)?;
        match fs.state {
            State::Alive => fs.entries.get(&place.inner).ok_or(TreeError::Errno(errno::ENOENT)),
            State::Dead(errno) => Err(TreeError::Found(PathState::Dead { errno })),
            State::Hung => Err(TreeError::Hung),
        }
    }

    fn add(&mut self, path: &Path, entry: Entry) -> Result<(), TreeError> {
        let place = self.resolve(path)?;
        self.writable(&place)?.insert(place.inner, entry);
        Ok(())
    }

    /// The entries of a writable file system.
    fn writable(&mut self, place: &Resolved) -> Result<&mut BTreeMap<PathBuf, Entry>, TreeError> {
        let mount = self.mounts.get(&place.mount).ok_or(TreeError::NotMounted)?;
        if mount.is_read_only() {
            return Err(TreeError::Errno(errno::EROFS));
        }
        let fs = self.file_systems.get_mut(&mount.device).ok_or(TreeError::NotMounted)?;
        Ok(&mut fs.entries)
    }

    fn attach(&mut self, on: MountId, device: DeviceNumber, root: &Path, target: &Path, ro: bool) -> MountId {
        let id = MountId::new(self.next_id);
        self.next_id += 1;
        let mount = self.describe(id, on, device, root, target, ro);
        self.mounts.insert(id, mount);
        self.children.insert((on, target.to_owned()), id);
        self.table = None;
        id
    }

    fn drop_mount(&mut self, id: MountId) {
        let mut removed = vec![id];
        while let Some(id) = removed.pop() {
            removed.extend(self.mounts.values().filter(|mount| mount.parent == id).map(|mount| mount.id));
            if let Some(mount) = self.mounts.remove(&id) {
                self.children.remove(&(mount.parent, mount.mount_point));
            }
        }
        self.table = None;
    }

    fn describe(
        &self,
        id: MountId,
        on: MountId,
        device: DeviceNumber,
        root: &Path,
        target: &Path,
        ro: bool,
    ) -> Mount {
        let fs = self.file_systems.get(&device);
        Mount {
            id,
            parent: on,
            device,
            root: root.to_owned(),
            mount_point: target.to_owned(),
            options: if ro { "ro,relatime" } else { "rw,relatime" }.into(),
            peer_group: None,
            master_group: None,
            fs_type: fs.map(|fs| fs.fs_type.clone().into()).unwrap_or_default(),
            source: fs.map(|fs| fs.source.clone().into()).unwrap_or_default(),
            fs_options: "rw".into(),
        }
    }
}

impl FileSystem {
    fn new(fs_type: &str, source: &str) -> Self {
        let entries = BTreeMap::from([(PathBuf::from("/"), Entry::Directory)]);
        Self { fs_type: fs_type.to_owned(), source: source.to_owned(), state: State::Alive, entries }
    }
}

impl Entry {
    fn state(&self) -> PathState {
        match self {
            Self::Directory => PathState::Directory,
            Self::File(bytes) => {
                PathState::RegularFile { size: u64::try_from(bytes.len()).unwrap_or(u64::MAX) }
            }
            Self::BlockDevice(device) => PathState::BlockDevice(*device),
        }
    }
}
