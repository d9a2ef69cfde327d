//! The failure of a pod's volume, in the words of kubelet's events. No I/O.

use std::path::Path;

use volume_manager::node::{Explanation, Rpc, Waiting};

use super::super::fs_group::GroupState;
use super::super::plan::{Assignment, PodVolumePlan};
use super::Observation;
use edge_csi_common::kubernetes::message::PodVolumeFailure;

const FAILED_MOUNT: &str = "FailedMount";
const FAILED_MAP: &str = "FailedMapVolume";
const FAILED_RESIZE: &str = "VolumeResizeFailed";

/// Returns the failure of a volume, if there is one. `reason` is why the volume is not published.
pub(super) fn failure(
    volume: &PodVolumePlan,
    seen: &Observation,
    published: bool,
    reason: &str,
) -> Option<PodVolumeFailure> {
    let failure = |reason: &str, message: String, waits| {
        Some(PodVolumeFailure { reason: reason.to_owned(), message, waits })
    };
    let unmounted = |waits| {
        failure(
            FAILED_MOUNT,
            format!(
                "Unable to attach or mount volumes: unmounted volumes=[{}]: {reason}",
                volume.status.volume
            ),
            waits,
        )
    };
    let Assignment::Assigned { key, consumer, .. } = &volume.assignment else {
        // The missing object may still arrive.
        return unmounted(true);
    };
    let Some(explanation) = seen.volumes.get(key) else { return unmounted(true).filter(|_| !published) };
    let holder = explanation.consumers.iter().find(|holder| holder.consumer == *consumer);
    let (name, block) =
        holder.map_or_else(|| (volume.status.volume.clone(), false), |holder| kubelet_name(&holder.target));
    if let Some(GroupState::Failed(reason)) = seen.groups.get(consumer) {
        let text = format!(
            "MountVolume.SetUp failed for volume \"{name}\" : applyFSGroup failed for vol {}: {reason}",
            key.id
        );
        return failure(FAILED_MOUNT, text, false);
    }
    let error = explanation.last_error.as_ref();
    if let Some(error) = error.filter(|error| error.rpc == Rpc::NodeExpandVolume) {
        let text = format!("MountVolume.NodeExpandVolume failed for volume \"{name}\" : {}", error.message);
        return failure(FAILED_RESIZE, text, false);
    }
    if published {
        return None;
    }
    let step = |error: &volume_manager::node::CallFailure| match (error.rpc, block) {
        (Rpc::NodeStageVolume, false) => Some((FAILED_MOUNT, "MountVolume.MountDevice")),
        (Rpc::NodeStageVolume, true) => Some((FAILED_MAP, "MapVolume.SetUpDevice")),
        (Rpc::NodePublishVolume, false) => Some((FAILED_MOUNT, "MountVolume.SetUp")),
        (Rpc::NodePublishVolume, true) => Some((FAILED_MAP, "MapVolume.MapPodDevice")),
        _ => None,
    };
    if let Some((error, (reason, step))) = error.and_then(|error| Some((error, step(error)?))) {
        return failure(reason, format!("{step} failed for volume \"{name}\" : {error}"), false);
    }
    let is_refused = seen.refused.iter().any(|refused| refused.consumer == consumer.as_str());
    unmounted(!is_refused && !is_final(explanation))
}

/// Whether only a user's action ends the failure.
fn is_final(explanation: &Explanation) -> bool {
    matches!(
        explanation.waiting,
        Waiting::Refused { .. } | Waiting::OtherDriver { .. } | Waiting::Quarantine { .. }
    )
}

/// Returns kubelet's name of the volume at a target path, and whether it is a block device.
fn kubelet_name(target: &Path) -> (String, bool) {
    let last = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match target.parent().filter(|_| target.ends_with("mount")) {
        Some(volume) if !target.iter().any(|part| part == "volumeDevices") => (last(volume), false),
        _ => (last(target), true),
    }
}
