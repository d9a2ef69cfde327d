//! A connection that is not admitted uses little of a hub's memory. The hostile clients write their own bytes.
#![cfg(all(feature = "uds", feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod ends;
mod link_pki;
mod session_common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use edge_transport::advanced::HubSettings;
use edge_transport::advanced::frame::{self, Frame, Kind};
use edge_transport::link::{DialOptions, Dialer, Lane, Listener, quic};
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use edge_transport::token::Token;
use edge_transport::{Hub, Peer, StartError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use link_pki::Authority;
use session_common::raw::hello;
use session_common::{Echo, peer_id, service_name};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::time::timeout;
use tracing::{Event, Level, Metadata, Subscriber, span};

const BOUND: Duration = Duration::from_secs(60);

/// The header of a masked binary message of 8 MiB, which the hub would accept from a peer.
const WS_HEADER: [u8; 14] = [0x82, 0xff, 0, 0, 0, 0, 0, 0x80, 0, 0, 1, 2, 3, 4];

/// Starts a hub that waits for hellos for longer than a test takes.
fn start(listener: Box<dyn Listener>) -> Hub {
    let mut settings = HubSettings::default();
    settings.session.hello_timeout = 10 * BOUND;
    Hub::builder().listener(listener).settings(settings).allow_unauthenticated().start().unwrap()
}

/// Upgrades a stream to a websocket, by hand.
async fn upgrade(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let request = "GET / HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await.unwrap());
    }
    assert!(response.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&response));
}

/// Writes bytes, and waits until the hub has ended the connection.
async fn expect_end(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    let mut rest = Vec::new();
    // Closed or reset.
    let _ = timeout(BOUND, stream.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.len() < 1024, "{} bytes of response", rest.len());
}

/// Waits until the hub has counted this number of failed handshakes.
async fn wait_for_failed_handshakes(hub: &Hub, expected: u64) {
    let counted = async {
        while hub.stats().failed_handshakes < expected {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, counted).await.unwrap();
}

async fn plain_ws() -> (Hub, SocketAddr) {
    let (listener, to) = ends::ws(None).await;
    (start(listener), to)
}

/// Over a plain websocket, the header of 8 MiB ends the link before the hello, and so does the sum of fragments.
#[tokio::test]
async fn announced_length_ends_an_unadmitted_websocket() {
    let (hub, to) = plain_ws().await;
    let mut fragments = vec![0x02, 0xfe, 0x30, 0, 1, 2, 3, 4];
    fragments.resize(fragments.len() + 0x3000, 7);
    fragments.extend([0x00, 0xfe, 0x10, 1, 1, 2, 3, 4]);
    for (number, bytes) in [(1, &WS_HEADER[..]), (2, &fragments)] {
        let mut stream = TcpStream::connect(to).await.unwrap();
        upgrade(&mut stream).await;
        expect_end(&mut stream, bytes).await;
        wait_for_failed_handshakes(&hub, number).await;
    }
}

/// An HTTP request without an end is refused after 16 KiB.
#[tokio::test]
async fn endless_upgrade_request_is_refused() {
    let (hub, to) = plain_ws().await;
    let mut stream = TcpStream::connect(to).await.unwrap();
    let mut request = b"GET / HTTP/1.1\r\nX-Long: ".to_vec();
    request.resize(20 << 10, b'a');
    expect_end(&mut stream, &request).await;
    wait_for_failed_handshakes(&hub, 1).await;
}

/// Over TLS without any credential, as where peers prove themselves by tokens.
#[tokio::test]
async fn announced_length_ends_an_unadmitted_tls_link() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Optional).unwrap();
    let (listener, to) = ends::ws(Some(tls)).await;
    let hub = start(listener);
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap().config().unwrap();
    let connect = async |config| {
        let stream = TcpStream::connect(to).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(config);
        connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap()
    };
    let mut direct = connect(Arc::clone(&tls)).await;
    assert_eq!(direct.get_ref().1.alpn_protocol(), Some(quic::ALPN));
    assert_eq!(direct.read_u8().await.unwrap(), 1);
    expect_end(&mut direct, &(8_u32 << 20).to_be_bytes()).await;
    wait_for_failed_handshakes(&hub, 1).await;

    let mut tls = (*tls).clone();
    tls.alpn_protocols.clear();
    let mut websocket = connect(Arc::new(tls)).await;
    upgrade(&mut websocket).await;
    expect_end(&mut websocket, &WS_HEADER).await;
    wait_for_failed_handshakes(&hub, 2).await;
}

