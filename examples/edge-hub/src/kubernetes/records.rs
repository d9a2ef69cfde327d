//! Converts Kubernetes objects to their stored parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::storage::v1 as storage_v1;
use kube::Resource;

use super::core::{ClaimRecord, Kind, PodRecord, Value, VolumeRecord};
use super::node_name::NodeName;
use super::quantity;
use edge_csi_common::kubernetes::message::{
    Attachment, Claim, Driver, InlineVolume, ObjectKey, PersistentVolume, Pod, PodVolume, SecretName,
    TokenRequest,
};

/// The condition with which an older resizer reports that the node may expand the volume.
pub(super) const RESIZE_PENDING: &str = "FileSystemResizePending";

/// The states of `status.allocatedResourceStatuses` in which the node may expand the volume.
const NODE_RESIZE_PENDING: [&str; 2] = ["NodeResizePending", "NodeResizeInProgress"];

/// A watched kind of objects.
pub(super) trait Record: Resource<DynamicType = ()> {
    const KIND: Kind;

    /// Returns the stored part; `None` if the object concerns no node.
    fn into_value(self) -> Option<Value>;

    /// Returns the key of the object.
    fn key(&self) -> ObjectKey {
        let metadata = self.meta();
        Self::KIND.key(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

impl Record for core_v1::Pod {
    const KIND: Kind = Kind::Pod;

    fn into_value(self) -> Option<Value> {
        let spec = self.spec?;
        let node = NodeName::new(spec.node_name.as_deref()?).ok()?;
        let name = self.metadata.name.unwrap_or_default();
        let mut record = PodRecord { node, ephemeral: Default::default(), pod: Arc::default() };
        let mut volumes = Vec::new();
        for volume in spec.volumes.unwrap_or_default() {
            let mut pod_volume = PodVolume { name: volume.name, ..PodVolume::default() };
            if let Some(claim) = volume.persistent_volume_claim {
                pod_volume.claim = claim.claim_name;
                pod_volume.read_only = claim.read_only.unwrap_or_default();
            } else if volume.ephemeral.is_some() {
                pod_volume.claim = format!("{name}-{}", pod_volume.name);
                record.ephemeral.insert(pod_volume.name.clone());
            } else if let Some(inline) = volume.csi {
                pod_volume.read_only = inline.read_only.unwrap_or_default();
                let secret = inline.node_publish_secret_ref.map(|secret| SecretName {
                    namespace: self.metadata.namespace.clone().unwrap_or_default(),
                    name: secret.name,
                });
                pod_volume.inline = Some(InlineVolume {
                    driver: inline.driver,
                    fs_type: inline.fs_type.unwrap_or_default(),
                    volume_attributes: inline.volume_attributes.unwrap_or_default(),
                    node_publish_secret: secret,
                });
            } else {
                continue;
            }
            volumes.push(pod_volume);
        }
        if volumes.is_empty() {
            return None;
        }
        let phase = self.status.and_then(|status| status.phase).unwrap_or_default();
        let security = spec.security_context.unwrap_or_default();
        record.pod = Arc::new(Pod {
            namespace: self.metadata.namespace.unwrap_or_default(),
            name,
            uid: self.metadata.uid.unwrap_or_default(),
            service_account: spec.service_account_name.unwrap_or_default(),
            fs_group: security.fs_group.and_then(|group| group.try_into().ok()),
            ended: matches!(phase.as_str(), "Succeeded" | "Failed"),
            volumes,
            deleting: self.metadata.deletion_timestamp.is_some(),
            fs_group_on_root_mismatch: security.fs_group_change_policy.as_deref() == Some("OnRootMismatch"),
        });
        Some(Value::Pod(record))
    }
}

impl Record for core_v1::PersistentVolumeClaim {
    const KIND: Kind = Kind::Claim;

    fn into_value(self) -> Option<Value> {
        let status = self.status.unwrap_or_default();
        let resize = status.allocated_resource_statuses.unwrap_or_default();
        let pending = match resize.get("storage") {
            Some(state) => NODE_RESIZE_PENDING.contains(&state.as_str()),
            None => status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == RESIZE_PENDING && condition.status == "True"),
        };
        let bound = status.phase.as_deref() == Some("Bound");
        let volume = self.spec.and_then(|spec| spec.volume_name).filter(|_| bound);
        let owner = self.metadata.owner_references.into_iter().flatten();
        Some(Value::Claim(ClaimRecord {
            owner: owner.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid),
            pending,
            claim: Claim {
                namespace: self.metadata.namespace.unwrap_or_default(),
                name: self.metadata.name.unwrap_or_default(),
                uid: self.metadata.uid.unwrap_or_default(),
                volume: volume.unwrap_or_default(),
                expand_to: 0,
            },
        }))
    }
}

impl Record for core_v1::PersistentVolume {
    const KIND: Kind = Kind::PersistentVolume;

