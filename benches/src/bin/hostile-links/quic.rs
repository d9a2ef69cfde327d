//! Attacks over QUIC.

use std::sync::Arc;
use std::time::Duration;

use edge_transport::advanced::frame::Kind;
use edge_transport::link::quic::ALPN;
use futures_util::future::join_all;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connecting, SendStream};
use tokio::net::UdpSocket;
use tokio::time::{interval, timeout};

use super::{Attack, AttackResult, Connection, FRAME, UNADMITTED_FRAME, encoded};

/// Unfinished frames of each link, as many as a link once held at most.
const LANES: usize = 4;

/// First byte of the control stream.
const FORMAT: u8 = 1;

/// A half-open connection is replaced after this time, which the hub grants to a handshake.
const HALF_OPEN: Duration = Duration::from_secs(10);

/// Opens a connection and attacks until it ends.
pub(super) async fn attack(connection: &Connection) -> AttackResult<()> {
    let options = &connection.shared.options;
    if options.attack == Attack::HalfOpen {
        return half_open(connection).await;
    }
    let link = connecting(connection, options.hub)?.await?;
    connection.opened();
    let mut control = link.open_uni().await?;
    if let Some(certificate) = options.certificate(connection.number) {
        control.write_all(&[FORMAT]).await?;
        control.write_all(&framed(&connection.hello(certificate)?)).await?;
        let mut receiving = link.accept_uni().await?;
        let mut start = [0; 5];
        receiving.read_exact(&mut start).await?;
        let [_, length @ ..] = start;
        let mut first = vec![0; usize::try_from(u32::from_be_bytes(length))?.min(FRAME)];
        receiving.read_exact(&mut first).await?;
        connection.admitted(first)?;
    } else {
        // An unfinished hello: the hub waits for its last byte.
        control.write_all(&[FORMAT]).await?;
        control.write_all(&u32::try_from(UNADMITTED_FRAME)?.to_be_bytes()).await?;
        control.write_all(&[0]).await?;
    }
    // The second stream is for lanes without a stream.
    let mut lanes = Vec::from([link.open_uni().await?]);
    for _ in 0..LANES {
        lanes.push(link.open_uni().await?);
    }
    let hold = async {
        join_all(lanes.iter_mut().skip(1).map(unfinished)).await;
        std::future::pending::<()>().await;
    };
    let is_admitted = options.certificate(connection.number).is_some();
    let pongs = async {
        let mut pongs = interval(Duration::from_secs(1));
        while is_admitted && control.write_all(&framed(&encoded(Kind::Pong { nonce: 1 }))).await.is_ok() {
            pongs.tick().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = hold => {},
        () = pongs => {},
        _ = link.closed() => {},
    }
    Ok(())
}

fn connecting(connection: &Connection, to: std::net::SocketAddr) -> AttackResult<Connecting> {
    let endpoint = connection.shared.endpoint.as_ref().ok_or("no endpoint")?;
    let mut tls = tokio_rustls::rustls::ClientConfig::clone(&connection.tls);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    Ok(endpoint.connect_with(config, to, "localhost")?)
}

fn framed(frame: &[u8]) -> Vec<u8> {
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], frame].concat()
}

/// Sends a frame without its last byte, as far as the hub reads it.
async fn unfinished(lane: &mut SendStream) -> AttackResult<()> {
    lane.write_all(&u32::try_from(FRAME)?.to_be_bytes()).await?;
    let zeros = [0; 16 << 10];
    let mut left = FRAME - 1;
    while left > 0 {
        let part = left.min(zeros.len());
        lane.write_all(&zeros[..part]).await?;
        left -= part;
    }
    Ok(())
}

/// Sends the packets of a handshake from a port of its own, and receives no response.
async fn half_open(connection: &Connection) -> AttackResult<()> {
    let options = &connection.shared.options;
    let near = UdpSocket::bind((options.from, 0)).await?;
    let far = UdpSocket::bind((options.from, 0)).await?;
    far.connect(options.hub).await?;
    let _handshake = connecting(connection, near.local_addr()?)?;
    connection.opened();
    let forward = async {
        let mut packet = [0; 2048];
        loop {
            let length = near.recv(&mut packet).await?;
            far.send(&packet[..length]).await?;
        }
    };
    timeout(HALF_OPEN, forward).await.unwrap_or(Ok(()))
}
