//! A claim whose volume the node has made larger.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use crate::hub::kubernetes::quantity;
use crate::hub::kubernetes::read::RESIZE_PENDING;
use crate::kubernetes::message::ExpandedClaim;

/// Conditions that an expansion leaves, and that its end takes away; the first is the node's.
const CONDITIONS: [&str; 4] = [RESIZE_PENDING, "Resizing", "ControllerResizeError", "NodeResizeError"];

const STORAGE: &str = "storage";

/// The patch of a claim's status; `None` if it says so already, or is another claim by now.
pub(super) fn grown(claim: &PersistentVolumeClaim, expanded: &ExpandedClaim) -> Option<Value> {
    if claim.metadata.uid.as_ref() != Some(&expanded.uid) {
        return None;
    }
    let status = claim.status.as_ref()?;
    let size = |sizes: &Option<BTreeMap<String, Quantity>>| {
        sizes.as_ref().and_then(|sizes| sizes.get(STORAGE)).and_then(|size| quantity::bytes(&size.0))
    };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let state = status.allocated_resource_statuses.as_ref().and_then(|states| states.get(STORAGE));
    // The controller is at a further expansion: its part of the status stays.
    let controllers_turn = state.is_some_and(|state| state.starts_with("Controller"));
    let ends = if controllers_turn { &CONDITIONS[..1] } else { &CONDITIONS[..] };
    let (stay, end): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|condition| !ends.contains(&condition.type_.as_str()));
    let pending = state.is_some() && !controllers_turn;
    let capacity = size(&status.capacity).unwrap_or_default();
    if capacity >= expanded.bytes && end.is_empty() && !pending {
        return None;
    }
    // A claim never says less than it did.
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
    if status.allocated_resources.is_some() && !controllers_turn {
        patch["status"]["allocatedResources"] = json!({ STORAGE: bytes.to_string() });
    }
    Some(patch)
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
    fn the_size_is_written_and_what_waited_for_it_is_taken_away() {
        let patch =
            grown(&claim("1Gi", RESIZE_PENDING, Some("NodeResizePending")), &expanded(2 << 30)).unwrap();
        let status = &patch["status"];
        assert_eq!(status["capacity"][STORAGE], "2147483648");
        assert_eq!(status["allocatedResources"][STORAGE], "2147483648");
        assert_eq!(status["conditions"], json!([]));
        assert!(status["allocatedResourceStatuses"][STORAGE].is_null());
        assert_eq!(patch["metadata"]["resourceVersion"], "7", "not over somebody else's change");
        let kept = grown(&claim("1Gi", "VolumeModifyInProgress", None), &expanded(2 << 30)).unwrap();
        assert_eq!(kept["status"]["conditions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn an_expansion_that_the_controller_has_begun_since_is_left_to_it() {
        let patch =
            grown(&claim("1Gi", "Resizing", Some("ControllerResizeInProgress")), &expanded(2 << 30)).unwrap();
        let status = &patch["status"];
        assert_eq!(status["capacity"][STORAGE], "2147483648");
        assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
        assert!(
            status.get("allocatedResourceStatuses").is_none() && status.get("allocatedResources").is_none()
        );
    }

    #[test]
    fn nothing_is_written_twice_nor_to_another_claim_and_no_claim_shrinks() {
        assert_eq!(grown(&claim("2Gi", "VolumeModifyInProgress", None), &expanded(2 << 30)), None);
        let mut other = claim("1Gi", RESIZE_PENDING, None);
        other.metadata.uid = Some("other".to_owned());
        assert_eq!(grown(&other, &expanded(2 << 30)), None);
        let patch = grown(&claim("3Gi", RESIZE_PENDING, None), &expanded(2 << 30)).unwrap();
        assert_eq!(patch["status"]["capacity"][STORAGE], "3221225472");
    }
}
