//! Mounts in memory, for tests of who embeds this crate.

mod tree;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;
use tree::{Refusal, Tree};

use crate::mounts::{
    CreateError, DeviceNumber, Inspection, MountChanges, MountId, MountPath, MountTable, Mounts, Presence,
    RemoveError, Removed, SafeRemoval, TableError, Trouble,
};

/// A node's directories and mounts, in memory. Clones are the same node.
///
/// It behaves as Linux does in what the trait is about: mounts stack and hide what is below them, a bind shows a part of a
/// file system, a file system outlives its mounts, and dead or hanging file systems are noticed only by who looks into
/// them. It has no links on the way to a path, no permissions, no spreading
/// of mounts between directories, and everything happens at once.
///
/// Besides the trait there is what a driver, a user, or a failure does: those functions do what they are told, without
/// the care of the trait's.
#[derive(Debug, Clone)]
pub struct MemoryMounts {
    tree: Arc<Mutex<Tree>>,
    changes: Arc<watch::Sender<u64>>,
}

/// A file system of a [`MemoryMounts`], mounted or not. Its files stay when it is unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryFileSystem(pub(super) DeviceNumber);

impl MemoryFileSystem {
    /// The number by which the mount table has it.
    #[must_use]
    pub fn device(self) -> DeviceNumber {
        self.0
    }
}

impl Default for MemoryMounts {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryMounts {
    /// A node with an empty root directory and nothing else mounted.
    #[must_use]
    pub fn new() -> Self {
        Self { tree: Arc::new(Mutex::new(Tree::new())), changes: Arc::new(watch::Sender::new(0)) }
    }

    /// A new file system, empty and mounted nowhere. An anonymous one is a share or FUSE; the others are on a disk.
    pub fn file_system(&self, fs_type: &str, source: &str, anonymous: bool) -> MemoryFileSystem {
        self.tree().add_file_system(fs_type, source, anonymous)
    }

    /// Mounts a file system at a directory, as a driver does: also on top of another mount.
    ///
    /// # Errors
    /// If there is no directory, or the way to it is dead or hangs.
    pub fn mount(&self, fs: MemoryFileSystem, target: &Path, read_only: bool) -> io::Result<MountId> {
        self.changing(|tree| tree.mount(fs, target, read_only)).map_err(Refusal::into_io)
    }

    /// Binds, as a driver does: also on top of another mount.
    ///
    /// # Errors
    /// If source or target are missing or of different kinds, or the way to one is dead or hangs.
    pub fn bind_over(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<MountId> {
        self.changing(|tree| tree.bind(source, target, read_only)).map_err(Refusal::into_io)
    }

    /// Takes the topmost mount from a path, in use or not, as `umount -l` does. Whether there was one.
    pub fn detach(&self, path: &Path) -> bool {
        self.changing(|tree| tree.detach(path)).is_ok()
    }

    /// Makes a directory and those on the way to it.
    ///
    /// # Errors
    /// If something else is on the way, or the way is dead or hangs.
    pub fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.tree().create_directory(path).map_err(Refusal::into_io)
    }

    /// Makes or overwrites a file, as a user does.
    ///
    /// # Errors
    /// If its directory is missing, something else is there, or the way is dead, hangs, or can be only read.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.tree().write(path, bytes).map_err(Refusal::into_io)
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// If there is no file, or the way to it is dead or hangs.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.tree().read(path).map_err(Refusal::into_io)
    }

    /// Makes a block device in place of nothing.
    ///
    /// # Errors
    /// If something is there, its directory is missing, or the way to it is dead or hangs.
    pub fn make_block_device(&self, path: &Path, device: DeviceNumber) -> io::Result<()> {
        self.tree().make_block_device(path, device).map_err(Refusal::into_io)
    }

    /// Removes an entry with all below it, as a bad script does. What is mounted there is not touched.
    ///
    /// # Errors
    /// If it is missing or a mount is on it.
    pub fn destroy(&self, path: &Path) -> io::Result<()> {
        self.tree().destroy(path).map_err(Refusal::into_io)
    }

    /// From now on what looks into the file system gets this error, as when its server was killed (107, ENOTCONN). An
    /// error that may pass, as 5 (EIO), fails an inspection and does not make the mount count as dead.
    pub fn kill(&self, fs: MemoryFileSystem, errno: i32) {
        self.tree().set_state(fs, tree::State::Dead(errno));
    }

    /// From now on what looks into the file system hangs, as when its server is cut off.
    pub fn hang(&self, fs: MemoryFileSystem) {
        self.tree().set_state(fs, tree::State::Hung);
    }

    /// The file system answers again.
    pub fn revive(&self, fs: MemoryFileSystem) {
        self.tree().set_state(fs, tree::State::Alive);
    }

    /// What a power cut leaves: no mounts but the root, all file systems with their files, alive.
    pub fn reboot(&self) {
        let _: Result<(), Refusal> = self.changing(|tree| {
            tree.reboot();
            Ok(())
        });
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        // Every change of the tree is whole before anything in it could panic.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing<T>(&self, change: impl FnOnce(&mut Tree) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let done = change(&mut self.tree());
        if done.is_ok() {
            self.changes.send_modify(|count| *count += 1);
        }
        done
    }
}

#[async_trait]
impl Mounts for MemoryMounts {
    async fn table(&self) -> Result<Arc<MountTable>, TableError> {
        Ok(self.tree().table())
    }

    async fn inspect(&self, path: &Path) -> Result<Inspection, Trouble> {
        self.tree().inspect(path).map_err(|refusal| refusal.at(path))
    }

    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError> {
        let path = path.as_path();
        self.tree().create_directory(path).map_err(|refusal| match refusal {
            Refusal::Found(found) => CreateError::Occupied { path: path.to_owned(), found },
            other => CreateError::Trouble(other.at(path)),
        })
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        let path = removal.path().as_path();
        let mut tree = self.tree();
        let inspection = tree.inspect(path).map_err(|refusal| refusal.at(path))?;
        if inspection.mount.is_some() {
            return Err(RemoveError::Mounted { path: path.to_owned() });
        }
        if inspection.presence == Presence::Hung {
            return Err(Trouble::Hung { path: path.to_owned() }.into());
        }
        if !SafeRemoval::admits(inspection.presence) {
            return removal.refused(inspection.presence);
        }
        if let Some((count, first)) = tree.entries(path) {
            return Err(RemoveError::NotEmpty { path: path.to_owned(), count, first });
        }
        tree.destroy(path).map_err(|refusal| RemoveError::Trouble(refusal.at(path)))?;
        Ok(Removed::Removed)
    }

    fn changes(&self) -> io::Result<Box<dyn MountChanges>> {
        Ok(Box::new(MemoryChanges(self.changes.subscribe())))
    }
}

struct MemoryChanges(watch::Receiver<u64>);

#[async_trait]
impl MountChanges for MemoryChanges {
    async fn changed(&mut self) -> io::Result<()> {
        self.0.changed().await.map_err(io::Error::other)
    }
}
