//! Sessions over real links with certificates.

#![cfg(all(feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod link_pki;
mod session_common;

use std::time::Duration;

use bytes::Bytes;
use edge_transport::hub::Rules;
use edge_transport::link::Dialer;
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use edge_transport::{Hub, Peer, PeerState, Reason};
use link_pki::Authority;
use session_common::{Echo, collect, echo, peer_id, service_name};

enum Kind {
    Wss,
    Quic,
}

struct Net {
    hub: Hub,
    authority: Authority,
    port: u16,
    kind: Kind,
}

impl Net {
    async fn new(kind: Kind) -> Self {
        let authority = Authority::new();
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
        let (listener, to) = match kind {
            Kind::Wss => ends::ws(Some(tls)).await,
            Kind::Quic => ends::quic(&tls).await,
        };
        let hub = Hub::builder().listener(listener).policy(Rules::allow_all()).start().unwrap();
        Self { hub, authority, port: to.port(), kind }
    }

    fn dialer(&self, certificate: &str) -> Box<dyn Dialer> {
        let tls = ClientTls::new(&self.authority.identity(certificate)).unwrap();
        match self.kind {
            Kind::Wss => ends::dial_ws(self.port, Some(tls)),
            Kind::Quic => ends::dial_quic(self.port, &tls),
        }
    }

    async fn peer(&self, name: &str) -> (Peer, Echo) {
        let echo = Echo::default();
        let builder = Peer::builder(peer_id(name))
            .dialer(self.dialer(name))
            .service(service_name("echo"), echo.clone());
        let peer = builder.start().unwrap();
        peer.connected().await.unwrap();
        (peer, echo)
    }
}

async fn calls_of_every_shape(kind: Kind) {
    let net = Net::new(kind).await;
    let (_edge, service) = net.peer("edge-1").await;
    let (cloud, _) = net.peer("cloud").await;

    let big = vec![9; 4 * 1024 * 1024];
    let (messages, _) = collect(cloud.call(peer_id("edge-1"), echo(big.clone())).await.unwrap()).await;
    assert_eq!(messages, [Bytes::from(big)]);

    let (messages, end) =
        collect(cloud.call(peer_id("edge-1"), echo("stream:400:40000")).await.unwrap()).await;
    assert_eq!((messages.len(), end), (400, Ok(Bytes::from("done"))));

    // More streams are started and cancelled than a link may have open lanes: each must be closed.
    for _ in 0..130 {
        let mut replies = cloud.call(peer_id("edge-1"), echo("stream:1000:20000")).await.unwrap();
        assert!(replies.next().await.unwrap().is_ok());
    }
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..256 {
        let cloud = cloud.clone();
        calls.spawn(async move {
            let body = Bytes::from(format!("{index}"));
            let (messages, _) =
                collect(cloud.call(peer_id("edge-1"), echo(body.clone())).await.unwrap()).await;
            assert_eq!(messages, [body]);
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    let waiting = cloud.call(peer_id("edge-1"), echo("never")).await.unwrap();
    service.started.notified().await;
    net.hub.close().await;
    // Without a close, the peer would continue to reconnect.
    cloud.close().await;
    assert_eq!(collect(waiting).await.1, Err(Reason::LinkLost));
    assert_eq!(net.hub.stats().malformed, 0);
}

async fn refuses_names_not_in_the_certificate(kind: Kind) {
    let net = Net::new(kind).await;
    let peer = Peer::builder(peer_id("edge-1")).dialer(net.dialer("edge-2")).start().unwrap();
    let mut watch = peer.watch();
    let refused = watch.wait_for(|state| matches!(state, PeerState::Connecting { last_error: Some(_), .. }));
    let state = tokio::time::timeout(Duration::from_secs(30), refused).await.unwrap().unwrap().clone();
    assert!(format!("{state:?}").contains("its certificate is for [edge-2]"), "{state:?}");
    assert_eq!(net.hub.stats().unauthenticated, 1);
    assert!(net.hub.peers().is_empty());
}

#[tokio::test]
async fn all_kinds_of_calls_over_wss() {
    calls_of_every_shape(Kind::Wss).await;
}

#[tokio::test]
async fn all_kinds_of_calls_over_quic() {
    calls_of_every_shape(Kind::Quic).await;
}

#[tokio::test]
async fn wss_refuses_names_not_in_the_certificate() {
    refuses_names_not_in_the_certificate(Kind::Wss).await;
}

#[tokio::test]
async fn quic_refuses_names_not_in_the_certificate() {
    refuses_names_not_in_the_certificate(Kind::Quic).await;
}
