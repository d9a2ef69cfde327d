//! Drivers that are missing, broken or misbehaving: the caller gets a retryable code, never a made-up one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use bytes::Bytes;
use common::{Script, Seen, Stage, driver_name, framed, node, raw_call};
use csi_proxy::{Call, CallId, Delivery, Driver, Fault, MethodPath, Outcome, Relay as _, SocketAddress};
use h2::server::SendResponse;
use http::{HeaderMap, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const STREAM: &str = "/csi.v1.SnapshotMetadata/GetMetadataAllocated";

async fn call(stage: &Stage, path: &str) -> Seen {
    raw_call(&stage.socket(), path, &[], framed(&[])).await.unwrap()
}

/// Calls through the endpoint, and the driver directly: the answer to the caller, and the fault.
async fn ask(stage: &Stage, path: &str) -> (Seen, Fault) {
    let seen = call(stage, path).await;
    let driver =
        Driver::new(driver_name(), SocketAddress::new(stage.driver_socket().to_str().unwrap()).unwrap());
    let outcome = ask_driver(&driver, path).await;
    (seen, outcome.fault().expect("not a fault").clone())
}

async fn ask_driver(driver: &Driver, path: &str) -> Outcome {
    let path = MethodPath::new(path).unwrap();
    let call = Call::new(CallId::new(), node(), driver_name(), path, Bytes::new());
    match driver.relay(call).await {
        Ok(replies) => replies.collect().await.1,
        Err(error) => error.into(),
    }
}

/// A driver that handles every HTTP/2 request like this.
fn serve_h2(stage: &Stage, act: impl Fn(SendResponse<Bytes>) + Copy + Send + Sync + 'static) {
    serve_h2_at(&stage.driver_socket(), act);
}

fn serve_h2_at(socket: &std::path::Path, act: impl Fn(SendResponse<Bytes>) + Copy + Send + Sync + 'static) {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(socket).await else { return };
                while let Some(Ok((_, respond))) = connection.accept().await {
                    act(respond);
                }
            });
        }
    });
}

fn grpc() -> http::response::Builder {
    Response::builder().header("content-type", "application/grpc")
}

#[tokio::test]
async fn a_missing_and_a_refusing_socket_are_unavailable() {
    let stage = Stage::without_driver().await;
    let (seen, fault) = ask(&stage, CREATE).await;
    assert_eq!(seen.code(), Some(14), "{seen:?}");
    assert!(matches!(fault, Fault::DriverSocketMissing { .. }), "{fault:?}");

    drop(UnixListener::bind(stage.driver_socket()).unwrap());
    let (seen, fault) = ask(&stage, CREATE).await;
    assert_eq!(seen.code(), Some(14), "{seen:?}");
    assert!(matches!(fault, Fault::DriverRefused { .. }), "{fault:?}");
}

#[tokio::test]
async fn an_unregistered_driver_is_unavailable() {
    let stage = Stage::start(Script::default()).await;
    assert!(stage.dispatcher.unregister(&driver_name()));
    let seen = call(&stage, CREATE).await;
    assert_eq!(seen.code(), Some(14), "{seen:?}");
    assert!(seen.message().contains("not registered"), "{seen:?}");
}

#[tokio::test]
async fn finds_a_driver_that_starts_later() {
    let mut stage = Stage::without_driver().await;
    assert_eq!(call(&stage, CREATE).await.code(), Some(14));
    stage.start_driver(Script::default());
    assert_eq!(call(&stage, CREATE).await.code(), Some(0));
}

