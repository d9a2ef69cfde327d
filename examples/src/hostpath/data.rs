//! The bytes of volumes and snapshots: a folder for each below the state directory, with a tree or an image in it.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfs, statvfs, syncfs};
use volume_manager::mounts::linux::read_table;

use super::command::{self, CommandError};
use super::identifier::ResourceId;
use super::mounts::MountError;
use super::volume::VolumeKind;
use super::{remove, sparse};

// Any user of a pod may write to a directory volume, as with other drivers of this kind; the folders above are closed.
const TREE_MODE: u32 = 0o777;

/// Why data could not be made, copied or removed.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The filesystem refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The copying tool failed.
    #[error("cannot copy {}: {source}", from.display())]
    Copy {
        /// What was to be copied.
        from: PathBuf,
        /// What the tool said.
        source: CommandError,
    },
    /// Something is mounted inside what is to be removed.
    #[error("{} is not removed: {} is mounted; unmount it first", path.display(), mounted.display())]
    Mounted {
        /// What was to be removed.
        path: PathBuf,
        /// Where the mount is.
        mounted: PathBuf,
    },
    /// The mount table cannot be read.
    #[error(transparent)]
    Mounts(#[from] MountError),
}

/// The folder of all data. Nothing outside of it is ever written or removed through it.
#[derive(Debug)]
pub struct DataFolder {
    root: PathBuf,
}

impl DataFolder {
    /// Makes the folder below `state_dir` if it is not there. Only its owner gets in.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn open(state_dir: &Path) -> Result<Self, DataError> {
        let root = state_dir.join("data");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&root);
        made.map_err(failed("make folder", &root))?;
        // Mounts are known by the paths that the kernel has for them.
        let root = root.canonicalize().map_err(failed("resolve", &root))?;
        Ok(Self { root })
    }

    /// The folder that holds everything of one volume or snapshot.
    pub fn folder(&self, id: &ResourceId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// The tree or the image of one volume or snapshot.
    pub fn content(&self, id: &ResourceId, kind: VolumeKind) -> PathBuf {
        self.folder(id).join(match kind {
            VolumeKind::Directory => "tree",
            VolumeKind::Loop => "disk.img",
        })
    }

    /// Makes an empty tree, or a sparse image of this size.
    ///
    /// # Errors
    /// Those of the filesystem, also if there is one already.
    pub fn create(&self, id: &ResourceId, kind: VolumeKind, bytes: u64) -> Result<(), DataError> {
        let content = self.prepare(id, kind)?;
        match kind {
            VolumeKind::Directory => make_tree(&content),
            VolumeKind::Loop => sparse::create(&content, bytes).map_err(failed("make", &content)),
        }?;
        self.sync_names(id)
    }

    /// Makes a tree or an image as a copy of another one.
    ///
    /// # Errors
    /// Those of the filesystem or of the copying tool.
    pub fn copy(
        &self,
        from: &ResourceId,
        to: &ResourceId,
        kind: VolumeKind,
        bytes: u64,
    ) -> Result<(), DataError> {
        let source = self.content(from, kind);
        let target = self.prepare(to, kind)?;
        match kind {
            VolumeKind::Directory => {
                make_tree(&target)?;
                copy_tree(&source, &target)?;
            }
            VolumeKind::Loop => sparse::copy(&source, &target, bytes).map_err(failed("copy to", &target))?,
        }
        self.sync_names(to)
    }

    /// Gives an image at least this size. A tree has none.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn grow(&self, id: &ResourceId, kind: VolumeKind, bytes: u64) -> Result<(), DataError> {
        if kind == VolumeKind::Directory {
            return Ok(());
        }
        let image = self.content(id, kind);
        let grow = || {
            let file = OpenOptions::new().write(true).open(&image)?;
            if file.metadata()?.len() < bytes {
                file.set_len(bytes)?;
                file.sync_all()?;
            }
            Ok(())
        };
        grow().map_err(failed("grow", &image))
    }

    /// Removes everything of one volume or snapshot. If there is nothing, that is fine.
    ///
    /// # Errors
    /// [`DataError::Mounted`] if something is mounted there, else those of the filesystem.
    pub fn remove(&self, id: &ResourceId) -> Result<(), DataError> {
        self.refuse_if_mounted(id)?;
        let path = self.folder(id);
        let remove = || {
            let root = File::open(&self.root)?;
            remove::remove_tree(&root, &CString::new(id.as_str())?)?;
            root.sync_all()
        };
        remove().map_err(failed("remove", &path))
    }

    /// Refuses to go on while something is mounted in the folder of one volume or snapshot.
    ///
    /// # Errors
    /// [`DataError::Mounted`] if so, else those of the mount table.
    pub fn refuse_if_mounted(&self, id: &ResourceId) -> Result<(), DataError> {
        let path = self.folder(id);
        let table = read_table().map_err(MountError::from)?;
        let mounted = table.within(&path).next().map(|mount| mount.mount_point.clone());
        match mounted {
            Some(mounted) => Err(DataError::Mounted { mounted, path }),
            None => Ok(()),
        }
    }

    /// Whether the tree or the image is there.
    pub fn exists(&self, id: &ResourceId, kind: VolumeKind) -> bool {
        fs::symlink_metadata(self.content(id, kind)).is_ok_and(|found| match kind {
            VolumeKind::Directory => found.is_dir(),
            VolumeKind::Loop => found.is_file(),
        })
    }

    /// The filesystem that holds all data.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn statistics(&self) -> Result<StatVfs, DataError> {
        statvfs(&self.root).map_err(|errno| failed("ask for the space of", &self.root)(errno.into()))
    }

    fn prepare(&self, id: &ResourceId, kind: VolumeKind) -> Result<PathBuf, DataError> {
        let folder = self.folder(id);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed("make folder", &folder))?;
        Ok(self.content(id, kind))
    }

    fn sync_names(&self, id: &ResourceId) -> Result<(), DataError> {
        let folder = self.folder(id);
        let sync = || {
            File::open(&folder)?.sync_all()?;
            File::open(&self.root)?.sync_all()
        };
        sync().map_err(failed("sync", &folder))
    }
}

