//! `edge-hub --kubeconfig` as a process, between nodes and an API server: a fake one, and, in tests that are ignored otherwise,
//! the real one that `EDGE_CSI_KUBECONFIG` names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a fixture fails as its test does")]
#![allow(clippy::print_stderr, reason = "the hub's log belongs to a failed test")]

mod api;
mod certificates;
mod cluster;
mod edge;

use std::path::{Path, PathBuf};

use api::FakeApi;
use cluster::{Cluster, patch_status};
use edge::{Hub, Listening, Node, Objects};
use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::kubernetes::message::{
    DriverReport, ExpandedClaim, Fetched, NodeDriver, NodeStatus, PodVolumeFailure, PodVolumeStatus,
    SecretAnswer, SecretName, SecretQuery, StatusNumber, StatusResult, TokenAnswer, TokenQuery, Watch,
    object, request::Kind,
};
use edge_transport::{PeerId, Reason};
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tempfile::TempDir;

/// A hub at a cluster that has been filled.
struct Stage {
    directory: TempDir,
    kubeconfig: PathBuf,
    cluster: Cluster,
    hub: Hub,
}

impl Stage {
    async fn with(kubeconfig: Option<&Path>, fake: Option<&FakeApi>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = match (kubeconfig, fake) {
            (Some(real), _) => real.to_owned(),
            (None, Some(fake)) => write_kubeconfig(directory.path(), fake),
            (None, None) => panic!("no API server"),
        };
        let cluster = Cluster::connect(&kubeconfig, fake.is_none()).await;
        cluster.fill().await;
        // The hub may have fewer rights than the user that fills the cluster.
        let of_hub = std::env::var_os("EDGE_CSI_HUB_KUBECONFIG").filter(|_| fake.is_none());
        let kubeconfig = of_hub.map_or(kubeconfig, PathBuf::from);
        let hub = Hub::start(directory.path(), &kubeconfig);
        hub.ready().await;
        Self { directory, kubeconfig, cluster, hub }
    }

    async fn node(&self, name: &str) -> Node {
        Node::connect(&self.hub, &self.cluster.name(name)).await
    }

    /// All names that the first node gets, in the order of kinds. A real cluster may have further drivers.
    fn sent(&self, objects: &Objects) -> Vec<String> {
        let own = |name: &&str| ["web", "data"].contains(name) || name.starts_with(&self.cluster.run);
        objects.names().into_iter().filter(own).map(|name| name.replace(&self.cluster.run, "run")).collect()
    }

    /// The same files and names, and another instance of the hub.
    fn restart_hub(self) -> Self {
        assert_eq!(self.hub.end(), Some(0));
        let hub = Hub::start(self.directory.path(), &self.kubeconfig);
        Self { hub, ..self }
    }
}

