//! What a test makes at an API server, a fake or a real one.

use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::edge::PATIENCE;

/// The test's own client, and names that no other run has.
pub(super) struct Cluster {
    client: Client,
    pub(super) run: String,
    real: bool,
}

impl Cluster {
    pub(super) async fn connect(kubeconfig: &std::path::Path, real: bool) -> Self {
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let run = format!("run{}", now.as_millis() % 100_000_000);
        Self { client: Client::try_from(config).unwrap(), run, real }
    }

    /// A name of this run.
    pub(super) fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.run)
    }

    pub(super) fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub(super) fn own<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.run)
    }

    /// A namespace, two Nodes, a driver, a volume with its claim and secret, a pod on the first Node, and an attachment.
    pub(super) async fn fill(&self) {
        make(&self.all::<Namespace>(), json!({ "metadata": { "name": self.run } })).await;
        if self.real {
            until_there(&self.own::<ServiceAccount>(), "default").await;
        } else {
            make(&self.own::<ServiceAccount>(), json!({ "metadata": { "name": "default" } })).await;
        }
        for name in ["one", "two"] {
            self.make_node(name).await;
        }
        let driver = self.name("csi.example");
        let requests = json!([{ "audience": "vault" }]);
        let spec = json!({ "attachRequired": true, "tokenRequests": requests, "requiresRepublish": true });
        make(&self.all::<CSIDriver>(), json!({ "metadata": { "name": driver }, "spec": spec })).await;
        for (name, data) in [("stage", json!({ "key": "czNjcmV0" })), ("other", json!({ "key": "eHh4" }))] {
            make(&self.own::<Secret>(), json!({ "metadata": { "name": name }, "data": data })).await;
        }
        let volume = self.name("volume");
        let claim = json!({
            "metadata": { "name": "data" },
            "spec": {
                "volumeName": volume, "storageClassName": "", "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let claim = make(&self.own::<PersistentVolumeClaim>(), claim).await;
        make(
            &self.all::<PersistentVolume>(),
            json!({
                "metadata": { "name": volume },
                "spec": {
                    "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {
                        "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": self.run, "name": "data",
                        "uid": claim.metadata.uid,
                    },
                    "csi": {
                        "driver": driver, "volumeHandle": "handle-1", "volumeAttributes": { "a": "b" },
                        "nodeStageSecretRef": { "namespace": self.run, "name": "stage" },
                    },
                },
            }),
        )
        .await;
        let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
        patch_status(&self.own::<PersistentVolumeClaim>(), "data", bound).await;
        self.make_pod("web").await;
        make(
            &self.all::<VolumeAttachment>(),
            json!({
                "metadata": { "name": self.name("attachment") },
                "spec": {
                    "attacher": driver, "nodeName": self.name("one"), "source": { "persistentVolumeName": volume },
                },
            }),
        )
        .await;
    }

    /// A pod on the first Node that uses the claim.
    pub(super) async fn make_pod(&self, name: &str) {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": self.name("one"), "serviceAccountName": "default",
                "containers": [{ "name": "c", "image": "i" }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        });
        make(&self.own::<Pod>(), pod).await;
    }

    pub(super) async fn make_node(&self, name: &str) -> Node {
        // The policies in deploy/ let a hub write only to such Nodes.
        let labels = json!({ "node-role.kubernetes.io/edge": "" });
        make(&self.all::<Node>(), json!({ "metadata": { "name": self.name(name), "labels": labels } })).await
    }

    pub(super) async fn delete_pod(&self, name: &str) {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.own::<Pod>().delete(name, &at_once).await.unwrap();
    }

    /// Ends the run at a real API server.
    pub(super) async fn clear(&self) {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = self.all::<VolumeAttachment>().delete(&self.name("attachment"), &at_once).await;
        let _ = self.all::<CSIDriver>().delete(&self.name("csi.example"), &at_once).await;
        for name in ["one", "two"] {
            let _ = self.all::<CSINode>().delete(&self.name(name), &at_once).await;
            let _ = self.all::<Node>().delete(&self.name(name), &at_once).await;
        }
        let _ = self.all::<Namespace>().delete(&self.run, &at_once).await;
        let _ = self.all::<PersistentVolume>().delete(&self.name("volume"), &at_once).await;
    }
}

async fn make<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

pub(super) async fn patch_status<K>(api: &Api<K>, name: &str, patch: Value)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn until_there<K>(api: &Api<K>, name: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let there = async {
        while api.get_opt(name).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.unwrap();
}
