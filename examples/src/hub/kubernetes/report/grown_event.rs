//! The event of a claim whose volume the node has made larger, in kubelet's words.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

use crate::hub::kubernetes::events::{COMPONENT, event_name};
use crate::hub::kubernetes::node_name::NodeName;

/// The reason that kubelet gives.
const REASON: &str = "FileSystemResizeSuccessful";

/// The event, at a time since 1970 that no other event of the claim has.
pub(super) fn event(claim: &PersistentVolumeClaim, node: &NodeName, now: Duration) -> Event {
    let metadata = &claim.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    let number = u64::try_from(now.as_nanos()).unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or_default();
    let time = Timestamp::from_second(seconds).ok().map(Time);
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(name, number)),
            namespace: metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        },
        reason: Some(REASON.to_owned()),
        message: Some(format!("MountVolume.NodeExpandVolume succeeded for volume \"{volume}\" {node}")),
        type_: Some("Normal".to_owned()),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(node.to_string()) }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_string()),
        first_timestamp: time.clone(),
        last_timestamp: time,
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_is_of_the_claim_and_names_its_volume_and_the_node() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".to_owned());
        claim.metadata.namespace = Some("ns".to_owned());
        claim.metadata.uid = Some("9f0c".to_owned());
        claim.spec.get_or_insert_default().volume_name = Some("pvc-1".to_owned());
        let node = NodeName::new("edge-1").unwrap();
        let event = event(&claim, &node, Duration::from_secs(1_700_000_000));
        let found = serde_json::to_value(event).unwrap();
        assert_eq!(found["involvedObject"]["kind"], "PersistentVolumeClaim");
        assert_eq!(
            (&found["involvedObject"]["uid"], &found["metadata"]["namespace"]),
            (&"9f0c".into(), &"ns".into())
        );
        assert_eq!((&found["reason"], &found["type"]), (&REASON.into(), &"Normal".into()));
        assert_eq!(found["message"], "MountVolume.NodeExpandVolume succeeded for volume \"pvc-1\" edge-1");
        assert_eq!(found["firstTimestamp"], "2023-11-14T22:13:20Z");
    }
}