fn write_kubeconfig(directory: &Path, api: &FakeApi) -> PathBuf {
    let path = directory.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", api.address) } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

const EVERYTHING: [&str; 5] = ["web", "data", "run-volume", "run-attachment", "run-csi.example"];

async fn first_change_of_node(stage: &Stage, node: &Node) -> Listening {
    let mut listening = node.listen(Objects::default()).await;
    listening.until(|objects| stage.sent(objects) == EVERYTHING).await;
    listening
}

/// Objects reach the node that they concern, and only that; changes follow, over a cut too.
async fn objects_reach_their_node(stage: &Stage) {
    let (one, two) = (stage.node("one").await, stage.node("two").await);
    let mut listening = first_change_of_node(stage, &one).await;
    let mut other = two.listen(Objects::default()).await;
    assert!(other.change().await.unwrap());
    assert_eq!(stage.sent(&other.objects), ["run-csi.example"]);

    let is_attached = |objects: &Objects| {
        objects.all.values().any(|object| matches!(object, object::Kind::Attachment(a) if a.attached))
    };
    assert!(!is_attached(&listening.objects));
    let attached = json!({ "status": { "attached": true, "attachmentMetadata": { "device": "/dev/x" } } });
    patch_status(&stage.cluster.all::<VolumeAttachment>(), &stage.cluster.name("attachment"), attached).await;
    listening.until(is_attached).await;

    let had = listening.objects.clone();
    drop(listening);
    one.leave().await;
    stage.cluster.delete_pod("web").await;
    stage.cluster.make_pod("web-2").await;
    let one = stage.node("one").await;
    let mut listening = one.listen(had).await;
    assert!(!listening.change().await.unwrap(), "only what has changed meanwhile");
    listening.until(|objects| objects.names().contains(&"web-2") && !objects.names().contains(&"web")).await;

    // A later call of the same node ends the earlier one.
    let mut later = one.listen(Objects::default()).await;
    assert!(later.change().await.unwrap());
    assert_eq!(listening.change().await.unwrap_err().reason(), Reason::Draining);

    // Nodes call only the hub, and no node can use another's name.
    let other = PeerId::new(stage.cluster.name("two")).unwrap();
    let refused = one.ask_peer::<StatusResult>(&other, SERVICE, Kind::Watch(Watch::default())).await;
    assert_eq!(refused.unwrap_err().reason(), Reason::Forbidden);
    let stranger = Node::connect(&stage.hub, "not/a/node").await;
    let refused = stranger.ask::<StatusResult>(Kind::Watch(Watch::default())).await;
    assert_eq!(refused.unwrap_err().reason(), Reason::Forbidden);

    let metrics = stage.hub.http("/metrics").await;
    assert!(metrics.contains("edge_csi_kubernetes_watch_up{resource=\"pods\"} 1"), "{metrics}");
    assert!(metrics.contains("edge_csi_kubernetes_watch_up{resource=\"nodes\"} 1"), "{metrics}");
    assert!(metrics.contains("edge_csi_kubernetes_nodes 2"), "{metrics}");
    assert!(stage.hub.http("/").await.contains("kubernetes: pods"));
}

/// Secrets and tokens for a driver's call are fetched for the node with objects that name them.
async fn fetches_secrets_and_tokens(stage: &Stage) {
    let (one, two) = (stage.node("one").await, stage.node("two").await);
    let listening = first_change_of_node(stage, &one).await;
    let query = |name: &str| {
        let secret = Some(SecretName { namespace: stage.cluster.run.clone(), name: name.to_owned() });
        Kind::Secret(SecretQuery { secret })
    };
    let answer: SecretAnswer = one.ask(query("stage")).await.unwrap();
    assert_eq!(
        (answer.fetched(), &answer.values["key"][..]),
        (Fetched::Found, "s3cret"),
        "{}",
        answer.reason
    );
    for (node, name) in [(&one, "other"), (&two, "stage"), (&one, "../secrets/stage")] {
        let answer: SecretAnswer = node.ask(query(name)).await.unwrap();
        assert!(answer.fetched() != Fetched::Found && answer.values.is_empty(), "{name}");
    }
    stage.cluster.own::<core_v1::Secret>().delete("stage", &Default::default()).await.unwrap();
    let answer: SecretAnswer = one.ask(query("stage")).await.unwrap();
    assert_eq!(answer.fetched(), Fetched::NotFound, "nothing is kept");

    let pod = stage.cluster.own::<core_v1::Pod>().get("web").await.unwrap();
    let tokens = TokenQuery {
        namespace: stage.cluster.run.clone(),
        pod: "web".to_owned(),
        uid: pod.metadata.uid.unwrap(),
        driver: stage.cluster.name("csi.example"),
    };
    let answer: TokenAnswer = one.ask(Kind::Token(tokens.clone())).await.unwrap();
    assert_eq!(answer.fetched(), Fetched::Found, "{}", answer.reason);
    let read: serde_json::Value = serde_json::from_str(&answer.tokens).unwrap();
    assert!(read["vault"]["token"].is_string() && read["vault"]["expirationTimestamp"].is_string());
    let answer: TokenAnswer = two.ask(Kind::Token(tokens.clone())).await.unwrap();
    assert_eq!(answer.fetched(), Fetched::Forbidden);
    drop(listening);

    // The last request is in the log, and so is all before it; nothing secret is.
    let log = stage.hub.log_with("a node got no token").await;
    for secret in ["s3cret", "czNjcmV0", read["vault"]["token"].as_str().unwrap()] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

/// The status of a node is written to the API server as by its kubelet.
async fn a_status_is_written(stage: &Stage) {
    let one = stage.node("one").await;
    let mut listening = first_change_of_node(stage, &one).await;
    let driver = NodeDriver {
        name: stage.cluster.name("csi.example"),
        node_id: "id-of-one".to_owned(),
        segments: [("topology.example/node".to_owned(), "one".to_owned())].into(),
        max_volumes: 12,
        ready: true,
    };
    let in_use = format!("kubernetes.io/csi/{}^handle-1", driver.name);
    let claims = stage.cluster.own::<core_v1::PersistentVolumeClaim>();
    let claim = claims.get("data").await.unwrap();
    let expanded = ExpandedClaim {
        namespace: stage.cluster.run.clone(),
        name: "data".to_owned(),
        uid: claim.metadata.uid.unwrap(),
        bytes: 2 << 30,
    };
    let pending = json!({ "status": { "conditions": [
        { "type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }
    ]}});
    // The volume has been made larger, and the node is asked for its part.
    let larger = Patch::Merge(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    let volumes = stage.cluster.all::<core_v1::PersistentVolume>();
    volumes.patch(&stage.cluster.name("volume"), &PatchParams::default(), &larger).await.unwrap();
    patch_status(&claims, "data", pending).await;
    let is_asked = |objects: &Objects| {
        objects
            .all
            .values()
            .any(|object| matches!(object, object::Kind::Claim(claim) if claim.expand_to == 2 << 30))
    };
    listening.until(is_asked).await;
    let mut status = NodeStatus {
        drivers: vec![driver],
        volumes_in_use: vec![in_use.clone()],
        expanded: vec![expanded],
        ..NodeStatus::default()
    };
    let name = stage.cluster.name("one");
    for round in 0..3 {
        status.number =
            Some(StatusNumber { instance: 7, start: 1, number: round + 1, unanswered: round == 0 });
        // In the last round the driver calls the node something else.
        if round == 2 {
            status.drivers[0].node_id = "id-2".to_owned();
        }
        let taken: StatusResult = one.ask(Kind::Status(status.clone())).await.unwrap();
        assert_eq!(taken.failure, "", "round {round}");
        let csi_node = stage.cluster.all::<CSINode>().get(&name).await.unwrap();
        let written = &csi_node.spec.drivers[0];
        assert_eq!(written.node_id, status.drivers[0].node_id);
        assert_eq!(written.allocatable.as_ref().unwrap().count, Some(12));
        assert_eq!(written.topology_keys.as_deref(), Some(&["topology.example/node".to_owned()][..]));
        let node = stage.cluster.all::<core_v1::Node>().get(&name).await.unwrap();
        assert_eq!(csi_node.metadata.owner_references.unwrap()[0].uid, node.metadata.uid.unwrap());
        assert_eq!(node.metadata.labels.unwrap()["topology.example/node"], "one");
        let annotations = node.metadata.annotations.unwrap();
        assert!(annotations["csi.volume.kubernetes.io/nodeid"].contains(&status.drivers[0].node_id));
        assert_eq!(annotations["volumes.kubernetes.io/controller-managed-attach-detach"], "true");
        for marked in [&annotations, &csi_node.metadata.annotations.unwrap()] {
            assert_eq!(marked["edge-csi.io/status-number"], "7-1-1");
        }
        assert_eq!(node.status.unwrap().volumes_in_use, Some(vec![in_use.clone()]));
    }
    status.number = Some(StatusNumber { instance: 7, start: 0, number: 9, unanswered: true });
    let taken: StatusResult = one.ask(Kind::Status(status.clone())).await.unwrap();
    assert!(taken.superseded && !taken.volumes_in_use, "{taken:?}");
    status.number = None;
    let claim_status = claims.get("data").await.unwrap().status.unwrap();
    let size = &claim_status.capacity.unwrap()["storage"].0;
    assert!(["2Gi", "2147483648"].contains(&size.as_str()), "{size}");
    assert!(claim_status.conditions.unwrap_or_default().is_empty());

    status.expanded[0].uid = "another".to_owned();
    let taken: StatusResult = one.ask(Kind::Status(status.clone())).await.unwrap();
    assert!(taken.failure.contains("is not used on this node"), "{}", taken.failure);
    let unknown = Node::connect(&stage.hub, &stage.cluster.name("unknown")).await;
    let taken: StatusResult = unknown.ask(Kind::Status(NodeStatus::default())).await.unwrap();
    assert!(taken.failure.contains("not found"), "{}", taken.failure);
    assert!(
        stage.cluster.all::<core_v1::Node>().get_opt(&stage.cluster.name("unknown")).await.unwrap().is_none()
    );
}

/// What is wrong with a pod's volume is an event of the pod, if it is the node's pod and a reason of kubelet.
async fn events_are_written(stage: &Stage) {
    let one = stage.node("one").await;
    let listening = first_change_of_node(stage, &one).await;
    let pod = stage.cluster.own::<core_v1::Pod>().get("web").await.unwrap();
    let uid = pod.metadata.uid.unwrap();
    let wrong = |pod: &str, uid: &str, reason: &str, message: &str| PodVolumeStatus {
        namespace: stage.cluster.run.clone(),
        pod: pod.to_owned(),
        uid: uid.to_owned(),
        volume: "v".to_owned(),
        published: false,
        reason: message.to_owned(),
        failure: Some(PodVolumeFailure {
            reason: reason.to_owned(),
            message: message.to_owned(),
            waits: message == "waits",
        }),
    };
    let pod_volumes = vec![
        wrong("stranger", &uid, "FailedMount", "not its pod"),
        wrong("web", "another", "FailedMount", "not this pod"),
        wrong("web", &uid, "Killing", "not a reason of volumes"),
        wrong("web", &uid, "FailedMount", "waits"),
        wrong("web", &uid, "FailedMount", "MountVolume.SetUp failed for volume \"v\" : no such device"),
    ];
    let status = NodeStatus { pod_volumes, ..NodeStatus::default() };
    for _ in 0..2 {
        let taken: StatusResult = one.ask(Kind::Status(status.clone())).await.unwrap();
        assert!(taken.failure.is_empty() && taken.volumes_in_use, "{taken:?}");
    }
    let events = stage.cluster.own::<core_v1::Event>();
    let own = async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter(|event| event.reporting_component.as_deref() == Some("edge-csi"))
    };
    let written = async {
        loop {
            if let Some(event) = own().await.next() {
                break event;
            }
        }
    };
    let event = tokio::time::timeout(edge::PATIENCE, written).await.unwrap();
    assert_eq!(event.involved_object.uid.as_deref(), Some(&uid[..]));
    assert_eq!((event.reason.as_deref(), event.type_.as_deref()), (Some("FailedMount"), Some("Warning")));
    assert!(event.message.as_ref().unwrap().ends_with("no such device"), "{event:?}");
    assert_eq!((event.count, event.source.unwrap().host), (Some(1), Some(stage.cluster.name("one"))));
    // They are written in order, and the one is there: no other was, nor will be.
    assert_eq!(own().await.count(), 1);
    drop(listening);
}

#[tokio::test]
async fn objects_reach_the_node_that_they_concern() {
    let api = FakeApi::start().await;
    objects_reach_their_node(&Stage::with(None, Some(&api)).await).await;
}

#[tokio::test]
async fn secrets_and_tokens_are_for_the_node_that_needs_them() {
    let api = FakeApi::start().await;
    fetches_secrets_and_tokens(&Stage::with(None, Some(&api)).await).await;
    let stolen = api.requests().into_iter().filter(|request| request.contains("/secrets/other"));
    assert_eq!(stolen.filter(|request| request.starts_with("GET")).count(), 0, "not even asked for");
}

#[tokio::test]
async fn writes_changed_parts_of_a_status_as_kubelet() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    a_status_is_written(&stage).await;
    let requests = api.requests();
    let writes = |part: &str| {
        let own = requests.iter().filter(|request| !request.starts_with("GET") && request.contains(part));
        own.count()
    };
    assert_eq!(writes(&format!("PATCH /api/v1/nodes/{}/status", stage.cluster.name("one"))), 1);
    // A new id takes two: the old entry goes first.
    assert_eq!(writes("csinodes"), 3, "{requests:#?}");
}

#[tokio::test]
async fn leaves_out_a_driver_with_an_invalid_label() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    let name = stage.cluster.name("one");
    // As the real one does, which has the value for no label.
    api.refuse(format!("PATCH /api/v1/nodes/{name}"), "\"a b\"", 422);
    let taken: StatusResult = stage.node("one").await.ask(Kind::Status(with_two_drivers())).await.unwrap();
    assert!(taken.volumes_in_use, "{}", taken.failure);
    assert!(taken.failure.contains("driver bad: topology segment"), "{}", taken.failure);
    let written = stage.cluster.all::<CSINode>().get(&name).await.unwrap().spec.drivers;
    assert_eq!(written.iter().map(|driver| &driver.name[..]).collect::<Vec<_>>(), ["good"]);
    let node = stage.cluster.all::<core_v1::Node>().get(&name).await.unwrap();
    assert_eq!(node.status.unwrap().volumes_in_use, Some(vec!["v".to_owned()]));
}

#[tokio::test]
async fn acknowledges_volumes_in_use_despite_invalid_labels() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    let name = stage.cluster.name("one");
    api.refuse(format!("PATCH /api/v1/nodes/{name}"), "", 403);
    let one = stage.node("one").await;
    let taken: StatusResult = one.ask(Kind::Status(with_two_drivers())).await.unwrap();
    assert!(taken.failure.contains("labels and annotations"), "{}", taken.failure);
    assert!(taken.volumes_in_use);
    api.refuse(format!("PATCH /api/v1/nodes/{name}/status"), "", 403);
    let other = NodeStatus { volumes_in_use: vec!["w".to_owned()], ..with_two_drivers() };
    let taken: StatusResult = one.ask(Kind::Status(other)).await.unwrap();
    assert!(!taken.volumes_in_use && taken.failure.contains("volumesInUse"), "{}", taken.failure);
}

