//! The whole path on real sockets: caller, endpoint, dispatcher, tonic driver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{Act, Raw, Script, Stage, framed, raw_call};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Endpoint, Relay as _};
use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::sync::Notify;
use tonic::{Code, Request, Status};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";

fn script(acts: impl IntoIterator<Item = Act>) -> Script {
    Script { acts: acts.into_iter().collect() }
}

#[tokio::test]
async fn typed_call_and_answer_pass() {
    let stage = Stage::start(Script::default()).await;
    let request = csi::CreateVolumeRequest { name: "pvc-1".to_owned(), ..Default::default() };
    let answer = stage.controller().await.create_volume(request.clone()).await.unwrap().into_inner();
    assert_eq!(answer.volume.unwrap().volume_id, "vol-pvc-1");
    assert_eq!(stage.seen(), [(CREATE.to_owned(), request.encode_to_vec().into())]);
}

#[tokio::test]
async fn bytes_of_unknown_methods_and_fields_pass_unchanged() {
    // Unknown fields of every wire type, and bytes that are not protobuf.
    let (fields, junk): (&[u8], _) = (&[0xf8, 0x7f, 1, 0xfa, 0x7f, 2, 7, 7], [0xff; 40]);
    let [list, later] = ["/csi.v1.Controller/ListVolumes", "/csi.v9.Future/Thing"];
    for (body, paths) in [(fields, [CREATE, later]), (&junk, [list, later]), (&[], [CREATE, later])] {
        let body = Bytes::copy_from_slice(body);
        for path in paths {
            let stage = Stage::start(script([Act::Answer(vec![body.clone()], Status::ok(""))])).await;
            let mut client = tonic::client::Grpc::new(stage.channel().await);
            client.ready().await.unwrap();
            let path = PathAndQuery::from_static(path);
            let answer = client.unary(Request::new(body.clone()), path.clone(), Raw).await.unwrap();
            assert_eq!(answer.into_inner(), body);
            assert_eq!(stage.seen(), [(path.to_string(), body.clone())]);
        }
    }
}

/// Another reader may see a volume in these bytes.
#[tokio::test]
async fn change_that_is_not_protobuf_is_refused() {
    let stage = Stage::start(Script::default()).await;
    let seen = raw_call(&stage.socket(), CREATE, &[], framed(&[0xff; 40])).await.unwrap();
    assert_eq!((seen.code(), stage.seen().len()), (Some(3), 0), "{seen:?}");
}

#[tokio::test]
async fn every_status_of_the_driver_passes_unchanged() {
    let long = "größe: 50% von 盤\n".repeat(300);
    for number in 1..=16 {
        for (message, details) in [("", &[][..]), ("volume is deleted", &[0, 1, 255]), (&long, &[7; 500])] {
            let code = Code::from_i32(number);
            let status = Status::with_details(code, message, Bytes::copy_from_slice(details));
            let stage = Stage::start(script([Act::Answer(vec![], status)])).await;
            let found = stage.controller().await.create_volume(csi::CreateVolumeRequest::default()).await;
            let found = found.unwrap_err();
            assert_eq!((found.code(), found.message(), found.details()), (code, message, details));
        }
    }
}

#[tokio::test]
async fn the_drivers_own_trailers_pass() {
    let mut status = Status::not_found("no");
    status.metadata_mut().insert("x-vendor", "7".parse().unwrap());
    let stage = Stage::start(script([Act::Answer(vec![], status)])).await;
    let found =
        stage.controller().await.create_volume(csi::CreateVolumeRequest::default()).await.unwrap_err();
    assert_eq!(found.metadata().get("x-vendor").unwrap(), "7");
}

#[tokio::test]
async fn stream_passes_with_its_status() {
    let parts = |n: i64| -> Vec<Bytes> {
        let part = |i| csi::GetMetadataAllocatedResponse { volume_capacity_bytes: i, ..Default::default() };
        (1..=n).map(|i| part(i).encode_to_vec().into()).collect()
    };
    let acts = [
        Act::Answer(parts(100), Status::ok("")),
        Act::Answer(parts(3), Status::out_of_range("offset")),
        Act::Answer(vec![], Status::not_found("snapshot")),
    ];
    let stage = Stage::start(script(acts)).await;
    let mut client = csi::snapshot_metadata_client::SnapshotMetadataClient::new(stage.channel().await);
    for (messages, end) in [(100, Code::Ok), (3, Code::OutOfRange), (0, Code::NotFound)] {
        let mut found = 0;
        let code = match client.get_metadata_allocated(csi::GetMetadataAllocatedRequest::default()).await {
            Err(status) => status.code(),
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(part)) => {
                            found += 1;
                            assert_eq!(part.volume_capacity_bytes, found);
                        }
                        Ok(None) => break Code::Ok,
                        Err(status) => break status.code(),
                    }
                }
            }
        };
        assert_eq!((found, code), (messages, end));
    }
}

