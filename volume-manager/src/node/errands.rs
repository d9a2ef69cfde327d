//! What an action asks for at paths, in the mount table and of a driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::core::{CallOrder, Event, Inspect, LookOrder, Sight};
use super::link::Connection;
use crate::driver::{CallError, Operation, VolumeSpec};
use crate::mounts::{Creation, Mounts, Presence, SafeRemoval};

/// Makes a call, after the directories that the spec wants of the caller.
pub(super) async fn call(
    order: CallOrder,
    connection: Option<Arc<dyn Connection>>,
    mounts: Arc<dyn Mounts>,
) -> Event {
    let CallOrder { ticket, spec, operation, .. } = order;
    let Some(connection) = connection else {
        let reason = "the driver is not there".to_owned();
        return Event::CallEnded {
            ticket,
            result: Err(CallError::NotSent { method: operation.method(), reason }),
        };
    };
    if let Err(reason) = prepare(&*mounts, &spec, &operation).await {
        return Event::CallPrevented { ticket, reason };
    }
    let result = connection.call(&spec, &operation).await;
    Event::CallEnded { ticket, result }
}

async fn prepare(mounts: &dyn Mounts, spec: &VolumeSpec, operation: &Operation) -> Result<(), String> {
    let creation = match operation {
        Operation::NodeStage { staging_path } => Creation::directory(staging_path.as_path()),
        Operation::NodePublish { consumer, .. } => {
            may_be_target(mounts, consumer.target_path().as_path(), spec.access().is_block()).await?;
            match consumer.target_path().as_path().parent() {
                // The root directory is there, and is nobody's to make.
                Some(parent) if parent != Path::new("/") => Creation::directory(parent),
                _ => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    let creation = creation.map_err(|error| error.to_string())?;
    mounts.create(&creation).await.map_err(|error| error.to_string())?;
    Ok(())
}

/// Refuses what a driver may mount over and hide, or take for what it is not.
async fn may_be_target(mounts: &dyn Mounts, target: &Path, block: bool) -> Result<(), String> {
    let inspection = mounts.inspect(target).await.map_err(|error| error.to_string())?;
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

/// Looks at the mount table, and at a path.
pub(super) async fn look(order: LookOrder, mounts: Arc<dyn Mounts>) -> Event {
    let LookOrder { ticket, path, inspect, remove, .. } = order;
    let mut table = mounts.table().await.map_err(|error| error.to_string());
    let mounted = table.as_ref().is_ok_and(|table| table.at(&path).is_some());
    if !mounted && table.is_ok() {
        clear(remove, &*mounts).await;
    }
    let inspects = match inspect {
        Inspect::Never => false,
        Inspect::Unmounted => !mounted,
        Inspect::Always => true,
    };
    let inspection = if inspects {
        let seen = mounts.inspect(&path).await;
        // A mount that the path shows and the table does not is newer than the table.
        if seen.as_ref().is_ok_and(|seen| seen.mount.is_some()) && !mounted {
            table = mounts.table().await.map_err(|error| error.to_string());
        }
        Some(seen.map_err(|error| error.to_string()))
    } else {
        None
    };
    Event::Looked { ticket, sight: Sight::new(table, inspection) }
}

/// Removes places that are empty and no mounts, until one is not. What holds data stays.
pub(super) async fn clear(places: Vec<PathBuf>, mounts: &dyn Mounts) {
    for place in places {
        let Ok(removal) = SafeRemoval::target(place) else { return };
        if let Err(error) = mounts.remove(&removal).await {
            tracing::debug!("left in place: {error}");
            return;
        }
    }
}