/// Over a unix socket, the length of 8 MiB ends the link before the hello.
#[tokio::test]
async fn announced_length_ends_an_unadmitted_unix_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let hub = start(ends::uds(&path).await);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    expect_end(&mut stream, &(8_u32 << 20).to_be_bytes()).await;
    wait_for_failed_handshakes(&hub, 1).await;
}

/// A client whose certificate comes with a hundred others is refused before the hub has read them all.
#[tokio::test]
async fn long_certificate_chain_ends_a_tls_handshake() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (mut listener, to) = ends::ws(Some(tls)).await;
    let mut issued = authority.issue("edge-1");
    issued.certificate += &authority.pem().repeat(100);
    let tls = ClientTls::new(&issued.trusting(&authority)).unwrap();
    let dialer = ends::dial_ws(to.port(), Some(tls));
    let accepted = async { listener.accept().await.unwrap().await };
    let (accepted, _) = tokio::join!(accepted, dialer.dial());
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("TLS handshake of more than 16384 bytes"), "{error}");
}

/// Counts the lines of the default level.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, SeqCst);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A hundred clients that speak plain HTTP to a TLS port cause one line of the log.
#[tokio::test]
async fn failed_handshakes_do_not_fill_the_log() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (listener, to) = ends::ws(Some(tls)).await;
    let lines = Arc::new(AtomicUsize::new(0));
    let _default = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let hub = start(listener);
    for number in 1..=100 {
        let mut stream = TcpStream::connect(to).await.unwrap();
        expect_end(&mut stream, b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n").await;
        wait_for_failed_handshakes(&hub, number).await;
    }
    let logged = lines.load(SeqCst);
    assert!(logged <= 4, "{logged} lines, with those of the start");
}

async fn quic_hub(authority: &Authority) -> (Hub, SocketAddr) {
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (listener, to) = ends::quic(&tls).await;
    (start(listener), to)
}

fn client_config(authority: &Authority) -> quinn::ClientConfig {
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let mut tls = rustls::ClientConfig::clone(&tls.config().unwrap());
    tls.alpn_protocols = vec![quic::ALPN.to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    quinn::ClientConfig::new(Arc::new(crypto))
}

async fn raw_quic(authority: &Authority, to: SocketAddr) -> quinn::Connection {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.connect_with(client_config(authority), to, "hub").unwrap().await.unwrap()
}

/// Writes unfinished frames on several streams until the hub grants no more, or `enough` bytes are written.
/// Returns how many bytes the hub has accepted.
async fn flood(connection: &quinn::Connection, enough: usize) -> usize {
    let mut accepted = 0;
    let mut streams = Vec::new();
    while accepted < enough {
        let Ok(Ok(mut stream)) = timeout(Duration::from_millis(500), connection.open_uni()).await else {
            break;
        };
        let mut bytes = (8_u32 << 20).to_be_bytes().to_vec();
        bytes.resize(64 << 10, 0);
        let mut left = &bytes[..];
        while !left.is_empty() {
            match timeout(Duration::from_millis(500), stream.write(left)).await {
                Ok(written) => {
                    let written = written.unwrap();
                    accepted += written;
                    left = &left[written..];
                }
                Err(_) => return accepted,
            }
        }
        streams.push(stream);
    }
    accepted
}

/// Over QUIC, the length of 8 MiB on the control stream ends the link, and all streams together carry less than 48
/// KiB until the peer is admitted.
#[tokio::test]
async fn unadmitted_quic_link_receives_little() {
    let authority = Authority::new();
    let (hub, to) = quic_hub(&authority).await;
    let connection = raw_quic(&authority, to).await;
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[1, 0, 0x80, 0, 0]).await.unwrap();
    timeout(BOUND, connection.closed()).await.unwrap();
    wait_for_failed_handshakes(&hub, 1).await;

    let connection = raw_quic(&authority, to).await;
    let mut control = connection.open_uni().await.unwrap();
    // A first frame of 16 KiB, unfinished.
    control.write_all(&[1, 0, 0, 0x40, 0, b'x']).await.unwrap();
    let accepted = flood(&connection, 1 << 20).await;
    assert!((1..48 << 10).contains(&accepted), "{accepted}");
    assert!(hub.peers().is_empty());

    let connection = raw_quic(&authority, to).await;
    let mut control = connection.open_uni().await.unwrap();
    let hello = frame::encode(Frame::link(Kind::Hello(hello("edge-1", 1, 1, 1))), Lane::Control);
    let mut bytes = vec![1];
    bytes.extend(u32::try_from(hello.len()).unwrap().to_be_bytes());
    bytes.extend([hello.head, hello.body].concat());
    control.write_all(&bytes).await.unwrap();
    let admitted = async {
        while hub.peers().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, admitted).await.unwrap();
    let accepted = flood(&connection, 256 << 10).await;
    assert!(accepted >= 256 << 10, "{accepted}");
}