    fn into_value(self) -> Option<Value> {
        let spec = self.spec?;
        let capacity = spec.capacity.unwrap_or_default();
        let capacity = capacity.get("storage").and_then(|size| quantity::bytes(&size.0)).unwrap_or_default();
        let secret = |reference: Option<core_v1::SecretReference>| {
            reference.map(|secret| SecretName {
                namespace: secret.namespace.unwrap_or_default(),
                name: secret.name.unwrap_or_default(),
            })
        };
        let volume = spec.csi.map(|csi| PersistentVolume {
            name: self.metadata.name.unwrap_or_default(),
            driver: csi.driver,
            volume_handle: csi.volume_handle,
            read_only: csi.read_only.unwrap_or_default(),
            fs_type: csi.fs_type.unwrap_or_default(),
            volume_attributes: csi.volume_attributes.unwrap_or_default(),
            access_modes: spec.access_modes.unwrap_or_default(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            mount_options: spec.mount_options.unwrap_or_default(),
            node_stage_secret: secret(csi.node_stage_secret_ref),
            node_publish_secret: secret(csi.node_publish_secret_ref),
            node_expand_secret: secret(csi.node_expand_secret_ref),
            claim_uid: spec.claim_ref.and_then(|claim| claim.uid).unwrap_or_default(),
        });
        Some(Value::PersistentVolume(VolumeRecord { volume: volume.map(Arc::new), capacity }))
    }
}

impl Record for storage_v1::VolumeAttachment {
    const KIND: Kind = Kind::Attachment;

    fn into_value(self) -> Option<Value> {
        let node = NodeName::new(&self.spec.node_name).ok()?;
        let deleting = self.metadata.deletion_timestamp.is_some();
        let (attached, metadata) = match self.status {
            Some(status) => (status.attached, status.attachment_metadata.unwrap_or_default()),
            None => (false, BTreeMap::new()),
        };
        let attachment = Attachment {
            name: self.metadata.name.unwrap_or_default(),
            attacher: self.spec.attacher,
            volume: self.spec.source.persistent_volume_name?,
            attached: attached && !deleting,
            metadata,
        };
        Some(Value::Attachment(node, Arc::new(attachment)))
    }
}

impl Record for storage_v1::CSIDriver {
    const KIND: Kind = Kind::Driver;

