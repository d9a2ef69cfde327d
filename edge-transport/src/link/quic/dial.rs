//! The dialing side.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use quinn::{ConnectionError, TransportErrorCode};

use super::socket::dialing_endpoint;
use super::stream::QuicLink;
use super::{config, credentials, handshake_failed};
use crate::link::description::EXPIRED;
use crate::link::host::Host;
use crate::link::{Credentials, Dialer, Limits, Link, LinkError, LinkKind, Protection};
use crate::tls::ClientTls;

/// Interval of the pings while no call waits: many address translators forget a UDP port after 30 s.
const IDLE_PING: Duration = Duration::from_secs(25);

/// Dials a QUIC listener. Each link uses a new UDP port, so that it is not affected by the state of the previous one.
#[derive(Debug, Clone)]
pub(in crate::link) struct QuicDialer {
    host: Host,
    tls: ClientTls,
    limits: Limits,
}

impl QuicDialer {
    /// Creates a dialer. QUIC requires TLS.
    ///
    /// # Errors
    /// If the TLS configuration does not support TLS 1.3.
    pub(in crate::link) fn new(
        host: &str,
        port: u16,
        tls: &ClientTls,
        limits: Limits,
    ) -> Result<Self, LinkError> {
        // Only a check: each attempt creates its own configuration, because the certificates may change.
        if let Ok(tls) = tls.config() {
            config::client(&tls)?;
        }
        Ok(Self { host: Host::new(LinkKind::QUIC, host, port), tls: tls.clone(), limits })
    }

    async fn attempt(&self, server: SocketAddr) -> Result<Link, LinkError> {
        let failed = |cause: String| handshake_failed(self.address(), cause);
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = dialing_endpoint(local).map_err(|source| LinkError::Io {
            doing: format!("open a UDP port for {}", self.address()),
            source,
        })?;
        let tls = self.tls.config().map_err(|error| failed(error.to_string()))?;
        let config = config::client(&tls)?;
        let connection = endpoint
            .connect_with(config, server, self.host.name())
            .map_err(|error| failed(error.to_string()))?
            .await
            .map_err(|error| failed(explain(&error)))?;
        let credentials = if self.tls.verifies() { credentials(&connection) } else { Credentials::None };
        if credentials.have_expired(SystemTime::now()) {
            return Err(failed(EXPIRED.to_owned()));
        }
        let mut io = QuicLink::start(connection.clone(), self.limits.max_frame).await?;
        // The server verifies the client's certificate only after this end has completed the handshake.
        if std::future::poll_fn(|cx| io.poll_greeted(cx)).await.is_err() {
            let cause = connection.close_reason().map_or_else(
                || "the server does not support this link format".to_owned(),
                |error| format!("the server refused: {error}"),
            );
            return Err(failed(cause));
        }
        let protection = Protection::of_tls(&credentials);
        let link = Link::new(io, LinkKind::QUIC, self.address(), credentials).with_protection(protection);
        Ok(link.with_idle_ping(IDLE_PING))
    }
}

fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            "the hub is overloaded; try again later".to_owned()
        }
        error => error.to_string(),
    }
}

#[async_trait::async_trait]
impl Dialer for QuicDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let limit = self.limits.handshake_timeout;
        let attempts = self.host.first_ok(|server| self.attempt(server));
        tokio::time::timeout(limit, attempts).await.unwrap_or_else(|_| {
            Err(handshake_failed(self.address(), format!("timed out after {limit:?}; is UDP blocked?")))
        })
    }

    fn address(&self) -> &str {
        self.host.address()
    }

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        let pinned = |host| -> Box<dyn Dialer> { Box::new(Self { host, ..self.clone() }) };
        Ok(self.host.resolve().await?.into_iter().map(pinned).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::{SinkExt, StreamExt};
    use tokio::net::UdpSocket;
    use tokio::sync::Notify;

    use super::*;
    use crate::link::happy_eyeballs::{ATTEMPT_DELAY, first_ok};
    use crate::link::{Lane, Listener, WireFrame, quic};
    use crate::tls::ServerTls;

    #[tokio::test]
    async fn tries_the_next_address_when_one_drops_packets() {
        let tls = ServerTls::insecure().unwrap();
        let mut hub = quic::bind("127.0.0.1:0", &tls, Limits::default()).await.unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let candidates = [silent.local_addr().unwrap(), hub.address()];
        let tls = ClientTls::insecure(None).unwrap();
        let dialer = QuicDialer::new("localhost", 1, &tls, Limits::default()).unwrap();
        let accepting = async { hub.accept().await?.await };
        let dialing = async { first_ok(candidates, ATTEMPT_DELAY, |at| dialer.attempt(at)).await.unwrap() };
        let both = async { tokio::try_join!(dialing, accepting) };
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, both).await.expect("within its bound").unwrap();
    }

    /// An address translator. Packets from `front` are sent through another port. After a notification of `change`, and a
    /// moment without packets, the translator changes that port and notifies `changed`.
    async fn translate(front: UdpSocket, hub: SocketAddr, change: Arc<Notify>, changed: Arc<Notify>) {
        const QUIET: Duration = Duration::from_millis(100);
        let mut back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut client = None;
        let mut asked = false;
        let (mut up, mut down) = ([0; 2048], [0; 2048]);
        loop {
            tokio::select! {
                () = change.notified() => asked = true,
                Ok((length, from)) = front.recv_from(&mut up) => {
                    client = Some(from);
                    let _ = back.send_to(&up[..length], hub).await;
                }
                Ok((length, _)) = back.recv_from(&mut down) => if let Some(client) = client {
                    let _ = front.send_to(&down[..length], client).await;
                },
                () = tokio::time::sleep(QUIET), if asked => {
                    back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                    asked = false;
                    changed.notify_one();
                }
            }
        }
    }

    #[tokio::test]
    async fn reply_arrives_after_the_dialers_port_has_changed() {
        let tls = ServerTls::insecure().unwrap();
        let mut hub = quic::bind("127.0.0.1:0", &tls, Limits::default()).await.unwrap();
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = front.local_addr().unwrap().port();
        let (change, changed) = <(Arc<Notify>, Arc<Notify>)>::default();
        let translator = translate(front, hub.address(), Arc::clone(&change), Arc::clone(&changed));
        let translator = tokio::spawn(translator);
        let tls = ClientTls::insecure(None).unwrap();
        let dialer = QuicDialer::new("127.0.0.1", port, &tls, Limits::default()).unwrap();
        let accepting = async { hub.accept().await?.await };
        let (mut dialed, mut accepted) = tokio::try_join!(dialer.dial(), accepting).unwrap();
        let frame =
            |lane| WireFrame::new(Lane::Call(lane), true, Bytes::from_static(b"a frame"), Bytes::new());
        for call in 0..4 {
            dialed.send(frame(call)).await.unwrap();
            accepted.next().await.unwrap().unwrap();
            change.notify_one();
            changed.notified().await;
            // The dialing end only waits: its next packet would be sent after `KEEP_ALIVE`.
            let answer = async { tokio::join!(accepted.send(frame(call)), dialed.next()) };
            let (sent, received) =
                tokio::time::timeout(Duration::from_secs(8), answer).await.expect("the hub knows the port");
            sent.unwrap();
            received.unwrap().unwrap();
        }
        translator.abort();
    }
}
