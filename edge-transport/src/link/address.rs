//! Addresses as users write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{DialOptions, Dialer, LinkError, ListenOptions, Listener};

/// Port of QUIC links unless the address names another.
const QUIC_PORT: u16 = 10_001;

/// Port of websocket links unless the address names another.
const WS_PORT: u16 = 10_000;

/// The expected form of an address, for error messages.
const EXPECTED: &str =
    "expected quic://host[:port], wss://host[:port][/path], ws://host[:port][/path] or unix:///path";

/// The address of a hub: `quic://host[:port]`, `wss://host[:port][/path]`, `ws://host[:port][/path]` or `unix:///path`.
/// Ports are 10001 for QUIC and 10000 for websocket unless given; IPv6 addresses are in brackets. A hub
/// [listens](Self::listen) on it, also on port 0 for any free port, and a peer [dials](Self::dialer) it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address(Kind);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    Unix(PathBuf),
    Ws { tls: bool, host: String, port: u16, path: String },
    Quic { host: String, port: u16 },
}

impl Address {
    /// Creates a dialer of this address.
    ///
    /// # Errors
    /// If TLS is required and not configured, or if this build does not support the kind of link.
    pub fn dialer(&self, options: &DialOptions) -> Result<Box<dyn Dialer>, LinkError> {
        Ok(options.with_token(self.plain_dialer(options)?))
    }

    /// Listens on this address: binds its socket. A path of a websocket address is not used, since a websocket listener answers
    /// every path.
    ///
    /// # Errors
    /// If the socket cannot be bound, if TLS is required and not configured, or if this build does not support the kind of
    /// link.
    #[cfg_attr(
        not(any(feature = "ws", feature = "quic")),
        allow(clippy::unused_async, reason = "TCP addresses are resolved")
    )]
    pub async fn listen(&self, options: &ListenOptions) -> Result<Box<dyn Listener>, LinkError> {
        match &self.0 {
            #[cfg(feature = "uds")]
            Kind::Unix(path) => Ok(Box::new(super::uds::bind(path, options.limits.clone())?)),
            #[cfg(feature = "ws")]
            Kind::Ws { tls, host, port, .. } => {
                let tls = if *tls { Some(options.server_tls(self)?) } else { None };
                let limits = options.limits.clone();
                Ok(Box::new(super::ws::bind(host_and_port(host, *port), tls, limits).await?))
            }
            #[cfg(feature = "quic")]
            Kind::Quic { host, port } => {
                let (tls, limits) = (options.server_tls(self)?, options.limits.clone());
                Ok(Box::new(super::quic::bind(host_and_port(host, *port), &tls, limits).await?))
            }
            #[cfg(not(all(feature = "uds", feature = "ws", feature = "quic")))]
            _ => {
                let _ = options;
                Err(self.without_feature())
            }
        }
    }

    fn plain_dialer(&self, options: &DialOptions) -> Result<Box<dyn Dialer>, LinkError> {
        if let Kind::Ws { port: 0, .. } | Kind::Quic { port: 0, .. } = &self.0 {
            return Err(
                self.unusable("port 0 is for listeners only; give the port of the hub, from 1 to 65535")
            );
        }
        match &self.0 {
            #[cfg(feature = "uds")]
            Kind::Unix(path) => Ok(Box::new(super::uds::UdsDialer::new(path, options.limits.clone())?)),
            #[cfg(feature = "ws")]
            Kind::Ws { tls, host, port, path } => {
                let tls = if *tls { Some(options.client_tls(self)?) } else { None };
                let limits = options.limits.clone();
                Ok(Box::new(super::ws::WsDialer::new(host, *port, path, tls, limits)?))
            }
            #[cfg(feature = "quic")]
            Kind::Quic { host, port } => {
                let tls = options.client_tls(self)?;
                Ok(Box::new(super::quic::QuicDialer::new(host, *port, &tls, options.limits.clone())?))
            }
            #[cfg(not(all(feature = "uds", feature = "ws", feature = "quic")))]
            _ => {
                let _ = options;
                Err(self.without_feature())
            }
        }
    }

    /// Names the feature that a build without this kind of link lacks.
    #[cfg(not(all(feature = "uds", feature = "ws", feature = "quic")))]
    fn without_feature(&self) -> LinkError {
        let (kind, feature) = match &self.0 {
            Kind::Unix(_) => ("unix sockets", "uds"),
            Kind::Ws { .. } => ("websockets", "ws"),
            Kind::Quic { .. } => ("QUIC", "quic"),
        };
        self.unusable(format!("this build has no {kind}: enable the feature `{feature}` of edge-transport"))
    }

    pub(super) fn unusable(&self, cause: impl Into<String>) -> LinkError {
        LinkError::Address { address: self.to_string(), cause: cause.into() }
    }
}

