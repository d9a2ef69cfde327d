use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::fs::{FileType, mkdirat, mknodat};
use tempfile::TempDir;

use super::*;

const GROUP: u32 = 4711;

const ALWAYS: FsGroup = FsGroup { group: GROUP, only_if_root_differs: false };

const ON_ROOT_MISMATCH: FsGroup = FsGroup { group: GROUP, only_if_root_differs: true };

/// Whether this process may change the owner of files; prints a line if not.
fn may_chown(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "{test}: not run, since giving files to a group needs root");
    }
    root
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::openat(CWD, path, READ, Mode::empty()).unwrap()
}

fn given(path: &Path, fs_group: FsGroup) -> Result<Applied, ApplyError> {
    apply(open(path), fs_group, || false)
}

/// Group and mode of all that is there, by path.
fn seen(path: &Path) -> BTreeMap<PathBuf, (u32, u32)> {
    let found = fs::symlink_metadata(path).unwrap();
    let mut all = BTreeMap::from([(path.to_owned(), (found.gid(), found.mode()))]);
    if found.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| all.extend(seen(&entry.unwrap().path())));
    }
    all
}

fn directory(path: PathBuf) -> PathBuf {
    DirBuilder::new().mode(0o755).create(&path).unwrap();
    path
}

fn file(path: PathBuf, mode: u32) -> PathBuf {
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// A volume in a directory of its own, so that what leads out of it leads no further than there.
struct Volume {
    path: PathBuf,
    _around: TempDir,
}

impl Volume {
    fn path(&self) -> &Path {
        &self.path
    }
}

/// A volume with a bit of everything.
fn volume() -> Volume {
    let around = tempfile::tempdir().unwrap();
    let volume = Volume { path: directory(around.path().join("volume")), _around: around };
    let sub = directory(volume.path().join("sub"));
    let deep = directory(sub.join("deep"));
    for at in [volume.path(), &sub, &deep] {
        file(at.join("private"), 0o600);
        file(at.join("program"), 0o755);
        file(at.join("privileged"), 0o6711);
    }
    mknodat(CWD, deep.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    volume
}

#[test]
fn applies_group_and_setgid_to_all_files() {
    if !may_chown("applies_group_and_setgid_to_all_files") {
        return;
    }
    let volume = volume();
    let before = seen(volume.path());
    let done = given(volume.path(), ALWAYS).unwrap();
    assert_eq!((done.seen, done.changed, done.failed), (13, 13, 0));
    for (path, (group, mode)) in seen(volume.path()) {
        let (_, was) = before[&path];
        let wanted = if path.is_dir() { was | 0o2770 } else { was | 0o660 };
        assert_eq!((group, mode), (GROUP, wanted), "{path:?} was {was:o} and is {mode:o}");
    }
    let again = given(volume.path(), ALWAYS).unwrap();
    assert_eq!((again.seen, again.changed), (13, 0));
    // What is new in a directory is the group's.
    let new = volume.path().join("sub/new");
    fs::write(&new, "x").unwrap();
    assert_eq!(fs::metadata(&new).unwrap().gid(), GROUP);
}

#[test]
fn does_not_follow_links() {
    if !may_chown("does_not_follow_links") {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let secret = file(outside.path().join("secret"), 0o600);
    let directory = directory(outside.path().join("directory"));
    file(directory.join("inner"), 0o600);
    let before = seen(outside.path());
    let volume = volume();
    for (name, target) in [("to-file", &secret), ("to-directory", &directory)] {
        symlink(target, volume.path().join(name)).unwrap();
        symlink(target, volume.path().join("sub").join(name)).unwrap();
    }
    symlink("..", volume.path().join("up")).unwrap();
    symlink("loop", volume.path().join("loop")).unwrap();
    let done = given(volume.path(), ALWAYS).unwrap();
    assert_eq!(done.failed, 0, "{done:?}");
    assert_eq!(seen(outside.path()), before);
    assert_eq!(
        seen(volume.path())[&volume.path().join("to-file")].0,
        GROUP,
        "the link itself is the group's"
    );
    // Nor is the volume's own place one.
    let to_volume = outside.path().join("to-volume");
    symlink(volume.path(), &to_volume).unwrap();
    let error = apply_at(&to_volume, ALWAYS, || false).unwrap_err();
    assert!(matches!(error, ApplyError::Root(Errno::LOOP | Errno::NOTDIR)), "{error:?}");
}

/// Exchanges a directory of the volume for a link to the outside at each step of a walk, and back.
#[test]
fn does_not_follow_a_directory_replaced_by_a_link() {
    if !may_chown("does_not_follow_a_directory_replaced_by_a_link") {
        return;
    }
    for at in 0..20 {
        let outside = tempfile::tempdir().unwrap();
        file(outside.path().join("private"), 0o600);
        let before = seen(outside.path());
        let volume = volume();
        let (sub, kept) = (volume.path().join("sub"), volume.path().join("kept"));
        let mut step = 0;
        let done = apply(open(volume.path()), ALWAYS, || {
            if step == at {
                fs::rename(&sub, &kept).unwrap();
                symlink(outside.path(), &sub).unwrap();
            }
            step += 1;
            false
        });
        assert!(done.is_ok(), "{at}: {done:?}");
        assert_eq!(seen(outside.path()), before, "{at}");
    }
}

#[test]
fn on_root_mismatch_skips_a_matching_root() {
    if !may_chown("on_root_mismatch_skips_a_matching_root") {
        return;
    }
    let volume = volume();
    assert_eq!(given(volume.path(), ON_ROOT_MISMATCH).unwrap().changed, 13);
    let new = file(volume.path().join("sub/new"), 0o600);
    let spared = given(volume.path(), ON_ROOT_MISMATCH).unwrap();
    assert_eq!((spared.seen, spared.changed), (1, 0));
    assert_eq!(fs::metadata(&new).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(given(volume.path(), ALWAYS).unwrap().changed, 1);
    assert_eq!(fs::metadata(&new).unwrap().mode() & 0o7777, 0o660);
}

#[test]
fn power_cut_leaves_a_root_that_does_not_match() {
    if !may_chown("power_cut_leaves_a_root_that_does_not_match") {
        return;
    }
    let complete = {
        let volume = volume();
        given(volume.path(), ALWAYS).unwrap();
        seen(volume.path()).into_values().collect::<Vec<_>>()
    };
    let mut cuts = 0;
    for at in 0.. {
        let volume = volume();
        let mut step = 0;
        let cut = apply(open(volume.path()), ON_ROOT_MISMATCH, || {
            step += 1;
            step > at
        });
        if cut.is_ok() {
            break;
        }
        cuts += 1;
        assert_eq!(cut, Err(ApplyError::Cancelled));
        assert_ne!(fs::metadata(volume.path()).unwrap().gid(), GROUP, "{at}: the root is changed last");
        assert_eq!(given(volume.path(), ON_ROOT_MISMATCH).unwrap().failed, 0, "{at}");
        assert_eq!(seen(volume.path()).into_values().collect::<Vec<_>>(), complete, "{at}");
    }
    assert!(cuts > 13, "{cuts}: one for each entry at least");
}

/// Deeper than the open descriptors and the maximum path length; on the way back is a wide directory.
#[test]
fn walks_deep_and_wide_trees_with_few_descriptors() {
    if !may_chown("walks_deep_and_wide_trees_with_few_descriptors") {
        return;
    }
    const DEEP: usize = MAX_DEPTH + 50;
    const WIDE: usize = 3000;
    let volume = tempfile::tempdir().unwrap();
    let wide = directory(volume.path().join("wide"));
    for number in 0..WIDE {
        File::create(wide.join(format!("{number}"))).unwrap();
    }
    let (mut at, mut directories) = (open(&wide), 2);
    while directories < DEEP {
        mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
        at = rustix::fs::openat(&at, "d", READ, Mode::empty()).unwrap();
        directories += 1;
    }
    let mut most = 0;
    let before = fs::read_dir("/proc/self/fd").unwrap().count();
    let mut steps = 0;
    let done = apply(open(volume.path()), ALWAYS, || {
        steps += 1;
        if steps % 500 == 0 {
            most = most.max(fs::read_dir("/proc/self/fd").unwrap().count());
        }
        false
    })
    .unwrap();
    // Other tests of this process have descriptors too.
    assert!(most < before + 3 * MAX_OPEN, "{most} descriptors, and {before} before");
    assert_eq!(
        (done.failed, done.first_failure),
        (1, Some(Errno::NAMETOOLONG)),
        "one is too deep to be entered"
    );
    assert_eq!(done.seen as usize, MAX_DEPTH + 1 + WIDE);
    assert_eq!(done.changed, done.seen);
    assert!(seen_in(&wide).all(|group| group == GROUP), "also what came after the deep one");
    // Too deep for a removal by its path.
    remove_deep(&wide);
}

fn seen_in(path: &Path) -> impl Iterator<Item = u32> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().gid())
}

/// Takes away a chain of directories by lifting what is inside to the top.
fn remove_deep(wide: &Path) {
    let top = open(wide);
    loop {
        let outer = rustix::fs::openat(&top, "d", READ, Mode::empty()).unwrap();
        let lifted = rustix::fs::renameat(&outer, "d", &top, "next");
        rustix::fs::unlinkat(&top, "d", AtFlags::REMOVEDIR).unwrap();
        if lifted.is_err() {
            return;
        }
        rustix::fs::renameat(&top, "next", &top, "d").unwrap();
    }
}

#[test]
fn a_place_where_nothing_is_mounted_is_left_alone() {
    let volume = tempfile::tempdir().unwrap();
    let before = seen(volume.path());
    assert_eq!(apply_at(volume.path(), ALWAYS, || false), Err(ApplyError::NotMounted));
    assert_eq!(seen(volume.path()), before);
    let missing = apply_at(&volume.path().join("missing"), ALWAYS, || false);
    assert_eq!(missing, Err(ApplyError::Root(Errno::NOENT)));
}
