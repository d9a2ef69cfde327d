//! A run in namespaces of its own: its mounts and processes end with it, however it ends.
//!
//! The tests start themselves again as the first process of a process and a mount namespace. When that process is gone, by its own
//! end, by Ctrl-C or by a kill of the outer one, the kernel ends all others and undoes their mounts. What no namespace holds, loop
//! devices and control groups, is taken away afterwards.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::error::RealError;
use super::kubernetes::{CGROUP, HOST_FOLDERS};
use super::leftovers;

/// The variable that tells the inner process where the run is.
pub(crate) const INSIDE: &str = "EDGE_CSI_E2E_SCRATCH";

const NEEDS: &str = "install util-linux";

/// Runs this program once more with its own arguments, enclosed; with a kubelet, or without.
///
/// # Errors
/// If it cannot be started, if it failed, if it was interrupted, or if it left something behind.
pub(crate) fn run(scratch: &Path, kubelet: bool) -> Result<(), RealError> {
    let folders = HOST_FOLDERS.iter().filter(|_| kubelet).map(PathBuf::from);
    let missing: Vec<PathBuf> = folders.filter(|folder| !folder.exists()).collect();
    let groups = leftovers::cgroups(CGROUP);
    let ended = enclosed(scratch);
    for folder in missing.iter().rev() {
        // Only a mount point is left of it; what is not empty is somebody else's.
        let _ = std::fs::remove_dir(folder);
    }
    let left = leftovers::clear(scratch);
    if kubelet && groups.is_empty() {
        leftovers::remove_cgroups(&leftovers::cgroups(CGROUP));
    }
    match ended? {
        Some(status) if status.success() => left,
        // The table says why.
        Some(_) => left.and(Err(RealError::Enclosed)),
        None => left.and(Err(RealError::Interrupted)),
    }
}

/// How it ended; nothing if a signal came first.
fn enclosed(scratch: &Path) -> Result<Option<ExitStatus>, RealError> {
    let failed = |cause| RealError::Missing { program: "setpriv and unshare".to_owned(), cause, fix: NEEDS };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut child = command(scratch).map_err(failed)?.spawn().map_err(failed)?;
        tokio::select! {
            status = child.wait() => status.map(Some).map_err(failed),
            _ = interrupt.recv() => stop(&mut child).await.map_err(failed),
            _ = terminate.recv() => stop(&mut child).await.map_err(failed),
        }
    })
}

async fn stop(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    child.kill().await.map(|()| None)
}

fn command(scratch: &Path) -> std::io::Result<Command> {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, scratch)
        .kill_on_drop(true);
    Ok(command)
}