    fn into_value(self) -> Option<Value> {
        let spec = self.spec;
        let requests = spec.token_requests.unwrap_or_default().into_iter().map(|request| TokenRequest {
            audience: request.audience,
            expiration_seconds: request.expiration_seconds.and_then(|seconds| seconds.try_into().ok()),
        });
        Some(Value::Driver(Arc::new(Driver {
            name: self.metadata.name.unwrap_or_default(),
            attach_required: spec.attach_required.unwrap_or(true),
            pod_info_on_mount: spec.pod_info_on_mount.unwrap_or_default(),
            lifecycle_modes: spec.volume_lifecycle_modes.unwrap_or_else(|| vec!["Persistent".to_owned()]),
            fs_group_policy: spec.fs_group_policy.unwrap_or_else(|| "ReadWriteOnceWithFSType".to_owned()),
            requires_republish: spec.requires_republish.unwrap_or_default(),
            selinux_mount: spec.se_linux_mount.unwrap_or_default(),
            token_requests: requests.collect(),
            token_in_secrets: spec.service_account_token_in_secrets.unwrap_or_default(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value as Json, json};

    use super::*;

    fn into_value<K: Record + DeserializeOwned>(object: Json) -> Option<Value> {
        serde_json::from_value::<K>(object).unwrap().into_value()
    }

    fn pod(spec: Json, phase: &str) -> Option<PodRecord> {
        let metadata =
            json!({ "namespace": "n", "name": "p", "uid": "u", "managedFields": [{ "manager": "m" }] });
        let pod = json!({ "metadata": metadata, "spec": spec, "status": { "phase": phase } });
        match into_value::<core_v1::Pod>(pod) {
            Some(Value::Pod(record)) => Some(record),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_a_pod_its_volumes_of_claims_and_inline_ones_are_kept() {
        let volumes = json!([
            { "name": "config", "configMap": { "name": "c" } },
            { "name": "data", "persistentVolumeClaim": { "claimName": "claim", "readOnly": true } },
            { "name": "scratch", "ephemeral": {} },
            { "name": "inline", "csi": { "driver": "d", "volumeAttributes": { "a": "b" }, "nodePublishSecretRef": { "name": "s" } } },
        ]);
        let spec = |volumes: &Json| {
            json!({
                "nodeName": "edge-1", "serviceAccountName": "sa", "securityContext": { "fsGroup": 7, "fsGroupChangePolicy": "OnRootMismatch" },
                "containers": [], "volumes": volumes,
            })
        };
        let record = pod(spec(&volumes), "Running").unwrap();
        assert_eq!((record.node.as_str(), record.ephemeral), ("edge-1", ["scratch".to_owned()].into()));
        let pod_kept = &record.pod;
        assert_eq!(
            (pod_kept.fs_group, &pod_kept.service_account[..], pod_kept.ended),
            (Some(7), "sa", false)
        );
        assert!(pod_kept.fs_group_on_root_mismatch);
        let [data, scratch, inline] = &pod_kept.volumes[..] else { panic!("{pod_kept:?}") };
        assert_eq!((&data.claim[..], data.read_only), ("claim", true));
        assert_eq!((&scratch.claim[..], scratch.read_only), ("p-scratch", false));
        let secret = inline.inline.as_ref().and_then(|inline| inline.node_publish_secret.clone()).unwrap();
        assert_eq!((&secret.namespace[..], &secret.name[..]), ("n", "s"));
        assert!(pod(spec(&volumes), "Failed").unwrap().pod.ended);
        assert!(pod(spec(&json!([volumes[0]])), "Running").is_none(), "without a volume of interest");
        assert!(pod(json!({ "containers": [], "volumes": volumes }), "Pending").is_none(), "without a node");
    }

    #[test]
    fn claim_waits_for_the_node_by_condition_or_status() {
        let condition = |status: &str| json!([{ "type": "FileSystemResizePending", "status": status }]);
        for (status, expected) in [
            (
                json!({ "phase": "Bound", "allocatedResourceStatuses": { "storage": "NodeResizePending" } }),
                true,
            ),
            (
                json!({ "phase": "Bound", "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" } }),
                false,
            ),
            (json!({ "phase": "Bound", "conditions": condition("True") }), true),
            (json!({ "phase": "Bound", "conditions": condition("False") }), false),
            (json!({ "phase": "Bound" }), false),
        ] {
            let claim =
                json!({ "metadata": { "name": "c" }, "spec": { "volumeName": "v" }, "status": status });
            let Some(Value::Claim(record)) = into_value::<core_v1::PersistentVolumeClaim>(claim) else {
                panic!()
            };
            assert_eq!((record.pending, &record.claim.volume[..]), (expected, "v"), "{status}");
        }
        let pending =
            json!({ "metadata": {}, "spec": { "volumeName": "v" }, "status": { "phase": "Pending" } });
        let Some(Value::Claim(record)) = into_value::<core_v1::PersistentVolumeClaim>(pending) else {
            panic!()
        };
        assert_eq!(record.claim.volume, "", "it only asks for the volume");
    }

    #[test]
    fn keeps_the_csi_source_of_a_volume() {
        let csi = json!({ "driver": "d", "volumeHandle": "h", "nodeStageSecretRef": { "namespace": "s", "name": "t" } });
        let spec = json!({
            "capacity": { "storage": "1Gi" }, "volumeMode": "Block", "csi": csi, "claimRef": { "uid": "u" },
            "accessModes": ["ReadWriteOncePod"],
        });
        let volume = json!({ "metadata": { "name": "v" }, "spec": spec });
        let Some(Value::PersistentVolume(record)) = into_value::<core_v1::PersistentVolume>(volume) else {
            panic!()
        };
        let volume = record.volume.unwrap();
        assert_eq!((record.capacity, volume.block), (1 << 30, true));
        assert_eq!((&volume.claim_uid[..], &volume.volume_handle[..]), ("u", "h"));
        assert_eq!(volume.node_stage_secret.as_ref().map(|secret| &secret.name[..]), Some("t"));
        let nfs = json!({ "metadata": {}, "spec": { "nfs": { "server": "s", "path": "/" } } });
        let Some(Value::PersistentVolume(record)) = into_value::<core_v1::PersistentVolume>(nfs) else {
            panic!()
        };
        assert_eq!(record.volume, None);
    }

    #[test]
    fn an_attachment_that_is_being_deleted_is_attached_no_more() {
        let attachment = |metadata: Json, source: Json| {
            json!({
                "metadata": metadata,
                "spec": { "attacher": "d", "nodeName": "edge-1", "source": source },
                "status": { "attached": true, "attachmentMetadata": { "k": "v" } },
            })
        };
        let (of_volume, deleted) =
            (json!({ "persistentVolumeName": "v" }), json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
        for (metadata, expected) in [(json!({}), true), (deleted, false)] {
            let found = into_value::<storage_v1::VolumeAttachment>(attachment(metadata, of_volume.clone()));
            let Some(Value::Attachment(node, kept)) = found else { panic!() };
            assert_eq!((node.as_str(), kept.attached, kept.metadata.len()), ("edge-1", expected, 1));
        }
        assert!(into_value::<storage_v1::VolumeAttachment>(attachment(json!({}), json!({}))).is_none());
    }

    #[test]
    fn a_driver_that_says_nothing_is_what_kubernetes_takes_it_for() {
        let Some(Value::Driver(driver)) =
            into_value::<storage_v1::CSIDriver>(json!({ "metadata": { "name": "d" }, "spec": {} }))
        else {
            panic!()
        };
        assert!(driver.attach_required && !driver.pod_info_on_mount && !driver.requires_republish);
        assert_eq!(
            (&driver.lifecycle_modes[0][..], &driver.fs_group_policy[..]),
            ("Persistent", "ReadWriteOnceWithFSType")
        );
    }
}