#[tokio::test]
async fn answers_that_are_not_grpc_are_unavailable() {
    type Act = fn(SendResponse<Bytes>);
    let acts: [(&str, Act); 9] = [
        ("no grpc-status at all", |mut respond| {
            respond.send_response(grpc().body(()).unwrap(), true).unwrap();
        }),
        ("a message but no trailers", |mut respond| {
            let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
            stream.send_data(framed(&[1]), true).unwrap();
        }),
        ("trailers without a grpc-status", |mut respond| {
            let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
            stream.send_data(framed(&[1]), false).unwrap();
            stream.send_trailers(HeaderMap::new()).unwrap();
        }),
        ("a truncated message", |mut respond| {
            let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 1]), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        }),
        ("a compressed message", |mut respond| {
            let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from_static(&[1, 0, 0, 0, 1, 1]), true).unwrap();
        }),
        ("another content type", |mut respond| {
            let response = Response::builder().header("content-type", "text/html").header("grpc-status", "0");
            respond.send_response(response.body(()).unwrap(), true).unwrap();
        }),
        ("an HTTP error", |mut respond| {
            respond
                .send_response(grpc().status(503).header("grpc-status", "5").body(()).unwrap(), true)
                .unwrap();
        }),
        ("a status that is not a number", |mut respond| {
            respond.send_response(grpc().header("grpc-status", "fine").body(()).unwrap(), true).unwrap();
        }),
        ("a stream reset as broken", |mut respond| respond.send_reset(h2::Reason::PROTOCOL_ERROR)),
    ];
    for (what, act) in acts {
        let stage = Stage::without_driver().await;
        serve_h2(&stage, act);
        for path in [CREATE, STREAM, "/any.Thing/Else"] {
            let (seen, fault) = ask(&stage, path).await;
            assert_eq!(seen.code(), Some(14), "{what}, {path}: {seen:?}");
            assert!(matches!(fault, Fault::DriverProtocol { .. }), "{what}, {path}: {fault:?}");
        }
    }
}

#[tokio::test]
async fn unary_ok_without_a_message_is_a_fault() {
    let stage = Stage::without_driver().await;
    serve_h2(&stage, |mut respond| {
        respond.send_response(grpc().header("grpc-status", "0").body(()).unwrap(), true).unwrap();
    });
    let (seen, fault) = ask(&stage, CREATE).await;
    assert_eq!(seen.code(), Some(14), "{seen:?}");
    assert!(matches!(fault, Fault::DriverProtocol { .. }), "{fault:?}");
    assert_eq!(call(&stage, STREAM).await.code(), Some(0), "a stream may be empty");
}

#[tokio::test]
async fn a_trailers_only_status_passes_unchanged() {
    let stage = Stage::without_driver().await;
    serve_h2(&stage, |mut respond| {
        let response = grpc().header("grpc-status", "5").header("grpc-message", "gr%C3%B6%C3%9Fe%2");
        respond.send_response(response.body(()).unwrap(), true).unwrap();
    });
    let seen = call(&stage, CREATE).await;
    assert_eq!((seen.code(), seen.message()), (Some(5), "gr%C3%B6%C3%9Fe%252"));
    assert!(seen.trailers.is_none(), "{seen:?}");
}

#[tokio::test]
async fn reads_status_from_headers_without_trailers() {
    type Act = fn(SendResponse<Bytes>);
    let acts: [(&str, Act); 3] = [
        ("no content type", |mut respond| {
            let response = Response::builder().header("grpc-status", "5").header("grpc-message", "deleted");
            respond.send_response(response.body(()).unwrap(), true).unwrap();
        }),
        ("an empty frame at the end", |mut respond| {
            let response = grpc().header("grpc-status", "5").header("grpc-message", "deleted");
            let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::new(), true).unwrap();
        }),
        ("trailers without a status", |mut respond| {
            let response = grpc().header("grpc-status", "5").header("grpc-message", "deleted");
            let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
            stream.send_trailers(HeaderMap::new()).unwrap();
        }),
    ];
    for (what, act) in acts {
        let stage = Stage::without_driver().await;
        serve_h2(&stage, act);
        for path in [CREATE, STREAM] {
            let seen = call(&stage, path).await;
            assert_eq!((seen.code(), seen.message()), (Some(5), "deleted"), "{what}, {path}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn stalled_streams_do_not_block_unary_calls() {
    let stage = Stage::without_driver().await;
    let listener = UnixListener::bind(stage.driver_socket()).unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
                    // A stream begins with more than its window, and all of them with more than their connection's.
                    let size = if request.uri().path() == CREATE { 1 } else { 3 << 20 };
                    stream.send_data(framed(&vec![7; size]), false).unwrap();
                    let trailers = HeaderMap::from_iter([(grpc_status(), "0".parse().unwrap())]);
                    stream.send_trailers(trailers).unwrap();
                }
            });
        }
    });
    let socket = SocketAddress::new(stage.driver_socket().to_str().unwrap()).unwrap();
    let driver = Driver::new(driver_name(), socket);
    let ask = |path: &str| {
        let path = MethodPath::new(path).unwrap();
        let call = Call::new(CallId::new(), node(), driver_name(), path, Bytes::new());
        let driver = driver.clone();
        async move { driver.relay(call).await.unwrap() }
    };
    let mut stalled = Vec::new();
    for path in [STREAM, "/csi.v9.Future/Stream"].repeat(8) {
        stalled.push(ask(path).await);
    }
    let answer = async { ask(CREATE).await.collect().await };
    let answer = tokio::time::timeout(std::time::Duration::from_secs(5), answer).await;
    let (messages, outcome) = answer.expect("blocked by unread streams");
    assert!(outcome.is_ok() && messages.len() == 1, "{outcome:?}");
    for stream in stalled {
        let (messages, outcome) = stream.collect().await;
        assert!(outcome.is_ok() && messages[0].len() == 3 << 20, "{outcome:?}");
    }
}

