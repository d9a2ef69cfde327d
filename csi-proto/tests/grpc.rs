//! The gRPC client against servers that respond, refuse, disconnect or are missing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1::{GetPluginInfoRequest, GetPluginInfoResponse};
use csi_proto::grpc::{CallError, Client, ConnectError, Connection, Part, Request, UnaryError, Windows};
use csi_proto::{Code, Delivery, Method};
use h2::server::SendResponse;
use http::HeaderMap;
use prost::Message as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

const WAIT: Duration = Duration::from_secs(10);
const PATH: &str = "/csi.v1.Identity/GetPluginInfo";

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    (directory, socket)
}

async fn open(socket: &Path) -> Result<Connection, ConnectError> {
    Connection::open(socket, Windows::UNARY, WAIT).await
}

fn request(body: &'static [u8]) -> Request {
    Request::new(PATH, Bytes::from_static(body), 1024).unwrap()
}

/// Starts a server with this connection handler.
fn serve<F: Future<Output = ()> + Send + 'static>(
    socket: &Path,
    act: impl Fn(UnixStream) -> F + Send + 'static,
) {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        loop {
            let connection = listener.accept().await.unwrap().0;
            tokio::spawn(act(connection));
        }
    });
}

/// Starts a server with this request handler.
fn serve_h2(socket: &Path, act: fn(http::Request<h2::RecvStream>, SendResponse<Bytes>)) {
    serve(socket, move |socket| async move {
        let mut connection = h2::server::handshake(socket).await.unwrap();
        while let Some(Ok((request, respond))) = connection.accept().await {
            act(request, respond);
        }
    });
}

fn framed(message: &[u8]) -> Bytes {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat().into()
}

fn head() -> http::response::Builder {
    http::Response::builder().header("content-type", "application/grpc")
}

fn trailers(code: &'static str) -> HeaderMap {
    let code = http::HeaderValue::from_static(code);
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), code)])
}

#[tokio::test]
async fn distinguishes_missing_and_stale_sockets() {
    let (_directory, socket) = place();
    let error = open(&socket).await.unwrap_err();
    assert!(matches!(error, ConnectError::Missing { .. }), "{error}");
    drop(UnixListener::bind(&socket).unwrap());
    let error = open(&socket).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    let client = Client::new(&socket, Windows::UNARY, WAIT);
    let error = client.send(request(b"")).await.unwrap_err();
    assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
}

#[tokio::test]
async fn passes_bodies_metadata_and_streams_unchanged() {
    let (_directory, socket) = place();
    serve_h2(&socket, |request, mut respond| {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(request.uri().to_string(), format!("http://localhost{PATH}"));
        assert_eq!((header("te").as_deref(), header("x-trace").as_deref()), (Some("trailers"), Some("1")));
        assert_eq!(header("grpc-timeout").as_deref(), Some("5000000u"));
        tokio::spawn(async move {
            let sent = request.into_body().data().await.unwrap().unwrap();
            let mut stream = respond.send_response(head().body(()).unwrap(), false).unwrap();
            stream.send_data(sent, false).unwrap();
            stream.send_data(framed(b"second"), false).unwrap();
            let mut end = trailers("4711");
            end.insert("grpc-message", "gr%C3%B6%C3%9Fe".parse().unwrap());
            end.insert("x-vendor", "v".parse().unwrap());
            stream.send_trailers(end).unwrap();
        });
    });
    let mut request = request(b"\xff\x00not a message").with_timeout(Duration::from_secs(5));
    request.metadata_mut().insert("x-trace", "1".parse().unwrap());
    let mut response = open(&socket).await.unwrap().send(request).await.unwrap();
    for expected in [&b"\xff\x00not a message"[..], b"second"] {
        assert!(matches!(response.next().await.unwrap(), Part::Message(message) if message == expected));
    }
    let Part::End(status) = response.next().await.unwrap() else { panic!("a third message") };
    assert_eq!((status.code.number(), &*status.message), (4711, "größe"));
    assert_eq!(status.fields["x-vendor"], "v");
}

#[tokio::test]
async fn unary_call_returns_message_or_status() {
    let (_directory, socket) = place();
    serve_h2(&socket, |request, mut respond| {
        if request.uri().path() != PATH {
            let refusal = head().header("grpc-status", "12").header("grpc-message", "no%20such%20method");
            respond.send_response(refusal.body(()).unwrap(), true).unwrap();
            return;
        }
        let info = GetPluginInfoResponse { name: "vendor".into(), ..Default::default() };
        let mut stream = respond.send_response(head().body(()).unwrap(), false).unwrap();
        stream.send_data(framed(&info.encode_to_vec()), false).unwrap();
        stream.send_trailers(trailers("0")).unwrap();
    });
    let driver = open(&socket).await.unwrap();
    assert_eq!(driver.peer_process(), Some(i32::try_from(std::process::id()).unwrap()));
    let info: GetPluginInfoResponse =
        driver.unary(Method::GetPluginInfo.path(), GetPluginInfoRequest {}, WAIT, 1024).await.unwrap();
    assert_eq!(info.name, "vendor");
    let error = driver
        .unary::<_, GetPluginInfoResponse>("/csi.v9.New/Thing", GetPluginInfoRequest {}, WAIT, 1024)
        .await
        .unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.delivery()),
        ("UNIMPLEMENTED: no such method", Delivery::Unknown)
    );
    assert!(matches!(error, UnaryError::Status(status) if status.code == Code::UNIMPLEMENTED));
    let invalid =
        driver.unary::<_, GetPluginInfoResponse>("not a path", GetPluginInfoRequest {}, WAIT, 1024).await;
    assert_eq!(invalid.unwrap_err().delivery(), Delivery::NotSent);
}