/// A volume in use, and two drivers, one with a topology that is not a valid label.
fn with_two_drivers() -> NodeStatus {
    let driver = |name: &str, value: &str| NodeDriver {
        name: name.to_owned(),
        node_id: "id".to_owned(),
        segments: [(format!("{name}.example/zone"), value.to_owned())].into(),
        ..NodeDriver::default()
    };
    let drivers = vec![driver("bad", "a b"), driver("good", "ab")];
    NodeStatus { drivers, volumes_in_use: vec!["v".to_owned()], ..NodeStatus::default() }
}

#[tokio::test]
async fn failed_volume_is_an_event_of_its_pod() {
    let api = FakeApi::start().await;
    events_are_written(&Stage::with(None, Some(&api)).await).await;
}

#[tokio::test]
async fn new_list_or_new_hub_instance_deletes_nothing() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    let one = stage.node("one").await;
    let mut listening = first_change_of_node(&stage, &one).await;
    api.expire_watches();
    // A change of a kind that is being listed: it arrives alone, and nothing is removed.
    stage.cluster.make_pod("web-2").await;
    listening.until(|objects| objects.names().contains(&"web-2")).await;
    assert_eq!(listening.objects.all.len(), EVERYTHING.len() + 1);
    let had = listening.objects.clone();
    one.leave().await;

    let stage = stage.restart_hub();
    let one = stage.node("one").await;
    let mut listening = one.listen(had.clone()).await;
    assert!(listening.change().await.unwrap(), "a snapshot, sent once all has been listed");
    assert_eq!(listening.objects.all, had.all);
    assert_eq!(stage.hub.end(), Some(0));
    assert_eq!(listening.change().await.unwrap_err().reason(), Reason::Draining);
}

