//! The operations of the test cases on claims and pods, and their checks.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::edge::{DRIVERS, Edge, NODES as OWN_NODES};
use super::kubelet::Kubelet;
use super::objects::{
    self, ATTACHMENTS, CLAIMS, CSI_NODES, NODES, PODS, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES,
};
use super::plane::Plane;
use crate::error::E2eError;
use crate::setup::Setup;
use crate::table::Fact;

/// Time limit for operations that are short on an idle host: sidecars wait up to half a minute between two attempts.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// The control plane, the edge and the kubelet. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    // Fields are dropped in this order.
    kubelet: Option<Kubelet>,
    pub(crate) edge: Edge,
    pub(crate) plane: Plane,
    pub(crate) api: Api,
}

/// The checks and their results.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Fact>);

impl Findings {
    pub(crate) fn note(&mut self, right: bool, words: impl Into<String>) {
        self.0.push(Fact { words: words.into(), right });
    }

    /// Notes that a value is as expected, or else the value that was found.
    pub(crate) fn same(&mut self, what: &str, found: &Value, expected: &Value) {
        let right = found == expected;
        let words =
            if right { format!("{what}: {found}") } else { format!("{what}: {found}, not {expected}") };
        self.note(right, words);
    }
}

impl Cluster {
    /// Starts the cluster. Without a kubelet, its node is like the others.
    pub(crate) fn start(setup: &Setup<'_>, with_kubelet: bool) -> Result<Self, E2eError> {
        let mut cluster = Self::before(setup, Plane::start(setup)?, with_kubelet)?;
        if with_kubelet {
            let node = OWN_NODES[0];
            let mut kubelet = Kubelet::start(setup, &cluster.plane, node)?;
            for (driver, socket) in cluster.edge.kubelet_sockets(node) {
                kubelet.register(setup, &cluster.plane, (node, driver), &socket)?;
            }
            cluster.kubelet = Some(kubelet);
        }
        Ok(cluster)
    }

    /// Starts the edge and the sidecars, and adds the nodes, except the first one if it joins by itself.
    pub(crate) fn before(setup: &Setup<'_>, plane: Plane, first_joins: bool) -> Result<Self, E2eError> {
        let api = plane.api;
        let mut edge = Edge::start(setup, &plane)?;
        for (collection, object) in objects::foundation() {
            api.create(collection, &object)?;
        }
        for name in OWN_NODES.into_iter().filter(|name| !first_joins || *name != OWN_NODES[0]) {
            add_node(api, name, &DRIVERS)?;
        }
        edge.start_sidecars(setup, &plane)?;
        Ok(Self { kubelet: None, edge, plane, api })
    }

    /// Stops the cluster: the edge-csi processes gracefully, the others immediately.
    pub(crate) fn stop(self) -> Result<(), E2eError> {
        drop(self.kubelet);
        let stopped = self.edge.stop();
        drop(self.plane);
        stopped
    }

    /// Creates a claim and a pod that uses it.
    pub(crate) fn make(&self, claim: &Value, pod: &Value) -> Result<(), E2eError> {
        self.api.create(CLAIMS, claim)?;
        self.api.create(PODS, pod)
    }

    /// Waits until a claim is bound, and returns its PersistentVolume.
    pub(crate) fn bound(&self, claim: &str) -> Result<Value, E2eError> {
        let volume = self.api.until(&format!("{CLAIMS}/{claim}"), "bound", BOUND, |claim| {
            let bound = claim["status"]["phase"] == "Bound";
            bound.then(|| text(&claim["spec"]["volumeName"]))
        })?;
        self.api.until(&format!("{VOLUMES}/{volume}"), "exists", BOUND, |volume| Some(volume.clone()))
    }

    /// Returns the UID of a pod, which is also the name of the directory of its volumes.
    pub(crate) fn uid(&self, pod: &str) -> Result<String, E2eError> {
        self.api.until(&format!("{PODS}/{pod}"), "has a UID", BOUND, |pod| {
            pod["metadata"]["uid"].as_str().map(ToOwned::to_owned)
        })
    }

    /// Waits until a pod is running.
    pub(crate) fn running(&self, pod: &str) -> Result<(), E2eError> {
        self.phase(pod, "Running")
    }

    /// Waits until a pod has completed.
    pub(crate) fn succeeded(&self, pod: &str) -> Result<(), E2eError> {
        self.phase(pod, "Succeeded")
    }

    fn phase(&self, pod: &str, wanted: &str) -> Result<(), E2eError> {
        let ended = |status: &Value| {
            let phase = status["phase"].as_str().unwrap_or_default();
            (phase == wanted || phase == "Failed").then(|| status.clone())
        };
        let path = format!("{PODS}/{pod}");
        let status = self.api.until(&path, wanted, BOUND, |pod| ended(&pod["status"]))?;
        if status["phase"] == wanted {
            return Ok(());
        }
        let (waited_for, last) = (format!("{path}: {wanted}"), status.to_string());
        Err(E2eError::Timeout { waited_for, bound: BOUND, last })
    }