fn grpc_status() -> http::HeaderName {
    http::HeaderName::from_static("grpc-status")
}

#[tokio::test]
async fn undefined_code_passes_unchanged() {
    let stage = Stage::without_driver().await;
    serve_h2(&stage, |mut respond| {
        respond.send_response(grpc().header("grpc-status", "4711").body(()).unwrap(), true).unwrap();
    });
    assert_eq!(call(&stage, CREATE).await.code(), Some(4711));
}

#[tokio::test]
async fn invalid_driver_answer_is_unavailable() {
    let invalid_answers: [&[u8]; 3] = [b"", b"SSH-2.0-OpenSSH_9.9\r\n", &[0xff; 64]];
    for invalid_answer in invalid_answers {
        let stage = Stage::without_driver().await;
        let listener = UnixListener::bind(stage.driver_socket()).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                // Reads the request first, so that it was sent for certain.
                let _ = socket.read(&mut [0; 24]).await;
                let _ = socket.write_all(invalid_answer).await;
            }
        });
        let (seen, fault) = ask(&stage, CREATE).await;
        assert_eq!(seen.code(), Some(14), "{invalid_answer:?}: {seen:?}");
        assert!(
            matches!(fault, Fault::DriverLost { .. } | Fault::DriverProtocol { .. }),
            "{invalid_answer:?}: {fault:?}"
        );
    }
}

#[tokio::test]
async fn driver_killed_during_an_answer_is_unavailable() {
    for path in [CREATE, STREAM] {
        let stage = Stage::without_driver().await;
        let listener = UnixListener::bind(stage.driver_socket()).unwrap();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(kill_in_the_midst(socket));
            }
        });
        let (seen, fault) = ask(&stage, path).await;
        assert_eq!(seen.code(), Some(14), "{path}: {seen:?}");
        assert!(matches!(fault, Fault::DriverLost { .. }), "{path}: {fault:?}");
    }
}

async fn kill_in_the_midst(socket: UnixStream) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    let (_, mut respond) = connection.accept().await.unwrap().unwrap();
    let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
    stream.send_data(framed(&[7; 100]), false).unwrap();
    // Drives the connection until the message is out, then drops it with the stream open.
    std::future::poll_fn(|cx| {
        let _ = connection.poll_accept(cx);
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn graceful_driver_shutdown_loses_no_call() {
    let stage = Stage::without_driver().await;
    let listener = UnixListener::bind(stage.driver_socket()).unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                // Answers one call of each connection and then refuses all others, as a restarting server does.
                let mut connection = h2::server::handshake(socket).await.unwrap();
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
                stream.send_data(framed(&[]), false).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                stream.send_trailers(trailers).unwrap();
                connection.graceful_shutdown();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
            });
        }
    });
    let driver =
        Driver::new(driver_name(), SocketAddress::new(stage.driver_socket().to_str().unwrap()).unwrap());
    for round in 0..20 {
        let outcome = ask_driver(&driver, "/any.Thing/Else").await;
        assert!(outcome.is_ok(), "round {round}: {outcome:?}");
    }
}

