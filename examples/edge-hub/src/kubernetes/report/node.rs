//! Labels, annotations and `status.volumesInUse` of a Node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

use super::label;
use edge_csi_common::excerpt::excerpt;
use edge_csi_common::kubernetes::message::NodeDriver;

/// The annotation with the drivers' ids of the node, as JSON.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// The annotation that leaves attaching and detaching to the controller.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The labels of Kubernetes' own domains that a driver's topology may set. A node may not set others, since they
/// decide where pods run.
const OWN_LABELS: [&str; 3] =
    ["kubernetes.io/hostname", "topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// A topology segment that is not accepted as a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum LabelRefused {
    /// The Node has the label with another value.
    #[error(
        "driver {driver}: topology segment {key}={wanted} differs from the Node's label {key}={found}; correct the driver \
         or the label"
    )]
    Differs {
        driver: String,
        key: String,
        /// The segment's value.
        wanted: String,
        /// The label's value, or another driver's.
        found: String,
    },
    /// The label is Kubernetes' own.
    #[error(
        "driver {driver}: a node may not set its label {key}; let the driver use a key of its own domain"
    )]
    Reserved { driver: String, key: String },
    /// The segment is not a valid label.
    #[error(
        "driver {driver}: topology segment {key:?}={value:?} cannot be a label of the Node; expected letters, digits, '-', '_' and \
         '.', with a letter or a digit at the ends, at most {} bytes of them in the value, and in the key after its domain: \
         correct the driver",
        label::MAX_BYTES
    )]
    InvalidLabel {
        driver: String,
        /// The segment's key, cut to 100 characters.
        key: String,
        /// The segment's value, cut to 100 characters.
        value: String,
    },
}

/// Returns the drivers with valid topology, and the first refusal. As with kubelet, a driver with an invalid
/// topology is left out.
pub(super) fn accepted<'a>(
    node: &Node,
    drivers: &'a [NodeDriver],
) -> (Vec<&'a NodeDriver>, Option<LabelRefused>) {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let mut new: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut accepted, mut refused) = (Vec::new(), None);
    for driver in drivers {
        let wrong = driver.segments.iter().find_map(|(key, wanted)| {
            if !label::is_key(key) || !label::is_value(wanted) {
                let cut = |text: &str| excerpt(text, 100).to_owned();
                let (driver, key, value) = (driver.name.clone(), cut(key), cut(wanted));
                return Some(LabelRefused::InvalidLabel { driver, key, value });
            }
            let found = labels.get(key).map(String::as_str).or_else(|| new.get(key.as_str()).copied());
            let (driver, key, wanted) = (driver.name.clone(), key.clone(), wanted.clone());
            match found {
                Some(found) if found == wanted => None,
                Some(found) => Some(LabelRefused::Differs { driver, key, wanted, found: found.to_owned() }),
                None => is_reserved(&key).then_some(LabelRefused::Reserved { driver, key }),
            }
        });
        if wrong.is_none() {
            new.extend(driver.segments.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            accepted.push(driver);
        }
        refused = refused.or(wrong);
    }
    (accepted, refused)
}

/// Returns the patch of labels and annotations for [`accepted`] drivers; `None` if nothing differs.
pub(super) fn metadata(node: &Node, drivers: &[&NodeDriver]) -> Option<Value> {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let annotations = node.metadata.annotations.as_ref().unwrap_or(&empty);
    let segments = drivers.iter().flat_map(|driver| &driver.segments);
    let new_labels: BTreeMap<_, _> = segments.filter(|(key, _)| !labels.contains_key(*key)).collect();
    let mut new_annotations = Map::new();
    let ids: BTreeMap<String, String> =
        drivers.iter().map(|driver| (driver.name.clone(), driver.node_id.clone())).collect();
    let found_ids: Option<BTreeMap<String, String>> =
        annotations.get(NODE_ID).and_then(|text| serde_json::from_str(text).ok());
    if found_ids.unwrap_or_default() != ids {
        let text = (!ids.is_empty()).then(|| json!(ids).to_string());
        new_annotations.insert(NODE_ID.to_owned(), json!(text));
    }
    if annotations.get(CONTROLLER_ATTACHES).is_none_or(|value| value != "true") {
        new_annotations.insert(CONTROLLER_ATTACHES.to_owned(), json!("true"));
    }
    (!new_labels.is_empty() || !new_annotations.is_empty()).then(|| {
        json!({ "metadata": { "uid": node.metadata.uid, "labels": new_labels, "annotations": new_annotations } })
    })
}

fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let below = |suffix: &str| {
        domain == suffix || domain.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'))
    };
    (below("kubernetes.io") || below("k8s.io")) && !OWN_LABELS.contains(&key)
}