#[tokio::test]
async fn large_messages_pass_both_ways() {
    // Field 99, with 4 MiB.
    let large = Bytes::from([b"\x9a\x06\x80\x80\x80\x02", &*vec![0xa5; 4 << 20]].concat());
    for path in [CREATE, "/csi.v1.SnapshotMetadata/GetMetadataAllocated"] {
        let answer = Act::Answer(vec![large.clone()], Status::ok(""));
        let stage = Stage::start(script([answer])).await;
        let seen = raw_call(&stage.socket(), path, &[], framed(&large)).await.unwrap();
        assert_eq!(seen.code(), Some(0));
        assert_eq!(seen.body, framed(&large));
        assert_eq!(stage.seen()[0].1, large);
    }
}

#[tokio::test]
async fn runs_256_calls_concurrently() {
    let notice = Arc::new(Notify::new());
    let acts = std::iter::repeat_n(Act::Wait(Arc::clone(&notice)), 256);
    let stage = Stage::start(script(acts)).await;
    let client = stage.controller().await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..256 {
        let mut client = client.clone();
        calls.spawn(async move {
            let request = csi::CreateVolumeRequest { name: format!("pvc-{number}"), ..Default::default() };
            let volume = client.create_volume(request).await.unwrap().into_inner().volume.unwrap();
            assert_eq!(volume.volume_id, format!("vol-pvc-{number}"));
        });
    }
    stage.seen_at_least(256).await;
    notice.notify_waiters();
    let mut done = 0;
    while let Some(call) = calls.join_next().await {
        call.unwrap();
        done += 1;
    }
    assert_eq!(done, 256);
}

#[tokio::test]
async fn forwards_only_listed_headers() {
    let stage = Stage::start(Script::default()).await;
    let headers = [("traceparent", "00-aa-bb-01"), ("authorization", "secret"), ("x-other", "1")];
    raw_call(&stage.socket(), CREATE, &headers, framed(&[])).await.unwrap();
    let headers = &stage.headers()[0];
    assert_eq!(headers.get("traceparent").unwrap(), "00-aa-bb-01");
    assert_eq!(headers.get("te").unwrap(), "trailers");
    assert!(!headers.contains_key("authorization") && !headers.contains_key("x-other"), "{headers:?}");
}

#[tokio::test]
async fn node_calls_are_relayed_only_on_the_node() {
    let path = "/csi.v1.Node/NodeGetInfo";
    let stage = Stage::start(Script::default()).await;
    let seen = raw_call(&stage.socket(), path, &[], framed(&[])).await.unwrap();
    assert_eq!(seen.code(), Some(12));
    assert!(seen.message().contains("the socket of that node"), "{seen:?}");
    assert!(stage.seen().is_empty());

    let shim = Stage::with(Script::default(), Endpoint::with_node_calls).await;
    assert_eq!(raw_call(&shim.socket(), path, &[], framed(&[])).await.unwrap().code(), Some(0));
    assert_eq!(shim.seen()[0].0, path);
}

#[tokio::test]
async fn oversize_request_is_rejected_and_not_sent() {
    let stage = Stage::start(Script::default()).await;
    let at_bound = raw_call(&stage.socket(), "/a/b", &[], framed(&vec![0; 8 << 20])).await.unwrap();
    assert_eq!(at_bound.code(), Some(0));
    let seen = raw_call(&stage.socket(), CREATE, &[], framed(&vec![0; (8 << 20) + 1])).await.unwrap();
    assert_eq!(seen.code(), Some(3), "{seen:?}");
    assert!(seen.message().contains("8388609 bytes") && seen.message().contains("8388608"), "{seen:?}");
    assert_eq!(stage.seen().len(), 1);
}

#[tokio::test]
async fn a_deadline_ends_the_wait_but_not_the_work() {
    let notice = Arc::new(Notify::new());
    let stage = Stage::start(script([Act::Wait(Arc::clone(&notice))])).await;
    let seen = raw_call(&stage.socket(), CREATE, &[("grpc-timeout", "50m")], framed(&[])).await.unwrap();
    assert_eq!(seen.code(), Some(4), "{seen:?}");
    assert!(seen.message().contains("may still be running"), "{seen:?}");
    notice.notify_one();
    stage.finished().await;
    let timeout = stage.headers()[0].get("grpc-timeout").unwrap().clone();
    assert_eq!(timeout, "900000m", "the driver gets its own timeout, not the caller's time");
}

