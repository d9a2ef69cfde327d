//! Addresses as users write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{Dialer, Limits, LinkError};
#[cfg(feature = "tls")]
use crate::tls::ClientTls;
use crate::token::{TokenDialer, TokenSource};

/// Port of QUIC links unless the address names another.
const QUIC_PORT: u16 = 10_001;

/// Port of websocket links unless the address names another.
const WS_PORT: u16 = 10_000;

/// The expected form of an address, for error messages.
const EXPECTED: &str =
    "expected quic://host[:port], wss://host[:port][/path], ws://host[:port][/path] or unix:///path";

/// The address of a listener: `quic://host[:port]`, `wss://host[:port][/path]`, `ws://host[:port][/path]` or `unix:///path`.
/// Ports are 10001 for QUIC and 10000 for websocket unless given; IPv6 addresses are in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address(Kind);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    Unix(PathBuf),
    Ws { tls: bool, host: String, port: u16, path: String },
    Quic { host: String, port: u16 },
}

/// Options of dialing. Start from `DialOptions::default()` and change single fields.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DialOptions {
    /// Limits of the links.
    pub limits: Limits,
    /// The authorities to trust and the certificate to present on `wss` and `quic`.
    #[cfg(feature = "tls")]
    pub tls: Option<ClientTls>,
    /// Encrypts without verifying the server if `tls` is not set (see [`ClientTls::insecure`]).
    #[cfg(feature = "tls")]
    pub insecure: bool,
    /// Source of the token that proves the peer's name. The token is sent only on confidential links to a verified hub,
    /// unless `insecure` is set (see [`TokenDialer`]).
    pub token: Option<TokenSource>,
}

impl DialOptions {
    #[cfg(any(feature = "ws", feature = "quic"))]
    fn client_tls(&self, address: &Address) -> Result<ClientTls, LinkError> {
        match &self.tls {
            Some(tls) => Ok(tls.clone()),
            None if self.insecure => {
                ClientTls::insecure(None).map_err(|error| address.unusable(error.to_string()))
            }
            None => Err(address.unusable("no TLS identity was given: give one, or choose insecure")),
        }
    }
}

impl Address {
    /// Creates a dialer of this address.
    ///
    /// # Errors
    /// If TLS is required and not configured, or if this build does not support the kind of link.
    pub fn dialer(&self, options: &DialOptions) -> Result<Box<dyn Dialer>, LinkError> {
        let dialer = self.plain_dialer(options)?;
        let Some(token) = &options.token else { return Ok(dialer) };
        let dialer = TokenDialer::new(dialer, token.clone());
        #[cfg(feature = "tls")]
        let dialer = if options.insecure { dialer.insecure() } else { dialer };
        Ok(Box::new(dialer))
    }

    fn plain_dialer(&self, options: &DialOptions) -> Result<Box<dyn Dialer>, LinkError> {
        match &self.0 {
            #[cfg(feature = "uds")]
            Kind::Unix(path) => Ok(Box::new(super::uds::UdsDialer::new(path, options.limits.clone())?)),
            #[cfg(feature = "ws")]
            Kind::Ws { tls, host, port, path } => {
                let tls = if *tls { Some(options.client_tls(self)?) } else { None };
                let dialer = super::ws::WsDialer::new(host, *port, tls, options.limits.clone())?;
                Ok(Box::new(dialer.with_path(path)))
            }
            #[cfg(feature = "quic")]
            Kind::Quic { host, port } => {
                let tls = options.client_tls(self)?;
                Ok(Box::new(super::quic::QuicDialer::new(host, *port, &tls, options.limits.clone())?))
            }
            #[cfg(not(all(feature = "uds", feature = "ws", feature = "quic")))]
            #[allow(unreachable_patterns, reason = "which kinds are left depends on the features")]
            _ => {
                let _ = options;
                Err(self.unusable("this build does not support this kind of link: enable the feature `uds`, `ws` or `quic` of edge-transport"))
            }
        }
    }

    #[allow(dead_code, reason = "a build with unix sockets only needs no such error")]
    fn unusable(&self, cause: impl Into<String>) -> LinkError {
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
            Ok(port) if port > 0 => port,
            _ => return Err(format!("port {port:?} is not a number from 1 to 65535")),
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
            ("quic://hub:", "is not a number from 1 to 65535"),
            ("quic://hub:0", "is not a number from 1 to 65535"),
            ("quic://hub:65536", "is not a number from 1 to 65535"),
            ("quic://hub:-1", "is not a number from 1 to 65535"),
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
            assert!(address.dialer(&DialOptions { insecure: true, ..plain.clone() }).is_ok());
        }
        assert!("ws://hub".parse::<Address>().unwrap().dialer(&plain).is_ok());
    }

    #[cfg(feature = "uds")]
    #[test]
    fn rejects_too_long_socket_paths_before_dialing() {
        let address: Address = format!("unix:///{}", "x".repeat(110)).parse().unwrap();
        let error = address.dialer(&DialOptions::default()).err().unwrap().to_string();
        assert!(error.contains("107"), "{error}");
    }
}
