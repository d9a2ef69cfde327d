//! A link of an own kind, here TCP inside a tunnel, in three parts: a listener, a dialer, and what protects the frames. A hub
//! and a peer use them; the test runs the conformance suites of the crate.
//!
//! `cargo run -p embed --bin own_link`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use edge_transport::link::{
    Credentials, DEFAULT_MAX_FRAME, Dialer, Incoming, Link, LinkError, LinkKind, Listener, Protection,
};
use edge_transport::{Hub, Peer};
use tokio::net::{TcpListener, TcpStream};

/// The name of the kind in logs and metrics.
const KIND: LinkKind = LinkKind::custom("tunnel");

/// Frames a connection. The tunnel (WireGuard, for example) encrypts, and only the hub and its peers have keys: both ends are
/// verified, so that peers may send tokens. Over plain TCP this would be `Protection::None`.
fn link(stream: TcpStream, remote: &str) -> Link {
    // Without it the kernel delays small frames.
    let _ = stream.set_nodelay(true);
    let link = Link::framed(stream, KIND, remote, Credentials::None, DEFAULT_MAX_FRAME);
    link.with_protection(Protection::Verified)
}

struct TunnelListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl TunnelListener {
    async fn bind(address: &str) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Io { doing: format!("listen on {address}"), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }
}

#[async_trait::async_trait]
impl Listener for TunnelListener {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        let (stream, from) = loop {
            match self.listener.accept().await {
                Ok(accepted) => break accepted,
                // A lost connection, or no descriptor is free. An error returned from here would end the listener.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        // A handshake, if there were one, would run in this future, where it delays no other connection.
        let handshake = async move { Ok(link(stream, &from.to_string())) };
        // With the source, one network cannot take all handshakes of the hub.
        Ok(Incoming::new(handshake).from_address(from.ip()))
    }

    fn kind(&self) -> LinkKind {
        KIND
    }

    fn local_address(&self) -> String {
        format!("tunnel://{}", self.address)
    }
}

struct TunnelDialer {
    to: SocketAddr,
    address: String,
}

#[async_trait::async_trait]
impl Dialer for TunnelDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let failed = |source| LinkError::Io { doing: format!("connect to {}", self.address), source };
        Ok(link(TcpStream::connect(self.to).await.map_err(failed)?, &self.address))
    }

    fn address(&self) -> &str {
        &self.address
    }
}

async fn ends() -> Result<(TunnelListener, TunnelDialer), LinkError> {
    let listener = TunnelListener::bind("127.0.0.1:0").await?;
    let dialer = TunnelDialer { to: listener.address, address: listener.local_address() };
    Ok((listener, dialer))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (listener, dialer) = ends().await?;
    let hub = Hub::builder().listener(Box::new(listener)).allow_unauthenticated().start()?;
    let peer = Peer::builder("edge-1".parse()?).dialer(Box::new(dialer)).start()?;
    peer.connected_within(Duration::from_secs(5)).await?;
    println!("{} is connected over a {KIND} link", hub.peers().first().ok_or("no peer")?.peer);
    peer.close().await;
    hub.close().await;
    Ok(())
}

#[tokio::test]
async fn conforms() {
    use edge_transport::link::conformance;
    let (listener, dialer) = ends().await.expect("a listener and a dialer");
    let listener = tokio::sync::Mutex::new(listener);
    let pair = || async {
        let mut listener = listener.lock().await;
        let accepting = async { listener.accept().await?.await };
        tokio::try_join!(dialer.dial(), accepting)
    };
    conformance::run(DEFAULT_MAX_FRAME, pair).await.expect("links conform");
    let boxed = || async {
        let (listener, dialer) = ends().await?;
        Ok::<_, LinkError>((Box::new(listener) as Box<dyn Listener>, Box::new(dialer) as Box<dyn Dialer>))
    };
    conformance::run_listener(boxed).await.expect("listeners conform");
    conformance::run_dialer(boxed).await.expect("dialers conform");
}