#[tokio::test]
async fn cancelled_call_does_not_end_the_work() {
    let notice = Arc::new(Notify::new());
    let stage = Stage::start(script([Act::Wait(Arc::clone(&notice))])).await;
    let mut client = stage.controller().await;
    let call = tokio::spawn(async move { client.create_volume(csi::CreateVolumeRequest::default()).await });
    stage.seen_at_least(1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    notice.notify_one();
    stage.finished().await;
}

#[tokio::test]
async fn caller_without_deadline_waits_for_the_default_timeout() {
    let short = |endpoint: Endpoint| endpoint.with_default_timeout(std::time::Duration::from_millis(30));
    let stage = Stage::with(script([Act::Wait(Arc::default())]), short).await;
    let seen = raw_call(&stage.socket(), CREATE, &[], framed(&[])).await.unwrap();
    assert_eq!(seen.code(), Some(4), "{seen:?}");
}

#[tokio::test]
async fn rejects_requests_that_are_not_grpc() {
    let stage = Stage::start(Script::default()).await;
    let call = async |headers: &[(&'static str, &str)], path: &str, body: &[u8]| {
        raw_call(&stage.socket(), path, headers, Bytes::copy_from_slice(body)).await.unwrap()
    };
    assert_eq!(call(&[("content-type", "application/json")], CREATE, b"{}").await.status, 415);
    type Row<'a> = (&'a [(&'static str, &'a str)], &'a str, &'a [u8], u32);
    let table: [Row<'_>; 6] = [
        (&[], CREATE, &[1, 0, 0, 0, 1, 7], 12),
        (&[], CREATE, &[], 12),
        (&[], CREATE, &[0, 0, 0, 0, 9, 1], 12),
        (&[], CREATE, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 12),
        (&[], "/one", &[0, 0, 0, 0, 0], 12),
        (&[("grpc-timeout", "5s")], CREATE, &[0, 0, 0, 0, 0], 3),
    ];
    for (headers, path, body, code) in table {
        let seen = call(headers, path, body).await;
        assert_eq!(seen.code(), Some(code), "{path} {headers:?} {body:?}: {seen:?}");
        assert!(seen.trailers.is_none() && !seen.message().is_empty(), "{seen:?}");
    }
    assert!(stage.seen().is_empty());
}

#[tokio::test]
async fn calls_per_driver_are_limited() {
    let notice = Arc::new(Notify::new());
    let stage = Stage::start(script([Act::Wait(Arc::clone(&notice))])).await;
    let narrow = csi_proxy::Dispatcher::new().with_max_in_flight(1);
    let address = stage.driver_socket().to_str().unwrap().parse().unwrap();
    let narrow = narrow.with_driver(common::driver_name(), address);
    let call = |name: &str| {
        let narrow = narrow.clone();
        let method = csi_proxy::MethodPath::new(CREATE).unwrap();
        let request = csi::CreateVolumeRequest { name: name.to_owned(), ..Default::default() };
        let (node, driver) = (common::node(), common::driver_name());
        let call = csi_proxy::Call::new(
            csi_proxy::CallId::new(),
            node,
            driver,
            method,
            request.encode_to_vec().into(),
        );
        async move { narrow.relay(call).await }
    };
    let first = tokio::spawn(call("pvc-1"));
    stage.seen_at_least(1).await;
    let second = call("pvc-2").await.unwrap_err();
    assert!(matches!(second, csi_proxy::Fault::Overloaded { max: 1, .. }), "{second:?}");

    let draining = tokio::spawn({
        let narrow = narrow.clone();
        async move { narrow.drain(std::time::Duration::from_secs(60)).await }
    });
    notice.notify_one();
    assert!(first.await.unwrap().unwrap().collect().await.1.is_ok());
    assert_eq!(draining.await.unwrap(), csi_proxy::Drained::All);
    let third = call("pvc-3").await.unwrap_err();
    assert!(matches!(third, csi_proxy::Fault::Draining { .. }), "{third:?}");
}

/// Streams [`STREAMED`] messages of 1 MiB, and counts those that were read from it.
struct CountedStream(Arc<std::sync::atomic::AtomicUsize>);

const STREAMED: usize = 32;

#[async_trait::async_trait]
impl csi_proxy::Relay for CountedStream {
    async fn relay(&self, call: csi_proxy::Call) -> Result<csi_proxy::Replies, csi_proxy::Fault> {
        if call.method.service() != "csi.v1.SnapshotMetadata" {
            // The start-up calls of the endpoint.
            return Err(csi_proxy::Fault::NodeOffline { node: call.node });
        }
        let (count, body) = (Arc::clone(&self.0), Bytes::from(vec![7; 1 << 20]));
        let messages = (0..STREAMED).map(move |_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            csi_proxy::Reply::Message(body.clone())
        });
        let end = std::iter::once_with(|| csi_proxy::Reply::End(csi_proxy::Outcome::ok()));
        Ok(csi_proxy::Replies::stream(tokio_stream::iter(messages.chain(end))))
    }
}

#[tokio::test]
async fn slow_reader_slows_its_driver() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let count = Arc::default();
    let (router, relay) = (csi_proxy::Router::fixed(common::node()), CountedStream(Arc::clone(&count)));
    let endpoint = Endpoint::new(common::driver_name(), router, relay);
    endpoint.serve(socket.to_str().unwrap().parse().unwrap()).await.unwrap();
    let mut client = tonic::client::Grpc::new(common::connect(socket).await);
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/csi.v1.SnapshotMetadata/GetMetadataAllocated");
    let answer = client.server_streaming(Request::new(Bytes::new()), path, Raw).await.unwrap();
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    let made = count.load(std::sync::atomic::Ordering::Relaxed);
    assert!(made < 8, "{made} messages of 1 MiB are buffered for a caller that does not read");
    let mut answer = answer.into_inner();
    let mut read = 0;
    while answer.message().await.unwrap().is_some() {
        read += 1;
    }
    assert_eq!(read, STREAMED);
}