/// The watch of a hub has stalled while another hub sent a pod to the node. At the first hub the pod stays.
#[tokio::test]
async fn hub_behind_another_one_lists_before_it_sends() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    api.stall_watches("api/v1/pods").await;
    let directory = tempfile::tempdir().unwrap();
    let newer = Hub::start(directory.path(), &stage.kubeconfig);
    newer.ready().await;
    let name = stage.cluster.name("one");
    let one = Node::connect(&newer, &name).await;
    let mut listening = first_change_of_node(&stage, &one).await;
    stage.cluster.make_pod("web-2").await;
    listening.until(|objects| objects.names().contains(&"web-2")).await;
    let had = listening.objects.clone();
    one.leave().await;

    let one = Node::connect(&stage.hub, &name).await;
    let mut listening = one.listen(had.clone()).await;
    assert!(listening.change().await.unwrap(), "a snapshot");
    assert_eq!(listening.objects.all, had.all);
    stage.hub.log_with("the watches are behind what a node has from another hub, listing again").await;
}

/// A hub that waits for the API server while its node moves to another hub does not undo what that one writes.
#[tokio::test]
async fn status_at_the_former_hub_is_not_written() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    let directory = tempfile::tempdir().unwrap();
    let other = Hub::start(directory.path(), &stage.kubeconfig);
    other.ready().await;
    let name = stage.cluster.name("one");
    let status = |volume: &str, number: u64, unanswered: bool| {
        let driver = NodeDriver { name: "d".to_owned(), node_id: volume.to_owned(), ..NodeDriver::default() };
        let number = Some(StatusNumber { instance: 7, start: 1, number, unanswered });
        let volumes_in_use = vec![volume.to_owned()];
        Kind::Status(NodeStatus { drivers: vec![driver], volumes_in_use, number, ..NodeStatus::default() })
    };
    let nodes = stage.cluster.all::<core_v1::Node>();
    let csi_nodes = stage.cluster.all::<CSINode>();
    let patches = [
        format!("PATCH /api/v1/nodes/{name}/status"),
        format!("PATCH /apis/storage.k8s.io/v1/csinodes/{name}"),
    ];
    let new = Node::connect(&other, &name).await;
    let taken: StatusResult = new.ask(status("first", 1, true)).await.unwrap();
    assert_eq!(taken.failure, "");
    for (round, patch) in (1..).zip(patches) {
        // The second time, the status is already in the Node, and waits for CSINode.
        let (earlier, later) = if round == 1 { ("earlier", "later") } else { ("later-2", "latest") };
        api.hold(patch, earlier);
        let former = Node::connect(&stage.hub, &name).await;
        let written = former.ask::<StatusResult>(status(earlier, 2 * round, false));
        let moved = async {
            api.holds().await;
            let taken: StatusResult = new.ask(status(later, 2 * round + 1, true)).await.unwrap();
            assert_eq!(taken.failure, "");
            api.release();
        };
        let taken = tokio::join!(written, moved).0.unwrap();
        assert!(taken.superseded && taken.failure.contains("is older than"), "{}", taken.failure);
        let node = nodes.get(&name).await.unwrap();
        assert_eq!(node.status.unwrap().volumes_in_use, Some(vec![later.to_owned()]));
        let csi_node = csi_nodes.get(&name).await.unwrap();
        assert_eq!(csi_node.spec.drivers[0].node_id, later);
    }
}

