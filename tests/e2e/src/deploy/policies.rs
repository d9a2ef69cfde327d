//! The admission policies of the hub's account: with the token of that account, each write that the hub makes is accepted, and
//! other writes that its role allows are refused.

use std::process::Command;
use std::time::Duration;

use edge_csi_tests::certificates;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::TestCluster;
use crate::error::E2eError;
use crate::kubernetes::objects::{self, CLAIMS, CSI_NODES, NODES, VOLUMES};
use crate::kubernetes::{Api, serve_api};

/// Time until the API server enforces a new policy.
const POLICY_DELAY: Duration = Duration::from_secs(30);

/// Time until a claim is bound to its volume.
const BIND_DELAY: Duration = Duration::from_secs(60);

/// A Node with the label of edge nodes, and one without.
const EDGE: &str = "policy-edge";
const CLOUD: &str = "policy-cloud";

/// The events of the namespace of the claims.
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// The requests for certificates, and the signer of nodes.
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SIGNER: &str = "issuers.cert-manager.io/edge-csi.edge-csi";

/// The policies, with their status.
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// The tokens of a service account that is not the hub's.
const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

/// The annotation with the number of the status that was written.
const STATUS_NUMBER: &str = "edge-csi.io/status-number";

/// The hub's own test of its Kubernetes client.
const HUB_TEST: &str = "all_of_it_at_a_real_api_server";
const HUB_TEST_BOUND: Duration = Duration::from_secs(180);

/// Roles that an administrator binds where drivers need them. The hub's test creates namespaces, so they are bound in all.
const BOUND_ON_DEMAND: [&str; 2] = ["edge-hub-secrets", "edge-hub-tokens"];

/// A request with the hub's token.
struct Write {
    words: &'static str,
    path: String,
    /// An object to create, or a merge patch.
    body: Value,
    creates: bool,
}

/// Returns a merge patch of the object at `path`.
fn patch(words: &'static str, path: impl Into<String>, body: Value) -> Write {
    Write { words, path: path.into(), body, creates: false }
}

/// Returns the creation of an object in `collection`.
fn create(words: &'static str, collection: impl Into<String>, body: Value) -> Write {
    Write { words, path: collection.into(), body, creates: true }
}

impl Write {
    /// Sends the request; a dry run changes nothing.
    fn send(&self, api: &Api, is_dry: bool) -> Result<(), E2eError> {
        let path = format!("{}{}", self.path, if is_dry { "?dryRun=All" } else { "" });
        if self.creates { api.create(&path, &self.body) } else { api.merge(&path, &self.body) }
    }
}

/// Applies the policies, and checks them with the token of the hub's account, whose role is bound already.
pub(super) fn check(cluster: &mut TestCluster<'_>) -> Result<(), E2eError> {
    cluster.kubectl(["apply", "-f", "components/hub-kubernetes/policies"])?;
    for file in ["signer", "policy"] {
        cluster.kubectl(["apply", "-f", &format!("components/node-renewal/{file}.yaml")])?;
    }
    for role in BOUND_ON_DEMAND {
        let account = "--serviceaccount=edge-csi:edge-hub";
        cluster.kubectl(["create", "clusterrolebinding", role, &format!("--clusterrole={role}"), account])?;
    }
    fill(cluster)?;
    let kubeconfig = cluster.kubeconfig_of("edge-hub")?;
    let (_proxy, hub) = serve_api(&cluster.setup, "kubectl-proxy-hub", &kubeconfig)?;
    for write in refused() {
        // A request is refused once the API server has read the policy.
        let mut found = String::new();
        let by_policy = wait::poll(POLICY_DELAY, || match write.send(&hub, true) {
            Err(E2eError::Refused { said, .. }) if is_denied(&said) => Some(()),
            Err(error) => {
                found = error.to_string();
                None
            }
            Ok(()) => {
                found = "the request is accepted".to_owned();
                None
            }
        });
        let missing = if by_policy.is_some() { String::new() } else { format!(": not by a policy: {found}") };
        cluster.note(by_policy.is_some(), format!("the hub is refused: {}{missing}", write.words));
    }
    let node = cluster.plane.api.read(&format!("{NODES}/{EDGE}"))?.unwrap_or_default();
    for write in accepted(&node["metadata"]["uid"]) {
        let sent = write.send(&hub, false);
        let error = sent.as_ref().err().map(|error| format!(": {error}")).unwrap_or_default();
        cluster.note(sent.is_ok(), format!("the hub may: {}{error}", write.words));
    }
    hub_test(cluster, &kubeconfig)?;
    type_checks(cluster)
}

