//! CSINode: the drivers of a node, their ids of it, and the keys of their topology.

use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use edge_csi_common::kubernetes::message::{Driver, NodeDriver};

/// The next write of a CSINode.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CsiNodeStep {
    /// Creates the CSINode.
    Create(Box<CSINode>),
    /// Patches, one after the other.
    Change(Vec<Value>),
}

/// The API server's default for `fsGroupPolicy`.
const DEFAULT_FS_GROUP: &str = "ReadWriteOnceWithFSType";

/// The name under which a kubelet writes, its user agent up to the slash.
const KUBELET: &str = "kubelet";

/// Whether a kubelet has written the CSINode.
pub(super) fn is_written_by_kubelet(found: &CSINode) -> bool {
    let writers = found.metadata.managed_fields.iter().flatten();
    writers.filter_map(|fields| fields.manager.as_deref()).any(|manager| manager == KUBELET)
}

/// Returns the write that turns `found` into `wanted`; `None` if they do not differ. `node` is the Node's name and
/// UID.
pub(super) fn step(
    found: Option<&CSINode>,
    wanted: &[&NodeDriver],
    node: (&str, &str),
) -> Option<CsiNodeStep> {
    let mut wanted: Vec<_> = wanted.iter().map(|driver| entry(driver)).collect();
    wanted.sort_by(|one, other| one.name.cmp(&other.name));
    let (name, uid) = node;
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    };
    let Some(found) = found else {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        return Some(CsiNodeStep::Create(Box::new(CSINode {
            metadata,
            spec: CSINodeSpec { drivers: wanted },
        })));
    };
    let mut has = found.spec.drivers.clone();
    has.sort_by(|one, other| one.name.cmp(&other.name));
    // A CSINode owned by a deleted Node would be garbage-collected.
    let owners = found.metadata.owner_references.as_deref().unwrap_or_default();
    let is_orphan = !owners.iter().any(|owner| owner.uid == uid);
    if has == wanted && !is_orphan {
        return None;
    }
    // The API server refuses a changed entry: such an entry is removed first and added again.
    let unchanged: Vec<_> = wanted
        .iter()
        .filter(|entry| has.iter().all(|old| old.name != entry.name || old == *entry))
        .cloned()
        .collect();
    let patch = |drivers: &[CSINodeDriver]| json!({ "metadata": {}, "spec": { "drivers": drivers } });
    let mut patches = vec![patch(&wanted)];
    if unchanged.len() < wanted.len() {
        patches.insert(0, patch(&unchanged));
    }
    if is_orphan {
        patches[0]["metadata"]["ownerReferences"] = json!([owner]);
    }
    Some(CsiNodeStep::Change(patches))
}

/// Returns the settings of a `CSIDriver` that have no effect on a node whose kubelet sees no such object, with what happens
/// instead. Such a kubelet has the API server's defaults.
pub(in super::super) fn settings_without_effect(driver: &Driver) -> Vec<&'static str> {
    let settings = [
        (!driver.attach_required, "attachRequired: false (pods wait without end; set it to true)"),
        (driver.pod_info_on_mount, "podInfoOnMount: true (the driver does not learn the pod)"),
        (driver.fs_group_policy != DEFAULT_FS_GROUP, "fsGroupPolicy (ReadWriteOnceWithFSType applies)"),
        (!driver.token_requests.is_empty(), "tokenRequests (the driver gets no token)"),
        (driver.requires_republish, "requiresRepublish: true (volumes are published once)"),
    ];
    settings.into_iter().filter_map(|(has, setting)| has.then_some(setting)).collect()
}

fn entry(driver: &NodeDriver) -> CSINodeDriver {
    let limit = i32::try_from(driver.max_volumes).unwrap_or(i32::MAX);
    let keys: Vec<String> = driver.segments.keys().cloned().collect();
    CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: (limit > 0).then_some(VolumeNodeResources { count: Some(limit) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edge_csi_common::kubernetes::message::TokenRequest;

    fn driver(name: &str, node_id: &str, max_volumes: u64) -> NodeDriver {
        let segments = [("zone".to_owned(), "a".to_owned()), ("host".to_owned(), "b".to_owned())].into();
        let (name, node_id) = (name.to_owned(), node_id.to_owned());
        NodeDriver { name, node_id, segments, max_volumes, ready: true }
    }

    fn made(wanted: &[&NodeDriver]) -> CSINode {
        match step(None, wanted, ("edge-1", "uid")) {
            Some(CsiNodeStep::Create(made)) => *made,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn new_csi_node_has_its_owner_and_every_driver() {
        let made = made(&[&driver("b", "node-b", 0), &driver("a", "node-a", 7)]);
        let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "uid"));
        let [a, b] = &made.spec.drivers[..] else { panic!() };
        assert_eq!((a.name.as_str(), a.node_id.as_str()), ("a", "node-a"));
        assert_eq!(a.allocatable.as_ref().and_then(|resources| resources.count), Some(7));
        assert_eq!(a.topology_keys.as_deref(), Some(&["host".to_owned(), "zone".to_owned()][..]));
        assert_eq!(b.allocatable, None);
    }

    #[test]
    fn settings_that_a_kubelet_does_not_see_are_named() {
        let fs_group_policy = DEFAULT_FS_GROUP.to_owned();
        let default = Driver { attach_required: true, fs_group_policy, ..Driver::default() };
        assert!(settings_without_effect(&default).is_empty());
        let driver = Driver { attach_required: false, pod_info_on_mount: true, ..default.clone() };
        let [attach, info] = settings_without_effect(&driver)[..] else { panic!() };
        assert!(attach.starts_with("attachRequired: false") && info.starts_with("podInfoOnMount"));
        let driver = Driver {
            fs_group_policy: "File".to_owned(),
            token_requests: vec![TokenRequest::default()],
            requires_republish: true,
            ..default
        };
        assert_eq!(settings_without_effect(&driver).len(), 3);
    }

    #[test]
    fn writes_nothing_without_a_difference() {
        let (a, b) = (driver("a", "1", 0), driver("b", "2", 3));
        let found = made(&[&a, &b]);
        assert_eq!(step(Some(&found), &[&b, &a], ("edge-1", "uid")), None);
    }

    #[test]
    fn adopts_the_csi_node_of_a_deleted_node() {
        let a = driver("a", "1", 0);
        let found = made(&[&a]);
        let Some(CsiNodeStep::Change(patches)) = step(Some(&found), &[&a], ("edge-1", "new")) else {
            panic!()
        };
        assert_eq!(patches.len(), 1);
        assert_eq!(patches[0]["metadata"]["ownerReferences"][0]["uid"], "new");
    }

    #[test]
    fn removes_a_changed_entry_before_it_is_added() {
        let found = made(&[&driver("a", "1", 0), &driver("b", "2", 0)]);
        let (a, b) = (driver("a", "1", 0), driver("b", "3", 0));
        let wanted = [&a, &b];
        let Some(CsiNodeStep::Change(patches)) = step(Some(&found), &wanted, ("edge-1", "uid")) else {
            panic!()
        };
        let names: Vec<Vec<&str>> = patches
            .iter()
            .map(|patch| {
                let drivers = patch["spec"]["drivers"].as_array().unwrap();
                drivers.iter().map(|driver| driver["name"].as_str().unwrap()).collect()
            })
            .collect();
        assert_eq!(names, [vec!["a"], vec!["a", "b"]]);
        let Some(CsiNodeStep::Change(fewer)) = step(Some(&found), &wanted[..1], ("edge-1", "uid")) else {
            panic!()
        };
        assert_eq!(fewer.len(), 1, "a removed driver is left out");
    }
}
