//! Admitted peers that do not finish their frames share a budget, and are closed in time. They write their own
//! bytes.
#![cfg(all(feature = "uds", feature = "quic"))]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod ends;
mod link_pki;
mod session_common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::HubSettings;
use edge_transport::advanced::frame::{self, Frame, Kind, Part};
use edge_transport::hub::Rules;
use edge_transport::link::{Lane, Listener, quic};
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use edge_transport::{Hub, Peer, Request, StartError};
use link_pki::Authority;
use session_common::raw::hello;
use session_common::{Echo, collect, echo, peer_id, service_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};

const BOUND: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn settings() -> HubSettings {
    let mut settings = HubSettings::default();
    settings.session.max_frame = MIB;
    settings.session.ping_interval = Duration::from_millis(500);
    settings.session.liveness_timeout = Duration::from_secs(3);
    settings.total_receive_bytes = 4 * MIB;
    settings
}

fn start(listener: Box<dyn Listener>, settings: HubSettings) -> Hub {
    Hub::builder().listener(listener).settings(settings).policy(Rules::allow_all()).start().unwrap()
}

/// A link frame with the length in front, as on unix sockets and QUIC streams.
fn on_the_wire(kind: Kind) -> Vec<u8> {
    bytes_of(Frame::link(kind))
}

fn bytes_of(frame: Frame) -> Vec<u8> {
    let frame = frame::encode(frame, Lane::Control);
    [&u32::try_from(frame.len()).unwrap().to_be_bytes()[..], &frame.head, &frame.body].concat()
}

async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, met).await.unwrap();
}

fn peer(path: &Path, name: &str, service: Option<Echo>) -> Peer {
    let dialer = ends::dial_uds(path);
    let builder = Peer::builder(peer_id(name)).dialer(Box::new(dialer));
    match service {
        Some(service) => builder.service(service_name("echo"), service).start().unwrap(),
        None => builder.start().unwrap(),
    }
}

/// Connects a peer that sends all of a frame of 1 MiB but its last byte, and reads until the hub closes the link.
async fn hold_frame(path: &Path, name: &str) -> JoinHandle<()> {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(&on_the_wire(Kind::Hello(hello(name, 1, 1, 1)))).await.unwrap();
    // The hub's hello follows the admission.
    let _ = stream.read_u8().await.unwrap();
    tokio::spawn(async move {
        let mut frame = u32::try_from(MIB).unwrap().to_be_bytes().to_vec();
        frame.resize(MIB + 3, 0);
        let _ = stream.write_all(&frame).await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    })
}

/// Ten peers that each send all of a frame of 1 MiB but its last byte stay within a budget of 4 MiB, while others
/// call with small and with large bodies. When the hub has closed them, the budget is unused.
#[tokio::test]
async fn unfinished_frames_stay_within_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let hub = start(ends::uds(&path).await, settings());
    let (target, caller) = (peer(&path, "edge-1", Some(Echo::default())), peer(&path, "proxy", None));
    target.connected().await.unwrap();
    caller.connected().await.unwrap();
    let call = async |bytes: usize| {
        let replies = caller.call(peer_id("edge-1"), echo(vec![7; bytes])).await.unwrap();
        collect(replies).await
    };

    let mut hostile = Vec::new();
    for number in 0..10 {
        hostile.push(hold_frame(&path, &format!("hostile-{number}")).await);
    }
    until(|| hub.stats().receive_waits > 0).await;
    let used = hub.stats().receiving_bytes;
    assert!((MIB..=4 * MIB).contains(&used), "{used}");
    assert_eq!(call(1000).await.0[0].len(), 1000, "small frames need no budget");
    for hostile in hostile {
        timeout(BOUND, hostile).await.unwrap().unwrap();
        assert!(hub.stats().receiving_bytes <= 4 * MIB);
    }
    until(|| hub.stats().receiving_bytes == 0).await;
    let (messages, end) = call(900_000).await;
    assert_eq!((messages[0].len(), end), (900_000, Ok(Bytes::new())));
    until(|| hub.stats().receiving_bytes == 0).await;
}

/// Peers of twelve identities take turns in holding the budget, each until the hub closes it. The links of a genuine call
/// wait longer than a silent link may, and the call completes.
#[tokio::test]
async fn link_that_waits_for_the_budget_is_not_silent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut settings = settings();
    settings.session.ping_interval = Duration::from_millis(100);
    settings.session.liveness_timeout = Duration::from_secs(1);
    let hub = start(ends::uds(&path).await, settings);
    let (target, caller) = (peer(&path, "edge-1", Some(Echo::default())), peer(&path, "proxy", None));
    target.connected().await.unwrap();
    caller.connected().await.unwrap();
    let mut hostile = Vec::new();
    for number in 0..12 {
        hostile.push(hold_frame(&path, &format!("hostile-{number}")).await);
    }
    until(|| hub.stats().receive_waits >= 8).await;
    let since = Instant::now();
    let replies = caller.call(peer_id("edge-1"), echo(vec![7; 900_000])).await.unwrap();
    let (messages, end) = timeout(BOUND, collect(replies)).await.unwrap();
    assert_eq!((messages[0].len(), end), (900_000, Ok(Bytes::new())));
    assert!(since.elapsed() > Duration::from_secs(1), "it did not wait: {:?}", since.elapsed());
}

