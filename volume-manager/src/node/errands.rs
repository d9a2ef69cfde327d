//! What an action asks for at paths, in the mount table and of a driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::core::{CallOrder, Inspect, Look, LookError, Sight};
use super::link::Connection;
use crate::driver::{CallError, CallOutcome, MountPath, Operation, VolumeSpec};
use crate::excerpt::chain;
use crate::mounts::{MountId, Mounts, Presence, SafeRemoval};

/// The number of the gRPC code NOT_FOUND.
const NOT_FOUND: Option<i32> = Some(5);

/// Makes a call, after the directories that the spec wants of the caller.
pub(super) async fn call(
    order: &CallOrder,
    connection: Option<Arc<dyn Connection>>,
    mounts: &dyn Mounts,
) -> Result<CallOutcome, CallError> {
    let CallOrder { spec, operation, fresh, .. } = order;
    let not_sent = |reason| CallError::NotSent { method: operation.method(), reason };
    let connection = connection.ok_or_else(|| not_sent("the driver is not there".to_owned()))?;
    prepare(mounts, spec, operation, *fresh).await.map_err(not_sent)?;
    connection.call(spec, operation).await
}

/// Looks at what a call did, if its result may be good.
pub(super) async fn verify(
    order: CallOrder,
    result: &Result<CallOutcome, CallError>,
    mounts: &dyn Mounts,
) -> Option<Result<Sight, LookError>> {
    let may_be_good = result.as_ref().map_or_else(|error| error.code() == NOT_FOUND, |_| true);
    match order.verify.filter(|_| may_be_good) {
        Some(look) => Some(self::look(look, mounts).await),
        None => None,
    }
}

async fn prepare(
    mounts: &dyn Mounts,
    spec: &VolumeSpec,
    operation: &Operation,
    fresh: bool,
) -> Result<(), String> {
    let directory = match operation {
        Operation::NodeStage { staging_path } => MountPath::new(staging_path.as_path()),
        Operation::NodePublish { consumer, staging_path } => {
            let target = consumer.target_path().as_path();
            may_be_target(mounts, target, staging_path.as_path(), spec.access().is_block(), fresh).await?;
            match target.parent() {
                // The root directory is there, and is nobody's to make.
                Some(parent) if parent != Path::new("/") => MountPath::new(parent),
                _ => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    let directory = directory.map_err(|error| chain(&error))?;
    mounts.create_directory(&directory).await.map_err(|error| chain(&error))
}

/// Refuses what a driver may mount over and hide, take for what it is not, or delete when it unpublishes.
///
/// No record tells that anything of the volume may be at a fresh target, so it has to be empty, or not there, or a bind of
/// what is staged: then only the record was lost. An empty directory is taken away: that it can be shows that it is empty
/// and no mount, and the driver is to make it (spec, NodePublishVolume).
async fn may_be_target(
    mounts: &dyn Mounts,
    target: &Path,
    staging: &Path,
    block: bool,
    fresh: bool,
) -> Result<(), String> {
    let inspection = mounts.inspect(target).await.map_err(|error| chain(&error))?;
    if fresh {
        if let Some(mount) = inspection.mount
            && is_bind_of_staged(mounts, staging, mount).await
        {
            return Ok(());
        }
        let is_foreign = inspection.mount.is_some()
            || matches!(inspection.presence, Presence::Dead { .. } | Presence::BlockDevice(_));
        if is_foreign {
            let at = target.display();
            return Err(format!("{at} is in use, and not by this volume; take away what is mounted there"));
        }
        if inspection.presence == Presence::Directory && !block {
            let removal = SafeRemoval::new(target).map_err(|error| chain(&error))?;
            return mounts.remove(&removal).await.map(drop).map_err(|error| chain(&error));
        }
    }
    let fits = match inspection.presence {
        Presence::Missing => true,
        Presence::Directory => !block,
        Presence::RegularFile { size } => block && size == 0,
        Presence::BlockDevice(_) => block,
        // The driver has to take it away, and knows how.
        Presence::Dead { .. } => true,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let wanted = if block { "a device" } else { "a directory" };
    Err(format!(
        "{} is at the target {}, where {wanted} should be; take it away",
        inspection.presence,
        target.display()
    ))
}

/// Whether a mount shows what is staged at a path, which is below the root and so nobody else's.
async fn is_bind_of_staged(mounts: &dyn Mounts, staging: &Path, mount: MountId) -> bool {
    let Ok(table) = mounts.table().await else { return false };
    let (Some(staged), Some(found)) = (table.at(staging), table.by_id(mount)) else { return false };
    found.device == staged.device && found.root.starts_with(&staged.root)
}

/// Looks at the mount table, and at a path.
pub(super) async fn look(look: Look, mounts: &dyn Mounts) -> Result<Sight, LookError> {
    let Look { path, inspect, remove } = look;
    let mut table = mounts.table().await?;
    let mounted = table.at(&path).is_some();
    if !mounted {
        clear(remove, mounts).await;
    }
    let inspects = match inspect {
        Inspect::Never => false,
        Inspect::Unmounted => !mounted,
        Inspect::Always => true,
    };
    if !inspects {
        return Ok(Sight { table, inspection: None });
    }
    let inspection = mounts.inspect(&path).await?;
    // A mount that the path shows and the table does not is newer than the table.
    if inspection.mount.is_some() && !mounted {
        table = mounts.table().await?;
    }
    Ok(Sight { table, inspection: Some(inspection) })
}

/// Removes places that are empty and no mounts, until one is not. What holds data stays.
pub(super) async fn clear(places: Vec<PathBuf>, mounts: &dyn Mounts) {
    for place in places {
        let Ok(removal) = SafeRemoval::new(place) else { return };
        if let Err(error) = mounts.remove(&removal).await {
            tracing::debug!("left in place: {}", chain(&error));
            return;
        }
    }
}
