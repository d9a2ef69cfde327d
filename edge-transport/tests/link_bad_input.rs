//! Invalid input on links: a clear error, no side effects, no hang.
#![cfg(all(feature = "uds", feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod ends;
mod link_pki;

use std::net::SocketAddr;
use std::time::Duration;

use edge_transport::link::{
    Address, Credentials, DialOptions, Dialer, Lane, Link, LinkError, ListenOptions, Listener, WireFrame,
};
use edge_transport::tls::{ClientAuth, ClientTls, Identity, ServerTls};
use futures_util::{SinkExt, StreamExt};
use link_pki::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket, UnixStream};

const MAX_FRAME: usize = 1 << 20;

fn dialing(tls: Option<ClientTls>) -> DialOptions {
    DialOptions::default().max_frame(MAX_FRAME).tls(tls)
}

async fn listen(address: &str, tls: Option<ServerTls>) -> (Box<dyn Listener>, SocketAddr) {
    let options = ListenOptions::default().max_frame(MAX_FRAME).tls(tls);
    let listener = ends::listen(address, &options).await;
    let address = ends::socket_address(&*listener);
    (listener, address)
}

async fn accept(listener: &mut dyn Listener) -> Result<Link, LinkError> {
    listener.accept().await.unwrap().await
}

/// Both results of one attempt; each end completes independently of the other.
async fn attempt(
    listener: &mut dyn Listener,
    dialer: &dyn Dialer,
) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
    tokio::join!(dialer.dial(), accept(listener))
}

async fn plain_ws() -> (Box<dyn Listener>, SocketAddr) {
    listen("ws://127.0.0.1:0", None).await
}

async fn over_tls(scheme: &str, tls: ServerTls) -> (Box<dyn Listener>, u16) {
    let (listener, address) = listen(&format!("{scheme}://127.0.0.1:0"), Some(tls)).await;
    (listener, address.port())
}

async fn tls_ws(authority: &Authority) -> (Box<dyn Listener>, u16) {
    over_tls("wss", ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap()).await
}

async fn quic_hub(authority: &Authority) -> (Box<dyn Listener>, u16) {
    over_tls("quic", ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap()).await
}

fn plain(port: u16) -> Box<dyn Dialer> {
    ends::dialer(&format!("ws://127.0.0.1:{port}"), &dialing(None)).unwrap()
}

fn wss(port: u16, tls: ClientTls) -> Box<dyn Dialer> {
    ends::dialer(&format!("wss://127.0.0.1:{port}"), &dialing(Some(tls))).unwrap()
}

fn quic(port: u16, tls: &ClientTls) -> Box<dyn Dialer> {
    ends::dialer(&format!("quic://127.0.0.1:{port}"), &dialing(Some(tls.clone()))).unwrap()
}

