//! What the legs do with claims and pods, and what they look at.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::edge::{DRIVERS, Edge, FOREIGN, NODES as OURS};
use super::kubelet::Kubelet;
use super::objects::{
    self, ATTACHMENTS, CLAIMS, CSI_NODES, NODES, PODS, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES,
};
use super::plane::Plane;
use crate::error::RealError;
use crate::setup::Setup;
use crate::table::Fact;

/// Time for what takes a moment where the host is idle: sidecars wait up to half a minute between two tries.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// Everything together. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    // In the order in which they end.
    kubelet: Option<Kubelet>,
    pub(crate) edge: Edge,
    pub(crate) plane: Plane,
    pub(crate) api: Api,
}

/// What was looked at, and how it is.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Fact>);

impl Findings {
    pub(crate) fn note(&mut self, right: bool, words: impl Into<String>) {
        self.0.push(Fact { words: words.into(), right });
    }

    /// Notes that two things are the same, or what there is instead.
    pub(crate) fn same(&mut self, what: &str, found: &Value, expected: &Value) {
        let right = found == expected;
        let words =
            if right { format!("{what}: {found}") } else { format!("{what}: {found}, not {expected}") };
        self.note(right, words);
    }
}

impl Cluster {
    /// Brings everything up; without a kubelet, its node is like the others.
    pub(crate) fn start(setup: &Setup<'_>, with_kubelet: bool) -> Result<Self, RealError> {
        let plane = Plane::start(setup)?;
        let api = plane.api;
        let mut edge = Edge::start(setup, &plane)?;
        for (collection, object) in objects::foundation() {
            api.create(collection, &object)?;
        }
        let first = OURS[0];
        for name in OURS.into_iter().filter(|name| !with_kubelet || *name != first) {
            add_node(api, name, &DRIVERS)?;
        }
        edge.start_sidecars(setup, &plane)?;
        let mut kubelet = if with_kubelet { Some(Kubelet::start(setup, &plane, first)?) } else { None };
        for driver in DRIVERS.into_iter().chain([FOREIGN]) {
            let socket = edge.nodes.first().map_or_else(PathBuf::new, |node| node.kubelet_socket(driver));
            if let Some(kubelet) = &mut kubelet {
                kubelet.register(setup, &plane, (first, driver), &socket)?;
            }
        }
        Ok(Self { kubelet, edge, plane, api })
    }

    /// Ends everything: ours in good order, the rest at once.
    pub(crate) fn stop(self) -> Result<(), RealError> {
        drop(self.kubelet);
        let stopped = self.edge.stop();
        drop(self.plane);
        stopped
    }

    /// Makes a claim and a pod that uses it.
    pub(crate) fn make(&self, claim: &Value, pod: &Value) -> Result<(), RealError> {
        self.api.create(CLAIMS, claim)?;
        self.api.create(PODS, pod)
    }

    /// Waits until a claim is bound; its PersistentVolume.
    pub(crate) fn bound(&self, claim: &str) -> Result<Value, RealError> {
        let volume = self.api.until(&format!("{CLAIMS}/{claim}"), "bound", BOUND, |claim| {
            let bound = claim["status"]["phase"] == "Bound";
            bound.then(|| text(&claim["spec"]["volumeName"]))
        })?;
        self.api.until(&format!("{VOLUMES}/{volume}"), "there", BOUND, |volume| Some(volume.clone()))
    }

    /// The UID of a pod, which the directory of its volumes has for its name.
    pub(crate) fn uid(&self, pod: &str) -> Result<String, RealError> {
        self.api.until(&format!("{PODS}/{pod}"), "known", BOUND, |pod| {
            pod["metadata"]["uid"].as_str().map(ToOwned::to_owned)
        })
    }

    /// Waits until a pod does nothing more than wait.
    pub(crate) fn running(&self, pod: &str) -> Result<(), RealError> {
        self.phase(pod, "Running")
    }

    /// Waits until a pod has done what it was told to.
    pub(crate) fn succeeded(&self, pod: &str) -> Result<(), RealError> {
        self.phase(pod, "Succeeded")
    }

    fn phase(&self, pod: &str, wanted: &str) -> Result<(), RealError> {
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
        Err(RealError::NeverSo { waited_for, bound: BOUND, last })
    }