async fn failure(socket: &Path) -> (CallError, Connection) {
    let connection = open(socket).await.unwrap();
    let whole = async { connection.send(request(b"1")).await?.whole().await };
    let error = tokio::time::timeout(WAIT, whole).await.expect("an end").unwrap_err();
    (error, connection)
}

#[tokio::test]
async fn only_refused_streams_are_known_as_not_processed() {
    type Act = fn(http::Request<h2::RecvStream>, SendResponse<Bytes>);
    let acts: [(&str, Act, Delivery); 7] = [
        ("refused", |_, mut respond| respond.send_reset(h2::Reason::REFUSED_STREAM), Delivery::NotSent),
        ("cancelled", |_, mut respond| respond.send_reset(h2::Reason::CANCEL), Delivery::Unknown),
        ("broken", |_, mut respond| respond.send_reset(h2::Reason::INTERNAL_ERROR), Delivery::Unknown),
        (
            "an HTTP error",
            |_, mut respond| {
                respond.send_response(head().status(503).body(()).unwrap(), true).unwrap();
            },
            Delivery::Unknown,
        ),
        (
            "another content type",
            |_, mut respond| {
                let page = http::Response::builder().header("content-type", "text/html");
                respond.send_response(page.body(()).unwrap(), true).unwrap();
            },
            Delivery::Unknown,
        ),
        (
            "no status",
            |_, mut respond| {
                respond.send_response(head().body(()).unwrap(), true).unwrap();
            },
            Delivery::Unknown,
        ),
        (
            "a message that is too large",
            |_, mut respond| {
                let mut stream = respond.send_response(head().body(()).unwrap(), false).unwrap();
                stream.send_data(framed(&[7; 1025]), true).unwrap();
            },
            Delivery::Unknown,
        ),
    ];
    for (what, act, delivery) in acts {
        let (_directory, socket) = place();
        serve_h2(&socket, act);
        let (error, connection) = failure(&socket).await;
        assert_eq!(error.delivery(), delivery, "{what}: {error}");
        assert!(!connection.is_closed(), "{what}");
    }
}

fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, stream], payload].concat()
}

/// A GOAWAY that excludes the stream proves that it was not processed. With an error code it proves nothing, and neither does a
/// lost connection.
#[tokio::test]
async fn goaway_proves_that_later_streams_were_not_processed() {
    for (reason, delivery) in
        [(Some(0_u32), Delivery::NotSent), (Some(11), Delivery::Unknown), (None, Delivery::Unknown)]
    {
        let (_directory, socket) = place();
        serve(&socket, move |mut socket| async move {
            socket.write_all(&frame(4, 0, &[])).await.unwrap();
            // The preface, settings and the request: until the frame with its body has arrived.
            let mut seen = Vec::new();
            while !seen.ends_with(&[0, 0, 0, 0, 1, b'1']) {
                assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0);
            }
            if let Some(reason) = reason {
                let last = [[0; 4], reason.to_be_bytes()].concat();
                socket.write_all(&frame(7, 0, &last)).await.unwrap();
                let _ = socket.read_to_end(&mut seen).await;
            }
        });
        let (error, connection) = failure(&socket).await;
        assert_eq!(error.delivery(), delivery, "{reason:?}: {error:?}");
        tokio::time::timeout(WAIT, connection.closed()).await.expect("it takes no more calls");
        // Nothing is sent over an ended connection.
        let error = connection.send(request(b"2")).await.map(drop).unwrap_err();
        assert!(matches!(error, CallError::Closed(_)) && error.delivery() == Delivery::NotSent, "{error:?}");
    }
}

#[tokio::test]
async fn client_shares_one_connection_and_reconnects() {
    let (_directory, socket) = place();
    let accepted = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&accepted);
    serve(&socket, move |socket| {
        let number = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            let mut connection = h2::server::handshake(socket).await.unwrap();
            for _ in 0..2 {
                let Some(Ok((_, mut respond))) = connection.accept().await else { return };
                let code = if number == 0 { "5" } else { "6" };
                respond.send_response(head().header("grpc-status", code).body(()).unwrap(), true).unwrap();
            }
            connection.graceful_shutdown();
            while connection.accept().await.is_some() {}
        }
    });
    let client = Client::new(&socket, Windows::UNARY, WAIT);
    let mut codes = Vec::new();
    for _ in 0..4 {
        let whole = async { client.send(request(b"")).await?.whole().await };
        let (_, status) = tokio::time::timeout(WAIT, whole).await.expect("an end").unwrap();
        codes.push(status.code.number());
    }
    assert_eq!((&codes[..], accepted.load(std::sync::atomic::Ordering::Relaxed)), (&[5, 5, 6, 6][..], 2));
}

/// Dropping the last handle closes the connection, and a response is a handle.
#[tokio::test]
async fn response_keeps_its_connection_open() {
    let (_directory, socket) = place();
    let (ended, end) = tokio::sync::oneshot::channel();
    let ended = std::sync::Mutex::new(Some(ended));
    serve(&socket, move |socket| {
        let ended = ended.lock().unwrap().take();
        async move {
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut stream = respond.send_response(head().body(()).unwrap(), false).unwrap();
            stream.send_data(framed(b"1"), false).unwrap();
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                stream.send_data(framed(b"2"), false).unwrap();
                std::future::pending::<()>().await;
            });
            while connection.accept().await.is_some() {}
            let _ = ended.unwrap().send(());
        }
    });
    let connection = open(&socket).await.unwrap();
    let mut response = connection.send(request(b"")).await.unwrap();
    drop(connection);
    for expected in [b"1", b"2"] {
        assert!(matches!(response.next().await.unwrap(), Part::Message(message) if message == expected[..]));
    }
    drop(response);
    tokio::time::timeout(WAIT, end).await.expect("closed").unwrap();
}
