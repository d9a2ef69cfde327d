//! The CSINode of a node whose kubelet is edged, which keeps it in its own memory.

use std::time::Duration;

use serde_json::{Value, json};

use crate::error::E2eError;
use crate::kubernetes::Api;
use crate::kubernetes::objects::{CSI_NODES, IDS, NODES, topology_key};

/// Time limit for the registration of the drivers.
const REGISTRATION: Duration = Duration::from_secs(90);

/// Time limit for the CSINode after that.
const REPORT: Duration = Duration::from_secs(30);

/// Waits until edged has registered the drivers, and the hub has written the CSINode.
pub(super) fn written(api: Api, node: &str, drivers: &[&str]) -> Result<(), E2eError> {
    let registered = registered(api, node, drivers)?;
    reported(api, &registered, drivers)
}

/// Waits until edged has registered the drivers: it writes their ids and topology to the Node. Returns the Node.
fn registered(api: Api, node: &str, drivers: &[&str]) -> Result<Value, E2eError> {
    api.until(&format!("{NODES}/{node}"), &format!("with {drivers:?}"), REGISTRATION, |node| {
        let ids = ids(node);
        drivers.iter().all(|driver| ids[*driver].is_string()).then(|| node.clone())
    })
}

/// Waits until the hub has written the CSINode, with the ids and keys that edged has written to the Node.
fn reported(api: Api, node: &Value, drivers: &[&str]) -> Result<(), E2eError> {
    let (name, ids) = (&node["metadata"]["name"], ids(node));
    let keys = |driver: &str| -> Vec<String> {
        let key = topology_key(driver);
        if node["metadata"]["labels"][&key].is_string() { vec![key] } else { Vec::new() }
    };
    let is_right = |found: &Value, driver: &&str| {
        let entries = found["spec"]["drivers"].as_array();
        entries.into_iter().flatten().any(|entry| {
            entry["name"] == **driver
                && entry["nodeID"] == ids[*driver]
                && entry["topologyKeys"] == json!(keys(driver))
        })
    };
    let path = format!("{CSI_NODES}/{}", name.as_str().unwrap_or_default());
    api.until(&path, &format!("with {drivers:?}, as on the Node"), REPORT, |found| {
        let is_owned = found["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"];
        (is_owned && drivers.iter().all(|driver| is_right(found, driver))).then_some(())
    })
}

/// Returns the node's ids by driver, from the annotation of its Node.
fn ids(node: &Value) -> Value {
    let text = node["metadata"]["annotations"][IDS].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_drivers_are_in_an_annotation() {
        let node = json!({"metadata": {"annotations": {IDS: r#"{"a":"edge-1"}"#}}});
        assert_eq!(ids(&node), json!({"a": "edge-1"}));
        assert_eq!(ids(&json!({})), Value::Null);
    }
}
