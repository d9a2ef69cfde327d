//! The relay in one process: a client's socket at one end, the driver's at the other, and a transport between.

use std::error::Error;
use std::path::Path;

use csi_proxy::{
    Dispatcher, DriverName, Endpoint, NodeId, Relay, Router, ServeCsi as _, Serving, SessionRelay,
    SocketAddress,
};
use edge_transport::link::{Address, Dialer};
use edge_transport::tls::{ClientAuth, ClientTls, Identity, ServerTls};
use edge_transport::{Hub, Peer, PeerId};
use tokio::task::JoinHandle;

use crate::authority::Authority;

const NODE: &str = "edge-1";
const PROXY: &str = "proxy";

/// The result of building a chain. Any error ends the benchmark.
pub type ChainResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The connection between the client and the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainKind {
    /// No relay: the client calls the driver's socket.
    Direct,
    /// Endpoint and dispatcher pass the call in memory, without a session.
    Memory,
    /// A hub with links over unix sockets.
    Uds,
    /// A hub with links over plain websockets.
    Ws,
    /// A hub with links over websockets with TLS and client certificates.
    Wss,
    /// A hub with links over QUIC with client certificates.
    Quic,
}

impl ChainKind {
    /// All kinds, the baseline first.
    pub const ALL: [Self; 6] = [Self::Direct, Self::Memory, Self::Uds, Self::Ws, Self::Wss, Self::Quic];

    /// Returns the name that reports show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Memory => "memory",
            Self::Uds => "uds",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Quic => "quic",
        }
    }
}

/// A running chain, which stops when this value is dropped.
#[derive(Debug)]
pub struct Chain {
    endpoint: String,
    driver: JoinHandle<std::io::Result<()>>,
    _serving: Option<Serving>,
    _session: Option<(Hub, Peer, Peer)>,
    _folder: tempfile::TempDir,
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Chain {
    /// Starts a chain on the current runtime, and returns when its node is connected.
    ///
    /// # Errors
    /// Returns an error if a socket cannot be bound or a session does not open.
    pub async fn start(kind: ChainKind) -> ChainResult<Self> {
        let folder = tempfile::Builder::new().prefix("csi-bench").tempdir()?;
        let driver_socket = folder.path().join("driver.sock");
        let driver = tokio::spawn({
            let socket = driver_socket.clone();
            async move { crate::driver::serve(&socket, crate::payload::reply()).await }
        });
        // Wait until the driver's task has bound its socket.
        while !driver_socket.exists() && !driver.is_finished() {
            tokio::task::yield_now().await;
        }
        let drivers = Dispatcher::new().with_driver(name()?, address(&driver_socket)?);
        let socket = folder.path().join("csi.sock");
        let (serving, session) = match kind {
            ChainKind::Direct => (None, None),
            ChainKind::Memory => (Some(serve(&socket, drivers).await?), None),
            ChainKind::Uds | ChainKind::Ws | ChainKind::Wss | ChainKind::Quic => {
                let (hub, proxy, agent) = session(kind, folder.path(), drivers).await?;
                (Some(serve(&socket, SessionRelay::new(proxy.clone())).await?), Some((hub, proxy, agent)))
            }
        };
        let endpoint = if kind == ChainKind::Direct { driver_socket } else { socket };
        let endpoint = format!("unix://{}", endpoint.display());
        Ok(Self { endpoint, driver, _serving: serving, _session: session, _folder: folder })
    }

    /// Returns the socket that the client calls.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

fn name() -> ChainResult<DriverName> {
    Ok(DriverName::new("bench.csi.edge")?)
}

fn address(path: &Path) -> ChainResult<SocketAddress> {
    Ok(SocketAddress::new(format!("unix://{}", path.display()))?)
}

async fn serve(socket: &Path, relay: impl Relay + 'static) -> ChainResult<Serving> {
    let endpoint = Endpoint::new(name()?, Router::fixed(NodeId::new(NODE)?), relay);
    Ok(endpoint.serve(address(socket)?).await?)
}

async fn session(kind: ChainKind, folder: &Path, drivers: Dispatcher) -> ChainResult<(Hub, Peer, Peer)> {
    let authority = Authority::new()?;
    let server =
        ServerTls::new(&authority.issue(&["localhost", "127.0.0.1"])?.identity()?, ClientAuth::Required)?;
    let socket = format!("unix://{}", folder.join("hub.sock").display());
    let listen: Address = match kind {
        ChainKind::Ws => "ws://127.0.0.1:0",
        ChainKind::Wss => "wss://127.0.0.1:0",
        ChainKind::Quic => "quic://127.0.0.1:0",
        _ => &socket,
    }
    .parse()?;
    let listener = listen.listen(&(&server).into()).await?;
    let hub: Address = listener.local_address().parse()?;
    let builder = Hub::builder().listener(listener);
    let started = if kind == ChainKind::Ws { builder.allow_unauthenticated() } else { builder }.start()?;
    let dialer = |identity: Identity| -> ChainResult<Box<dyn Dialer>> {
        Ok(hub.dialer(&(&ClientTls::new(&identity)?).into())?)
    };
    let proxy =
        Peer::builder(PeerId::new(PROXY)?).dialer(dialer(authority.issue(&[PROXY])?.identity()?)?).start()?;
    let agent = Peer::builder(PeerId::new(NODE)?)
        .dialer(dialer(authority.issue(&[NODE])?.identity()?)?)
        .serve_csi(drivers)
        .start()?;
    proxy.connected().await?;
    agent.connected().await?;
    Ok((started, proxy, agent))
}