impl FromStr for Address {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let refused = |cause: String| LinkError::Address { address: text.to_owned(), cause };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(refused(format!("no scheme; {EXPECTED}")));
        };
        let kind = match scheme {
            "unix" if !rest.starts_with('/') => {
                return Err(refused(
                    "the path is not absolute; write unix:///path with three slashes".to_owned(),
                ));
            }
            "unix" if rest.ends_with('/') => {
                return Err(refused("the path is a directory; name the socket itself".to_owned()));
            }
            "unix" => Kind::Unix(PathBuf::from(rest)),
            "ws" | "wss" => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                if path.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#') {
                    return Err(refused("the path contains a space, a control character or a #".to_owned()));
                }
                let (host, port) = authority_of(authority, WS_PORT).map_err(refused)?;
                let path = if path.is_empty() { "/" } else { path }.to_owned();
                Kind::Ws { tls: scheme == "wss", host, port, path }
            }
            "quic" => {
                let authority = rest.strip_suffix('/').unwrap_or(rest);
                if authority.contains('/') {
                    return Err(refused("QUIC addresses have no path; write quic://host:port".to_owned()));
                }
                let (host, port) = authority_of(authority, QUIC_PORT).map_err(refused)?;
                Kind::Quic { host, port }
            }
            other => return Err(refused(format!("unknown scheme {other:?}; {EXPECTED}"))),
        };
        Ok(Self(kind))
    }
}

