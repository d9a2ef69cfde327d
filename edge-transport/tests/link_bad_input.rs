//! Whatever comes at a link that is not what it should be: a clear error, nothing harmed, nothing hanging.
#![cfg(all(feature = "uds", feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, reason = "a failed step is the failure of its test")]

mod link_pki;

use std::net::SocketAddr;
use std::time::Duration;

use edge_transport::link::{
    Credentials, Dialer, Lane, Limits, Link, LinkError, Listener, WireFrame, quic, uds, ws,
};
use edge_transport::tls::{ClientAuth, ClientTls, Identity, insecure_server_config, server_config};
use futures_util::{SinkExt, StreamExt};
use link_pki::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket, UnixStream};

const MAX_FRAME: usize = 1 << 20;

fn limits() -> Limits {
    Limits::default().with_max_frame(MAX_FRAME)
}

async fn accept(listener: &mut dyn Listener) -> Result<Link, LinkError> {
    listener.accept().await.unwrap().await
}

/// Both outcomes of one attempt; each end finishes its part whatever the other says.
async fn attempt(
    listener: &mut dyn Listener,
    dialer: &dyn Dialer,
) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
    tokio::join!(dialer.dial(), accept(listener))
}

async fn plain_ws() -> (ws::WsListener, SocketAddr) {
    let listener = ws::bind("127.0.0.1:0", None, limits()).await.unwrap();
    let address = listener.socket_address();
    (listener, address)
}

async fn tls_ws(authority: &Authority) -> (ws::WsListener, u16) {
    let tls = server_config(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let listener = ws::bind("127.0.0.1:0", Some(tls), limits()).await.unwrap();
    let port = listener.socket_address().port();
    (listener, port)
}

async fn quic_hub(authority: &Authority) -> (quic::QuicListener, u16) {
    let tls = server_config(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let listener = quic::bind("127.0.0.1:0", &tls, limits()).await.unwrap();
    let port = listener.socket_address().port();
    (listener, port)
}

fn wss(port: u16, tls: ClientTls) -> ws::WsDialer {
    ws::WsDialer::new("127.0.0.1", port, Some(tls), limits()).unwrap()
}

fn quic(port: u16, tls: &ClientTls) -> quic::QuicDialer {
    quic::QuicDialer::new("127.0.0.1", port, tls, limits()).unwrap()
}

/// Sends bytes to a plain websocket port and reads the whole answer.
async fn say(listener: &mut dyn Listener, to: SocketAddr, bytes: &[u8]) -> (String, Result<Link, LinkError>) {
    let talk = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::join!(talk, accept(listener))
}

#[tokio::test]
async fn a_plain_http_request_on_a_websocket_port_is_answered_and_named() {
    let (mut listener, to) = plain_ws().await;
    let (answer, outcome) = say(&mut listener, to, b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 426 ") && answer.contains("websocket only"), "{answer}");
    assert!(matches!(outcome, Err(LinkError::Handshake { .. })), "{outcome:?}");
}

#[tokio::test]
async fn garbage_on_a_websocket_port_is_answered_and_named() {
    let (mut listener, to) = plain_ws().await;
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n"]
    {
        let (answer, outcome) = say(&mut listener, to, garbage).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(matches!(outcome, Err(LinkError::Handshake { .. })), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_dropped_at_the_deadline() {
    let (mut listener, to) = plain_ws().await;
    let _silent = TcpStream::connect(to).await.unwrap();
    let outcome = accept(&mut listener).await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("not done within 10s"), "{error}");
}

#[tokio::test]
async fn a_text_message_is_malformed() {
    let (mut listener, to) = plain_ws().await;
    let client = async {
        let stream = TcpStream::connect(to).await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async("ws://hub/", stream).await.unwrap();
        socket.send(tokio_tungstenite::tungstenite::Message::text("hello")).await.unwrap();
        socket
    };
    let (_socket, link) = tokio::join!(client, accept(&mut listener));
    let mut link = link.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(10), link.next()).await.unwrap();
    let error = next.unwrap().unwrap_err().to_string();
    assert!(error.contains("text message"), "{error}");
    assert!(link.next().await.is_none());
}

#[tokio::test]
async fn a_ping_is_answered_while_frames_pass() {
    let (mut listener, to) = plain_ws().await;
    use tokio_tungstenite::tungstenite::Message;
    let client = async {
        let stream = TcpStream::connect(to).await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async("ws://hub/", stream).await.unwrap();
        socket.send(Message::Ping(b"are you there".to_vec().into())).await.unwrap();
        socket.send(Message::binary(b"frame".to_vec())).await.unwrap();
        socket
    };
    let (mut socket, link) = tokio::join!(client, accept(&mut listener));
    let mut link = link.unwrap();
    assert_eq!(link.next().await.unwrap().unwrap(), "frame");
    let (answer, _) = tokio::join!(socket.next(), async { futures_util::poll!(link.next()).is_pending() });
    assert_eq!(answer.unwrap().unwrap(), Message::Pong(b"are you there".to_vec().into()));
}

#[tokio::test]
async fn a_message_longer_than_allowed_is_refused_by_its_length_alone() {
    let (mut listener, to) = plain_ws().await;
    let client = async {
        let stream = TcpStream::connect(to).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async("ws://hub/", stream).await.unwrap();
        let mut stream = socket.into_inner();
        // A masked binary message of 2^40 bytes, of which none follows.
        stream.write_all(&[0x82, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4]).await.unwrap();
        stream
    };
    let (_stream, link) = tokio::join!(client, accept(&mut listener));
    let error = link.unwrap().next().await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::TooLarge { found: 0x100_0000_0000, max: MAX_FRAME }), "{error}");
}

#[tokio::test]
async fn garbage_on_a_unix_socket_is_refused_by_its_length_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut listener = uds::bind(&path, limits()).unwrap();
    for (bytes, found) in
        [(&b"GET / HTTP/1.1\r\n\r\n"[..], 0x4745_5420), (&[0x00, 0x10, 0x00, 0x01], MAX_FRAME + 1)]
    {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut link = accept(&mut listener).await.unwrap();
        let error = link.next().await.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::TooLarge { found: f, max: MAX_FRAME } if f == found), "{error}");
        assert!(link.next().await.is_none());
    }
}

