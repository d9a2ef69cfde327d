//! One event, made or counted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::super::failure::ApiFailure;
use super::super::node_name::NodeName;
use super::aggregator::Order;
use edge_csi_common::excerpt::excerpt;

/// Who says so.
const COMPONENT: &str = "edge-csi";

/// The longest time for one.
const BOUND: Duration = Duration::from_secs(10);

/// The most bytes of an object's name in that of an event.
const OBJECT: usize = 200;

/// Writes an event. One that is counted and is not there any more is made again.
pub(super) async fn write(client: &Client, order: &Order, life: u64) -> Result<(), ApiFailure> {
    let work = async {
        let events: Api<Event> = Api::namespaced(client.clone(), &order.pod.namespace);
        let made = of_order(order, life);
        if order.count > 1 {
            let name = made.metadata.name.as_deref().unwrap_or_default();
            let patch =
                json!({ "count": made.count, "lastTimestamp": made.last_timestamp, "message": made.message });
            match events.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(Into::into)
            {
                Err(ApiFailure::NotFound(_)) => {}
                done => return done.map(drop),
            }
        }
        events.create(&PostParams::default(), &made).await.map(drop).map_err(Into::into)
    };
    let slow =
        || ApiFailure::Unavailable(format!("the API server did not take it within {} s", BOUND.as_secs()));
    tokio::time::timeout(BOUND, work).await.unwrap_or_else(|_| Err(slow()))
}

fn of_order(order: &Order, life: u64) -> Event {
    let pod = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(order.pod.namespace.clone()),
        name: Some(order.pod.name.clone()),
        uid: Some(order.pod.uid.clone()),
        ..ObjectReference::default()
    };
    Event {
        reason: Some(order.reason.to_owned()),
        message: Some(order.message.clone()),
        type_: Some("Warning".to_owned()),
        last_timestamp: time(order.last),
        count: Some(i32::try_from(order.count).unwrap_or(i32::MAX)),
        ..event(pod, &order.node, life.wrapping_add(order.number), order.first)
    }
}

/// What an event of an object is when a node has said it once. `number` is no other event's; `at` is a time since 1970.
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

/// As Kubernetes names events: after the object, with a number that no other has.
fn event_name(object: &str, number: u64) -> String {
    let object = excerpt(object, OBJECT).trim_end_matches(|last: char| !last.is_ascii_alphanumeric());
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

    fn order() -> Order {
        Order {
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
    fn an_event_is_as_kubelet_writes_it_and_has_a_name_that_can_be() {
        let order = order();
        let found = serde_json::to_value(of_order(&order, 0x10)).unwrap();
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
    async fn an_event_that_is_counted_is_changed_and_made_again_if_it_is_gone() {
        for (count, is_there, expected) in [
            (1, true, &["POST /api/v1/namespaces/ns/events"][..]),
            (2, true, &["PATCH /api/v1/namespaces/ns/events/web-0.13"]),
            (2, false, &["PATCH /api/v1/namespaces/ns/events/web-0.13", "POST /api/v1/namespaces/ns/events"]),
        ] {
            let asked = Arc::new(Mutex::new(Vec::new()));
            let asks = Arc::clone(&asked);
            let api = tower::service_fn(move |request: Request<Body>| {
                asks.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
                let found = is_there || request.method() == "POST";
                let (code, body) = if found {
                    (200, json!({ "metadata": {}, "involvedObject": {} }))
                } else {
                    (404, json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 }))
                };
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                async move { answer }
            });
            let client = Client::new(api, "default");
            write(&client, &Order { count, ..order() }, 0x10).await.unwrap();
            assert_eq!(*asked.lock().unwrap(), expected);
        }
    }
}