/// Returns true if a policy denied a request, and did not fail.
fn is_denied(said: &str) -> bool {
    said.contains("ValidatingAdmissionPolicy") && !said.contains("resulted in error")
}

/// Creates the Nodes, claims and events that the requests change.
fn fill(cluster: &TestCluster<'_>) -> Result<(), E2eError> {
    let api = &cluster.plane.api;
    for name in [EDGE, CLOUD] {
        let [mut node, csi_node] = objects::node(name, &["other.example"]);
        if name == EDGE {
            node["metadata"]["labels"]["node-role.kubernetes.io/edge"] = "".into();
        }
        api.create(NODES, &node)?;
        api.merge(&format!("{NODES}/{name}/status"), &objects::node_status())?;
        api.create(CSI_NODES, &csi_node)?;
    }
    for (name, conditions, resizes) in [
        ("policy-waits", json!([condition("FileSystemResizePending")]), json!("NodeResizePending")),
        ("policy-bound", json!([]), Value::Null),
    ] {
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "default", "name": name},
                "csi": {"driver": "csi-hostpath", "volumeHandle": name},
            },
        });
        api.create(VOLUMES, &volume)?;
        let mut claim = objects::claim(name, "", "1Gi");
        claim["spec"]["volumeName"] = name.into();
        api.create(CLAIMS, &claim)?;
        let path = format!("{CLAIMS}/{name}");
        // The controller resets the status of a claim that is not bound.
        api.until(&path, "bound", BIND_DELAY, |claim| (claim["status"]["phase"] == "Bound").then_some(()))?;
        let status = json!({"status": {
            "conditions": conditions,
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": resizes},
        }});
        api.merge(&format!("{path}/status"), &status)?;
    }
    let mut foreign = event("policy-foreign", "Pod", "Warning", "FailedMount");
    foreign["source"]["component"] = "kubelet".into();
    api.create(EVENTS, &foreign)?;
    api.create(REQUESTS, &signing_request("policy-foreign", SIGNER))
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// Returns an event as the hub writes it.
fn event(name: &str, kind: &str, of_type: &str, reason: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "namespace": "default", "name": "web", "uid": "1"},
        "reason": reason,
        "message": "no such device",
        "type": of_type,
        "source": {"component": "edge-csi", "host": EDGE},
        "reportingComponent": "edge-csi",
        "reportingInstance": EDGE,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    })
}

/// Returns a CSINode with a driver, owned by the Node of this name.
fn csi_node(name: &str, owner: &str) -> Value {
    json!({
        "metadata": {"name": name, "ownerReferences": [owner_reference("Node", owner)]},
        "spec": {"drivers": [{"name": "csi-hostpath", "nodeID": "id", "topologyKeys": null}]},
    })
}

fn owner_reference(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "d9607e19-f88f-11e6-a518-42010a800195"})
}

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn annotations(annotations: Value) -> Value {
    json!({"metadata": {"annotations": annotations}})
}

/// Requests that the role allows and the policies refuse.
fn refused() -> Vec<Write> {
    let parts =
        [nodes_refused(), csi_nodes_refused(), claims_refused(), events_refused(), requests_refused()];
    parts.into_iter().flatten().collect()
}

fn nodes_refused() -> Vec<Write> {
    let node = format!("{NODES}/{EDGE}");
    let (status, cloud, cloud_status) =
        (format!("{node}/status"), format!("{NODES}/{CLOUD}"), format!("{NODES}/{CLOUD}/status"));
    let taint = json!([{"key": "a", "value": "b", "effect": "NoExecute"}]);
    let owners = json!({"metadata": {"ownerReferences": [owner_reference("ConfigMap", "none")]}});
    vec![
        patch("taint an edge node", &node, json!({"spec": {"taints": taint}})),
        patch("cordon an edge node", &node, json!({"spec": {"unschedulable": true}})),
        patch("set a role", &node, labels(json!({"node-role.kubernetes.io/control-plane": ""}))),
        patch("remove the edge label", &node, labels(json!({"node-role.kubernetes.io/edge": null}))),
        patch("set a label of another owner", &node, labels(json!({"pool.example/name": "gpu"}))),
        patch("set a zone", &node, labels(json!({"topology.kubernetes.io/zone": "a"}))),
        patch("change a driver's label", &node, labels(json!({"topology.other.example/node": "x"}))),
        patch("change a label in a status", &status, labels(json!({"pool.example/name": "gpu"}))),
        patch("set an annotation", &node, annotations(json!({"a.example/b": "c"}))),
        patch("detach itself", &node, annotations(json!({objects::ATTACHED_BY_CONTROLLER: "false"}))),
        patch("set the owner of a node", &node, owners),
        patch("set a finalizer of a node", &node, json!({"metadata": {"finalizers": ["a.example/b"]}})),
        patch("change a capacity", &status, json!({"status": {"capacity": {"cpu": "1"}}})),
        patch("add a resource", &status, json!({"status": {"allocatable": {"a.example/b": "1"}}})),
        patch("change conditions", &status, json!({"status": {"conditions": []}})),
        patch("change a phase", &status, json!({"status": {"phase": "Terminated"}})),
        patch("label another node", &cloud, labels(json!({"topology.csi-hostpath/node": "a"}))),
        patch("annotate another node", &cloud, annotations(json!({objects::IDS: "{}"}))),
        patch(
            "change volumesInUse of another node",
            cloud_status,
            json!({"status": {"volumesInUse": ["a"]}}),
        ),
    ]
}