/// Formats host and port, with brackets around IPv6 addresses.
pub(super) fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Splits `host[:port]`; the returned host has no brackets.
fn authority_of(text: &str, default_port: u16) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("no closing bracket; write [address]:port")?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| format!("{host:?} in brackets is not an IPv6 address"))?;
            match after {
                "" => (host, None),
                after => {
                    let port = after.strip_prefix(':').ok_or("only :port may follow the brackets")?;
                    (host, Some(port))
                }
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("IPv6 addresses need brackets: [::1]:port".into());
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("no host".to_owned());
    }
    if !text.starts_with('[') && host.contains(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c))) {
        return Err(format!("host {host:?} has a character other than letters, digits, dots and hyphens"));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse::<u16>() {
            Ok(port) => port,
            Err(_) => return Err(format!("port {port:?} is not a number from 0 to 65535")),
        },
    };
    Ok((host.to_owned(), port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Unix(path) => write!(f, "unix://{}", path.display()),
            Kind::Ws { tls, host, port, path } => {
                let (scheme, path) = (if *tls { "wss" } else { "ws" }, if path == "/" { "" } else { path });
                write!(f, "{scheme}://{}{path}", host_and_port(host, *port))
            }
            Kind::Quic { host, port } => write!(f, "quic://{}", host_and_port(host, *port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_addresses_in_full() {
        for (given, full) in [
            ("quic://hub", "quic://hub:10001"),
            ("quic://hub:7/", "quic://hub:7"),
            ("quic://[::1]:7", "quic://[::1]:7"),
            ("wss://hub.example", "wss://hub.example:10000"),
            ("wss://hub:443/edge?x=1", "wss://hub:443/edge?x=1"),
            ("ws://127.0.0.1:80/", "ws://127.0.0.1:80"),
            ("ws://[fe80::1]", "ws://[fe80::1]:10000"),
            ("unix:///run/edge-csi/hub.sock", "unix:///run/edge-csi/hub.sock"),
        ] {
            let address: Address = given.parse().unwrap();
            assert_eq!(address.to_string(), full, "{given}");
            assert_eq!(full.parse::<Address>().unwrap(), address, "{given}");
        }
    }

    #[test]
    fn rejects_bad_addresses_with_what_is_expected() {
        for (given, expected) in [
            ("", "no scheme"),
            ("hub:10001", "quic://host[:port]"),
            ("http://hub", "unknown scheme \"http\""),
            ("QUIC://hub", "unknown scheme \"QUIC\""),
            ("quic://", "no host"),
            ("quic://:1", "no host"),
            ("quic://hub:", "is not a number from 0 to 65535"),
            ("quic://hub:65536", "is not a number from 0 to 65535"),
            ("quic://hub:-1", "is not a number from 0 to 65535"),
            ("quic://hub/path", "no path"),
            ("quic://::1", "brackets"),
            ("quic://[::1", "no closing bracket"),
            ("quic://[hub]:1", "not an IPv6 address"),
            ("quic://[::1]x", "only :port may follow"),
            ("wss://user@hub", "has a character"),
            ("wss://hub /x", "has a character"),
            ("wss://hub/a b", "space"),
            ("ws://hub\u{e9}", "has a character"),
            ("unix://relative/hub.sock", "three slashes"),
            ("unix:///run/", "directory"),
            ("unix:/run/hub.sock", "no scheme"),
        ] {
            let error = given.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(expected), "{given}: {error}");
        }
    }

    #[cfg(all(feature = "ws", feature = "quic"))]
    #[test]
    fn encrypted_addresses_require_tls_material() {
        let plain = DialOptions::default();
        for given in ["wss://hub", "quic://hub"] {
            let address: Address = given.parse().unwrap();
            let error = address.dialer(&plain).err().unwrap().to_string();
            assert!(error.contains("give one, or choose insecure"), "{error}");
            assert!(address.dialer(&plain.clone().insecure(true)).is_ok());
        }
        assert!("ws://hub".parse::<Address>().unwrap().dialer(&plain).is_ok());
    }

    /// One call listens on each scheme, and the printed address can be dialed; port 0 cannot.
    #[cfg(all(feature = "uds", feature = "ws", feature = "quic"))]
    #[tokio::test]
    async fn one_call_listens_on_each_scheme() {
        let directory = tempfile::tempdir().unwrap();
        let socket = format!("unix://{}/hub.sock", directory.path().display());
        let insecure = DialOptions::default().insecure(true);
        for given in [&socket, "ws://127.0.0.1:0", "wss://127.0.0.1:0", "quic://[::1]:0"] {
            let address: Address = given.parse().unwrap();
            let options = ListenOptions::default().insecure(true);
            let mut listener = address.listen(&options).await.unwrap();
            let bound: Address = listener.local_address().parse().unwrap();
            let (dialer, accepting) =
                (bound.dialer(&insecure).unwrap(), async { listener.accept().await?.await });
            let (dialed, accepted) = tokio::try_join!(dialer.dial(), accepting).unwrap();
            assert_eq!(dialed.kind(), accepted.kind(), "{given}");
            if *given != socket {
                let error = address.dialer(&insecure).err().unwrap().to_string();
                assert!(error.contains("port 0 is for listeners"), "{error}");
            }
            if given.starts_with("wss") || given.starts_with("quic") {
                let error = address.listen(&ListenOptions::default()).await.err().unwrap().to_string();
                assert!(error.contains("no TLS certificate was given"), "{error}");
            }
        }
        let taken = socket.parse::<Address>().unwrap();
        let _held = taken.listen(&ListenOptions::default()).await.unwrap();
        let error = taken.listen(&ListenOptions::default()).await.err().unwrap().to_string();
        assert!(error.starts_with("socket ") && error.contains("in use"), "{error}");
    }

    #[cfg(not(feature = "quic"))]
    #[tokio::test]
    async fn names_the_feature_that_the_build_lacks() {
        let address: Address = "quic://hub".parse().unwrap();
        let dialing = address.dialer(&DialOptions::default()).err().unwrap().to_string();
        let listening = address.listen(&ListenOptions::default()).await.err().unwrap().to_string();
        assert_eq!(dialing, listening);
        assert!(dialing.contains("has no QUIC: enable the feature `quic` of edge-transport"), "{dialing}");
    }

    #[cfg(feature = "uds")]
    #[test]
    fn rejects_too_long_socket_paths_before_dialing() {
        let address: Address = format!("unix:///{}", "x".repeat(110)).parse().unwrap();
        let error = address.dialer(&DialOptions::default()).err().unwrap().to_string();
        assert!(error.contains("107"), "{error}");
    }
}
