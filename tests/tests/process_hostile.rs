//! Garbage and wrong protocols disturb no other client.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::path::Path;

use edge_csi_tests::cluster::TestCluster;
use edge_csi_tests::csi::{controller, create_volume};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::wait;
use edge_transport::advanced::frame::{self, Frame, Hello, Kind};
use edge_transport::link::{Address, DialOptions, Lane, Link};
use edge_transport::{PeerId, SessionId};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket, UnixStream};

const GARBAGE: &[u8] =
    b"\xff\xff\xff\xfeGET / HTTP/1.0\r\n\r\n\x00\x01\x02garbage: not a frame, not a request, not TLS";

/// Sends garbage and waits until the other side closes the connection.
async fn rejected(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) {
    let _ = stream.write_all(GARBAGE).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = wait::within("the connection is closed", stream.read_to_end(&mut answer)).await;
}

async fn still_serves(cluster: &TestCluster, name: &str) {
    controller(&cluster.proxy_socket())
        .create_volume(create_volume(name))
        .await
        .unwrap_or_else(|status| panic!("{status}"));
}

#[tokio::test]
async fn garbage_on_every_socket_harms_no_other_call() {
    for over in [LinkKind::Ws, LinkKind::Wss, LinkKind::Quic] {
        let mut cluster = TestCluster::start(over).await;
        for socket in [cluster.path("hub.sock"), cluster.proxy_socket(), cluster.driver_socket()] {
            rejected(UnixStream::connect(&socket).await.unwrap()).await;
        }
        let address = cluster.hub_url().rsplit_once('/').unwrap().1.to_owned();
        if over == LinkKind::Quic {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.send_to(GARBAGE, &address).await.unwrap();
        } else {
            rejected(TcpStream::connect(&address).await.unwrap()).await;
        }
        still_serves(&cluster, "pvc-1").await;
        for process in [&mut cluster.hub, &mut cluster.proxy, &mut cluster.agent, &mut cluster.driver] {
            assert!(process.as_mut().unwrap().runs());
        }
    }
}

async fn dial(hub: &Path) -> Link {
    let address: Address = format!("unix://{}", hub.display()).parse().unwrap();
    address.dialer(&DialOptions::default()).unwrap().dial().await.unwrap()
}

async fn say_hello(link: &mut Link, hello: Hello) {
    link.send(frame::encode(Frame::link(Kind::Hello(hello)), Lane::Control)).await.unwrap();
}

/// Returns the last message of the hub as text.
async fn last_words(mut link: Link) -> String {
    let mut reason = String::new();
    while let Some(Ok(bytes)) = wait::within("the hub ends the link", link.next()).await {
        if let Ok(Frame { kind: Kind::Drain { reason: said }, .. }) = frame::decode(bytes, 1 << 20) {
            reason = said;
        }
    }
    reason
}

#[tokio::test]
async fn a_peer_of_another_protocol_version_gets_an_error() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let mut link = dial(&cluster.path("hub.sock")).await;
    let mut hello = Hello::new(PeerId::new("edge-9").unwrap(), SessionId { instance: 1, number: 1 });
    (hello.version_min, hello.version_max) = (98, 99);
    say_hello(&mut link, hello).await;
    let reason = last_words(link).await;
    assert!(reason.contains("98") && reason.contains("version"), "{reason:?}");
    still_serves(&cluster, "pvc-1").await;
}

#[tokio::test]
async fn an_oversized_frame_ends_only_its_link() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let mut stream = UnixStream::connect(cluster.path("hub.sock")).await.unwrap();
    // A length of 2 GiB, for which the hub must not allocate memory.
    stream.write_all(&[0x7f, 0xff, 0xff, 0xff]).await.unwrap();
    let mut answer = Vec::new();
    let _ = wait::within("the connection is closed", stream.read_to_end(&mut answer)).await;
    still_serves(&cluster, "pvc-1").await;
}

#[tokio::test]
async fn another_instance_of_the_agent_does_not_take_its_place() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let mut link = dial(&cluster.path("hub.sock")).await;
    let hello = Hello::new(PeerId::new("edge-1").unwrap(), SessionId { instance: 1, number: 1 });
    say_hello(&mut link, hello).await;
    let reason = last_words(link).await;
    assert!(reason.contains("another instance"), "{reason:?}");
    still_serves(&cluster, "pvc-1").await;
}

/// The allocator keeps no freed memory, so that large frames which the hub receives one after the other do not add up.
/// `cargo xtask perf hostile` measures the effect.
#[tokio::test]
async fn a_hub_returns_freed_memory_at_once() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_hub().await.unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", cluster.hub.as_ref().unwrap().id())).unwrap();
    assert!(environment.split(|&byte| byte == 0).any(|one| one == b"MIMALLOC_PURGE_DELAY=0"));
}