#[tokio::test]
async fn a_unix_socket_that_is_live_missing_or_too_long_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = uds::bind(&path, limits()).unwrap();
    let error = uds::bind(&path, limits()).unwrap_err().to_string();
    assert!(error.contains("in use") && error.contains(path.to_str().unwrap()), "{error}");
    drop(listener);
    let dialer = uds::UdsDialer::new(&path, limits()).unwrap();
    let error = dialer.dial().await.unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    let error = uds::UdsDialer::new("/x".repeat(54), limits()).unwrap_err().to_string();
    assert!(error.contains("107"), "{error}");
}

#[tokio::test]
async fn garbage_datagrams_harm_no_quic_listener() {
    let authority = Authority::new();
    let (mut listener, port) = quic_hub(&authority).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for seed in 0..200_u8 {
        let garbage: Vec<u8> =
            (0..1200_u16).map(|at| seed.wrapping_mul(31) ^ at.to_le_bytes()[0] | 0xc0).collect();
        socket.send_to(&garbage, ("127.0.0.1", port)).await.unwrap();
    }
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let dialer = quic(port, &tls);
    let accepting = async {
        // What the garbage has started, if anything, fails by itself.
        loop {
            if let Ok(link) = accept(&mut listener).await {
                return link;
            }
        }
    };
    let (dialled, _accepted) = tokio::join!(dialer.dial(), accepting);
    dialled.unwrap();
}