/// Sends bytes to a plain websocket port and reads the whole response.
async fn send_raw(
    listener: &mut dyn Listener,
    to: SocketAddr,
    bytes: &[u8],
) -> (String, Result<Link, LinkError>) {
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
async fn answers_http_requests_on_websocket_ports() {
    let (mut listener, to) = plain_ws().await;
    let (answer, outcome) = send_raw(&mut listener, to, b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 426 ") && answer.contains("only websocket"), "{answer}");
    assert!(matches!(outcome, Err(LinkError::Handshake { .. })), "{outcome:?}");
}

#[tokio::test]
async fn answers_garbage_on_websocket_ports() {
    let (mut listener, to) = plain_ws().await;
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n"]
    {
        let (answer, outcome) = send_raw(&mut listener, to, garbage).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(matches!(outcome, Err(LinkError::Handshake { .. })), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn drops_silent_clients_at_the_deadline() {
    let (mut listener, to) = plain_ws().await;
    let _silent = TcpStream::connect(to).await.unwrap();
    let outcome = accept(&mut listener).await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("timed out after 10s"), "{error}");
}

#[tokio::test]
async fn rejects_text_messages() {
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
async fn answers_pings_between_frames() {
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
async fn rejects_too_long_messages_by_their_length() {
    let (mut listener, to) = plain_ws().await;
    let client = async {
        let stream = TcpStream::connect(to).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async("ws://hub/", stream).await.unwrap();
        let mut stream = socket.into_inner();
        // The header of a masked binary message of 2^40 bytes.
        stream.write_all(&[0x82, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4]).await.unwrap();
        stream
    };
    let (_stream, link) = tokio::join!(client, accept(&mut listener));
    let error = link.unwrap().next().await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::TooLarge { found: 0x100_0000_0000, max: MAX_FRAME }), "{error}");
}

#[tokio::test]
async fn rejects_garbage_on_unix_sockets_by_its_length() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let options = ListenOptions::default().max_frame(MAX_FRAME);
    let mut listener = ends::listen(&format!("unix://{}", path.display()), &options).await;
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
async fn names_unusable_unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = ends::uds(&path).await;
    let again = format!("unix://{}", path.display()).parse::<Address>().unwrap();
    let error = again.listen(&ListenOptions::default()).await.err().unwrap().to_string();
    assert!(error.contains("in use") && error.contains(path.to_str().unwrap()), "{error}");
    drop(listener);
    let error = ends::dial_uds(&path).dial().await.unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    let error =
        ends::dialer(&format!("unix://{}", "/x".repeat(54)), &dialing(None)).err().unwrap().to_string();
    assert!(error.contains("107"), "{error}");
}

#[tokio::test]
async fn quic_listener_survives_garbage_datagrams() {
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
        // Handshakes that the garbage may have started fail on their own.
        loop {
            if let Ok(link) = accept(&mut listener).await {
                return link;
            }
        }
    };
    let (dialed, _accepted) = tokio::join!(dialer.dial(), accepting);
    dialed.unwrap();
}

/// A raw QUIC client with a valid certificate that can send arbitrary bytes.
async fn raw_quic(authority: &Authority, port: u16) -> quinn::Connection {
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let mut tls = rustls::ClientConfig::clone(&tls.config().unwrap());
    tls.alpn_protocols = vec![edge_transport::link::quic::ALPN.to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(std::sync::Arc::new(crypto));
    endpoint.connect_with(config, ([127, 0, 0, 1], port).into(), "hub").unwrap().await.unwrap()
}

/// The start of a control stream without a first frame.
const BEGUN: [u8; 5] = [1, 0xff, 0xff, 0xff, 0xfe];

async fn stream(connection: &quinn::Connection, bytes: &[u8]) -> quinn::SendStream {
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

#[tokio::test]
async fn reports_bad_quic_streams_and_survives_resets() {
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
    assert!(matches!(link.unwrap().next().await, Some(Err(LinkError::Lost))));
}

#[tokio::test]
async fn reads_quic_streams_after_the_first_control_frame() {
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
async fn limits_unfinished_frames_of_all_quic_streams() {
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
async fn recognizes_plain_websocket_clients_on_tls_ports() {
    let authority = Authority::new();
    let (mut listener, port) = tls_ws(&authority).await;
    let dialer = plain(port);
    let (dialed, accepted) = attempt(&mut listener, &dialer).await;
    assert!(matches!(dialed, Err(LinkError::Handshake { .. })), "{dialed:?}");
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("wss://"), "{error}");
}

#[tokio::test]
async fn refuses_servers_of_another_authority() {
    let (trusted, untrusted) = (Authority::new(), Authority::new());
    let (mut listener, port) = tls_ws(&untrusted).await;
    let identity = trusted.identity("edge-1");
    let (dialed, accepted) = attempt(&mut listener, &wss(port, ClientTls::new(&identity).unwrap())).await;
    let error = dialed.unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    accepted.unwrap_err();
    let (mut listener, port) = quic_hub(&untrusted).await;
    let (dialed, accepted) = attempt(&mut listener, &quic(port, &ClientTls::new(&identity).unwrap())).await;
    let error = dialed.unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    accepted.unwrap_err();
}

#[tokio::test]
async fn refuses_clients_of_another_authority_while_dialing() {
    let (trusted, untrusted) = (Authority::new(), Authority::new());
    // The client trusts the hub, but the hub does not trust the client.
    let stranger = untrusted.issue("edge-1").trusting(&trusted);
    let tls = ClientTls::new(&stranger).unwrap();
    let (mut listener, port) = tls_ws(&trusted).await;
    let (dialed, accepted) = attempt(&mut listener, &wss(port, tls.clone())).await;
    dialed.unwrap_err();
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    let (mut listener, port) = quic_hub(&trusted).await;
    let (dialed, accepted) = attempt(&mut listener, &quic(port, &tls)).await;
    let error = dialed.unwrap_err().to_string();
    assert!(error.contains("the server refused"), "{error}");
    accepted.unwrap_err();
}

/// A client configuration that trusts the authority and has no certificate.
fn anonymous(authority: &Authority) -> ClientTls {
    use rustls_pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let with_identity = ClientTls::new(&authority.identity("x")).unwrap();
    let provider = std::sync::Arc::clone(with_identity.config().unwrap().crypto_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    std::sync::Arc::new(config).into()
}

#[tokio::test]
async fn refuses_clients_without_certificate() {
    let authority = Authority::new();
    let (mut listener, port) = tls_ws(&authority).await;
    let (dialed, accepted) = attempt(&mut listener, &wss(port, anonymous(&authority))).await;
    dialed.unwrap_err();
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("sent no certificate"), "{error}");
    let (mut listener, port) = quic_hub(&authority).await;
    let (dialed, accepted) = attempt(&mut listener, &quic(port, &anonymous(&authority))).await;
    dialed.unwrap_err();
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("sent no certificate"), "{error}");
}

#[tokio::test]
async fn optional_certificate_may_be_omitted() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Optional).unwrap();
    let (mut listener, port) = over_tls("wss", tls).await;
    let (dialed, accepted) = attempt(&mut listener, &wss(port, anonymous(&authority))).await;
    assert_eq!(*accepted.unwrap().credentials(), Credentials::None);
    assert_eq!(link_pki::names(&dialed.unwrap()), ["hub"]);
}

#[test]
fn rejects_own_expired_certificate() {
    let authority = Authority::new();
    let old = authority.issue_until("hub", 2001);
    let error =
        Identity::from_pem(old.certificate.as_bytes(), old.key.as_bytes(), authority.pem().as_bytes())
            .unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
}

#[tokio::test]
async fn refuses_expired_certificate_of_the_other_end() {
    let authority = Authority::new();
    let old = authority.issue_until("hub", 2001);
    let server = expired_server(&authority, &old);
    let (mut listener, port) = over_tls("wss", server.clone()).await;
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let (dialed, accepted) = attempt(&mut listener, &wss(port, tls.clone())).await;
    let error = dialed.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    accepted.unwrap_err();
    let (mut listener, port) = over_tls("quic", server.clone()).await;
    let (dialed, accepted) = attempt(&mut listener, &quic(port, &tls)).await;
    let error = dialed.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    accepted.unwrap_err();
}

/// A server with an expired certificate, as after a long uptime.
fn expired_server(authority: &Authority, old: &link_pki::Issued) -> ServerTls {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let chain = vec![CertificateDer::from_pem_slice(old.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(old.key.as_bytes()).unwrap();
    let good = ServerTls::new(&authority.identity("x"), ClientAuth::None).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(std::sync::Arc::clone(
        good.config().unwrap().crypto_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(chain, key)
    .unwrap();
    std::sync::Arc::new(config).into()
}

#[tokio::test]
async fn insecure_ends_connect_only_to_each_other() {
    let server = ServerTls::insecure().unwrap();
    let insecure = ClientTls::insecure(None).unwrap();
    let strict = ClientTls::new(&Authority::new().identity("edge-1")).unwrap();
    let (mut listener, port) = over_tls("quic", server.clone()).await;
    let (dialed, accepted) = attempt(&mut listener, &quic(port, &insecure)).await;
    assert_eq!(*dialed.unwrap().credentials(), Credentials::None);
    assert_eq!(*accepted.unwrap().credentials(), Credentials::None);
    let (dialed, _) = attempt(&mut listener, &quic(port, &strict)).await;
    dialed.unwrap_err();
    let (mut listener, port) = over_tls("wss", server).await;
    let (dialed, accepted) = attempt(&mut listener, &wss(port, insecure)).await;
    assert_eq!(*dialed.unwrap().credentials(), Credentials::None);
    assert_eq!(*accepted.unwrap().credentials(), Credentials::None);
    let (dialed, _) = attempt(&mut listener, &wss(port, strict)).await;
    dialed.unwrap_err();
}

#[tokio::test]
async fn dialing_a_silent_address_times_out() {
    let tls = ClientTls::insecure(None).unwrap();
    let short = dialing(Some(tls)).handshake_timeout(Duration::from_millis(300));
    // Bound to reserve the port, and silent.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let dialer = ends::dialer(&format!("quic://127.0.0.1:{port}"), &short).unwrap();
    let error = dialer.dial().await.unwrap_err().to_string();
    assert!(error.contains("is UDP blocked?"), "{error}");
    // The same for a TCP port that does not listen.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let dialer = ends::dialer(&format!("ws://127.0.0.1:{port}"), &short).unwrap();
    assert!(matches!(dialer.dial().await, Err(LinkError::Io { .. })));
}

#[tokio::test]
async fn slow_handshake_does_not_block_others() {
    let (mut listener, to) = plain_ws().await;
    let _silent = TcpStream::connect(to).await.unwrap();
    let slow = listener.accept().await.unwrap();
    let dialer = plain(to.port());
    let (dialed, accepted) = attempt(&mut listener, &dialer).await;
    dialed.unwrap();
    accepted.unwrap();
    drop(slow);
}

#[tokio::test]
async fn closing_a_quic_link_waits_for_the_reader() {
    let authority = Authority::new();
    let (mut listener, port) = quic_hub(&authority).await;
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let (dialed, accepted) = attempt(&mut listener, &quic(port, &tls)).await;
    let (mut left, mut right) = (dialed.unwrap(), accepted.unwrap());
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