fn csi_nodes_refused() -> Vec<Write> {
    let (edge, cloud) = (format!("{CSI_NODES}/{EDGE}"), format!("{CSI_NODES}/{CLOUD}"));
    let owners = json!({"metadata": {"ownerReferences": [owner_reference("Node", CLOUD)]}});
    vec![
        patch("change the CSINode of another node", cloud, json!({"spec": {"drivers": []}})),
        patch("set the owner of a CSINode", &edge, owners),
        patch("label a CSINode", &edge, labels(json!({"a": "b"}))),
        patch("annotate a CSINode", &edge, annotations(json!({"a.example/b": "c"}))),
        patch("set a finalizer of a CSINode", &edge, json!({"metadata": {"finalizers": ["a.example/b"]}})),
        create("create a CSINode without its owner", CSI_NODES, csi_node("policy-new", EDGE)),
    ]
}

fn claims_refused() -> Vec<Write> {
    let (waits, bound) = (format!("{CLAIMS}/policy-waits/status"), format!("{CLAIMS}/policy-bound/status"));
    let capacity = |size: &str| json!({"status": {"capacity": {"storage": size}}});
    let conditions = json!([condition("FileSystemResizePending"), condition("ModifyVolumeError")]);
    vec![
        patch("enlarge a claim that waits for nothing", bound, capacity("2Gi")),
        patch("shrink a claim", &waits, capacity("1Mi")),
        patch("lose a claim", &waits, json!({"status": {"phase": "Lost"}})),
        patch("add a condition to a claim", &waits, json!({"status": {"conditions": conditions}})),
        patch("allocate", &waits, json!({"status": {"allocatedResources": {"storage": "9Ti"}}})),
        patch(
            "fail an expansion",
            &waits,
            json!({"status": {"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}}),
        ),
        patch("label a claim", &waits, labels(json!({"a": "b"}))),
        patch("set a finalizer of a claim", &waits, json!({"metadata": {"finalizers": ["a.example/b"]}})),
    ]
}

fn events_refused() -> Vec<Write> {
    let foreign = format!("{EVENTS}/policy-foreign");
    let from = |component: &str| {
        let mut event = event("policy-new", "Pod", "Warning", "FailedMount");
        event["source"]["component"] = component.into();
        event
    };
    let mut owned = event("policy-new", "Pod", "Warning", "FailedMount");
    owned["metadata"]["finalizers"] = json!(["a.example/b"]);
    let unbound = json!({"spec": {"audiences": ["vault"]}});
    vec![
        create("create an event of another component", EVENTS, from("kubelet")),
        create("create an event of a node", EVENTS, event("policy-new", "Node", "Warning", "FailedMount")),
        create("create an event of a kill", EVENTS, event("policy-new", "Pod", "Warning", "Killing")),
        create("create an event with a finalizer", EVENTS, owned),
        patch("change an event of kubelet", foreign, json!({"message": "a"})),
        create("request a token without a pod", TOKENS, unbound),
    ]
}

/// Returns a request for a certificate of this signer.
fn signing_request(name: &str, signer: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "signerName": signer,
            "request": certificates::request("edge-1"),
            "usages": ["digital signature", "client auth"],
        },
    })
}

fn approved() -> Value {
    json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": ""}]}})
}

fn requests_refused() -> Vec<Write> {
    let with = |field: &str, value: Value| {
        let mut request = signing_request("policy-new", SIGNER);
        request["spec"][field] = value;
        request
    };
    let of_cluster = signing_request("policy-new", "kubernetes.io/kube-apiserver-client");
    vec![
        create("request a certificate of the cluster", REQUESTS, of_cluster),
        create("request a certificate of a server", REQUESTS, with("usages", json!(["server auth"]))),
        create("request a long validity", REQUESTS, with("expirationSeconds", json!(86_400_000))),
        patch("approve the request of another", format!("{REQUESTS}/policy-foreign/approval"), approved()),
    ]
}

