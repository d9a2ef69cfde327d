//! Connections that send nothing, or only a byte, do not keep peers out of a hub.
#![cfg(all(feature = "ws", feature = "uds", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod ends;
mod link_pki;
mod session_common;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use edge_transport::Hub;
use edge_transport::advanced::HubSettings;
use edge_transport::link::{Incoming, Link, LinkError, LinkKind, Listener};
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use link_pki::Authority;
use session_common::raw::hello;
use session_common::{listen, peer_id};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

const BOUND: Duration = Duration::from_secs(60);

/// A connection that sends at most its first byte. Counts itself while it exists.
struct Hostile {
    sends_a_byte: bool,
    open: Arc<AtomicUsize>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.open.fetch_sub(1, SeqCst);
    }
}

impl Hostile {
    fn poll_first_byte(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.sends_a_byte { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    async fn handshake(self) -> Result<Link, LinkError> {
        std::future::pending::<()>().await;
        drop(self);
        Err(LinkError::Lost)
    }
}

/// Accepts hostile connections and memory links.
struct MixedListener {
    hostile: mpsc::UnboundedReceiver<Incoming>,
    memory: Box<dyn Listener>,
}

#[async_trait::async_trait]
impl Listener for MixedListener {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        tokio::select! {
            biased;
            Some(incoming) = self.hostile.recv() => Ok(incoming),
            incoming = self.memory.accept() => {
                Ok(incoming?.from_address(address("198.51.100.1")))
            }
        }
    }

    fn kind(&self) -> LinkKind {
        LinkKind::WSS
    }

    fn local_address(&self) -> String {
        "mixed".to_owned()
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Admits a genuine peer after 1,290 hostile connections of one network. Returns how many of these are open before
/// and after the first-byte timeout.
async fn admit_among(sends_a_byte: bool) -> (Hub, usize, usize) {
    let (sender, hostile) = mpsc::unbounded_channel();
    let (memory, dialer) = listen();
    let listener = MixedListener { hostile, memory };
    let hub = Hub::builder().listener(Box::new(listener)).allow_unauthenticated().start().unwrap();
    let open = Arc::new(AtomicUsize::new(1290));
    for _ in 0..1290 {
        let hostile = Hostile { sends_a_byte, open: Arc::clone(&open) };
        let incoming = Incoming::with_first_byte(hostile, Hostile::poll_first_byte, Hostile::handshake);
        assert!(sender.send(incoming.from_address(address("203.0.113.9"))).is_ok());
    }
    let started = Instant::now();
    let net = session_common::Net { hub: hub.clone(), dialer };
    let peer = session_common::raw::Raw::admitted(&net, "edge-1", 1).await;
    assert!(started.elapsed() < Duration::from_millis(10), "admitted after {:?}", started.elapsed());
    let before = open.load(SeqCst);
    tokio::time::advance(Duration::from_secs(2)).await;
    // Every task runs many times; a bound in time would never pass, because the clock is paused.
    for _ in 0..100_000 {
        if sends_a_byte || open.load(SeqCst) == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(started.elapsed() < Duration::from_secs(3));
    drop(peer);
    (hub, before, open.load(SeqCst))
}

/// 1,290 connections that send nothing hold no handshake slot: a genuine peer is admitted at once, at most 1024 of
/// them are kept, and these end after 2 s.
#[tokio::test(start_paused = true)]
async fn silent_connections_delay_no_genuine_peer() {
    let (hub, before, after) = admit_among(false).await;
    assert_eq!((before, after), (1024, 0));
    assert_eq!((hub.stats().silent, hub.stats().rejected), (1290, 0));
}

/// 1,290 connections of one network that send a byte and nothing more use half of the slots and of the queue.
#[tokio::test(start_paused = true)]
async fn one_network_leaves_handshake_slots_to_others() {
    let (hub, before, after) = admit_among(true).await;
    let settings = HubSettings::default();
    assert_eq!(before, (settings.max_handshakes + settings.handshake_backlog) / 2);
    assert_eq!((after, hub.stats().silent), (before, 0));
    assert_eq!(hub.stats().rejected as usize, 1290 - before);
}

/// Connects from an address of this host.
async fn connect_from(local: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(address(local), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// Real sockets: the hostile ones fill a hub with two slots, some silent, some with one byte of a TLS record; a
/// peer of another network is admitted, and the silent ones are closed by the first-byte timeout.
#[tokio::test]
async fn hostile_sockets_do_not_keep_a_tls_peer_out() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (listener, to) = ends::ws(Some(tls)).await;
    let mut settings = HubSettings::default();
    (settings.max_handshakes, settings.handshake_backlog) = (2, 2);
    let hub = Hub::builder().listener(listener).settings(settings).start().unwrap();
    let (mut silent, mut started) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        silent.push(connect_from("127.66.0.1", to).await);
        let mut socket = connect_from("127.66.0.2", to).await;
        socket.write_all(&[22]).await.unwrap();
        started.push(socket);
    }
    let before = Instant::now();
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let dialer = ends::dial_ws(to.port(), Some(tls));
    let link = timeout(BOUND, dialer.dial()).await.unwrap().unwrap();
    let mut peer = session_common::raw::Raw { link };
    peer.send(edge_transport::advanced::frame::Kind::Hello(hello("edge-1", 1, 1, 1))).await;
    assert!(peer.receive().await.is_some());
    assert!(before.elapsed() < Duration::from_secs(5), "before a slot of the hostile sockets times out");
    assert_eq!(hub.peers()[0].peer, peer_id("edge-1"));
    for mut socket in silent {
        let mut rest = Vec::new();
        let _ = timeout(BOUND, socket.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest.first(), Some(&21), "an alert, then the end");
    }
    assert_eq!(hub.stats().silent, 20);
    drop(started);
}

/// Unix sockets wait for the first byte too: silent processes do not take the slots, and are closed in time.
#[tokio::test(start_paused = true)]
async fn silent_unix_connections_take_no_slot() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = ends::uds(&path).await;
    let mut settings = HubSettings::default();
    (settings.max_handshakes, settings.handshake_backlog) = (2, 0);
    let hub = Hub::builder().listener(listener).settings(settings).start().unwrap();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(UnixStream::connect(&path).await.unwrap());
    }
    let before = Instant::now();
    let dialer = ends::dial_uds(&path);
    let mut peer = session_common::raw::Raw { link: dialer.dial().await.unwrap() };
    peer.send(edge_transport::advanced::frame::Kind::Hello(hello("edge-1", 1, 1, 1))).await;
    assert!(peer.receive().await.is_some());
    assert!(before.elapsed() < Duration::from_secs(2), "before the silent ones are closed");
    for mut socket in silent {
        assert_eq!(timeout(BOUND, socket.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    }
    assert!(before.elapsed() < Duration::from_secs(3));
    assert_eq!(hub.stats().silent, 20);
}