/// A bare QUIC client with a good certificate that can send what no link would.
async fn raw_quic(authority: &Authority, port: u16) -> quinn::Connection {
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let mut tls = rustls::ClientConfig::clone(&tls.config());
    tls.alpn_protocols = vec![quic::ALPN.to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(std::sync::Arc::new(crypto));
    endpoint.connect_with(config, ([127, 0, 0, 1], port).into(), "hub").unwrap().await.unwrap()
}

/// The start of a control stream on which no frame comes first.
const BEGUN: [u8; 5] = [1, 0xff, 0xff, 0xff, 0xfe];

async fn stream(connection: &quinn::Connection, bytes: &[u8]) -> quinn::SendStream {
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

#[tokio::test]
async fn bad_bytes_on_quic_streams_are_named_and_a_reset_lane_loses_only_its_own_frames() {
    let authority = Authority::new();
    let (mut listener, port) = quic_hub(&authority).await;

    let (connection, link) = tokio::join!(raw_quic(&authority, port), accept(&mut listener));
    let _control = stream(&connection, &[9]).await;
    let error = link.unwrap().next().await.unwrap().unwrap_err().to_string();
    assert!(error.contains("format 9"), "{error}");

    let (connection, link) = tokio::join!(raw_quic(&authority, port), accept(&mut listener));
    let _control = stream(&connection, &[1, 0x7f, 0xff, 0xff, 0xff]).await;
    let error = link.unwrap().next().await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::TooLarge { found: 0x7fff_ffff, .. }), "{error}");

    let (connection, link) = tokio::join!(raw_quic(&authority, port), accept(&mut listener));
    let mut link = link.unwrap();
    let _control = stream(&connection, &BEGUN).await;
    let _shared = stream(&connection, &[]).await;
    let mut lane = stream(&connection, &[0, 0, 0, 9, b'p', b'a', b'r', b't']).await;
    let _good = stream(&connection, &[0, 0, 0, 1, b'a']).await;
    assert_eq!(link.next().await.unwrap().unwrap(), "a");
    lane.reset(1_u32.into()).unwrap();
    let _later = stream(&connection, &[0, 0, 0, 1, b'b']).await;
    assert_eq!(link.next().await.unwrap().unwrap(), "b");
    link.send(WireFrame::new(Lane::Control, false, "still".into(), "there".into())).await.unwrap();

    let (connection, link) = tokio::join!(raw_quic(&authority, port), accept(&mut listener));
    let mut control = stream(&connection, &[1]).await;
    control.reset(1_u32.into()).unwrap();
    assert!(matches!(link.unwrap().next().await, Some(Err(LinkError::Cut))));
}

#[tokio::test]
async fn no_quic_stream_is_read_before_the_first_control_frame() {
    let authority = Authority::new();
    let (mut listener, port) = quic_hub(&authority).await;
    for hello_first in [false, true] {
        let (connection, link) = tokio::join!(raw_quic(&authority, port), accept(&mut listener));
        let mut link = link.unwrap();
        let mut control = stream(&connection, &[1]).await;
        let _shared = stream(&connection, &[]).await;
        let _request = stream(&connection, &[0, 0, 0, 7, b'r', b'e', b'q', b'u', b'e', b's', b't']).await;
        let hello = [0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o'];
        if hello_first {
            control.write_all(&hello).await.unwrap();
        } else {
            let early = tokio::time::timeout(Duration::from_millis(200), link.next()).await;
            assert!(early.is_err(), "{early:?}");
            control.write_all(&hello).await.unwrap();
        }
        assert_eq!(link.next().await.unwrap().unwrap(), "hello");
        assert_eq!(link.next().await.unwrap().unwrap(), "request");
    }
}

#[tokio::test]
async fn unfinished_frames_on_many_quic_streams_have_one_bound() {
    let authority = Authority::new();
    let (mut listener, port) = quic_hub(&authority).await;
    let (connection, link) = tokio::join!(raw_quic(&authority, port), accept(&mut listener));
    let mut link = link.unwrap();
    let _control = stream(&connection, &BEGUN).await;
    let _shared = stream(&connection, &[]).await;
    let flood = async {
        let mut lanes = Vec::new();
        for _ in 0..8 {
            let mut lane = connection.open_uni().await.unwrap();
            // All but the last byte.
            let mut frame = vec![0; MAX_FRAME + 3];
            frame[..4].copy_from_slice(&u32::try_from(MAX_FRAME).unwrap().to_be_bytes());
            if lane.write_all(&frame).await.is_err() {
                break;
            }
            lanes.push(lane);
        }
        std::future::pending::<()>().await;
        drop(lanes);
    };
    let outcome = async {
        tokio::select! { () = flood => None, end = link.next() => end }
    };
    let error = tokio::time::timeout(Duration::from_secs(10), outcome).await.unwrap();
    let error = error.unwrap().unwrap_err().to_string();
    assert!(error.contains("unfinished frames"), "{error}");
}

#[tokio::test]
async fn a_plain_websocket_client_on_a_tls_port_is_told_apart() {
    let authority = Authority::new();
    let (mut listener, port) = tls_ws(&authority).await;
    let dialer = ws::WsDialer::new("127.0.0.1", port, None, limits()).unwrap();
    let (dialled, accepted) = attempt(&mut listener, &dialer).await;
    assert!(matches!(dialled, Err(LinkError::Handshake { .. })), "{dialled:?}");
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("wss://"), "{error}");
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (mut listener, port) = tls_ws(&theirs).await;
    let identity = ours.identity("edge-1");
    let (dialled, accepted) = attempt(&mut listener, &wss(port, ClientTls::new(&identity).unwrap())).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    accepted.unwrap_err();
    let (mut listener, port) = quic_hub(&theirs).await;
    let (dialled, accepted) = attempt(&mut listener, &quic(port, &ClientTls::new(&identity).unwrap())).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    accepted.unwrap_err();
}