/// The requests of the hub, in its order. A CSINode whose owner is not a Node with this UID would be garbage-collected.
fn accepted(uid: &Value) -> Vec<Write> {
    let (node, csi) = (format!("{NODES}/{EDGE}"), format!("{CSI_NODES}/{EDGE}"));
    let metadata = json!({"metadata": {
        "labels": {"topology.csi-hostpath/node": EDGE},
        "annotations": {objects::IDS: "{\"csi-hostpath\":\"id\"}", objects::ATTACHED_BY_CONTROLLER: "true"},
    }});
    let driver =
        json!({"name": "csi-hostpath", "nodeID": "id", "topologyKeys": ["topology.csi-hostpath/node"]});
    let mut owned = json!({"metadata": {"ownerReferences": [owner_reference("Node", EDGE)]}});
    owned["metadata"]["ownerReferences"][0]["uid"] = uid.clone();
    let ended = json!({"status": {
        "capacity": {"storage": "2147483648"},
        "conditions": [],
        "allocatedResources": {"storage": "2147483648"},
        "allocatedResourceStatuses": {"storage": null},
    }});
    let counted = json!({"count": 2, "lastTimestamp": "2026-01-01T00:02:00Z", "message": "no such device"});
    let failed = event("policy-pod", "Pod", "Warning", "FailedMount");
    let grown = event("policy-claim", "PersistentVolumeClaim", "Normal", "FileSystemResizeSuccessful");
    vec![
        patch("set volumesInUse", format!("{node}/status"), json!({"status": {"volumesInUse": ["a"]}})),
        patch("set a driver's label, and annotations", &node, metadata),
        patch("remove the ids of drivers", &node, annotations(json!({objects::IDS: null}))),
        patch("mark a node with a status", &node, annotations(json!({STATUS_NUMBER: "1f-1-1"}))),
        patch("mark a CSINode with a status", &csi, annotations(json!({STATUS_NUMBER: "1f-1-1"}))),
        patch("mark a CSINode with a later status", &csi, annotations(json!({STATUS_NUMBER: "1f-1-2"}))),
        patch("become the owner of a CSINode", &csi, owned),
        patch("set the drivers of a node", &csi, json!({"spec": {"drivers": [driver]}})),
        patch("remove the drivers of a node", &csi, json!({"spec": {"drivers": []}})),
        create("create the CSINode of a node", CSI_NODES, csi_node("policy-new", "policy-new")),
        patch("write the size of a claim", format!("{CLAIMS}/policy-waits/status"), ended),
        create("create an event of a claim", EVENTS, grown),
        create("create an event of a pod", EVENTS, failed),
        patch("count an event of a pod", format!("{EVENTS}/policy-pod"), counted),
        create("request a certificate of a node", REQUESTS, signing_request("policy-own", SIGNER)),
        patch("approve its own request", format!("{REQUESTS}/policy-own/approval"), approved()),
    ]
}

/// Runs the hub's test with the hub's token for the hub, and the administrator's for the test.
fn hub_test(cluster: &mut TestCluster<'_>, kubeconfig: &std::path::Path) -> Result<(), E2eError> {
    let mut command = Command::new(&cluster.setup.components.hub_tests);
    command.args(["--ignored", "--exact", HUB_TEST]);
    command.env("EDGE_CSI_KUBECONFIG", &cluster.plane.kubeconfig).env("EDGE_CSI_HUB_KUBECONFIG", kubeconfig);
    let mut test = Process::spawn(cluster.setup.logs, "hub-tests", &mut command)?;
    let passed = test.finish(HUB_TEST_BOUND)? && test.log().contains("1 passed");
    let words = if passed { "the hub's test passes with its token".to_owned() } else { test.reason() };
    cluster.note(passed, words);
    Ok(())
}

/// Checks that the API server finds no type error in the expressions.
fn type_checks(cluster: &mut TestCluster<'_>) -> Result<(), E2eError> {
    let mut policies = Vec::new();
    let checked = wait::poll(POLICY_DELAY, || {
        policies = cluster.plane.api.list(POLICIES).unwrap_or_default();
        (!policies.is_empty() && policies.iter().all(|policy| policy["status"]["typeChecking"].is_object()))
            .then_some(())
    });
    let warnings: Vec<&Value> = policies
        .iter()
        .flat_map(|policy| policy["status"]["typeChecking"]["expressionWarnings"].as_array())
        .flatten()
        .collect();
    let words = format!("{} policies, with these type errors: {warnings:?}", policies.len());
    cluster.note(checked.is_some() && warnings.is_empty(), words);
    Ok(())
}
