//! Executes actions on paths, mounts and drivers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::connector::Connection;
use super::core::{CallOrder, CheckResult, Inspect, Observation, PathCheck};
use crate::driver::{CallError, CallOutcome, MountPath, Operation, VolumeSpec};
use crate::excerpt::chain;
use crate::mounts::{MountId, Mounts, PathState, SafeRemoval};

/// The gRPC code NOT_FOUND.
const NOT_FOUND: Option<i32> = Some(5);

/// Creates the directories that the spec requires of the caller, then makes the call.
pub(super) async fn call(
    order: &CallOrder,
    connection: Option<Arc<dyn Connection>>,
    mounts: &dyn Mounts,
) -> Result<CallOutcome, CallError> {
    let CallOrder { spec, operation, first_publish, .. } = order;
    let not_sent = |reason| CallError::NotSent { method: operation.method(), reason };
    let connection = connection.ok_or_else(|| not_sent("the driver is not connected".to_owned()))?;
    prepare(mounts, spec, operation, *first_publish).await.map_err(not_sent)?;
    connection.call(spec, operation).await
}

/// Verifies a call if its result may be a success.
pub(super) async fn verify(
    order: CallOrder,
    result: &Result<CallOutcome, CallError>,
    mounts: &dyn Mounts,
) -> Option<CheckResult> {
    let may_be_success = result.as_ref().map_or_else(|error| error.code() == NOT_FOUND, |_| true);
    match order.verify.filter(|_| may_be_success) {
        Some(check) => Some(self::check(check, mounts).await),
        None => None,
    }
}

async fn prepare(
    mounts: &dyn Mounts,
    spec: &VolumeSpec,
    operation: &Operation,
    first_publish: bool,
) -> Result<(), String> {
    let directory = match operation {
        Operation::NodeStage { staging_path } => MountPath::new(staging_path.as_path()),
        Operation::NodePublish { consumer, staging_path } => {
            let target = consumer.target_path().as_path();
            check_target(mounts, target, staging_path.as_path(), spec.access().is_block(), first_publish)
                .await?;
            match target.parent() {
                // `/` always exists.
                Some(parent) if parent != Path::new("/") => MountPath::new(parent),
                _ => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    let directory = directory.map_err(|error| chain(&error))?;
    mounts.create_directory(&directory).await.map_err(|error| chain(&error))
}

/// Rejects targets whose content a driver could hide by mounting over it, misinterpret, or delete when it unpublishes.
///
/// According to the records nothing of the volume exists at the target of a first publish. The target must be empty,
/// absent, or a bind mount of the staging path, whose record was lost. An empty directory is removed: a successful
/// removal shows that it is empty and not a mount, and the driver must create the target (spec, NodePublishVolume).
async fn check_target(
    mounts: &dyn Mounts,
    target: &Path,
    staging: &Path,
    block: bool,
    first_publish: bool,
) -> Result<(), String> {
    let inspection = mounts.inspect(target).await.map_err(|error| chain(&error))?;
    if first_publish {
        if let Some(mount) = inspection.mount
            && is_bind_of_staged(mounts, staging, mount).await
        {
            return Ok(());
        }
        let is_foreign = inspection.mount.is_some()
            || matches!(inspection.state, PathState::Dead { .. } | PathState::BlockDevice(_));
        if is_foreign {
            let at = target.display();
            return Err(format!("target {at} is used by another mount; unmount it"));
        }
        if inspection.state == PathState::Directory && !block {
            let removal = SafeRemoval::new(target).map_err(|error| chain(&error))?;
            return mounts.remove(&removal).await.map(drop).map_err(|error| chain(&error));
        }
    }
    let fits = match inspection.state {
        PathState::Missing => true,
        PathState::Directory => !block,
        PathState::RegularFile { size } => block && size == 0,
        PathState::BlockDevice(_) => block,
        // The driver can remove its own dead mount.
        PathState::Dead { .. } => true,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let expected = if block { "a device" } else { "a directory" };
    Err(format!("found {} at target {}, expected {expected}; remove it", inspection.state, target.display()))
}

/// Returns whether a mount is a bind mount of a staging path, which is below the root and so belongs to this node only.
async fn is_bind_of_staged(mounts: &dyn Mounts, staging: &Path, mount: MountId) -> bool {
    let Ok(table) = mounts.table().await else { return false };
    let (Some(staged), Some(found)) = (table.at(staging), table.by_id(mount)) else { return false };
    found.device == staged.device && found.root.starts_with(&staged.root)
}

/// Checks the mount table and a path.
pub(super) async fn check(check: PathCheck, mounts: &dyn Mounts) -> CheckResult {
    let PathCheck { path, inspect, remove } = check;
    let mut table = mounts.table().await?;
    let mounted = table.at(&path).is_some();
    if !mounted {
        remove_empty(remove, mounts).await;
    }
    let inspects = match inspect {
        Inspect::Never => false,
        Inspect::Unmounted => !mounted,
        Inspect::Always => true,
    };
    if !inspects {
        return Ok(Observation { table, inspection: None });
    }
    let inspection = mounts.inspect(&path).await?;
    // A mount at the path that is missing in the table is newer than the table.
    if inspection.mount.is_some() && !mounted {
        table = mounts.table().await?;
    }
    Ok(Observation { table, inspection: Some(inspection) })
}

/// Removes empty directories and files that are not mounts, up to the first that cannot be removed. Data is never
/// deleted.
pub(super) async fn remove_empty(paths: Vec<PathBuf>, mounts: &dyn Mounts) {
    for path in paths {
        let Ok(removal) = SafeRemoval::new(path) else { return };
        if let Err(error) = mounts.remove(&removal).await {
            tracing::debug!("path not removed: {}", chain(&error));
            return;
        }
    }
}