#[tokio::test]
async fn recreated_node_gets_its_status_again() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    let one = stage.node("one").await;
    let listening = first_change_of_node(&stage, &one).await;
    let (name, at_once) = (stage.cluster.name("one"), DeleteParams::default());
    let nodes = stage.cluster.all::<core_v1::Node>();
    // The first time the Node is away when its node speaks; the second time it goes afterwards.
    for round in 0..2 {
        nodes.delete(&name, &at_once).await.unwrap();
        if round == 0 {
            let driver =
                NodeDriver { name: "d".to_owned(), node_id: "id".to_owned(), ..NodeDriver::default() };
            let status = NodeStatus { drivers: vec![driver], ..NodeStatus::default() };
            let taken: StatusResult = one.ask(Kind::Status(status)).await.unwrap();
            assert!(taken.failure.contains("not found"), "{}", taken.failure);
        }
        let node = stage.cluster.make_node("one").await;
        csi_node_of(&stage, &node).await;
    }
    drop(listening);
}

/// Waits for the CSINode whose owner is this Node.
async fn csi_node_of(stage: &Stage, node: &core_v1::Node) -> CSINode {
    let (csi_nodes, name) = (stage.cluster.all::<CSINode>(), node.metadata.name.clone().unwrap());
    let made = async {
        loop {
            let found = csi_nodes.get_opt(&name).await.unwrap();
            let owners = |found: &CSINode| found.metadata.owner_references.clone().unwrap_or_default();
            let is_owned = |found: &CSINode| {
                owners(found).iter().any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref())
            };
            if let Some(found) = found.filter(is_owned) {
                break found;
            }
        }
    };
    tokio::time::timeout(edge::PATIENCE, made).await.unwrap()
}

