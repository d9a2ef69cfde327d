//! The API objects that the test runs create.

use serde_json::{Value, json};

use super::edge::{DRIVERS, FOREIGN};
use super::image::IMAGE;

pub(crate) const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const SECRETS: &str = "/api/v1/namespaces/default/secrets";
pub(crate) const VOLUMES: &str = "/api/v1/persistentvolumes";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
pub(crate) const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
pub(crate) const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
pub(crate) const ATTRIBUTE_CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";
pub(crate) const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
pub(crate) const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
pub(crate) const SNAPSHOT_CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
pub(crate) const SNAPSHOT_CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
pub(crate) const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";

pub(crate) const GROUP_CLASSES: &str = "/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotclasses";
pub(crate) const GROUP_SNAPSHOTS: &str =
    "/apis/groupsnapshot.storage.k8s.io/v1/namespaces/default/volumegroupsnapshots";

/// The mount path of a pod's claim.
pub(crate) const MOUNTED: &str = "/data";

/// Returns the path of the events of an object, by its UID.
pub(crate) fn events_of(uid: &str) -> String {
    format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid}")
}

/// Returns the node label for a driver's topology.
pub(crate) fn topology_key(driver: &str) -> String {
    format!("topology.{driver}/node")
}

/// Returns true if the object's status has this condition, such as `Ready`, with the value `True`.
pub(crate) fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

pub(crate) fn csi_driver(name: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {
            "attachRequired": true,
            "podInfoOnMount": true,
            "storageCapacity": false,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent"],
        },
    })
}

/// Returns a class whose volumes are created on the node of their first pod.
pub(crate) fn class(name: &str, driver: &str, parameters: &Value, reclaim: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": driver,
        "parameters": parameters,
        "reclaimPolicy": reclaim,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    })
}

pub(crate) fn attribute_class(name: &str, driver: &str, parameters: &Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttributesClass",
        "metadata": {"name": name},
        "driverName": driver,
        "parameters": parameters,
    })
}

pub(crate) fn snapshot_class(name: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": name},
        "driver": driver,
        "deletionPolicy": "Delete",
    })
}

pub(crate) fn snapshot(name: &str, class: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim}},
    })
}

/// Returns a Node that has just joined a cluster.
pub(crate) fn bare_node(name: &str) -> Value {
    let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

/// Returns the Node and the CSINode that kubelet would have written for an edge-csi node without kubelet.
pub(crate) fn node(name: &str, drivers: &[&str]) -> [Value; 2] {
    let (mut node, mut ids) = (bare_node(name), json!({}));
    for driver in drivers {
        node["metadata"]["labels"][topology_key(driver)] = name.into();
        ids[*driver] = name.into();
    }
    let registered =
        |driver: &&str| json!({"name": *driver, "nodeID": name, "topologyKeys": [topology_key(driver)]});
    let registered: Vec<Value> = drivers.iter().map(registered).collect();
    node["metadata"]["annotations"] = json!({ATTACHED_BY_CONTROLLER: "true", IDS: ids.to_string()});
    let csi_node = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": registered},
    });
    [node, csi_node]
}

/// The annotation of a Node whose volumes the controller attaches.
pub(crate) const ATTACHED_BY_CONTROLLER: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The annotation of a Node with its id in each driver.
pub(crate) const IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// Returns the status that kubelet would report for a node without kubelet.
pub(crate) fn node_status() -> Value {
    let room = json!({"cpu": "64", "memory": "64Gi", "pods": "1000"});
    json!({"status": {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet"}],
    }})
}

/// Returns a claim. The caller can change requests beyond the class in the result.
pub(crate) fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// Returns a claim for a raw block device.
pub(crate) fn device_claim(name: &str, class: &str, size: &str) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["volumeMode"] = json!("Block");
    claim
}

/// Returns a pod with one claim, on this node. `orders` are arguments of the program `pod`.
pub(crate) fn pod(name: &str, node: &str, claim: &str, orders: &[&str]) -> Value {
    let mut pod = bare_pod(name, node, claim, orders);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": MOUNTED}]);
    pod
}

/// Returns a pod with the claim as a device.
pub(crate) fn pod_with_device(name: &str, node: &str, claim: &str, orders: &[&str]) -> Value {
    let mut pod = bare_pod(name, node, claim, orders);
    pod["spec"]["containers"][0]["volumeDevices"] = json!([{"name": "v", "devicePath": DEVICE}]);
    pod
}

/// The path of the device in a pod of [`pod_with_device`].
pub(crate) const DEVICE: &str = "/dev/claim";

/// Returns a pod with an inline volume in place of a claim. `inline` is the volume's source.
pub(crate) fn pod_with_inline(name: &str, node: &str, inline: &Value) -> Value {
    let mut pod = pod(name, node, "", &["wait"]);
    pod["spec"]["volumes"] = json!([{"name": "v", "csi": inline}]);
    pod
}

fn bare_pod(name: &str, node: &str, claim: &str, orders: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "c",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "args": orders,
            }],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// Returns the name of the class of a driver that most test runs use.
pub(crate) fn class_of(driver: &str) -> String {
    format!("edge-{driver}")
}

/// Returns the objects that every test run may rely on, each with its collection.
pub(crate) fn foundation() -> Vec<(&'static str, Value)> {
    let mut objects = Vec::new();
    for driver in DRIVERS.into_iter().chain([FOREIGN]) {
        objects.push((CSI_DRIVERS, csi_driver(driver)));
        objects.push((CLASSES, class(&class_of(driver), driver, &json!({}), "Delete")));
    }
    objects
}