fn make_tree(path: &Path) -> Result<(), DataError> {
    // The mode is set apart from the making, since a umask would take from it.
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, PermissionsExt::from_mode(TREE_MODE)))
        .map_err(failed("make", path))
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), DataError> {
    let (source, target) = (format!("{}/.", from.display()), to.to_string_lossy());
    let arguments = ["-a", "--reflink=auto", "--sparse=auto", "--one-file-system", "--", &source, &target];
    command::run("cp", &arguments, command::LONG)
        .map_err(|source| DataError::Copy { from: from.to_owned(), source })?;
    let sync = || Ok(syncfs(File::open(to)?)?);
    sync().map_err(failed("sync", to))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataError {
    let path = path.to_owned();
    move |source| DataError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn id(text: &str) -> ResourceId {
        ResourceId::parse(text).unwrap()
    }

    #[test]
    fn a_copied_tree_keeps_links_as_links() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataFolder::open(dir.path()).unwrap();
        data.create(&id("a"), VolumeKind::Directory, 0).unwrap();
        let tree = data.content(&id("a"), VolumeKind::Directory);
        fs::create_dir(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/.hidden"), "x").unwrap();
        symlink("/etc", tree.join("link")).unwrap();
        data.copy(&id("a"), &id("b"), VolumeKind::Directory, 0).unwrap();

        let copy = data.content(&id("b"), VolumeKind::Directory);
        assert_eq!(fs::read(copy.join("sub/.hidden")).unwrap(), b"x");
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("/etc"));
        data.remove(&id("b")).unwrap();
        data.remove(&id("b")).unwrap();
        assert!(
            !data.exists(&id("b"), VolumeKind::Directory) && data.exists(&id("a"), VolumeKind::Directory)
        );
    }

    #[test]
    fn an_image_grows_and_never_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataFolder::open(dir.path()).unwrap();
        data.create(&id("a"), VolumeKind::Loop, 4096).unwrap();
        for (asked, expected) in [(8192, 8192), (4096, 8192)] {
            data.grow(&id("a"), VolumeKind::Loop, asked).unwrap();
            assert_eq!(fs::metadata(data.content(&id("a"), VolumeKind::Loop)).unwrap().len(), expected);
        }
    }

    #[test]
    fn making_twice_is_an_error_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataFolder::open(dir.path()).unwrap();
        data.create(&id("a"), VolumeKind::Loop, 4096).unwrap();
        assert!(matches!(data.create(&id("a"), VolumeKind::Loop, 1), Err(DataError::Io { .. })));
        assert!(data.exists(&id("a"), VolumeKind::Loop));
    }
}