/// Sends the first packets of a QUIC client that closes its connection at once and receives nothing, from a socket of its own.
async fn aborted_handshake(config: &quinn::ClientConfig, to: SocketAddr) {
    let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let _connecting = endpoint.connect_with(config.clone(), near.local_addr().unwrap(), "hub").unwrap();
    let mut packet = [0; 2048];
    for _ in 0..2 {
        let length = near.recv(&mut packet).await.unwrap();
        far.send_to(&packet[..length], to).await.unwrap();
        endpoint.close(0_u32.into(), b"");
    }
}

/// The state of an aborted QUIC connection remains for seconds. A client that sends many such handshakes without proof of its
/// address gets no more of it than with unfinished ones, and keeps no peer out.
#[tokio::test]
async fn aborted_quic_handshakes_use_little() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (mut listener, to) = ends::quic(&tls).await;
    let config = client_config(&authority);
    let attack = async {
        for _ in 0..200 {
            aborted_handshake(&config, to).await;
        }
        raw_quic(&authority, to).await
    };
    let (mut accepted, mut running) = (0, FuturesUnordered::new());
    let accept = async {
        loop {
            tokio::select! {
                incoming = listener.accept() => {
                    accepted += 1;
                    running.push(incoming.unwrap().into_future());
                }
                Some(Ok(_)) = running.next() => break,
            }
        }
    };
    timeout(BOUND, async { tokio::join!(accept, attack) }).await.unwrap();
    assert!((60..80).contains(&accepted), "{accepted} connections");
}

/// The hello of a peer that starts is admitted even with the longest token; a peer whose hello would be refused does not
/// start.
#[tokio::test]
async fn largest_hello_is_admitted_with_the_longest_token() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let hub = start(ends::uds(&path).await);
    let peer = |services: usize| {
        let dialer = ends::dial_uds(&path);
        let token = DialOptions::default().token(Token::new("x".repeat(8192)).unwrap());
        let builder = Peer::builder(peer_id("edge-1")).dialer(token.with_token(dialer));
        (0..services)
            .fold(builder, |builder, number| {
                builder.service(service_name(&format!("{number:0>128}")), Echo::default())
            })
            .start()
    };
    let (mut services, mut last) = (0, peer(0).unwrap());
    let error = loop {
        services += 1;
        match peer(services) {
            Ok(larger) => last = larger,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StartError::HelloTooLarge { found, max } if found > max), "{error}");
    assert!(services > 60, "{services}");
    timeout(BOUND, last.connected()).await.unwrap().unwrap();
    assert_eq!(hub.peers()[0].services.len(), services - 1);
}
