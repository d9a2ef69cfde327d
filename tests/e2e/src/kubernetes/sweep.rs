//! `edge-csi-driver sweep`: a volume without a PersistentVolume is reported until it is deleted.

use std::path::Path;
use std::process::Command;

use edge_csi_tests::arguments::unix;
use edge_csi_tests::csi::{controller, create_volume_on, delete_volume, within};
use tokio::runtime::Runtime;

use super::cluster::{BOUND, Cluster, Findings};
use super::objects::topology_key;
use crate::error::E2eError;
use crate::setup::Setup;

/// The name of the volume, which no provisioner knows.
const NAME: &str = "left-over";

/// Creates a volume at the socket of the active proxy, sweeps, deletes the volume, and sweeps again.
pub(super) fn run(
    setup: &Setup<'_>,
    cluster: &Cluster,
    findings: &mut Findings,
    runtime: &Runtime,
    (driver, node, socket): (&str, &str, &Path),
) -> Result<(), E2eError> {
    let request = create_volume_on(node, &topology_key(driver), NAME);
    let created = runtime.block_on(async { controller(socket).create_volume(within(BOUND, request)).await });
    let volume = created.ok().and_then(|created| created.into_inner().volume).unwrap_or_default();
    let (found, text) = sweep(setup, cluster, driver, socket)?;
    let line = format!(
        "unused: volume {:?} named {NAME:?} on node {node} has no PersistentVolume\n",
        volume.volume_id
    );
    findings
        .note(found == Some(1) && text == line, format!("a sweep ends with {found:?}: {}", text.trim_end()));
    let request = delete_volume(&volume.volume_id);
    let deleted = runtime.block_on(async { controller(socket).delete_volume(within(BOUND, request)).await });
    let (found, text) = sweep(setup, cluster, driver, socket)?;
    findings.note(
        deleted.is_ok() && found == Some(0),
        format!("after the volume was deleted a sweep ends with {found:?}: {}", text.trim_end()),
    );
    Ok(())
}

/// Sweeps, and returns the exit code and what was printed.
fn sweep(
    setup: &Setup<'_>,
    cluster: &Cluster,
    driver: &str,
    socket: &Path,
) -> Result<(Option<i32>, String), E2eError> {
    let program = &setup.components.proxy;
    let mut command = Command::new(program);
    command.args(["sweep", "--settle", "1s", "--drivername", driver]);
    command.arg("--endpoint").arg(unix(socket));
    command.arg("--kubeconfig").arg(&cluster.plane.kubeconfig);
    let output = command.output().map_err(|cause| E2eError::CannotRun {
        program: program.display().to_string(),
        cause,
        fix: "the build of this workspace makes it",
    })?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}
