//! The store, the Lease and the manifests at the real API server that `EDGE_CSI_KUBECONFIG` names, in a namespace of this run.

use std::time::SystemTime;

use futures_util::{StreamExt as _, stream};
use http::Request;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::*;
use crate::kubernetes::Lease;
use crate::kubernetes::object::Object;
use crate::kubernetes::placement::{self, Placements};

async fn client() -> Client {
    let path = std::env::var("EDGE_CSI_KUBECONFIG").expect("EDGE_CSI_KUBECONFIG names a kubeconfig");
    let file = Kubeconfig::read_from(path).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Creates an object from YAML, unless it exists.
async fn apply(client: &Client, path: &str, yaml: String) {
    let request =
        Request::post(path).header("content-type", "application/yaml").body(yaml.into_bytes()).unwrap();
    match client.request_text(request).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other.unwrap()),
    }
}

/// An empty namespace, and the store in it.
async fn prepared(client: &Client) -> (String, KubernetesStore) {
    for plural in ["placements", "drivernodes"] {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        apply(client, path, manifests::manifest(plural)).await;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let namespace = format!("edge-csi-{now}");
    let object = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}");
    apply(client, "/api/v1/namespaces", object).await;
    let store = KubernetesStore::new(client.clone(), &namespace, driver());
    let served = async {
        while store.list().await.is_err() || store.claims().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("the definitions are not served");
    (namespace, store)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real API server, named by EDGE_CSI_KUBECONFIG"]
async fn store_conforms_at_a_real_api_server() {
    let client = client().await;
    let (_, store) = prepared(&client).await;
    conformance::check(|| store.clone()).await.unwrap();
}

/// A list has several pages, and the row of an id with the maximum length is one of them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real API server, named by EDGE_CSI_KUBECONFIG"]
async fn long_list_is_read_from_a_real_api_server() {
    let client = client().await;
    let (_, store) = prepared(&client).await;
    let ids = (0..600).map(|number| format!("vol-{number}")).chain(["ä".repeat(2048)]);
    let write = |id: String| {
        let change =
            Change { key: Subject::Volume(id.into()), expected: None, placement: Some(created("a")) };
        let store = store.clone();
        async move { store.write(&change).await.unwrap() }
    };
    let written: Vec<_> = stream::iter(ids).map(write).buffer_unordered(32).collect().await;
    assert!(written.iter().all(|written| matches!(written, Written::Done(_))));
    let rows = store.list().await.unwrap();
    assert_eq!(rows.len(), 601);
    assert!(rows.iter().all(|row| row.placement.is_ok()));
}

/// The schema refuses what a proxy could not read, and a change of the key.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real API server, named by EDGE_CSI_KUBECONFIG"]
async fn mistakes_are_refused_by_a_real_api_server() {
    let client = client().await;
    let (namespace, store) = prepared(&client).await;
    done(&store, change(None, Some(pending("a")))).await;
    let api: Api<Object<Placements>> = Api::namespaced(client, &namespace);
    let name = placement::name(&driver(), &key());
    for (field, value) in [
        ("driver", json!("other")),
        ("kind", json!("Volume")),
        ("id", json!("pvc-2")),
        ("phase", json!("Created")),
        ("phase", json!("Unknown")),
        ("node", json!(7)),
        ("digest", json!("A7")),
        ("deletedAt", json!("yesterday")),
    ] {
        let mut object = api.get(&name).await.unwrap();
        object.spec[field] = value.clone();
        let error = api.replace(&name, &PostParams::default(), &object).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 422),
            "{field} = {value}: {error}"
        );
    }
    let mut object = api.get(&name).await.unwrap();
    object.spec["node"] = "b".into();
    api.replace(&name, &PostParams::default(), &object).await.unwrap();
    assert_eq!(store.list().await.unwrap()[0].placement, Ok(pending("b")));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a real API server, named by EDGE_CSI_KUBECONFIG"]
async fn lease_is_handed_over_at_a_real_api_server() {
    let client = client().await;
    let (namespace, _) = prepared(&client).await;
    let builder = |identity| Lease::builder(client.clone(), &namespace, "csi-hostpath", identity);
    let first = builder("a").acquire().await.unwrap();
    let second = tokio::spawn(builder("b").acquire());
    first.release().await;
    let second = second.await.unwrap().unwrap();
    assert!(second.is_held() && second.term() > first.term());
}