/// Returns the patch of `status.volumesInUse`; `None` if nothing differs.
pub(super) fn volumes_in_use(node: &Node, volumes: &[String]) -> Option<Value> {
    let mut wanted: Vec<&String> = volumes.iter().collect();
    wanted.sort();
    wanted.dedup();
    let found = node.status.iter().flat_map(|status| status.volumes_in_use.iter().flatten());
    let mut found: Vec<&String> = found.collect();
    found.sort();
    (found != wanted)
        .then(|| json!({ "metadata": { "uid": node.metadata.uid }, "status": { "volumesInUse": wanted } }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeStatus;

    use super::*;

    fn driver(name: &str, segments: &[(&str, &str)]) -> NodeDriver {
        let segments = segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NodeDriver { name: name.to_owned(), node_id: "id".to_owned(), segments, ..NodeDriver::default() }
    }

    fn node(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Node {
        let map = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let mut node = Node::default();
        node.metadata.uid = Some("uid".to_owned());
        (node.metadata.labels, node.metadata.annotations) = (map(labels), map(annotations));
        node
    }

    #[test]
    fn adds_missing_metadata_only() {
        let (a, b) = (driver("a", &[("a.example/zone", "z")]), driver("b", &[]));
        let patch = metadata(&node(&[], &[]), &[&a, &b]).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({ "a.example/zone": "z" }));
        assert_eq!(patch["metadata"]["uid"], "uid", "not another Node of the same name");
        let ids = patch["metadata"]["annotations"][NODE_ID].as_str().unwrap();
        assert_eq!(ids, r#"{"a":"id","b":"id"}"#);
        let right = node(
            &[("a.example/zone", "z")],
            &[(NODE_ID, r#"{"b":"id","a":"id"}"#), (CONTROLLER_ATTACHES, "true")],
        );
        assert_eq!(metadata(&right, &[&a, &b]), None);
        let removed = metadata(&right, &[]).unwrap();
        assert_eq!(removed["metadata"]["annotations"], json!({ NODE_ID: null }));
    }

    #[test]
    fn leaves_out_drivers_with_invalid_topology() {
        for (labels, driver, expected) in [
            (&[("z", "1")][..], driver("a", &[("z", "2")]), "differs from the Node's label z=1"),
            (&[], driver("a", &[("first", "2")]), "topology segment first=2 differs"),
            (&[], driver("a", &[("node-role.kubernetes.io/master", "")]), "may not set its label"),
            (&[], driver("a", &[("kubernetes.io/os", "x")]), "may not set its label"),
            (&[], driver("a", &[("x.k8s.io/y", "x")]), "may not set its label"),
            (&[], driver("a", &[("a.example/rack", "rack 7")]), "rack\"=\"rack 7\" cannot be a label"),
            (&[("z", "1")], driver("a", &[("z", &"2".repeat(64))]), "cannot be a label"),
        ] {
            let drivers = [self::driver("0", &[("first", "1")]), driver];
            let node = node(labels, &[]);
            let (accepted, refused) = accepted(&node, &drivers);
            assert_eq!(accepted, [&drivers[0]], "{expected}");
            let text = refused.unwrap().to_string();
            assert!(text.contains(expected), "{text}");
        }
        for fine in ["topology.kubernetes.io/zone", "notkubernetes.io/a", "plain", "topology.gke.io/zone"] {
            let drivers = [driver("a", &[(fine, "x")])];
            assert_eq!(accepted(&node(&[], &[]), &drivers).1, None, "{fine}");
        }
    }

    #[test]
    fn volumes_in_use_are_written_when_they_differ() {
        let mut node = node(&[], &[]);
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert_eq!(volumes_in_use(&node, &[]), None);
        let patch = volumes_in_use(&node, &[b.clone(), a.clone(), b.clone()]).unwrap();
        assert_eq!(patch["status"]["volumesInUse"], json!(["a", "b"]));
        node.status =
            Some(NodeStatus { volumes_in_use: Some(vec![b.clone(), a.clone()]), ..NodeStatus::default() });
        assert_eq!(volumes_in_use(&node, &[a, b]), None);
        assert_eq!(volumes_in_use(&node, &[]).unwrap()["status"]["volumesInUse"], json!([]));
    }
}