fn report_of(drivers: Vec<NodeDriver>, number: u64) -> Kind {
    let number = StatusNumber { instance: 7, start: 1, number, unanswered: false };
    Kind::Drivers(DriverReport { drivers, number: Some(number) })
}

/// CSINode is all that is written for a node whose kubelet keeps it to itself: its drivers, as they come and go, also for a Node
/// that is made again.
async fn drivers_become_the_csi_node(stage: &Stage) {
    let one = stage.node("one").await;
    let (name, at_once) = (stage.cluster.name("one"), DeleteParams::default());
    let nodes = stage.cluster.all::<core_v1::Node>();
    let before = nodes.get(&name).await.unwrap();
    let [_, first] = &with_two_drivers().drivers[..] else { panic!("two drivers") };
    let first = NodeDriver { max_volumes: 12, ..first.clone() };
    let (result, call) = one.keep(report_of(vec![first.clone()], 1)).await;
    assert_eq!(result.failure, "");
    let csi_node = csi_node_of(stage, &before).await;
    let [written] = &csi_node.spec.drivers[..] else { panic!("{csi_node:?}") };
    assert_eq!((&written.name, &written.node_id), (&first.name, &first.node_id));
    assert_eq!(written.allocatable.as_ref().unwrap().count, Some(12));
    assert_eq!(written.topology_keys.clone().unwrap_or_default().len(), first.segments.len());
    let after = nodes.get(&name).await.unwrap();
    assert_eq!(
        (after.metadata.labels, after.metadata.annotations),
        (before.metadata.labels, before.metadata.annotations)
    );

    let other = NodeDriver { name: "other".to_owned(), segments: [].into(), ..first.clone() };
    drop(call);
    let (result, call) = one.keep(report_of(vec![other.clone()], 2)).await;
    assert_eq!(result.failure, "");
    let written = stage.cluster.all::<CSINode>().get(&name).await.unwrap().spec.drivers;
    assert_eq!(written.iter().map(|driver| &driver.name).collect::<Vec<_>>(), [&other.name]);

    nodes.delete(&name, &at_once).await.unwrap();
    let node = stage.cluster.make_node("one").await;
    let written = csi_node_of(stage, &node).await.spec.drivers;
    assert_eq!(written[0].name, other.name);
    drop(call);
}

