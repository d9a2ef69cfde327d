//! The directories and mounts of a node, as data.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::MemoryFileSystem;
use crate::mounts::{DeviceNumber, Inspection, Mount, MountId, MountTable, Presence, RemoveError, Trouble};

/// The numbers of the errors that are told, as on Linux on all its architectures but MIPS, Alpha, PA-RISC and SPARC.
mod errno {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EROFS: i32 = 30;
    pub(super) const ETIMEDOUT: i32 = 110;

    /// Those by which a mount counts as dead: ENOTCONN, ESTALE, ECONNABORTED, ESHUTDOWN.
    pub(super) const DEAD: [i32; 4] = [107, 116, 103, 108];
}

/// Why the tree refuses.
#[derive(Debug)]
pub(super) enum Refusal {
    /// As the system says it.
    Errno(i32),
    /// The way hangs.
    Hung,
    /// Something else is there.
    Found(Presence),
    /// No mount is there.
    NotMounted,
}

impl Refusal {
    pub(super) fn into_io(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Self::Errno(errno) => errno,
            Self::Hung => errno::ETIMEDOUT,
            Self::Found(Presence::Dead { errno }) => errno,
            Self::Found(_) => errno::EEXIST,
            Self::NotMounted => errno::EINVAL,
        })
    }

    pub(super) fn at(self, path: &Path) -> Trouble {
        match self {
            Self::Hung => Trouble::Hung { path: path.to_owned() },
            other => Trouble::Io { path: path.to_owned(), source: other.into_io() },
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
    /// By the path within the file system; `/` is always there.
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug)]
pub(super) struct Tree {
    file_systems: HashMap<DeviceNumber, FileSystem>,
    mounts: BTreeMap<MountId, Mount>,
    /// What is mounted on a mount at a path.
    upon: HashMap<(MountId, PathBuf), MountId>,
    next_id: u64,
    next_minor: u32,
    table: Option<Arc<MountTable>>,
}

/// The mount that everything begins with, on the disk of the node.
const ROOT: MountId = MountId::new(1);
const ROOT_DEVICE: DeviceNumber = DeviceNumber { major: 254, minor: 0 };
const DISK: u32 = 8;

/// A path, followed: the mount that it ends in, and where in that mount's file system.
struct Place {
    mount: MountId,
    inner: PathBuf,
    is_mount_root: bool,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self {
            file_systems: HashMap::new(),
            mounts: BTreeMap::new(),
            upon: HashMap::new(),
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

    pub(super) fn inspect(&self, path: &Path) -> Result<Inspection, Refusal> {
        let place = match self.follow(path) {
            Ok(place) => place,
            Err(Refusal::Errno(errno::ENOENT)) => return Ok(Inspection::of(Presence::Missing)),
            Err(Refusal::Hung) => return Ok(Inspection::of(Presence::Hung)),
            // What is dead on the way says nothing of what is at the path.
            Err(Refusal::Found(Presence::Dead { errno })) => return Err(Refusal::Errno(errno)),
            Err(other) => return Err(other),
        };
        let presence = match self.entry(&place) {
            Ok(entry) => entry.presence(),
            Err(Refusal::Errno(errno::ENOENT)) => Presence::Missing,
            Err(Refusal::Hung) => return Ok(Inspection::of(Presence::Hung)),
            Err(Refusal::Found(dead @ Presence::Dead { errno })) => {
                if !place.is_mount_root || !errno::DEAD.contains(&errno) {
                    return Err(Refusal::Errno(errno));
                }
                dead
            }
            Err(other) => return Err(other),
        };
        let mount = place.is_mount_root.then_some(place.mount);
        Ok(Inspection { presence, mount })
    }

    pub(super) fn mount(
        &mut self,
        fs: MemoryFileSystem,
        target: &Path,
        ro: bool,
    ) -> Result<MountId, Refusal> {
        let place = self.follow(target)?;
        // What is covered is not looked into, and so may be dead.
        if !place.is_mount_root && !matches!(self.entry(&place)?, Entry::Directory) {
            return Err(Refusal::Errno(errno::ENOTDIR));
        }
        Ok(self.attach(place.mount, fs.0, Path::new("/"), target, ro))
    }

    pub(super) fn bind(&mut self, source: &Path, target: &Path, ro: bool) -> Result<MountId, Refusal> {
        let (from, to) = (self.follow(source)?, self.follow(target)?);
        let is_directory = |place: &Place| Ok(matches!(self.entry(place)?, Entry::Directory));
        if is_directory(&from)? != is_directory(&to)? {
            return Err(Refusal::Errno(errno::ENOTDIR));
        }
        let original = self.mounts.get(&from.mount).ok_or(Refusal::NotMounted)?;
        let (device, ro) = (original.device, ro || original.is_read_only());
        Ok(self.attach(to.mount, device, &from.inner, target, ro))
    }

    pub(super) fn detach(&mut self, path: &Path) -> Result<(), Refusal> {
        let place = self.follow(path)?;
        if !place.is_mount_root {
            return Err(Refusal::NotMounted);
        }
        if place.mount == ROOT {
            return Err(Refusal::Errno(errno::EBUSY));
        }
        self.drop_mount(place.mount);
        Ok(())
    }

    pub(super) fn create_directory(&mut self, path: &Path) -> Result<(), Refusal> {
        match self.inspect(path)?.presence {
            Presence::Missing => {}
            Presence::Directory => return Ok(()),
            Presence::Hung => return Err(Refusal::Hung),
            found => return Err(Refusal::Found(found)),
        }
        if let Some(parent) = path.parent() {
            self.create_directory(parent)?;
        }
        self.add(path, Entry::Directory)
    }

    pub(super) fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<(), Refusal> {
        match self.inspect(path)?.presence {
            Presence::Missing | Presence::RegularFile { .. } => self.add(path, Entry::File(bytes.to_vec())),
            Presence::Hung => Err(Refusal::Hung),
            found => Err(Refusal::Found(found)),
        }
    }

    pub(super) fn read(&self, path: &Path) -> Result<Vec<u8>, Refusal> {
        match self.entry(&self.follow(path)?)? {
            Entry::File(bytes) => Ok(bytes.clone()),
            other => Err(Refusal::Found(other.presence())),
        }
    }

    pub(super) fn make_block_device(&mut self, path: &Path, device: DeviceNumber) -> Result<(), Refusal> {
        match self.inspect(path)?.presence {
            Presence::Missing => self.add(path, Entry::BlockDevice(device)),
            found => Err(Refusal::Found(found)),
        }
    }

    /// How many entries a directory has, and the first. `None` if there are none or it is no directory.
    pub(super) fn entries(&self, path: &Path) -> Option<(usize, OsString)> {
        let place = self.follow(path).ok()?;
        let entries = &self.file_system(&place)?.entries;
        let below = entries.range::<Path, _>((Bound::Excluded(place.inner.as_path()), Bound::Unbounded));
        let mut below = below
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(&place.inner))
            .filter(|path| path.parent() == Some(place.inner.as_path()));
        let first = below.next()?.file_name()?.to_owned();
        Some((1 + below.take(RemoveError::MAX_COUNTED - 1).count(), first))
    }