    /// Deletes a pod, and waits until it is gone.
    pub(crate) fn end_pod(&self, pod: &str) -> Result<(), RealError> {
        let path = format!("{PODS}/{pod}");
        self.api.delete(&path)?;
        self.api.until_gone(&path, BOUND)
    }

    /// Deletes a pod of a node that has no kubelet, which nobody would confirm.
    pub(crate) fn forget_pod(&self, pod: &str) -> Result<(), RealError> {
        let path = format!("{PODS}/{pod}");
        self.api.delete(&format!("{path}?gracePeriodSeconds=0"))?;
        self.api.until_gone(&path, BOUND)
    }

    /// Deletes a claim, and waits until its PersistentVolume is gone.
    pub(crate) fn end_claim(&self, claim: &str) -> Result<(), RealError> {
        let path = format!("{CLAIMS}/{claim}");
        let volume = self.api.read(&path)?.map(|claim| text(&claim["spec"]["volumeName"]));
        self.api.delete(&path)?;
        self.api.until_gone(&path, BOUND)?;
        match volume.filter(|volume| !volume.is_empty()) {
            Some(volume) => self.api.until_gone(&format!("{VOLUMES}/{volume}"), BOUND),
            None => Ok(()),
        }
    }

    /// The attachment of a volume, once the sidecar says that it is attached.
    pub(crate) fn attached(&self, volume: &str) -> Result<Value, RealError> {
        self.api.until(ATTACHMENTS, &format!("{volume} attached"), BOUND, |all| {
            let all = all["items"].as_array()?;
            let of_volume = |attachment: &&Value| {
                attachment["spec"]["source"]["persistentVolumeName"] == volume
                    && attachment["status"]["attached"] == true
            };
            all.iter().find(of_volume).cloned()
        })
    }

    /// Waits until nothing is attached anywhere.
    pub(crate) fn detached(&self) -> Result<(), RealError> {
        let none = |all: &Value| all["items"].as_array()?.is_empty().then_some(());
        self.api.until(ATTACHMENTS, "none", BOUND, none)
    }

    /// Takes away whatever a leg left in the API server, and notes what there is of it anywhere then.
    pub(crate) fn clear(&mut self, findings: &mut Findings) -> Result<(), RealError> {
        for pod in self.api.list(PODS)? {
            let name = text(&pod["metadata"]["name"]);
            if pod["spec"]["nodeName"] == OURS[0] { self.end_pod(&name)? } else { self.forget_pod(&name)? }
        }
        for collection in [SNAPSHOTS, CLAIMS] {
            for object in self.api.list(collection)? {
                let path = format!("{collection}/{}", text(&object["metadata"]["name"]));
                self.api.delete(&path)?;
                self.api.until_gone(&path, BOUND)?;
            }
        }
        for collection in [ATTACHMENTS, VOLUMES, SNAPSHOT_CONTENTS] {
            for object in self.api.list(collection)? {
                let path = format!("{collection}/{}", text(&object["metadata"]["name"]));
                self.api.until_gone(&path, BOUND)?;
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

/// Makes a node that nobody runs pods on.
pub(crate) fn add_node(api: Api, name: &str, drivers: &[&str]) -> Result<(), RealError> {
    let [node, csi_node] = objects::node(name, drivers);
    join(api, name, &node)?;
    api.create(CSI_NODES, &csi_node)
}

/// Makes a node of which nobody has said yet what drivers it has.
pub(crate) fn add_bare_node(api: Api, name: &str) -> Result<(), RealError> {
    join(api, name, &objects::bare_node(name))
}

fn join(api: Api, name: &str, node: &Value) -> Result<(), RealError> {
    api.create(NODES, node)?;
    api.merge(&format!("{NODES}/{name}/status"), &objects::node_status())?;
    api.merge(&format!("{NODES}/{name}"), &json!({"spec": {"taints": null}}))
}

/// Takes a node out of the cluster.
pub(crate) fn remove_node(api: Api, name: &str) -> Result<(), RealError> {
    [CSI_NODES, NODES].into_iter().try_for_each(|collection| {
        let path = format!("{collection}/{name}");
        api.delete(&path)?;
        api.until_gone(&path, BOUND)
    })
}

/// A text in an object, or an empty one.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
