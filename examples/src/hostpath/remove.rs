//! Removing a tree of files that somebody else wrote: no symbolic link is followed, no mount is crossed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, renameat, unlinkat};
use rustix::io::Errno;

// Each level holds a file descriptor. What lies deeper is first moved up, so that a deep tree costs no more.
const MAX_DEPTH: usize = 32;

/// Removes the directory `name` in `parent` with all that is in it. One that is gone is fine.
///
/// # Errors
/// `EXDEV` if there is a mount inside, else what the filesystem says. What was removed by then is gone.
pub(super) fn remove_tree(parent: impl AsFd, name: &CStr) -> io::Result<()> {
    let parent = parent.as_fd();
    let mut names = Names { next: 0 };
    loop {
        let top = match open_below(parent, name) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(()),
            Err(other) => return Err(other.into()),
        };
        let before = names.next;
        empty(&top, &top, 0, &mut names)?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // Deep directories now lie at the top: another round takes them.
            Err(Errno::NOTEMPTY) if names.next > before => {}
            Err(Errno::NOENT) | Ok(()) => return Ok(()),
            Err(other) => return Err(other.into()),
        }
    }
}

/// Names for what is moved up, each used once.
struct Names {
    next: u64,
}

fn empty(top: &OwnedFd, folder: &OwnedFd, depth: usize, names: &mut Names) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            match unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                // The kind was not told by the listing.
                Err(Errno::ISDIR) => {}
                Err(other) => return Err(other.into()),
            }
        }
        if depth >= MAX_DEPTH {
            names.move_up(folder, name, top)?;
            continue;
        }
        let inner = open_below(folder, name)?;
        empty(top, &inner, depth + 1, names)?;
        unlinkat(folder, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

impl Names {
    fn move_up(&mut self, folder: &OwnedFd, name: &CStr, top: &OwnedFd) -> io::Result<()> {
        loop {
            self.next += 1;
            match renameat(folder, name, top, format!(".removing-{}", self.next).as_str()) {
                // A removal that was cut off has left this one.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                other => return Ok(other?),
            }
        }
    }
}

fn open_below(folder: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(folder, name, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn links_go_and_what_they_point_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("precious"), "x").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        symlink(&kept, tree.join("a/link")).unwrap();
        symlink("..", tree.join("up")).unwrap();
        remove_tree(File::open(dir.path()).unwrap(), c"tree").unwrap();
        assert!(!tree.exists() && kept.join("precious").exists());
        remove_tree(File::open(dir.path()).unwrap(), c"tree").unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_tree_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("kept")).unwrap();
        symlink("kept", dir.path().join("tree")).unwrap();
        assert!(remove_tree(File::open(dir.path()).unwrap(), c"tree").is_err());
        assert!(dir.path().join("kept").exists());
    }

    #[test]
    fn a_tree_deeper_than_any_descriptor_limit_goes_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut path = PathBuf::from(dir.path());
        path.push("tree");
        for _ in 0..400 {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        remove_tree(File::open(dir.path()).unwrap(), c"tree").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
