//! Creates an event, or updates its count.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::super::api_error::ApiError;
use super::super::node_name::NodeName;
use super::aggregator::EventWrite;
use edge_csi_common::excerpt::excerpt;

/// The source of the events.
const COMPONENT: &str = "edge-csi";

/// The time limit for writing an event.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum length in bytes of an object's name in the name of an event.
const MAX_OBJECT_BYTES: usize = 200;

/// Creates an event, or patches the count of a repeated one. A deleted event is created again.
pub(super) async fn write(client: &Client, write: &EventWrite, instance: u64) -> Result<(), ApiError> {
    let work = async {
        let events: Api<Event> = Api::namespaced(client.clone(), &write.pod.namespace);
        let made = pod_event(write, instance);
        if write.count > 1 {
            let name = made.metadata.name.as_deref().unwrap_or_default();
            let patch =
                json!({ "count": made.count, "lastTimestamp": made.last_timestamp, "message": made.message });
            match events.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(Into::into)
            {
                Err(ApiError::NotFound(_)) => {}
                done => return done.map(drop),
            }
        }
        events.create(&PostParams::default(), &made).await.map(drop).map_err(Into::into)
    };
    let slow = || {
        ApiError::Unavailable(format!(
            "the API server did not accept the event within {} s",
            TIMEOUT.as_secs()
        ))
    };
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| Err(slow()))
}

fn pod_event(write: &EventWrite, instance: u64) -> Event {
    let pod = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(write.pod.namespace.clone()),
        name: Some(write.pod.name.clone()),
        uid: Some(write.pod.uid.clone()),
        ..ObjectReference::default()
    };
    Event {
        reason: Some(write.reason.to_owned()),
        message: Some(write.message.clone()),
        type_: Some("Warning".to_owned()),
        last_timestamp: time(write.last),
        count: Some(i32::try_from(write.count).unwrap_or(i32::MAX)),
        ..event(pod, &write.node, instance.wrapping_add(write.number), write.first)
    }
}

/// Returns an event of an object, reported once by a node. `number` is unique; `at` is a time since 1970.
pub(in super::super) fn event(of: ObjectReference, node: &NodeName, number: u64, at: Duration) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(of.name.as_deref().unwrap_or_default(), number)),
            namespace: of.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: of,
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(node.to_string()) }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_string()),
        first_timestamp: time(at),
        last_timestamp: time(at),
        count: Some(1),
        ..Event::default()
    }
}

/// Returns the name of an event, as Kubernetes does: the object's name with a unique number.
fn event_name(object: &str, number: u64) -> String {
    let object = excerpt(object, MAX_OBJECT_BYTES).trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{object}.{number:x}")
}

fn time(since_1970: Duration) -> Option<Time> {
    let seconds = i64::try_from(since_1970.as_secs()).ok()?;
    Timestamp::from_second(seconds).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use hyper::{Request, Response};
    use kube::client::Body;

    use super::super::aggregator::PodName;
    use super::*;

    fn sample() -> EventWrite {
        EventWrite {
            node: NodeName::new("edge-1").unwrap(),
            pod: PodName { uid: "9f0c".into(), namespace: "ns".into(), name: "web-0".into() },
            number: 3,
            reason: "FailedMount",
            message: "MountVolume.SetUp failed".into(),
            count: 2,
            first: Duration::from_secs(1_700_000_000),
            last: Duration::from_secs(1_700_000_060),
        }
    }

    #[test]
    fn event_has_kubelets_fields_and_a_valid_name() {
        let write = sample();
        let found = serde_json::to_value(pod_event(&write, 0x10)).unwrap();
        assert_eq!(found["metadata"]["name"], "web-0.13");
        assert_eq!(found["involvedObject"]["uid"], "9f0c");
        assert_eq!((&found["reason"], &found["type"]), (&json!("FailedMount"), &json!("Warning")));
        assert_eq!(found["source"], json!({ "component": "edge-csi", "host": "edge-1" }));
        assert_eq!(found["firstTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(found["lastTimestamp"], "2023-11-14T22:14:20Z");
        assert_eq!(found["count"], 2);
        let long = event_name(&format!("{}.{}", "a".repeat(199), "b".repeat(53)), 1);
        assert_eq!(long, format!("{}.1", "a".repeat(199)));
    }

    #[tokio::test]
    async fn patches_counted_events_and_recreates_deleted_ones() {
        for (count, is_connected, expected) in [
            (1, true, &["POST /api/v1/namespaces/ns/events"][..]),
            (2, true, &["PATCH /api/v1/namespaces/ns/events/web-0.13"]),
            (2, false, &["PATCH /api/v1/namespaces/ns/events/web-0.13", "POST /api/v1/namespaces/ns/events"]),
        ] {
            let asked = Arc::new(Mutex::new(Vec::new()));
            let asks = Arc::clone(&asked);
            let api = tower::service_fn(move |request: Request<Body>| {
                asks.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
                let found = is_connected || request.method() == "POST";
                let (code, body) = if found {
                    (200, json!({ "metadata": {}, "involvedObject": {} }))
                } else {
                    (404, json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 }))
                };
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                async move { answer }
            });
            let client = Client::new(api, "default");
            write(&client, &EventWrite { count, ..sample() }, 0x10).await.unwrap();
            assert_eq!(*asked.lock().unwrap(), expected);
        }
    }
}
