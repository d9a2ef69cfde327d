//! The link between a hub and its peers, and the command lines of both.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::arguments::{Arguments, unix};
use crate::certificates::Files;
use crate::port;

/// The rules of a hub with authenticated peers: proxies may call every node.
const RULES: [&str; 4] = ["--allow", "proxy=*", "--allow", "csi-proxy=*"];

/// What hub, agent and proxy speak over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "tests say what each means to them")]
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
    /// The scheme of its URLs.
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

    /// The option of the program `cable` that forwards links of this kind.
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

/// Where a hub listens, and where it is dialled.
#[derive(Debug, Clone)]
pub struct HubLink {
    kind: LinkKind,
    host: &'static str,
    socket: PathBuf,
    address: SocketAddr,
    url: String,
}

impl HubLink {
    /// A hub with its socket in `directory` and a free port, on which it listens again after its death. It is dialled by the
    /// name or address `host` of the loopback interface.
    #[must_use]
    pub fn new(kind: LinkKind, host: &'static str, directory: &Path) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()));
        let link = Self { kind, host, socket: directory.join("hub.sock"), address, url: String::new() };
        link.through(address.port())
    }

    /// The same, dialled at another port, at which something forwards to the hub.
    #[must_use]
    pub fn through(mut self, port: u16) -> Self {
        self.url = match self.kind {
            LinkKind::Uds => unix(&self.socket),
            kind => format!("{}://{}:{port}", kind.scheme(), self.host),
        };
        self
    }

    /// What it goes over.
    #[must_use]
    pub const fn kind(&self) -> LinkKind {
        self.kind
    }

    /// Where the hub is dialled.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the hub itself listens, unless it has only its socket.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// edge-hub with this certificate.
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

    /// edge-agent with this certificate, on a node. The caller adds its drivers.
    #[must_use]
    pub fn agent(&self, node: &str, state: &Path, own: &Files) -> Arguments {
        let agent =
            Arguments::new().pair("--nodeid", node).pair("--hub", &self.url).pair("--state-dir", state);
        self.kind.dialer(agent, own)
    }

    /// edge-csi-driver with this certificate. The caller adds its endpoint and its nodes.
    #[must_use]
    pub fn proxy(&self, driver: &str, own: &Files) -> Arguments {
        let proxy = Arguments::new().pair("--drivername", driver).pair("--hub", &self.url);
        self.kind.dialer(proxy, own)
    }
}
