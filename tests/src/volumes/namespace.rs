//! Private namespaces for mounts and processes. All mounts and processes in them end with the test.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};
use volume_manager::mounts::MountTable;
use volume_manager::mounts::linux::read_table;

const VARIABLE: &str = "EDGE_CSI_VOLUMES_DIRECTORY";

/// Runs the test again in a child process with private namespaces. Returns the test's directory, which has a short
/// path, in the child, and `None` in the parent once the test has passed in the child.
///
/// The caller is on the thread of the test, which has the test's name. Without root, or if no namespace can be created,
/// the function logs that the test was not run, and returns `None`.
///
/// # Panics
/// If the test fails.
#[must_use]
pub fn private() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(VARIABLE) {
        return Some(directory.into());
    }
    let thread = std::thread::current();
    let name = thread.name().expect("the thread of a test has the test's name");
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
        command.arg("--mount-proc");
        command
    };
    let root = rustix::process::geteuid().is_root();
    if !root || !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        // libtest captures `eprintln!` of a test that passes, but not this.
        let reason = "it needs root, and namespaces of mounts and processes";
        let _ = writeln!(std::io::stderr(), "{name}: not run, since {reason}");
        return None;
    }
    // Sockets and staging paths have to be short.
    let directory = tempfile::Builder::new().prefix("ecv-").tempdir_in("/tmp").expect("a directory");
    let mut inner = unshare();
    inner.arg(std::env::current_exe().expect("the test's own path"));
    inner.args([name, "--exact", "--nocapture"]).env(VARIABLE, directory.path());
    let output = inner.output().expect("unshare ran a moment ago");
    let reported = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reported}\n{words}");
    assert!(reported.contains("1 passed"), "{name} is not the name of a test: {reported}");
    eprint!("{words}");
    None
}

/// Reads the mount table.
///
/// # Panics
/// If the table cannot be read.
#[must_use]
pub fn table() -> MountTable {
    read_table().expect("the mount table")
}

/// Returns the mount points below a directory, sorted, one for each mount.
#[must_use]
pub fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = table();
    let mut points: Vec<_> = table
        .within(directory)
        .map(|mount| mount.mount_point.clone())
        .filter(|point| point != directory)
        .collect();
    points.sort();
    points
}

/// Removes every mount below these directories, as a power cut does.
///
/// # Panics
/// If a mount cannot be removed.
pub fn unmount_all(directories: &[&Path]) {
    for directory in directories {
        while let Some(last) = mounts_below(directory).pop() {
            unmount(&last);
        }
    }
}

/// Detaches the topmost mount at a path, even if it is in use.
///
/// # Panics
/// If the mount cannot be removed.
pub fn unmount(path: &Path) {
    rustix::mount::unmount(path, UnmountFlags::DETACH)
        .unwrap_or_else(|cause| panic!("umount {}: {cause}", path.display()));
}

/// Creates the directory `target` and bind-mounts `source` there.
///
/// # Panics
/// If the mount fails.
pub fn bind(source: &Path, target: &Path) {
    fs::create_dir_all(target).expect("a directory to mount at");
    rustix::mount::mount_bind(source, target)
        .unwrap_or_else(|cause| panic!("bind {} to {}: {cause}", source.display(), target.display()));
}

/// Mounts an empty file system, with its own device number, at a directory, which is created.
///
/// # Errors
/// Returns the error of the failed system call.
pub fn mount_another(at: &Path) -> std::io::Result<()> {
    fs::create_dir_all(at)?;
    rustix::mount::mount("other", at, "tmpfs", MountFlags::empty(), Some(c"size=1m")).map_err(Into::into)
}
