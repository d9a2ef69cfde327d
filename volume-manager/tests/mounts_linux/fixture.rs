//! The environment of the tests: a private mount namespace, which is removed with all its mounts.

use std::ffi::CStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};
use volume_manager::driver::MountPath;
use volume_manager::mounts::conformance::Fixture;
use volume_manager::mounts::linux::{LinuxMounts, MountSettings, ProbeCommand};
use volume_manager::mounts::{CreateError, Mounts};

const VARIABLE: &str = "VOLUME_MANAGER_MOUNTS_DIRECTORY";

/// Returns a directory in a private mount namespace, or `None` in the outer process, after the test has passed in an inner one.
///
/// Without root or mount namespaces the test is skipped with a message.
///
/// Must be called on the test's own thread, whose name is the name of the test.
pub(super) fn private() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(VARIABLE) {
        return Some(directory.into());
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap();
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command
    };
    let root = rustix::process::geteuid().is_root();
    if !root || !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        let _ = writeln!(io::stderr(), "{name}: not run, since it needs root and mount namespaces");
        return None;
    }
    let directory = tempfile::Builder::new().prefix("mounts").tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let mut inner = unshare();
    inner.arg(std::env::current_exe().unwrap()).args([name, "--exact", "--nocapture"]);
    let output = inner.env(VARIABLE, &path).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    // The inner test may have been skipped; show its message.
    let _ = write!(io::stderr(), "{stderr}");
    assert!(stdout.contains("1 passed"), "{name} is not the name of a test: {stdout}");
    None
}

/// The arguments with which this test program is a probe.
pub(super) const PROBE: [&str; 5] = ["probe_process", "--exact", "--ignored", "--nocapture", "--"];

/// Returns this test program as the probe command.
pub(super) fn probe_command() -> ProbeCommand {
    PROBE.into_iter().fold(ProbeCommand::new(std::env::current_exe().unwrap()), ProbeCommand::argument)
}

pub(super) async fn mounts() -> LinuxMounts {
    LinuxMounts::open(
        probe_command(),
        MountSettings { deadline: std::time::Duration::from_secs(60), ..MountSettings::default() },
    )
    .await
    .unwrap()
}

/// Opens the mounts with a short deadline.
pub(super) async fn short_deadline_mounts() -> LinuxMounts {
    LinuxMounts::open(
        probe_command(),
        MountSettings { deadline: std::time::Duration::from_secs(2), ..MountSettings::default() },
    )
    .await
    .unwrap()
}

pub(super) fn tmpfs(at: &Path) -> io::Result<()> {
    fs::create_dir_all(at)?;
    rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(c"size=1m")).map_err(Into::into)
}

pub(super) fn bind(source: &Path, target: &Path) {
    fs::create_dir_all(target).unwrap();
    rustix::mount::mount_bind(source, target).unwrap();
}

pub(super) fn unmount(at: &Path) {
    rustix::mount::unmount(at, UnmountFlags::NOFOLLOW).unwrap();
}

/// Creates a directory through [`Mounts`].
pub(super) async fn make(mounts: &LinuxMounts, at: &Path) -> Result<(), CreateError> {
    mounts.create_directory(&MountPath::new(at).unwrap()).await
}

pub(super) fn mount_device(device: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    rustix::mount::mount(device, at, "ext4", MountFlags::empty(), None::<&CStr>).unwrap();
}

pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device with an ext4 file system. Detached on drop.
pub(super) struct LoopDevice(pub(super) PathBuf);

impl LoopDevice {
    pub(super) fn with_ext4(directory: &Path) -> Self {
        let file = directory.join("disk");
        let disk = fs::File::create(&file).unwrap();
        disk.set_len(4 << 20).unwrap();
        let file = file.to_str().unwrap();
        run("mkfs.ext4", &["-q", "-F", file]);
        Self(run("losetup", &["--find", "--show", file]).into())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Returns the number of unreaped child processes.
pub(super) fn children() -> usize {
    let mut count = 0;
    for thread in fs::read_dir("/proc/self/task").unwrap() {
        let children = fs::read_to_string(thread.unwrap().path().join("children"));
        count += children.unwrap_or_default().split_whitespace().count();
    }
    count
}

pub(super) struct Directory(pub(super) PathBuf);

impl Fixture for Directory {
    fn directory(&self) -> &Path {
        &self.0
    }
    fn mount(&self, path: &Path) -> io::Result<()> {
        tmpfs(path)
    }
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        rustix::mount::mount_bind(source, target)?;
        if read_only {
            rustix::mount::mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, "")?;
        }
        Ok(())
    }
    fn unmount(&self, path: &Path) -> io::Result<()> {
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(Into::into)
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(path, bytes)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }
}