    pub(super) fn destroy(&mut self, path: &Path) -> Result<(), Refusal> {
        let place = self.follow(path)?;
        self.entry(&place)?;
        let at_or_below = self.mounts.values().any(|mount| mount.mount_point.starts_with(path));
        if at_or_below {
            return Err(Refusal::Errno(errno::EBUSY));
        }
        let entries = self.writable(&place)?;
        entries.retain(|found, _| !found.starts_with(&place.inner));
        Ok(())
    }

    pub(super) fn reboot(&mut self) {
        self.mounts.retain(|id, _| *id == ROOT);
        self.upon.clear();
        self.table = None;
        self.file_systems.values_mut().for_each(|fs| fs.state = State::Alive);
    }

    /// Follows a path through the mounts. Its last part need not be there.
    fn follow(&self, path: &Path) -> Result<Place, Refusal> {
        let mut place = Place { mount: ROOT, inner: PathBuf::from("/"), is_mount_root: true };
        let mut prefix = PathBuf::from("/");
        self.climb(&prefix, &mut place);
        let names = path.strip_prefix("/").map_err(|_| Refusal::Errno(errno::ENOENT))?;
        for name in names {
            if !matches!(self.entry(&place)?, Entry::Directory) {
                return Err(Refusal::Errno(errno::ENOTDIR));
            }
            prefix.push(name);
            place.inner.push(name);
            place.is_mount_root = false;
            self.climb(&prefix, &mut place);
        }
        Ok(place)
    }

    /// To the topmost of the mounts that lie at a place.
    fn climb(&self, prefix: &Path, place: &mut Place) {
        while let Some(&upper) = self.upon.get(&(place.mount, prefix.to_owned())) {
            let Some(mount) = self.mounts.get(&upper) else { return };
            *place = Place { mount: upper, inner: mount.root.clone(), is_mount_root: true };
        }
    }

    fn file_system(&self, place: &Place) -> Option<&FileSystem> {
        self.file_systems.get(&self.mounts.get(&place.mount)?.device)
    }

    fn entry(&self, place: &Place) -> Result<&Entry, Refusal> {
        let fs = self.file_system(place).ok_or(Refusal::NotMounted)?;
        match fs.state {
            State::Alive => fs.entries.get(&place.inner).ok_or(Refusal::Errno(errno::ENOENT)),
            State::Dead(errno) => Err(Refusal::Found(Presence::Dead { errno })),
            State::Hung => Err(Refusal::Hung),
        }
    }

    fn add(&mut self, path: &Path, entry: Entry) -> Result<(), Refusal> {
        let place = self.follow(path)?;
        self.writable(&place)?.insert(place.inner, entry);
        Ok(())
    }

    /// The entries of the file system of a place, to be changed there.
    fn writable(&mut self, place: &Place) -> Result<&mut BTreeMap<PathBuf, Entry>, Refusal> {
        let mount = self.mounts.get(&place.mount).ok_or(Refusal::NotMounted)?;
        if mount.is_read_only() {
            return Err(Refusal::Errno(errno::EROFS));
        }
        let fs = self.file_systems.get_mut(&mount.device).ok_or(Refusal::NotMounted)?;
        Ok(&mut fs.entries)
    }

    fn attach(&mut self, on: MountId, device: DeviceNumber, root: &Path, target: &Path, ro: bool) -> MountId {
        let id = MountId::new(self.next_id);
        self.next_id += 1;
        let mount = self.describe(id, on, device, root, target, ro);
        self.mounts.insert(id, mount);
        self.upon.insert((on, target.to_owned()), id);
        self.table = None;
        id
    }

    fn drop_mount(&mut self, id: MountId) {
        let mut doomed = vec![id];
        while let Some(id) = doomed.pop() {
            doomed.extend(self.mounts.values().filter(|mount| mount.parent == id).map(|mount| mount.id));
            if let Some(mount) = self.mounts.remove(&id) {
                self.upon.remove(&(mount.parent, mount.mount_point));
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
    fn presence(&self) -> Presence {
        match self {
            Self::Directory => Presence::Directory,
            Self::File(bytes) => {
                Presence::RegularFile { size: u64::try_from(bytes.len()).unwrap_or(u64::MAX) }
            }
            Self::BlockDevice(device) => Presence::BlockDevice(*device),
        }
    }
}
