//! Attacks over TCP, TLS and websocket.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use super::{Attack, AttackResult, Connection, FRAME, UNADMITTED_FRAME};

/// Zero bytes for the unfinished frames.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The start of a binary message of this length, with a mask of zeros.
fn header(length: usize) -> Vec<u8> {
    let mut header = vec![0x82, 0xff];
    header.extend((length as u64).to_be_bytes());
    header.extend([0; 4]);
    header
}

/// Opens a connection and attacks until it ends.
pub(super) async fn attack(connection: &Connection) -> AttackResult<()> {
    let options = &connection.shared.options;
    let mut stream = connect(options.from, options.hub).await?;
    let Some(certificate) = options.certificate(connection.number) else {
        if options.attack == Attack::HalfOpen {
            connection.opened();
            stream.read_to_end(&mut Vec::new()).await?;
            return Ok(());
        }
        let mut stream = tls(connection, stream).await?;
        upgrade(&mut stream).await?;
        // The hub may end the link because of the announced length. One connection in two stays below the limit.
        let length = if connection.number.is_multiple_of(2) { FRAME } else { UNADMITTED_FRAME };
        return unfinished(stream, length).await;
    };
    let mut stream = tls(connection, stream).await?;
    upgrade(&mut stream).await?;
    let hello = connection.hello(certificate)?;
    stream.write_all(&[header(hello.len()), hello].concat()).await?;
    connection.admitted(message(&mut stream).await?)?;
    unfinished(stream, FRAME).await
}

async fn connect(from: std::net::IpAddr, to: std::net::SocketAddr) -> AttackResult<TcpStream> {
    let socket = if from.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind((from, 0).into())?;
    Ok(socket.connect(to).await?)
}

async fn tls(
    connection: &Connection,
    stream: TcpStream,
) -> AttackResult<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    let connector = TlsConnector::from(connection.tls.clone());
    let stream = connector.connect("localhost".try_into()?, stream).await?;
    connection.opened();
    Ok(stream)
}

async fn upgrade(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> AttackResult<()> {
    stream.write_all(UPGRADE).await?;
    stream.flush().await?;
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await?);
    }
    Ok(())
}

/// Receives a binary message of less than 64 KiB.
async fn message(stream: &mut (impl AsyncRead + Unpin)) -> AttackResult<Vec<u8>> {
    stream.read_u8().await?;
    let length = match stream.read_u8().await? {
        126 => stream.read_u16().await?,
        short => short.into(),
    };
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Sends a message without its last byte, and holds it until the hub ends the link.
async fn unfinished(stream: impl AsyncRead + AsyncWrite, length: usize) -> AttackResult<()> {
    let (mut receiving, mut sending) = tokio::io::split(stream);
    let send = async {
        sending.write_all(&header(length)).await?;
        let mut left = length - 1;
        while left > 0 {
            let part = left.min(ZEROS.len());
            sending.write_all(&ZEROS[..part]).await?;
            left -= part;
        }
        sending.flush().await
    };
    let received = async {
        let mut some = [0; 1024];
        while !matches!(receiving.read(&mut some).await, Ok(0) | Err(_)) {}
    };
    tokio::pin!(received);
    tokio::select! {
        sent = send => sent?,
        () = &mut received => return Ok(()),
    }
    received.await;
    Ok(())
}
