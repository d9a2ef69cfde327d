//! The data of volumes and snapshots: a folder for each below the state directory, with a tree or an image in it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfs, statvfs, syncfs};
use volume_manager::mounts::linux::read_table;

use super::error::CallError;
use super::identifier::ResourceId;
use super::volume::VolumeKind;
use super::{command, sparse};
use edge_csi_common::state::{PathError, failed};

// Any user of a pod may write to a directory volume, as with other drivers of this kind; the parent folders are closed.
const TREE_MODE: u32 = 0o777;

/// The folder of all data. It writes and removes only inside of the folder.
#[derive(Debug)]
pub struct DataFolder {
    root: PathBuf,
}

impl DataFolder {
    /// Creates the folder below `state_dir` if it is missing. Only its owner has access.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    pub fn open(state_dir: &Path) -> Result<Self, PathError> {
        let root = state_dir.join("data");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&root);
        made.map_err(failed("make folder", &root))?;
        // Mounts are identified by the kernel's canonical paths.
        let root = root.canonicalize().map_err(failed("resolve", &root))?;
        Ok(Self { root })
    }

    /// Returns the folder of one volume or snapshot.
    pub fn folder(&self, id: &ResourceId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Returns the path of the tree or image of one volume or snapshot.
    pub fn content(&self, id: &ResourceId, kind: VolumeKind) -> PathBuf {
        self.folder(id).join(match kind {
            VolumeKind::Directory => "tree",
            VolumeKind::Loop => "disk.img",
        })
    }

    /// Creates an empty tree, or a sparse image of this size.
    ///
    /// # Errors
    /// Returns the errors of the filesystem, also if the content already exists.
    pub fn create(&self, id: &ResourceId, kind: VolumeKind, bytes: u64) -> Result<(), PathError> {
        let content = self.prepare(id, kind)?;
        match kind {
            VolumeKind::Directory => make_tree(&content),
            VolumeKind::Loop => sparse::create(&content, bytes).map_err(failed("make", &content)),
        }?;
        self.sync_names(id)
    }

    /// Copies a tree or an image.
    ///
    /// # Errors
    /// Returns the errors of the filesystem or of the copying tool.
    pub fn copy(
        &self,
        from: &ResourceId,
        to: &ResourceId,
        kind: VolumeKind,
        bytes: u64,
    ) -> Result<(), CallError> {
        let source = self.content(from, kind);
        let target = self.prepare(to, kind)?;
        match kind {
            VolumeKind::Directory => {
                make_tree(&target)?;
                copy_tree(&source, &target)?;
            }
            VolumeKind::Loop => sparse::copy(&source, &target, bytes).map_err(failed("copy to", &target))?,
        }
        Ok(self.sync_names(to)?)
    }

    /// Grows an image to at least this size. A tree has no size.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    pub fn grow(&self, id: &ResourceId, kind: VolumeKind, bytes: u64) -> Result<(), PathError> {
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

    /// Removes the folder of one volume or snapshot. A missing folder is a success.
    ///
    /// # Errors
    /// Returns [`CallError::Precondition`] if something is mounted there, otherwise the errors of the removing tool.
    pub fn remove(&self, id: &ResourceId) -> Result<(), CallError> {
        self.refuse_if_mounted(id)?;
        // The content is untrusted: the tool follows no link, crosses no mount, and handles any depth.
        let folder = self.folder(id);
        let arguments = ["-rf", "--one-file-system", "--", &folder.to_string_lossy()];
        command::run("rm", &arguments, command::LONG)?;
        Ok(self.sync_root()?)
    }

    /// Fails while something is mounted in the folder of the volume or snapshot.
    ///
    /// # Errors
    /// Returns [`CallError::Precondition`] in that case, or the errors of the mount table.
    pub fn refuse_if_mounted(&self, id: &ResourceId) -> Result<(), CallError> {
        let path = self.folder(id);
        match read_table()?.within(&path).next() {
            Some(mount) => Err(CallError::Precondition {
                subject: path.display().to_string(),
                state: format!("has {} mounted in it", mount.mount_point.display()),
                fix: "unmount it first",
            }),
            None => Ok(()),
        }
    }

    /// Returns true if the tree or the image exists.
    pub fn exists(&self, id: &ResourceId, kind: VolumeKind) -> bool {
        fs::symlink_metadata(self.content(id, kind)).is_ok_and(|found| match kind {
            VolumeKind::Directory => found.is_dir(),
            VolumeKind::Loop => found.is_file(),
        })
    }

    /// Returns the statistics of the filesystem that holds all data.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    pub fn statistics(&self) -> Result<StatVfs, PathError> {
        statvfs(&self.root).map_err(|errno| failed("ask for the space of", &self.root)(errno.into()))
    }

    fn prepare(&self, id: &ResourceId, kind: VolumeKind) -> Result<PathBuf, PathError> {
        let folder = self.folder(id);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed("make folder", &folder))?;
        Ok(self.content(id, kind))
    }

    fn sync_names(&self, id: &ResourceId) -> Result<(), PathError> {
        let folder = self.folder(id);
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", &folder))?;
        self.sync_root()
    }

    fn sync_root(&self) -> Result<(), PathError> {
        File::open(&self.root).and_then(|root| root.sync_all()).map_err(failed("sync", &self.root))
    }
}

fn make_tree(path: &Path) -> Result<(), PathError> {
    // A umask would reduce the mode of the creation, so the mode is set separately.
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, PermissionsExt::from_mode(TREE_MODE)))
        .map_err(failed("make", path))
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), CallError> {
    let (source, target) = (format!("{}/.", from.display()), to.to_string_lossy());
    let arguments = ["-a", "--reflink=auto", "--sparse=auto", "--one-file-system", "--", &source, &target];
    command::run("cp", &arguments, command::LONG)?;
    let sync = || Ok(syncfs(File::open(to)?)?);
    Ok(sync().map_err(failed("sync", to))?)
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
    fn links_go_and_what_they_point_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("precious"), "x").unwrap();
        let data = DataFolder::open(dir.path()).unwrap();
        data.create(&id("a"), VolumeKind::Directory, 0).unwrap();
        let tree = data.content(&id("a"), VolumeKind::Directory);
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        symlink(&kept, tree.join("a/link")).unwrap();
        symlink("..", tree.join("up")).unwrap();
        data.remove(&id("a")).unwrap();
        assert!(!data.folder(&id("a")).exists() && kept.join("precious").exists());

        symlink(&kept, data.folder(&id("b"))).unwrap();
        data.remove(&id("b")).unwrap();
        assert!(kept.join("precious").exists(), "a link in the place of the folder is not followed either");
    }

    #[test]
    fn removes_trees_deeper_than_the_descriptor_limit() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataFolder::open(dir.path()).unwrap();
        data.create(&id("a"), VolumeKind::Directory, 0).unwrap();
        let deep = data.content(&id("a"), VolumeKind::Directory).join(["d"; 400].join("/"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "x").unwrap();
        data.remove(&id("a")).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("data")).unwrap().count(), 0);
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
        assert!(matches!(data.create(&id("a"), VolumeKind::Loop, 1), Err(PathError { .. })));
        assert!(data.exists(&id("a"), VolumeKind::Loop));
    }
}