#[tokio::test]
async fn reported_drivers_become_the_csi_node() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    drivers_become_the_csi_node(&stage).await;
    // An open call does not hold up a hub that ends.
    let one = stage.node("one").await;
    let (_, mut call) = one.keep(report_of(Vec::new(), 3)).await;
    let ended = tokio::spawn(async move { call.next().await });
    stage.restart_hub();
    assert_eq!(ended.await.unwrap().unwrap().unwrap_err().reason(), Reason::Draining);
}

/// Two writers of one CSINode would undo each other's work.
#[tokio::test]
async fn csi_node_of_a_kubelet_is_left_alone() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    let (csi_nodes, name) = (stage.cluster.all::<CSINode>(), stage.cluster.name("one"));
    let mut made = CSINode::default();
    made.metadata.name = Some(name.clone());
    let by = |manager: &str| ManagedFieldsEntry { manager: Some(manager.to_owned()), ..Default::default() };
    made.metadata.managed_fields = Some(vec![by("kubectl"), by("kubelet")]);
    csi_nodes.create(&PostParams::default(), &made).await.unwrap();
    let one = stage.node("one").await;
    let (result, _call) = one.keep(report_of(with_two_drivers().drivers.split_off(1), 1)).await;
    assert!(result.failure.contains("writes its CSINode: start the agent without"), "{}", result.failure);
    assert!(csi_nodes.get(&name).await.unwrap().spec.drivers.is_empty());
}