#[tokio::test]
async fn a_client_of_another_authority_is_refused_and_hears_it_while_dialling() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    // Believes in the hub, but the hub not in it.
    let stranger = theirs.issue("edge-1").trusting(&ours);
    let tls = ClientTls::new(&stranger).unwrap();
    let (mut listener, port) = tls_ws(&ours).await;
    let (dialled, accepted) = attempt(&mut listener, &wss(port, tls.clone())).await;
    dialled.unwrap_err();
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    let (mut listener, port) = quic_hub(&ours).await;
    let (dialled, accepted) = attempt(&mut listener, &quic(port, &tls)).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("the server refused"), "{error}");
    accepted.unwrap_err();
}

/// A client configuration that believes in the authority and shows nothing.
fn anonymous(authority: &Authority) -> ClientTls {
    use rustls_pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let with_identity = ClientTls::new(&authority.identity("x")).unwrap();
    let provider = std::sync::Arc::clone(with_identity.config().crypto_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    std::sync::Arc::new(config).into()
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_and_told_what_to_do() {
    let authority = Authority::new();
    let (mut listener, port) = tls_ws(&authority).await;
    let (dialled, accepted) = attempt(&mut listener, &wss(port, anonymous(&authority))).await;
    dialled.unwrap_err();
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("showed no certificate"), "{error}");
    let (mut listener, port) = quic_hub(&authority).await;
    let (dialled, accepted) = attempt(&mut listener, &quic(port, &anonymous(&authority))).await;
    dialled.unwrap_err();
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("showed no certificate"), "{error}");
}

#[tokio::test]
async fn a_client_without_a_certificate_has_no_credentials_where_it_is_optional() {
    let authority = Authority::new();
    let tls = server_config(&authority.identity("hub"), ClientAuth::Optional).unwrap();
    let mut listener = ws::bind("127.0.0.1:0", Some(tls), limits()).await.unwrap();
    let port = listener.socket_address().port();
    let (dialled, accepted) = attempt(&mut listener, &wss(port, anonymous(&authority))).await;
    assert_eq!(*accepted.unwrap().credentials(), Credentials::None);
    assert_eq!(link_pki::names(&dialled.unwrap()), ["hub"]);
}

#[test]
fn an_expired_certificate_is_refused_before_it_is_used() {
    let authority = Authority::new();
    let old = authority.issue_until("hub", 2001);
    let error =
        Identity::from_pem(old.certificate.as_bytes(), old.key.as_bytes(), authority.pem().as_bytes())
            .unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
}

#[tokio::test]
async fn an_expired_certificate_of_the_other_end_is_refused_and_named() {
    let authority = Authority::new();
    let old = authority.issue_until("hub", 2001);
    let server = expired_server(&authority, &old);
    let mut listener = ws::bind("127.0.0.1:0", Some(server.clone()), limits()).await.unwrap();
    let port = listener.socket_address().port();
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let (dialled, accepted) = attempt(&mut listener, &wss(port, tls.clone())).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    accepted.unwrap_err();
    let mut listener = quic::bind("127.0.0.1:0", &server, limits()).await.unwrap();
    let port = listener.socket_address().port();
    let (dialled, accepted) = attempt(&mut listener, &quic(port, &tls)).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    accepted.unwrap_err();
}

