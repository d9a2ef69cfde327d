//! An address to listen on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use super::InvalidValue;

/// A TCP or UDP address to listen on. A bare port means every IPv4 address of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// The address for the socket.
    #[must_use]
    pub const fn socket_addr(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for ListenAddress {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let on_every_address = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
        let port = text.strip_prefix(':').unwrap_or(text);
        port.parse()
            .map(on_every_address)
            .or_else(|_| text.parse())
            .map(Self)
            .map_err(|_| InvalidValue::Listen { found: text.to_owned() })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_every_address_and_names_are_refused() {
        for (given, expected) in [
            ("10000", Some("0.0.0.0:10000")),
            (":10000", Some("0.0.0.0:10000")),
            ("127.0.0.1:0", Some("127.0.0.1:0")),
            ("[::1]:9", Some("[::1]:9")),
            ("", None),
            ("70000", None),
            ("localhost:1", None),
            ("127.0.0.1", None),
            ("ws://1.2.3.4:5", None),
        ] {
            let parsed: Result<ListenAddress, _> = given.parse();
            assert_eq!(parsed.as_ref().ok().map(ToString::to_string).as_deref(), expected, "{given}");
            assert!(parsed.is_ok() || parsed.unwrap_err().to_string().contains(&format!("{given:?}")));
        }
    }
}
