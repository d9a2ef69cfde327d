//! Attacks over TCP and TLS, with and without websocket.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use super::{Attack, AttackResult, Connection, FRAME, UNADMITTED_FRAME};

/// Zero bytes for the unfinished frames.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// How a connection sends its frames.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Format {
    Direct,
    Websocket,
}

impl Format {
    /// Two connections of four use each.
    const fn of(number: usize) -> Self {
        if number % 4 < 2 { Self::Direct } else { Self::Websocket }
    }

    /// What precedes a frame of this length: its length, or the start of a binary message with a mask of zeros.
    fn header(self, length: usize) -> Vec<u8> {
        if self == Self::Direct {
            return (length as u32).to_be_bytes().to_vec();
        }
        let mut header = vec![0x82, 0xff];
        header.extend((length as u64).to_be_bytes());
        header.extend([0; 4]);
        header
    }
}

/// Opens a connection and attacks until it ends.
pub(super) async fn attack(connection: &Connection) -> AttackResult<()> {
    let options = &connection.shared.options;
    let mut stream = connect(options.from, options.hub).await?;
    let format = Format::of(connection.number);
    let Some(certificate) = options.certificate(connection.number) else {
        if options.attack == Attack::HalfOpen {
            connection.opened();
            stream.read_to_end(&mut Vec::new()).await?;
            return Ok(());
        }
        let stream = tls(connection, stream, format).await?;
        // The hub may end the link because of the announced length. One connection in two stays below the limit.
        let length = if connection.number.is_multiple_of(2) { FRAME } else { UNADMITTED_FRAME };
        return unfinished(stream, format, length).await;
    };
    let mut stream = tls(connection, stream, format).await?;
    let hello = connection.hello(certificate)?;
    stream.write_all(&[format.header(hello.len()), hello].concat()).await?;
    connection.admitted(message(&mut stream, format).await?)?;
    unfinished(stream, format, FRAME).await
}

async fn connect(from: std::net::IpAddr, to: std::net::SocketAddr) -> AttackResult<TcpStream> {
    let socket = if from.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind((from, 0).into())?;
    Ok(socket.connect(to).await?)
}

async fn tls(
    connection: &Connection,
    stream: TcpStream,
    format: Format,
) -> AttackResult<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    let mut tls = ClientConfig::clone(&connection.tls);
    if format == Format::Websocket {
        tls.alpn_protocols.clear();
    }
    let connector = TlsConnector::from(Arc::new(tls));
    let mut stream = connector.connect("localhost".try_into()?, stream).await?;
    connection.opened();
    match format {
        Format::Direct => drop(stream.read_u8().await?),
        Format::Websocket => upgrade(&mut stream).await?,
    }
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

/// Receives a frame of less than 64 KiB.
async fn message(stream: &mut (impl AsyncRead + Unpin), format: Format) -> AttackResult<Vec<u8>> {
    let length = match format {
        Format::Direct => u16::try_from(stream.read_u32().await?)?,
        Format::Websocket => {
            stream.read_u8().await?;
            match stream.read_u8().await? {
                126 => stream.read_u16().await?,
                short => short.into(),
            }
        }
    };
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Sends a frame without its last byte, and holds it until the hub ends the link.
async fn unfinished(stream: impl AsyncRead + AsyncWrite, format: Format, length: usize) -> AttackResult<()> {
    let (mut receiving, mut sending) = tokio::io::split(stream);
    let send = async {
        sending.write_all(&format.header(length)).await?;
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