/// The hub is ready without a watch of Nodes, which is only for Nodes that are created anew, and reports its failure.
#[tokio::test]
async fn failing_watch_of_nodes_is_visible() {
    let api = FakeApi::start().await;
    api.refuse("GET /api/v1/nodes".to_owned(), "", 403);
    let stage = Stage::with(None, Some(&api)).await;
    let reported = async {
        while !stage.hub.http("/").await.contains("<th>kubernetes: nodes</th><td>cannot list") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(edge::PATIENCE, reported).await.unwrap();
    let metrics = stage.hub.http("/metrics").await;
    assert!(metrics.contains("edge_csi_kubernetes_watch_up{resource=\"nodes\"} 0"), "{metrics}");
    assert!(metrics.contains("edge_csi_kubernetes_watch_up{resource=\"pods\"} 1"), "{metrics}");
}

#[tokio::test]
async fn hub_name_is_reserved_and_only_nodes_may_call_it() {
    let api = FakeApi::start().await;
    let stage = Stage::with(None, Some(&api)).await;
    for name in ["hub", "hub/csi.example"] {
        let cause = Node::is_refused(&stage.hub.address(), name).await;
        assert!(cause.contains("reserved for the hub itself"), "{name}: {cause}");
    }
    let one = stage.node("one").await;
    first_change_of_node(&stage, &one).await;
    // A peer without services is not a node, whatever its name.
    for name in ["csi-proxy".to_owned(), stage.cluster.name("two"), "operator".to_owned()] {
        let refused = Node::proxy(&stage.hub, &name).await.ask_service(SERVICE).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::Forbidden, "{name}: {refused:?}");
    }
}

/// `EDGE_CSI_KUBECONFIG=FILE cargo test -p edge-hub --features kubernetes --test hub_kubernetes -- --ignored`. With
/// `EDGE_CSI_HUB_KUBECONFIG=FILE` the hub has credentials of its own, so that its least rights are tested too.
#[tokio::test]
#[ignore = "needs a real API server with its controller manager, named by EDGE_CSI_KUBECONFIG"]
async fn all_of_it_at_a_real_api_server() {
    let kubeconfig = std::env::var_os("EDGE_CSI_KUBECONFIG").map(PathBuf::from);
    let kubeconfig = kubeconfig.expect("EDGE_CSI_KUBECONFIG names a kubeconfig file");
    for part in 0..5 {
        let stage = Stage::with(Some(&kubeconfig), None).await;
        match part {
            0 => objects_reach_their_node(&stage).await,
            1 => events_are_written(&stage).await,
            2 => fetches_secrets_and_tokens(&stage).await,
            3 => drivers_become_the_csi_node(&stage).await,
            _ => a_status_is_written(&stage).await,
        }
        stage.cluster.clear().await;
    }
}
