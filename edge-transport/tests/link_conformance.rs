//! Runs the conformance suite on every kind of link.
#![cfg(all(feature = "uds", feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod ends;
mod link_pki;

use std::sync::Arc;

use bytes::Bytes;
use edge_transport::link::{
    Credentials, DEFAULT_MAX_FRAME, Dialer, FrameLink as _, Lane, Link, LinkError, LinkKind, Listener,
    WireFrame, conformance, faulty, memory, quic,
};
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use futures_util::{SinkExt as _, StreamExt as _};
use link_pki::Authority;
use tokio::io::AsyncWriteExt as _;

/// One accepted and one dialed end.
async fn connect(listener: &mut dyn Listener, dialer: &dyn Dialer) -> Result<(Link, Link), LinkError> {
    let accepting = async { listener.accept().await?.await };
    tokio::try_join!(dialer.dial(), accepting)
}

/// A link counts what it has accepted and not written while the other end does not read.
async fn counts_unwritten(listener: &mut dyn Listener, dialer: &dyn Dialer) {
    let (mut reader, mut writer) = connect(listener, dialer).await.unwrap();
    // More than the network's own buffers hold.
    let frame = WireFrame::new(Lane::Call(1), true, Bytes::from_static(b"head"), vec![7; 7 << 20].into());
    let len = frame.len();
    writer.feed(frame).await.unwrap();
    assert!(futures_util::poll!(writer.flush()).is_pending(), "the other end does not read");
    assert!((1..=len + 64).contains(&writer.unwritten()), "{}", writer.unwritten());
    let (read, written) = tokio::join!(reader.next(), writer.flush());
    written.unwrap();
    assert_eq!((read.unwrap().unwrap().len(), writer.unwritten()), (len, 0));
}

/// Runs the suite from both sides, with the dialed end in either role.
async fn suite(listener: &mut dyn Listener, dialer: &dyn Dialer) {
    let listener = tokio::sync::Mutex::new(listener);
    for dialed_first in [true, false] {
        let make = || async {
            let (dialed, accepted) = connect(&mut **listener.lock().await, dialer).await?;
            Ok(if dialed_first { (dialed, accepted) } else { (accepted, dialed) })
        };
        conformance::run(DEFAULT_MAX_FRAME, make).await.unwrap();
    }
}

#[tokio::test]
async fn memory_links_conform() {
    let (mut listener, dialer) = memory::listen("hub", DEFAULT_MAX_FRAME);
    suite(&mut listener, &dialer).await;
}

#[tokio::test]
async fn faulty_links_without_faults_conform() {
    let make = || async {
        let (left, right) = memory::pair(DEFAULT_MAX_FRAME);
        Ok((faulty::wrap(left, faulty::Plan::new(1)).0, faulty::wrap(right, faulty::Plan::new(2)).0))
    };
    conformance::run(DEFAULT_MAX_FRAME, make).await.unwrap();
}

#[tokio::test]
async fn uds_links_conform_and_report_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut listener = ends::uds(&path).await;
    let dialer = ends::dial_uds(&path);
    let (dialed, accepted) = connect(&mut listener, &dialer).await.unwrap();
    assert_eq!(dialed.credentials(), accepted.credentials());
    assert!(matches!(accepted.credentials(), Credentials::Process { .. }));
    counts_unwritten(&mut listener, &dialer).await;
    suite(&mut listener, &dialer).await;
}

#[tokio::test]
async fn ws_links_conform() {
    let (mut listener, to) = ends::ws(None).await;
    let port = to.port();
    let dialer = ends::dial_ws(port, None);
    suite(&mut listener, &dialer).await;
}

#[tokio::test]
async fn wss_links_conform_and_report_certificates() {
    let authority = Authority::new();
    let server = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (mut listener, to) = ends::ws(Some(server)).await;
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    for tls in [only_websocket(&tls), tls] {
        let dialer = ends::dial_ws(to.port(), Some(tls));
        let (dialed, accepted) = connect(&mut listener, &dialer).await.unwrap();
        assert_eq!((dialed.kind(), accepted.kind()), (LinkKind::WSS, LinkKind::WSS));
        assert_eq!(link_pki::names(&dialed), ["hub"]);
        assert_eq!(link_pki::names(&accepted), ["edge-1"]);
        counts_unwritten(&mut listener, &dialer).await;
        suite(&mut listener, &dialer).await;
    }
}

/// Both ends agree on frames without a websocket.
#[tokio::test]
async fn wss_links_are_direct_between_two_ends_of_this_crate() {
    let authority = Authority::new();
    let server = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let dialer = ends::dial_ws(listener.local_addr().unwrap().port(), Some(tls));
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(server.config().unwrap());
        let mut stream = acceptor.accept(stream).await.unwrap();
        stream.write_u8(1).await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    let (dialed, accepted) = tokio::join!(dialer.dial(), accept);
    assert_eq!(accepted.get_ref().1.alpn_protocol(), Some(quic::ALPN));
    let mut accepted = Link::framed(accepted, LinkKind::WSS, "edge", Credentials::None, DEFAULT_MAX_FRAME);
    let frame = WireFrame::new(Lane::Call(1), true, Bytes::from_static(b"head"), Bytes::new());
    dialed.unwrap().send(frame).await.unwrap();
    assert_eq!(accepted.next().await.unwrap().unwrap(), "head");
}

/// A client behind a reverse proxy, which does not know the protocol of direct links.
fn only_websocket(tls: &ClientTls) -> ClientTls {
    let mut config = (*tls.config().unwrap()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config).into()
}

// On several threads, so that the connection's task runs in parallel with the link's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_links_conform_and_report_certificates() {
    let authority = Authority::new();
    let server = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (mut listener, to) = ends::quic(&server).await;
    let tls = ClientTls::new(&authority.identity("edge-1")).unwrap();
    let port = to.port();
    let dialer = ends::dial_quic(port, &tls);
    let (dialed, accepted) = connect(&mut listener, &dialer).await.unwrap();
    assert_eq!(link_pki::names(&dialed), ["hub"]);
    assert_eq!(link_pki::names(&accepted), ["edge-1"]);
    counts_unwritten(&mut listener, &dialer).await;
    suite(&mut listener, &dialer).await;
}
