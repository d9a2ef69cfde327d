//! Runs the tests in separate namespaces: their mounts and processes end with the run, even after a kill.
//!
//! The tests run this program again as the first process of a new process and mount namespace. When that process ends, by its
//! own exit, by Ctrl-C or by a kill of the outer process, the kernel kills all other processes in the namespace and undoes
//! their mounts. Loop devices and control groups, which no namespace holds, are removed afterwards.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::error::E2eError;
use super::kubernetes::{CGROUP, HOST_FOLDERS};
use super::{kubeedge, leftovers};

/// Runs a program as the first process of a new process and mount namespace. The program is killed with its parent. More
/// options of unshare may follow.
pub(crate) const UNSHARE: [&str; 8] =
    ["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// The variable with the scratch folder of the run, for the inner process.
pub(crate) const INSIDE: &str = "EDGE_CSI_E2E_SCRATCH";

const NEEDS: &str = "install util-linux";

/// What the tests start that runs pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodRuntime {
    None,
    Kubelet,
    /// KubeEdge, whose ports are fixed: the run has a network of its own.
    KubeEdge,
}

impl PodRuntime {
    /// Returns the host folders that it writes to.
    fn folders(self) -> Vec<PathBuf> {
        let folders: &[&[&str]] = match self {
            Self::None => &[],
            Self::Kubelet => &[&HOST_FOLDERS],
            Self::KubeEdge => &[&HOST_FOLDERS, &kubeedge::HOST_FOLDERS, &kubeedge::GUIDE_FOLDERS],
        };
        folders.concat().into_iter().map(PathBuf::from).collect()
    }
}

/// Runs this program again with the same arguments in separate namespaces.
///
/// # Errors
/// Returns an error if the program cannot be started, if it fails, if it is interrupted, or if it leaves something behind.
pub(crate) fn run(scratch: &Path, pods: PodRuntime) -> Result<(), E2eError> {
    let missing: Vec<PathBuf> = pods.folders().into_iter().filter(|folder| !folder.exists()).collect();
    let groups = leftovers::cgroups(CGROUP);
    let ended = enclosed(scratch, pods);
    for folder in missing.iter().rev() {
        // Only an empty mount point is left; a folder that is not empty belongs to another process.
        let _ = std::fs::remove_dir(folder);
    }
    let left = leftovers::clear(scratch);
    if pods != PodRuntime::None && groups.is_empty() {
        leftovers::remove_cgroups(&leftovers::cgroups(CGROUP));
    }
    match ended? {
        Some(status) if status.success() => left,
        // The result table shows the reason.
        Some(_) => left.and(Err(E2eError::TestsFailed)),
        None => left.and(Err(E2eError::Interrupted)),
    }
}

/// Returns the exit status, or `None` if a signal arrives first.
fn enclosed(scratch: &Path, pods: PodRuntime) -> Result<Option<ExitStatus>, E2eError> {
    let failed = |cause| E2eError::CannotRun { program: "setpriv and unshare".to_owned(), cause, fix: NEEDS };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut child = command(scratch, pods).map_err(failed)?.spawn().map_err(failed)?;
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

fn command(scratch: &Path, pods: PodRuntime) -> std::io::Result<Command> {
    let mut command = Command::new("setpriv");
    command
        .args(UNSHARE)
        .args((pods == PodRuntime::KubeEdge).then_some("--net"))
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, scratch)
        .kill_on_drop(true);
    Ok(command)
}