/// A frame that arrives slowly, over more than the time after which a silent link is dead, arrives.
#[tokio::test]
async fn slow_frame_is_not_silence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut settings = settings();
    settings.session.ping_interval = Duration::from_millis(100);
    settings.session.liveness_timeout = Duration::from_secs(1);
    let hub = start(ends::uds(&path).await, settings);
    let target = peer(&path, "edge-1", Some(Echo::default()));
    target.connected().await.unwrap();
    let mut slow = UnixStream::connect(&path).await.unwrap();
    slow.write_all(&on_the_wire(Kind::Hello(hello("slow", 1, 1, 1)))).await.unwrap();
    let request = Request::new(service_name("echo"), vec![7; 200_000]);
    let bytes = bytes_of(Frame::call(None, Some(peer_id("edge-1")), 1, Part::Request(request)));
    let mut pieces = interval(Duration::from_millis(50));
    for piece in bytes.chunks(4000) {
        pieces.tick().await;
        slow.write_all(piece).await.unwrap();
    }
    until(|| hub.stats().calls == 1).await;
}

/// A single hostile peer leaves half of the budget, so that a large call completes while it holds its frame.
#[tokio::test]
async fn hostile_peer_leaves_budget_for_a_large_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut settings = settings();
    settings.session.liveness_timeout = BOUND;
    let hub = start(ends::uds(&path).await, settings);
    let (target, caller) = (peer(&path, "edge-1", Some(Echo::default())), peer(&path, "proxy", None));
    target.connected().await.unwrap();
    caller.connected().await.unwrap();
    let mut hostile = UnixStream::connect(&path).await.unwrap();
    let mut bytes = on_the_wire(Kind::Hello(hello("hostile", 1, 1, 1)));
    hostile.write_all(&bytes).await.unwrap();
    let _ = hostile.read_u8().await.unwrap();
    bytes = u32::try_from(MIB).unwrap().to_be_bytes().to_vec();
    bytes.resize(MIB + 3, 0);
    hostile.write_all(&bytes).await.unwrap();
    until(|| hub.stats().receiving_bytes >= MIB).await;
    let replies = caller.call(peer_id("edge-1"), echo(vec![7; 900_000])).await.unwrap();
    let (messages, _) = timeout(BOUND, collect(replies)).await.unwrap();
    assert_eq!(messages[0].len(), 900_000);
    assert!(hub.stats().receiving_bytes >= MIB);
}

/// A QUIC peer that answers pings on one stream does not hold a frame on another for longer than its time.
#[tokio::test]
async fn quic_peer_cannot_hold_a_frame_by_pongs() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (listener, to) = ends::quic(&tls).await;
    let hub = start(listener, settings());
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let mut tls = rustls::ClientConfig::clone(&tls.config().unwrap());
    tls.alpn_protocols = vec![quic::ALPN.to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let connection = endpoint.connect_with(config, to, "hub").unwrap().await.unwrap();

    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[1]).await.unwrap();
    control.write_all(&on_the_wire(Kind::Hello(hello("edge-1", 1, 1, 1)))).await.unwrap();
    until(|| !hub.peers().is_empty()).await;
    let _shared = connection.open_uni().await.unwrap();
    let mut lane = connection.open_uni().await.unwrap();
    let mut frame = u32::try_from(MIB).unwrap().to_be_bytes().to_vec();
    frame.resize(500_000, 0);
    lane.write_all(&frame).await.unwrap();
    let since = Instant::now();
    until(|| hub.stats().receiving_bytes > 0).await;
    let pongs = async {
        let mut pongs = interval(Duration::from_millis(200));
        loop {
            pongs.tick().await;
            if control.write_all(&on_the_wire(Kind::Pong { nonce: 1 })).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let closed = async {
        tokio::select! { () = pongs => {}, _ = connection.closed() => {} }
    };
    timeout(BOUND, closed).await.unwrap();
    // 3 s, and 8 s for 1 MiB at 1 Mbit/s; checked with every ping.
    assert!(since.elapsed() >= Duration::from_secs(8), "{:?}", since.elapsed());
    until(|| hub.stats().receiving_bytes == 0).await;
}

/// A budget that does not suffice for the largest frame is refused.
#[tokio::test]
async fn refuses_a_budget_below_the_largest_frame() {
    let mut settings = settings();
    settings.total_receive_bytes = MIB;
    let (listener, _dialer) = session_common::listen();
    let error = Hub::builder().listener(listener).settings(settings).start().unwrap_err();
    assert!(
        matches!(error, StartError::TooLow { setting: "total_receive_bytes", found: MIB, min } if min == 3 * MIB),
        "{error}"
    );
}
