//! Tests of the store against an API server in this process, and of the manifests.

mod manifests;
mod real;
mod walk;

use std::time::{Duration, UNIX_EPOCH};

use csi_proto::DriverName;
use http::Method;
use serde_json::{Value, json};

use super::KubernetesStore;
use super::fake_api::{FakeApi, Fault};
use crate::call::{Digest, NodeId, Subject};
use crate::routing::store::{PlacementStore, StoreError, Written, conformance};
use crate::routing::{Change, Claim, Defect, Placement, Revision, Row, Status};
use crate::{DriverInfoStore, TopologyRouter};

fn driver() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

fn store(api: &FakeApi) -> KubernetesStore {
    KubernetesStore::new(api.client(), "edge-csi", driver())
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn key() -> Subject {
    Subject::VolumeName("pvc-1".into())
}

fn pending(node: &str) -> Placement {
    let node = NodeId::new(node).unwrap();
    Placement { node, digest: Digest::from_bytes([0xa7; 32]), status: Status::Pending }
}

fn created(node: &str) -> Placement {
    Placement { status: Status::Created { id: "vol-1".into() }, ..pending(node) }
}

fn change(expected: Option<&Revision>, placement: Option<Placement>) -> Change {
    Change { key: key(), expected: expected.cloned(), placement }
}

async fn done(store: &KubernetesStore, change: Change) -> Revision {
    match store.write(&change).await.unwrap() {
        Written::Done(revision) => revision,
        conflict => panic!("{conflict:?}"),
    }
}

#[tokio::test]
async fn store_conforms() {
    for page in [0, 5] {
        let api = FakeApi::default();
        api.set_page(page);
        conformance::check(|| store(&api)).await.unwrap();
    }
}

/// An operator finds the row with kubectl, and a reader of the object needs no tool of ours.
#[tokio::test]
async fn object_is_readable() {
    let api = FakeApi::default();
    let at = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let status = Status::Deleted { id: "vol-1".into(), at };
    done(&store(&api), change(None, Some(Placement { status, ..pending("edge-1") }))).await;
    let [object] = &api.objects("placements")[..] else { panic!() };
    assert_eq!(
        (&object["apiVersion"], &object["kind"]),
        (&json!("edge-csi.io/v1alpha1"), &json!("Placement"))
    );
    assert_eq!(object["metadata"]["labels"], json!({ "edge-csi.io/driver": "csi-hostpath" }));
    assert_eq!(object["metadata"].get("finalizers"), None);
    assert_eq!(
        object["spec"],
        json!({
            "driver": "csi-hostpath", "kind": "VolumeName", "id": "pvc-1", "node": "edge-1", "phase": "Deleted",
            "handle": "vol-1", "digest": "a7".repeat(32), "deletedAt": "2027-01-15T08:00:00Z",
        })
    );
}

/// The first of two proxies decides, and the other one gets its row.
#[tokio::test]
async fn the_first_of_two_proxies_decides() {
    let api = FakeApi::default();
    let (one, two) = (store(&api), store(&api));
    let (create_one, create_two) = (change(None, Some(pending("a"))), change(None, Some(pending("b"))));
    let (one, two) = tokio::join!(one.write(&create_one), two.write(&create_two));
    let (revision, row, first) = match (one.unwrap(), two.unwrap()) {
        (Written::Done(revision), Written::Conflict(Some(row))) => (revision, row, "a"),
        (Written::Conflict(Some(row)), Written::Done(revision)) => (revision, row, "b"),
        other => panic!("{other:?}"),
    };
    assert_eq!(row, Row { key: key(), revision, placement: Ok(pending(first)) });
}

/// The answer to a write is lost: the next write of the row detects it by the revision.
#[tokio::test(start_paused = true)]
async fn lost_answers_are_detected() {
    for fault in [Fault::AnswerLost, Fault::Stalled] {
        let api = FakeApi::default();
        let store = store(&api);
        let is_expected = |written: Result<Written, StoreError>| match fault {
            Fault::Stalled => matches!(written, Err(StoreError::Late)),
            _ => matches!(written, Err(StoreError::Failed(_))),
        };

        api.fail(Method::POST, fault);
        assert!(is_expected(store.write(&change(None, Some(pending("a")))).await));
        let found = store.write(&change(None, Some(pending("b")))).await.unwrap();
        let Written::Conflict(Some(Row { revision: first, placement, .. })) = found else {
            panic!("{found:?}")
        };
        assert_eq!(placement, Ok(pending("a")));

        api.fail(Method::PUT, fault);
        assert!(is_expected(store.write(&change(Some(&first), Some(created("a")))).await));
        let found = store.write(&change(Some(&first), None)).await.unwrap();
        let Written::Conflict(Some(Row { revision: second, placement, .. })) = found else {
            panic!("{found:?}")
        };
        assert_eq!(placement, Ok(created("a")));

        api.fail(Method::DELETE, fault);
        assert!(is_expected(store.write(&change(Some(&second), None)).await));
        let found = store.write(&change(Some(&second), Some(pending("a")))).await.unwrap();
        assert_eq!(found, Written::Conflict(None));
        done(&store, change(None, Some(pending("b")))).await;
    }
}

#[tokio::test]
async fn refused_requests_are_errors() {
    for fault in
        [Fault::Refused(403), Fault::Refused(404), Fault::Refused(422), Fault::Refused(500), Fault::Unsent]
    {
        let api = FakeApi::default();
        let store = store(&api);
        api.fail(Method::POST, fault);
        assert!(store.write(&change(None, Some(pending("a")))).await.is_err(), "{fault:?}");
        let revision = done(&store, change(None, Some(pending("a")))).await;
        for (method, new) in [(Method::PUT, Some(created("a"))), (Method::DELETE, None)] {
            api.fail(method, fault);
            assert!(store.write(&change(Some(&revision), new)).await.is_err(), "{fault:?}");
        }
        api.fail(Method::GET, fault);
        assert!(store.list().await.is_err(), "{fault:?}");
        // The row of a conflict cannot be read.
        api.fail(Method::GET, fault);
        assert!(store.write(&change(None, Some(pending("b")))).await.is_err(), "{fault:?}");
    }
}

/// A missing definition is not an absent row: the rows may be there again in a moment.
#[tokio::test]
async fn missing_definition_is_an_error() {
    let api = FakeApi::default();
    let store = store(&api);
    let revision = done(&store, change(None, Some(pending("a")))).await;
    api.set_undefined(true);
    for change in [
        change(None, Some(pending("b"))),
        change(None, None),
        change(Some(&revision), Some(created("a"))),
        change(Some(&revision), None),
    ] {
        let error = store.write(&change).await.unwrap_err();
        assert!(error.to_string().contains("404 NotFound"), "{error}");
    }
    assert!(store.list().await.is_err() && store.claims().await.is_err());
    api.set_undefined(false);
    done(&store, change(Some(&revision), Some(created("a")))).await;
}

#[tokio::test]
async fn expired_list_begins_again() {
    let api = FakeApi::default();
    let store = store(&api);
    for number in 0..7 {
        let key = Subject::Volume(format!("vol-{number}").into());
        let create = Change { key, expected: None, placement: Some(created("a")) };
        assert!(matches!(store.write(&create).await.unwrap(), Written::Done(_)));
    }
    api.set_page(2);
    for expired in 0..=3 {
        api.expire_lists(expired);
        assert_eq!(store.list().await.unwrap().len(), 7);
    }
    api.expire_lists(4);
    assert!(store.list().await.is_err());
}

#[tokio::test]
async fn undecodable_row_is_listed_and_kept() {
    let api = FakeApi::default();
    let store = store(&api);
    done(&store, change(None, Some(pending("a")))).await;
    let name = api.objects("placements")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.edit("placements", &name, |object| object["spec"]["phase"] = "Unknown".into());
    let before = api.objects("placements");
    let [row] = &store.list().await.unwrap()[..] else { panic!() };
    assert_eq!((&row.key, &row.placement), (&key(), &Err(Defect::Field { field: "phase" })));
    let found = store.write(&change(None, Some(pending("b")))).await.unwrap();
    assert_eq!(found, Written::Conflict(Some(row.clone())));
    assert_eq!(api.objects("placements"), before);
    // An operator repairs the row through the proxy.
    done(&store, change(Some(&row.revision), Some(pending("b")))).await;
    assert_eq!(store.list().await.unwrap()[0].placement, Ok(pending("b")));
}

/// An object without a key is not a row, but blocks its own name.
#[tokio::test]
async fn object_without_key_blocks_its_name_only() {
    let api = FakeApi::default();
    let store = store(&api);
    done(&store, change(None, Some(pending("a")))).await;
    let name = api.objects("placements")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.copy("placements", &name, "copy");
    assert_eq!(store.list().await.unwrap().len(), 1, "the copy is no row");
    for spec in
        [Value::Null, json!({}), json!("text"), json!({ "driver": "other", "kind": "Volume", "id": "pvc-1" })]
    {
        api.edit("placements", &name, |object| object["spec"] = spec);
        assert_eq!(store.list().await.unwrap(), []);
        let found = store.write(&change(None, Some(pending("b")))).await.unwrap();
        let Written::Conflict(Some(row)) = found else { panic!("{found:?}") };
        assert_eq!(row.placement, Err(Defect::Field { field: "driver" }));
    }
}

/// Proxies of other drivers in the namespace have their own rows, even of equal ids.
#[tokio::test]
async fn drivers_are_separate() {
    let api = FakeApi::default();
    let own = store(&api);
    let other = KubernetesStore::new(api.client(), "edge-csi", DriverName::new("other").unwrap());
    done(&own, change(None, Some(pending("a")))).await;
    done(&other, change(None, Some(pending("b")))).await;
    own.set_decommissioned(&node("a"), true).await.unwrap();
    assert_eq!(other.decommissioned().await.unwrap(), []);
    assert_eq!(own.list().await.unwrap()[0].placement, Ok(pending("a")));
    assert_eq!(other.list().await.unwrap()[0].placement, Ok(pending("b")));
}

/// `kubectl delete` removes a row.
#[tokio::test]
async fn object_deleted_by_hand_is_a_removed_row() {
    let api = FakeApi::default();
    let store = store(&api);
    let revision = done(&store, change(None, Some(pending("a")))).await;
    api.remove("placements");
    for new in [Some(created("a")), None] {
        assert_eq!(store.write(&change(Some(&revision), new)).await.unwrap(), Written::Conflict(None));
    }
    assert_eq!(store.list().await.unwrap(), []);
}

fn claim() -> Claim {
    Claim { node_id: "id-1".to_owned(), segments: [("example.com/host".to_owned(), "a".to_owned())].into() }
}

/// Claim and decommission are one object, and neither loses the other.
#[tokio::test]
async fn records_of_a_node_are_written_together() {
    let api = FakeApi::default();
    let (one, two, a) = (store(&api), store(&api), node("a"));
    let claim = claim();
    let (set, decommissioned) =
        tokio::join!(one.set_claim(&a, Some(&claim)), two.set_decommissioned(&a, true));
    set.unwrap();
    decommissioned.unwrap();
    let [object] = &api.objects("drivernodes")[..] else { panic!() };
    assert_eq!(
        object["spec"],
        json!({
            "driver": "csi-hostpath", "node": "a", "decommissioned": true,
            "claim": { "nodeID": "id-1", "segments": { "example.com/host": "a" } },
        })
    );
    assert_eq!(one.claims().await.unwrap(), [(a.clone(), Ok(claim))]);
    one.set_claim(&a, None).await.unwrap();
    assert_eq!(two.decommissioned().await.unwrap(), std::slice::from_ref(&a));
    two.set_decommissioned(&a, false).await.unwrap();
    assert_eq!(api.objects("drivernodes"), [] as [Value; 0], "a node without records has no object");
}

/// A record that was written without an answer is not written again.
#[tokio::test]
async fn records_of_a_node_survive_lost_answers() {
    let api = FakeApi::default();
    let (store, a) = (store(&api), node("a"));
    for (method, decommissioned, set) in
        [(Method::POST, true, None), (Method::PUT, true, Some(claim())), (Method::PUT, false, Some(claim()))]
    {
        api.fail(method, Fault::AnswerLost);
        let write = async || {
            store.set_decommissioned(&a, decommissioned).await?;
            store.set_claim(&a, set.as_ref()).await
        };
        assert!(write().await.is_err());
        api.clear_faults();
        write().await.unwrap();
        let kept = store.decommissioned().await.unwrap();
        assert_eq!(kept.len(), usize::from(decommissioned));
        assert_eq!(store.claims().await.unwrap().len(), usize::from(set.is_some()));
    }
}

/// A decommissioned node must not get calls again because its record cannot be read.
#[tokio::test]
async fn damaged_record_of_a_node_is_an_error() {
    let api = FakeApi::default();
    let store = store(&api);
    store.set_decommissioned(&node("a"), true).await.unwrap();
    let name = api.objects("drivernodes")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.edit("drivernodes", &name, |object| object["spec"]["decommissioned"] = "yes".into());
    let before = api.objects("drivernodes");
    for error in [
        store.decommissioned().await.unwrap_err(),
        store.claims().await.map(drop).unwrap_err(),
        store.set_claim(&node("a"), None).await.unwrap_err(),
    ] {
        assert!(matches!(&error, StoreError::Damaged(what) if what.contains(&name)), "{error}");
    }
    assert_eq!(api.objects("drivernodes"), before);
}

#[tokio::test]
async fn driver_info_is_kept_in_memory() {
    let api = FakeApi::default();
    let store = store(&api);
    store.save(&node("a"), Some("record".into())).await.unwrap();
    assert_eq!(store.clone().load().await.unwrap(), [(node("a"), "record".into())]);
    store.save(&node("a"), None).await.unwrap();
    assert_eq!(store.load().await.unwrap(), []);
}

/// The store opens a route, and the rows of an earlier proxy are there.
#[tokio::test]
async fn route_opens_with_the_store() {
    let api = FakeApi::default();
    done(&store(&api), change(None, Some(created("edge-1")))).await;
    let router = TopologyRouter::builder(driver(), [node("edge-1")]).open(store(&api)).await.unwrap();
    assert_eq!(router.rows(), 1);
}
