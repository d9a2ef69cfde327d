//! The link between a hub and its peers, and the command lines of both.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::arguments::{Arguments, unix};
use crate::certificates::Files;
use crate::port;

/// The options of a hub with authenticated peers that let proxies call every node.
const RULES: [&str; 4] = ["--allow", "proxy=*:*", "--allow", "csi-proxy=*:*"];

/// The kind of the links between hub, agent and proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "tests match every kind")]
pub enum LinkKind {
    /// Unix socket.
    Uds,
    /// Plain websocket.
    Ws,
    /// Websocket over TLS with certificates on both ends.
    Wss,
    /// QUIC with certificates on both ends.
    Quic,
    /// QUIC without verification.
    QuicInsecure,
}

impl LinkKind {
    /// Returns the scheme of the hub's URLs.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Uds => "unix",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Quic | Self::QuicInsecure => "quic",
        }
    }

    /// Adds the options that authenticate a peer with this certificate.
    #[must_use]
    pub fn dialer(self, arguments: Arguments, own: &Files) -> Arguments {
        match self {
            Self::Uds => arguments,
            Self::Ws | Self::QuicInsecure => arguments.flag("--insecure"),
            Self::Wss | Self::Quic => arguments.dialer(own),
        }
    }

    /// Returns the option of the program `cable` that forwards links of this kind.
    #[must_use]
    pub const fn cable_option(self) -> &'static str {
        match self {
            Self::Quic | Self::QuicInsecure => "--udp",
            Self::Uds | Self::Ws | Self::Wss => "--tcp",
        }
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uds => "uds",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Quic => "quic",
            Self::QuicInsecure => "quic-insecure",
        })
    }
}

/// The address of a hub's listener, and the URL at which the hub is dialled.
#[derive(Debug, Clone)]
pub struct HubLink {
    kind: LinkKind,
    host: &'static str,
    socket: PathBuf,
    address: SocketAddr,
    url: String,
}

impl HubLink {
    /// Returns the link of a hub with its socket in `directory` and a free port, which a restarted hub listens on
    /// again. Peers dial the hub by `host`, a name or an address of the loopback interface.
    #[must_use]
    pub fn new(kind: LinkKind, host: &'static str, directory: &Path) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()));
        let link = Self { kind, host, socket: directory.join("hub.sock"), address, url: String::new() };
        link.through(address.port())
    }

    /// Makes peers dial another port, which forwards to the hub.
    #[must_use]
    pub fn through(mut self, port: u16) -> Self {
        self.url = match self.kind {
            LinkKind::Uds => unix(&self.socket),
            kind => format!("{}://{}:{port}", kind.scheme(), self.host),
        };
        self
    }

    /// Returns the kind of the link.
    #[must_use]
    pub const fn kind(&self) -> LinkKind {
        self.kind
    }

    /// Returns the URL at which peers dial the hub.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address at which the hub listens, unless the hub has only its socket.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the options of edge-hub with this certificate.
    #[must_use]
    pub fn hub(&self, own: &Files) -> Arguments {
        let hub = Arguments::new().pair("--listen", unix(&self.socket));
        let url = format!("{}://{}", self.kind.scheme(), self.address);
        match self.kind {
            LinkKind::Uds => hub,
            LinkKind::Ws => hub.pair("--listen", url).flag("--insecure"),
            LinkKind::Wss | LinkKind::Quic => hub.pair("--listen", url).flags(RULES).listener(own),
            LinkKind::QuicInsecure => hub.pair("--listen", url).flags(RULES).flag("--insecure"),
        }
    }

    /// Returns the options of edge-agent with this certificate, on a node. The caller adds the drivers.
    #[must_use]
    pub fn agent(&self, node: &str, state: &Path, own: &Files) -> Arguments {
        let agent =
            Arguments::new().pair("--nodeid", node).pair("--hub", &self.url).pair("--state-dir", state);
        self.kind.dialer(agent, own)
    }

    /// Returns the options of edge-csi-driver with this certificate. The caller adds the endpoint and the nodes.
    #[must_use]
    pub fn proxy(&self, driver: &str, own: &Files) -> Arguments {
        let proxy = Arguments::new().pair("--drivername", driver).pair("--hub", &self.url);
        self.kind.dialer(proxy, own)
    }
}