    /// Deletes a pod, and waits until it is removed.
    pub(crate) fn end_pod(&self, pod: &str) -> Result<(), E2eError> {
        let path = format!("{PODS}/{pod}");
        self.api.delete(&path)?;
        self.api.until_removed(&path, BOUND)
    }

    /// Force-deletes a pod on a node without a kubelet, which would have to confirm the deletion.
    pub(crate) fn forget_pod(&self, pod: &str) -> Result<(), E2eError> {
        let path = format!("{PODS}/{pod}");
        self.api.delete(&format!("{path}?gracePeriodSeconds=0"))?;
        self.api.until_removed(&path, BOUND)
    }

    /// Deletes a claim, and waits until its PersistentVolume is removed.
    pub(crate) fn end_claim(&self, claim: &str) -> Result<(), E2eError> {
        let path = format!("{CLAIMS}/{claim}");
        let volume = self.api.read(&path)?.map(|claim| text(&claim["spec"]["volumeName"]));
        self.api.delete(&path)?;
        self.api.until_removed(&path, BOUND)?;
        match volume.filter(|volume| !volume.is_empty()) {
            Some(volume) => self.api.until_removed(&format!("{VOLUMES}/{volume}"), BOUND),
            None => Ok(()),
        }
    }

    /// Waits until the attacher reports a volume as attached, and returns its VolumeAttachment.
    pub(crate) fn attached(&self, volume: &str) -> Result<Value, E2eError> {
        self.api.until(ATTACHMENTS, &format!("{volume} attached"), BOUND, |all| {
            let all = all["items"].as_array()?;
            let of_volume = |attachment: &&Value| {
                attachment["spec"]["source"]["persistentVolumeName"] == volume
                    && attachment["status"]["attached"] == true
            };
            all.iter().find(of_volume).cloned()
        })
    }

    /// Waits until no VolumeAttachment is left.
    pub(crate) fn detached(&self) -> Result<(), E2eError> {
        let none = |all: &Value| all["items"].as_array()?.is_empty().then_some(());
        self.api.until(ATTACHMENTS, "none", BOUND, none)
    }

    /// Deletes all objects that a test run left in the API server, and notes any remaining trace of them.
    pub(crate) fn clear(&mut self, findings: &mut Findings) -> Result<(), E2eError> {
        for pod in self.api.list(PODS)? {
            let name = text(&pod["metadata"]["name"]);
            if pod["spec"]["nodeName"] == OWN_NODES[0] {
                self.end_pod(&name)?;
            } else {
                self.forget_pod(&name)?;
            }
        }
        for collection in [SNAPSHOTS, CLAIMS] {
            for object in self.api.list(collection)? {
                let path = format!("{collection}/{}", text(&object["metadata"]["name"]));
                self.api.delete(&path)?;
                self.api.until_removed(&path, BOUND)?;
            }
        }
        for collection in [ATTACHMENTS, VOLUMES, SNAPSHOT_CONTENTS] {
            for object in self.api.list(collection)? {
                let path = format!("{collection}/{}", text(&object["metadata"]["name"]));
                self.api.until_removed(&path, BOUND)?;
            }
        }
        let left: Vec<String> = self
            .edge
            .nodes
            .iter()
            .flat_map(|node| DRIVERS.map(|driver| node.holds(driver)))
            .flatten()
            .collect();
        findings.note(left.is_empty(), format!("left with the drivers of all nodes: {left:?}"));
        let ended = self.edge.ended_sidecars();
        findings.note(ended.is_empty(), format!("sidecars that have ended: {ended:?}"));
        Ok(())
    }
}

/// Creates a node that runs no pods.
pub(crate) fn add_node(api: Api, name: &str, drivers: &[&str]) -> Result<(), E2eError> {
    let [node, csi_node] = objects::node(name, drivers);
    join(api, name, &node)?;
    api.create(CSI_NODES, &csi_node)
}

/// Creates a node without a CSINode.
pub(crate) fn add_bare_node(api: Api, name: &str) -> Result<(), E2eError> {
    join(api, name, &objects::bare_node(name))
}

fn join(api: Api, name: &str, node: &Value) -> Result<(), E2eError> {
    api.create(NODES, node)?;
    api.merge(&format!("{NODES}/{name}/status"), &objects::node_status())?;
    api.merge(&format!("{NODES}/{name}"), &json!({"spec": {"taints": null}}))
}

/// Removes a node from the cluster.
pub(crate) fn remove_node(api: Api, name: &str) -> Result<(), E2eError> {
    [CSI_NODES, NODES].into_iter().try_for_each(|collection| {
        let path = format!("{collection}/{name}");
        api.delete(&path)?;
        api.until_removed(&path, BOUND)
    })
}

/// Returns a string value, or an empty string for any other value.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
