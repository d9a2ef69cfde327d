//! In-memory mounts, for tests of this crate and of its embedders.

mod tree;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;
use tree::{Tree, TreeError};

use crate::mounts::{
    CreateError, DeviceNumber, Inspection, MountChanges, MountId, MountPath, MountTable, Mounts, PathState,
    ProbeError, RemoveError, Removed, SafeRemoval, TableError,
};

/// The directories and mounts of a node, in memory. Clones share the node.
///
/// It behaves as Linux as far as the trait is concerned: mounts stack and hide what is below them, a bind mount shows a part of
/// a file system, a file system outlives its mounts, and a dead or hanging file system is noticed only by an access to it. It
/// has no symbolic links, permissions or mount propagation, and every change is immediate.
///
/// The methods besides the trait are the actions of drivers, users and failures, without the trait's safety checks.
#[derive(Debug, Clone)]
pub struct MemoryMounts {
    tree: Arc<Mutex<Tree>>,
    changes: Arc<watch::Sender<u64>>,
}

/// A file system of [`MemoryMounts`], mounted or not. Its files survive an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryFileSystem(pub(super) DeviceNumber);

impl MemoryFileSystem {
    /// The device number in the mount table.
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
    /// Creates a node with an empty root file system.
    #[must_use]
    pub fn new() -> Self {
        Self { tree: Arc::new(Mutex::new(Tree::new())), changes: Arc::new(watch::Sender::new(0)) }
    }

    /// Creates an empty, unmounted file system. Anonymous ones are network shares or FUSE; the others are on a disk.
    pub fn file_system(&self, fs_type: &str, source: &str, anonymous: bool) -> MemoryFileSystem {
        self.tree().add_file_system(fs_type, source, anonymous)
    }

    /// Mounts a file system on a directory, also on top of another mount.
    ///
    /// # Errors
    /// If the directory does not exist, or the path to it is dead or hangs.
    pub fn mount(&self, fs: MemoryFileSystem, target: &Path, read_only: bool) -> io::Result<MountId> {
        self.change(|tree| tree.mount(fs, target, read_only)).map_err(TreeError::into_io)
    }

    /// Creates a bind mount, also on top of another mount.
    ///
    /// # Errors
    /// If source or target are missing or of different types, or the path to one of them is dead or hangs.
    pub fn bind_over(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<MountId> {
        self.change(|tree| tree.bind(source, target, read_only)).map_err(TreeError::into_io)
    }

    /// Detaches the topmost mount of a path, busy or not, as `umount -l` does. Returns whether there was one.
    pub fn detach(&self, path: &Path) -> bool {
        self.change(|tree| tree.detach(path)).is_ok()
    }

    /// Creates a directory and its parents.
    ///
    /// # Errors
    /// If a component is not a directory, or the path is dead or hangs.
    pub fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.tree().create_directory(path).map_err(TreeError::into_io)
    }

    /// Creates or overwrites a file.
    ///
    /// # Errors
    /// If the parent directory is missing, the path is not a file, or the path is dead, hangs, or is read-only.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.tree().write(path, bytes).map_err(TreeError::into_io)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file does not exist, or the path to it is dead or hangs.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.tree().read(path).map_err(TreeError::into_io)
    }

    /// Creates a block device.
    ///
    /// # Errors
    /// If the path exists, the parent directory is missing, or the path is dead or hangs.
    pub fn make_block_device(&self, path: &Path, device: DeviceNumber) -> io::Result<()> {
        self.tree().make_block_device(path, device).map_err(TreeError::into_io)
    }

    /// Removes an entry recursively, as a faulty script does. Fails on mounts.
    ///
    /// # Errors
    /// If the entry is missing, or a mount is at or below it.
    pub fn destroy(&self, path: &Path) -> io::Result<()> {
        self.tree().destroy(path).map_err(TreeError::into_io)
    }

    /// Makes accesses to the file system fail with an errno, as when its server was killed (107, ENOTCONN). A temporary error,
    /// such as 5 (EIO), fails an inspection without making the mount dead.
    pub fn kill(&self, fs: MemoryFileSystem, errno: i32) {
        self.tree().set_state(fs, tree::State::Dead(errno));
    }

    /// Makes accesses to the file system hang, as when its server is unreachable.
    pub fn hang(&self, fs: MemoryFileSystem) {
        self.tree().set_state(fs, tree::State::Hung);
    }

    /// Makes the file system answer again.
    pub fn revive(&self, fs: MemoryFileSystem) {
        self.tree().set_state(fs, tree::State::Alive);
    }

    /// Reboots the node: only the root remains mounted; all file systems keep their files, and answer.
    pub fn reboot(&self) {
        let _: Result<(), TreeError> = self.change(|tree| {
            tree.reboot();
            Ok(())
        });
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        // A panic cannot leave the tree inconsistent.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Tree) -> Result<T, TreeError>) -> Result<T, TreeError> {
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

    async fn inspect(&self, path: &Path) -> Result<Inspection, ProbeError> {
        self.tree().inspect(path).map_err(|error| error.at(path))
    }

    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError> {
        let path = path.as_path();
        self.tree().create_directory(path).map_err(|error| match error {
            TreeError::Found(found) => CreateError::Occupied { path: path.to_owned(), found },
            other => CreateError::Probe(other.at(path)),
        })
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        let path = removal.path().as_path();
        let mut tree = self.tree();
        let inspection = tree.inspect(path).map_err(|error| error.at(path))?;
        if inspection.mount.is_some() {
            return Err(RemoveError::Mounted { path: path.to_owned() });
        }
        if inspection.state == PathState::Hung {
            return Err(ProbeError::Hung { path: path.to_owned() }.into());
        }
        if !SafeRemoval::is_removable(inspection.state) {
            return removal.reject(inspection.state);
        }
        if let Some((count, first)) = tree.entries(path) {
            return Err(RemoveError::NotEmpty { path: path.to_owned(), count, first });
        }
        tree.destroy(path).map_err(|error| RemoveError::Probe(error.at(path)))?;
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
