//! The cable injects the faults that other tests rely on.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::net::SocketAddr;

use edge_csi_tests::cable::{Cable, Plan};
use edge_csi_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Opens a connection through the cable. Returns both ends; `None` while the cable is cut.
async fn connection(cable: &Cable, target: &TcpListener) -> Option<[TcpStream; 2]> {
    let mut near = TcpStream::connect(cable.address()).await.ok()?;
    near.write_all(b"?").await.ok()?;
    tokio::select! {
        far = target.accept() => {
            let (mut far, _) = far.unwrap();
            let mut asked = [0];
            far.read_exact(&mut asked).await.ok()?;
            Some([near, far])
        }
        // A reset, since the cable is cut.
        _ = near.readable() => None,
    }
}

#[tokio::test]
async fn a_cut_ends_connections_and_refuses_new_ones() {
    let target = TcpListener::bind(ANY).await.unwrap();
    let cable = Cable::tcp(ANY, target.local_addr().unwrap(), Plan::default()).await.unwrap();
    let mut ends = Vec::new();
    for _ in 0..4 {
        let [mut near, mut far] = connection(&cable, &target).await.unwrap();
        far.write_all(b"hello").await.unwrap();
        let mut hello = [0; 5];
        near.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        cable.cut();
        for end in [&mut near, &mut far] {
            ends.push(wait::within("its end", end.read(&mut [0; 1])).await.map_err(|cause| cause.kind()));
        }
        assert!(connection(&cable, &target).await.is_none());
        cable.restore();
    }
    let resets = ends.iter().filter(|end| **end == Err(std::io::ErrorKind::ConnectionReset)).count();
    let closed = ends.iter().filter(|end| **end == Ok(0)).count();
    assert_eq!((resets, closed, cable.cuts()), (4, 4, 4), "{ends:?}");
}

#[tokio::test]
async fn a_cut_drops_datagrams_and_changes_their_source_port() {
    let target = UdpSocket::bind(ANY).await.unwrap();
    let cable = Cable::udp(ANY, target.local_addr().unwrap(), Plan::default()).await.unwrap();
    let client = UdpSocket::bind(ANY).await.unwrap();
    client.connect(cable.address()).await.unwrap();
    let mut buffer = [0; 8];
    client.send(b"before").await.unwrap();
    let (length, before) = wait::within("a datagram", target.recv_from(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..length], b"before");
    target.send_to(b"answer", before).await.unwrap();
    let length = wait::within("an answer", client.recv(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..length], b"answer");

    cable.cut();
    let mut attempts = 0;
    wait::until("fifty attempts during a cut", || {
        client.try_send(b"lost").unwrap();
        assert!(target.try_recv(&mut buffer).is_err());
        attempts += 1;
        std::future::ready((attempts == 50).then_some(()))
    })
    .await;
    cable.restore();
    let after = wait::until("the cable is whole again", || {
        client.try_send(b"after").unwrap();
        std::future::ready(target.try_recv_from(&mut buffer).ok())
    })
    .await;
    assert_ne!(after.1, before);
}

#[tokio::test]
async fn the_same_seed_loses_the_same_datagrams() {
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let plan = Plan { loss_per_million: 300_000, seed, ..Plan::default() };
        let target = UdpSocket::bind(ANY).await.unwrap();
        let cable = Cable::udp(ANY, target.local_addr().unwrap(), plan).await.unwrap();
        let client = UdpSocket::bind(ANY).await.unwrap();
        let mut arrived = Vec::new();
        // One datagram at a time. The last one is repeated until it arrives, so that the test needs no fixed wait.
        for number in 0..100_u8 {
            client.send_to(&[number], cable.address()).await.unwrap();
        }
        let mut buffer = [0; 1];
        wait::until("the last one", || {
            let received = std::iter::from_fn(|| target.try_recv(&mut buffer).ok().map(|_| buffer[0]));
            arrived.extend(received);
            let _ = client.try_send_to(&[255], cable.address());
            std::future::ready(arrived.contains(&255).then_some(()))
        })
        .await;
        arrived.retain(|number| *number != 255);
        assert!((50..90).contains(&arrived.len()), "{} of 100 came", arrived.len());
        runs.push(arrived);
    }
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}