/// A server that goes on with an expired certificate, as one does that was started long ago.
fn expired_server(authority: &Authority, old: &link_pki::Issued) -> edge_transport::tls::ServerTls {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let chain = vec![CertificateDer::from_pem_slice(old.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(old.key.as_bytes()).unwrap();
    let good = server_config(&authority.identity("x"), ClientAuth::None).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(std::sync::Arc::clone(good.config().crypto_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
    std::sync::Arc::new(config).into()
}

#[tokio::test]
async fn insecure_ends_meet_without_credentials_and_only_insecure_ones_do() {
    let server = insecure_server_config().unwrap();
    let insecure = ClientTls::insecure(None).unwrap();
    let strict = ClientTls::new(&Authority::new().identity("edge-1")).unwrap();
    let mut listener = quic::bind("127.0.0.1:0", &server, limits()).await.unwrap();
    let port = listener.socket_address().port();
    let (dialled, accepted) = attempt(&mut listener, &quic(port, &insecure)).await;
    assert_eq!(*dialled.unwrap().credentials(), Credentials::None);
    assert_eq!(*accepted.unwrap().credentials(), Credentials::None);
    let (dialled, _) = attempt(&mut listener, &quic(port, &strict)).await;
    dialled.unwrap_err();
    let mut listener = ws::bind("127.0.0.1:0", Some(server), limits()).await.unwrap();
    let port = listener.socket_address().port();
    let (dialled, accepted) = attempt(&mut listener, &wss(port, insecure)).await;
    assert_eq!(*dialled.unwrap().credentials(), Credentials::None);
    assert_eq!(*accepted.unwrap().credentials(), Credentials::None);
    let (dialled, _) = attempt(&mut listener, &wss(port, strict)).await;
    dialled.unwrap_err();
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_within_the_deadline() {
    let tls = ClientTls::insecure(None).unwrap();
    let short = {
        let mut limits = limits();
        limits.handshake_timeout = Duration::from_millis(300);
        limits
    };
    // Bound, so that nobody else has it, and silent.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let dialer = quic::QuicDialer::new("127.0.0.1", port, &tls, short.clone()).unwrap();
    let error = dialer.dial().await.unwrap_err().to_string();
    assert!(error.contains("is UDP let through?"), "{error}");
    // The same, and not listening.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let dialer = ws::WsDialer::new("127.0.0.1", port, None, short).unwrap();
    assert!(matches!(dialer.dial().await, Err(LinkError::Io { .. })));
}

#[tokio::test]
async fn a_listener_survives_a_slow_handshake_beside_a_quick_one() {
    let (mut listener, to) = plain_ws().await;
    let _silent = TcpStream::connect(to).await.unwrap();
    let slow = listener.accept().await.unwrap();
    let dialer = ws::WsDialer::new("127.0.0.1", to.port(), None, limits()).unwrap();
    let (dialled, accepted) = attempt(&mut listener, &dialer).await;
    dialled.unwrap();
    accepted.unwrap();
    drop(slow);
}

#[tokio::test]
async fn closing_a_quic_link_waits_until_the_other_end_has_read_it() {
    let authority = Authority::new();
    let (mut listener, port) = quic_hub(&authority).await;
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let (dialled, accepted) = attempt(&mut listener, &quic(port, &tls)).await;
    let (mut left, mut right) = (dialled.unwrap(), accepted.unwrap());
    left.send(WireFrame::new(Lane::Call(1), true, "last".into(), "words".into())).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), left.close()).await;
    assert!(early.is_err(), "closed before anything was read");
    let reading = async {
        assert_eq!(right.next().await.unwrap().unwrap(), "lastwords");
        assert!(right.next().await.is_none());
        drop(right);
    };
    let closing = async {
        tokio::time::timeout(Duration::from_secs(5), left.close()).await.unwrap().unwrap();
    };
    tokio::join!(closing, reading);
}
