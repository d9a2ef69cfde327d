//! Claims of volumes that the node has expanded.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource as _;
use serde_json::{Value, json};

use crate::kubernetes::events::event;
use crate::kubernetes::node_name::NodeName;
use crate::kubernetes::quantity;
use crate::kubernetes::records::RESIZE_PENDING;
use edge_csi_common::kubernetes::message::ExpandedClaim;

/// The conditions of an expansion, which are removed at its end; the first is the node's.
const CONDITIONS: [&str; 4] = [RESIZE_PENDING, "Resizing", "ControllerResizeError", "NodeResizeError"];

const STORAGE: &str = "storage";

/// The reason of kubelet's event.
const EXPANDED_REASON: &str = "FileSystemResizeSuccessful";

/// Returns the patch of a claim's status; `None` if the status has the size already, or if the claim was
/// recreated.
pub(super) fn expansion_patch(claim: &PersistentVolumeClaim, expanded: &ExpandedClaim) -> Option<Value> {
    if claim.metadata.uid.as_ref() != Some(&expanded.uid) {
        return None;
    }
    let status = claim.status.as_ref()?;
    let size = |sizes: &Option<BTreeMap<String, Quantity>>| {
        sizes.as_ref().and_then(|sizes| sizes.get(STORAGE)).and_then(|size| quantity::bytes(&size.0))
    };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let state = status.allocated_resource_statuses.as_ref().and_then(|states| states.get(STORAGE));
    // The controller runs a further expansion: its part of the status stays.
    let controller_expands = state.is_some_and(|state| state.starts_with("Controller"));
    let ends = if controller_expands { &CONDITIONS[..1] } else { &CONDITIONS[..] };
    let (stay, end): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|condition| !ends.contains(&condition.type_.as_str()));
    let pending = state.is_some() && !controller_expands;
    let capacity = size(&status.capacity).unwrap_or_default();
    if capacity >= expanded.bytes && end.is_empty() && !pending {
        return None;
    }
    // The capacity in the status never shrinks.
    let bytes = capacity.max(expanded.bytes);
    let mut patch = json!({
        "metadata": { "uid": expanded.uid, "resourceVersion": claim.metadata.resource_version },
        "status": {
            "capacity": { STORAGE: bytes.to_string() },
            "conditions": stay,
        },
    });
    if pending {
        patch["status"]["allocatedResourceStatuses"] = json!({ STORAGE: null });
    }
    if status.allocated_resources.is_some() && !controller_expands {
        patch["status"]["allocatedResources"] = json!({ STORAGE: bytes.to_string() });
    }
    Some(patch)
}

/// Returns kubelet's event for an expanded claim. `now` is the time since 1970, and unique for the claim.
pub(super) fn expansion_event(claim: &PersistentVolumeClaim, node: &NodeName, now: Duration) -> Event {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    let number = u64::try_from(now.as_nanos()).unwrap_or_default();
    Event {
        reason: Some(EXPANDED_REASON.to_owned()),
        message: Some(format!("MountVolume.NodeExpandVolume succeeded for volume \"{volume}\" {node}")),
        type_: Some("Normal".to_owned()),
        ..event(claim.object_ref(&()), node, number, now)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PersistentVolumeClaimCondition, PersistentVolumeClaimStatus};

    use super::*;

    fn claim(capacity: &str, condition: &str, state: Option<&str>) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.uid = Some("uid".to_owned());
        claim.metadata.resource_version = Some("7".to_owned());
        let condition = PersistentVolumeClaimCondition {
            type_: condition.to_owned(),
            status: "True".to_owned(),
            ..PersistentVolumeClaimCondition::default()
        };
        let sizes = || Some(BTreeMap::from([(STORAGE.to_owned(), Quantity(capacity.to_owned()))]));
        claim.status = Some(PersistentVolumeClaimStatus {
            capacity: sizes(),
            allocated_resources: state.and_then(|_| sizes()),
            allocated_resource_statuses: state.map(|state| [(STORAGE.to_owned(), state.to_owned())].into()),
            conditions: Some(vec![condition]),
            ..PersistentVolumeClaimStatus::default()
        });
        claim
    }

    fn expanded(bytes: u64) -> ExpandedClaim {
        let (namespace, name, uid) = ("n".to_owned(), "c".to_owned(), "uid".to_owned());
        ExpandedClaim { namespace, name, uid, bytes }
    }

    #[test]
    fn writes_the_size_and_removes_the_resize_condition() {
        let patch =
            expansion_patch(&claim("1Gi", RESIZE_PENDING, Some("NodeResizePending")), &expanded(2 << 30))
                .unwrap();
        let status = &patch["status"];
        assert_eq!(status["capacity"][STORAGE], "2147483648");
        assert_eq!(status["allocatedResources"][STORAGE], "2147483648");
        assert_eq!(status["conditions"], json!([]));
        assert!(status["allocatedResourceStatuses"][STORAGE].is_null());
        assert_eq!(patch["metadata"]["resourceVersion"], "7", "does not overwrite a concurrent change");
        let kept =
            expansion_patch(&claim("1Gi", "VolumeModifyInProgress", None), &expanded(2 << 30)).unwrap();
        assert_eq!(kept["status"]["conditions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn leaves_a_new_expansion_to_the_controller() {
        let patch = expansion_patch(
            &claim("1Gi", "Resizing", Some("ControllerResizeInProgress")),
            &expanded(2 << 30),
        )
        .unwrap();
        let status = &patch["status"];
        assert_eq!(status["capacity"][STORAGE], "2147483648");
        assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
        assert!(
            status.get("allocatedResourceStatuses").is_none() && status.get("allocatedResources").is_none()
        );
    }

    #[test]
    fn writes_a_larger_size_once_and_to_the_right_claim() {
        assert_eq!(expansion_patch(&claim("2Gi", "VolumeModifyInProgress", None), &expanded(2 << 30)), None);
        let mut other = claim("1Gi", RESIZE_PENDING, None);
        other.metadata.uid = Some("other".to_owned());
        assert_eq!(expansion_patch(&other, &expanded(2 << 30)), None);
        let patch = expansion_patch(&claim("3Gi", RESIZE_PENDING, None), &expanded(2 << 30)).unwrap();
        assert_eq!(patch["status"]["capacity"][STORAGE], "3221225472");
    }

    #[test]
    fn event_is_of_the_claim_with_volume_and_node() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".to_owned());
        claim.metadata.namespace = Some("ns".to_owned());
        claim.metadata.uid = Some("9f0c".to_owned());
        claim.spec.get_or_insert_default().volume_name = Some("pvc-1".to_owned());
        let node = NodeName::new("edge-1").unwrap();
        let event = expansion_event(&claim, &node, Duration::from_secs(1_700_000_000));
        let found = serde_json::to_value(event).unwrap();
        assert_eq!(found["involvedObject"]["kind"], "PersistentVolumeClaim");
        assert_eq!(
            (&found["involvedObject"]["uid"], &found["metadata"]["namespace"]),
            (&"9f0c".into(), &"ns".into())
        );
        assert_eq!((&found["reason"], &found["type"]), (&EXPANDED_REASON.into(), &"Normal".into()));
        assert_eq!(found["message"], "MountVolume.NodeExpandVolume succeeded for volume \"pvc-1\" edge-1");
        assert_eq!(found["firstTimestamp"], "2023-11-14T22:13:20Z");
    }
}