#[tokio::test]
async fn refused_stream_is_retried_once() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("driver.sock");
    serve_h2_at(&socket, |mut respond| match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 | 2 | 3 => respond.send_reset(h2::Reason::REFUSED_STREAM),
        _ => {
            respond.send_response(grpc().header("grpc-status", "5").body(()).unwrap(), true).unwrap();
        }
    });
    let driver = Driver::new(driver_name(), SocketAddress::new(socket.to_str().unwrap()).unwrap());
    assert_eq!(ask_driver(&driver, CREATE).await.code.number(), 5);
    let outcome = ask_driver(&driver, CREATE).await;
    assert_eq!(outcome.code.number(), 14);
    assert_eq!(outcome.fault().unwrap().delivery(), Delivery::NotSent, "{outcome:?}");
}

#[tokio::test]
async fn an_oversize_answer_is_unavailable() {
    let stage = Stage::without_driver().await;
    serve_h2(&stage, |mut respond| {
        let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
        stream.send_data(framed(&vec![7; (16 << 20) + 1]), true).unwrap();
    });
    let seen = call(&stage, CREATE).await;
    assert_eq!(seen.code(), Some(14), "{seen:?}");
    assert!(seen.message().contains("16777217 bytes") && seen.message().contains("executed"), "{seen:?}");
}

#[tokio::test]
async fn silent_driver_ends_with_a_deadline() {
    let stage = Stage::without_driver().await;
    // The kernel accepts the connection into the backlog, and nothing answers.
    let _listener = UnixListener::bind(stage.driver_socket()).unwrap();
    let address = SocketAddress::new(stage.driver_socket().to_str().unwrap()).unwrap();
    let driver = Driver::new(driver_name(), address);
    stage.dispatcher.register(driver.with_timeout(std::time::Duration::from_millis(30)));
    let seen = call(&stage, CREATE).await;
    assert_eq!(seen.code(), Some(4), "{seen:?}");
}

/// Other hosts ask for many large lists, and read none of them. What waits for them is limited, and so is each answer to a call
/// that changes something; calls made on the node are answered all the same.
#[tokio::test]
async fn large_unread_answers_have_limited_memory() {
    const LIST: &str = "/csi.v1.Controller/ListVolumes";
    let stage = Stage::without_driver().await;
    serve_h2(&stage, |mut respond| {
        let mut stream = respond.send_response(grpc().body(()).unwrap(), false).unwrap();
        stream.send_data(framed(&vec![0; 1 << 20]), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
    });
    let driver =
        Driver::new(driver_name(), SocketAddress::new(stage.driver_socket().to_str().unwrap()).unwrap());
    let ask = async |path: &str, remote: bool| {
        let path = MethodPath::new(path).unwrap();
        let mut call = Call::new(CallId::new(), node(), driver_name(), path, Bytes::new());
        call.remote = remote;
        let (messages, outcome) = driver.relay(call).await?.collect().await;
        outcome.fault().cloned().map_or(Ok(messages), Err)
    };
    let (mut unread, mut refused) = (Vec::new(), 0);
    for _ in 0..20 {
        match ask(LIST, true).await {
            Ok(answer) => unread.push(answer),
            Err(fault) => {
                assert!(matches!(fault, Fault::Overloaded { .. }), "{fault:?}");
                refused += 1;
            }
        }
    }
    assert_eq!((unread.len(), refused), (8, 12), "8 MiB are kept");
    let unknown = ask("/any.Thing/Else", true).await;
    assert!(matches!(unknown, Err(Fault::DriverLost { .. })), "it may have changed something: {unknown:?}");
    for path in [LIST, CREATE] {
        assert_eq!(ask(path, false).await.unwrap()[0].len(), 1 << 20, "{path}");
    }
    let change = ask(CREATE, true).await;
    assert!(matches!(change, Err(Fault::ReplyTooLarge { max: 262_144, .. })), "{change:?}");
    unread.clear();
    assert!(ask(LIST, true).await.is_ok(), "nothing waits any more");
}
