//! Values of command-line options, with their bounds.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use csi_proto::DriverName;
pub use csi_proxy::SocketAddress;

/// An option's value cannot be used. The option's name is added by the command-line parser.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Neither a port nor an address with a port.
    #[error(
        "{0:?} is not an address to listen on; expected a port (`10000`) or an IP address and a port (`127.0.0.1:10000`)"
    )]
    Listen(String),
    /// Not a URL to listen on.
    #[error("expected unix:///PATH, wss://IP:PORT, ws://IP:PORT or quic://IP:PORT")]
    ListenUrl,
    /// No `NAME=` before the socket.
    #[error(
        "{0:?} names no driver; give `NAME=unix:///path`, as in `hostpath.csi.edge=unix:///plugins/hostpath/csi.sock`"
    )]
    DriverWithoutName(String),
    /// The driver's name breaks the rules of CSI.
    #[error(transparent)]
    DriverName(#[from] csi_proto::name::InvalidDriverName),
    /// The driver's socket cannot be used.
    #[error(transparent)]
    Socket(#[from] csi_proxy::InvalidSocketAddress),
    /// Not a number with a unit of bytes.
    #[error("{0:?} is not a size; expected bytes or a number with KiB, MiB, GiB or TiB, as in `8MiB`")]
    Size(String),
    /// Not a number with a unit of time.
    #[error("{0:?} is not a duration; expected a number with ms, s, m or h, as in `10s`, at most 8760h")]
    Duration(String),
    /// A span of time that is too short or too long for its use.
    #[error("{found:?} is out of bounds; expected {least:?} to {most:?}")]
    OutOfBounds {
        /// The value of the option.
        found: Duration,
        /// The minimum, inclusive.
        least: Duration,
        /// The maximum, inclusive.
        most: Duration,
    },
}

const SIZE_UNITS: &[(&str, u64)] =
    &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];

// The milliseconds of each unit.
const TIME_UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// The maximum duration: 365 days.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Parses a whole number with one of the units, and multiplies the two.
fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Parses a number of bytes: `8388608`, `8192KiB` or `8MiB`.
///
/// # Errors
/// If the text is not a size.
pub fn bytes(text: &str) -> Result<u64, InvalidValue> {
    amount(text, SIZE_UNITS).ok_or_else(|| InvalidValue::Size(text.to_owned()))
}

/// Parses a duration: `500ms`, `10s`, `15m` or `1h`, at most 8760h. The unit is required, since a bare number is ambiguous.
///
/// # Errors
/// If the text is not a duration.
pub fn duration(text: &str) -> Result<Duration, InvalidValue> {
    let duration = amount(text, TIME_UNITS).map(Duration::from_millis);
    duration.filter(|time| *time <= MAX_DURATION).ok_or_else(|| InvalidValue::Duration(text.to_owned()))
}

/// Returns a parser of a [`duration`] within bounds, both inclusive.
pub fn duration_within(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, InvalidValue> + Clone {
    move |text| {
        let found = duration(text)?;
        if found < least || found > most {
            return Err(InvalidValue::OutOfBounds { found, least, most });
        }
        Ok(found)
    }
}

/// Parses a TCP or UDP address to listen on. A bare port means every IPv4 address of the host.
///
/// # Errors
/// If the text is neither a port nor an address with a port.
pub fn listen_address(text: &str) -> Result<SocketAddr, InvalidValue> {
    let port = text.strip_prefix(':').unwrap_or(text);
    match port.parse() {
        Ok(port) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)),
        Err(_) => text.parse().map_err(|_| InvalidValue::Listen(text.to_owned())),
    }
}

/// A URL to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenUrl {
    /// `unix:///PATH`.
    Unix(SocketAddress),
    /// `ws://IP:PORT`: a websocket without TLS.
    Ws(SocketAddr),
    /// `wss://IP:PORT`: a websocket over TLS.
    Wss(SocketAddr),
    /// `quic://IP:PORT`.
    Quic(SocketAddr),
}

impl FromStr for ListenUrl {
    type Err = InvalidValue;

    fn from_str(url: &str) -> Result<Self, InvalidValue> {
        let (scheme, address) = url.split_once("://").ok_or(InvalidValue::ListenUrl)?;
        let socket = || listen_address(address).map_err(|_| InvalidValue::ListenUrl);
        match scheme {
            "unix" => Ok(Self::Unix(url.parse()?)),
            "ws" => socket().map(Self::Ws),
            "wss" => socket().map(Self::Wss),
            "quic" => socket().map(Self::Quic),
            _ => Err(InvalidValue::ListenUrl),
        }
    }
}

impl fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(socket) => socket.fmt(f),
            Self::Ws(address) => write!(f, "ws://{address}"),
            Self::Wss(address) => write!(f, "wss://{address}"),
            Self::Quic(address) => write!(f, "quic://{address}"),
        }
    }
}

/// `NAME=unix:///path`: the CSI name of a driver and its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverAt {
    /// The name that GetPluginInfo returns.
    pub name: DriverName,
    /// The driver's own socket.
    pub socket: SocketAddress,
}

impl FromStr for DriverAt {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (name, socket) =
            text.split_once('=').ok_or_else(|| InvalidValue::DriverWithoutName(text.to_owned()))?;
        Ok(Self { name: DriverName::new(name)?, socket: socket.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_number_and_may_have_a_unit() {
        for (given, expected) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("17B", Some(17)),
            ("8MiB", Some(8 << 20)),
            ("10GiB", Some(10 << 30)),
            ("18446744073709551616", None),
            ("99999999TiB", None),
            ("8MB", None),
            ("8 MiB", None),
            ("-1", None),
            ("MiB", None),
            ("", None),
        ] {
            assert_eq!(bytes(given).ok(), expected, "{given}");
        }
    }

    #[test]
    fn durations_need_a_number_and_a_unit() {
        for (given, expected) in [
            ("10s", Some(10_000)),
            ("250ms", Some(250)),
            ("15m", Some(900_000)),
            ("1h", Some(3_600_000)),
            ("8760h", Some(31_536_000_000)),
            ("8761h", None),
            ("10", None),
            ("s", None),
            ("1d", None),
            ("1.5s", None),
            ("", None),
        ] {
            let parsed = duration(given).ok().map(|found| found.as_millis());
            assert_eq!(parsed, expected, "{given}");
        }
    }

    #[test]
    fn bare_port_is_every_address_and_names_are_refused() {
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
            let parsed = listen_address(given);
            assert_eq!(parsed.as_ref().ok().map(ToString::to_string).as_deref(), expected, "{given}");
            assert!(parsed.is_ok() || parsed.unwrap_err().to_string().contains(&format!("{given:?}")));
        }
    }

    #[test]
    fn parses_each_form_of_listen_url() {
        for (text, shown) in [
            ("unix:///run/edge-csi/hub.sock", "unix:///run/edge-csi/hub.sock"),
            ("ws://127.0.0.1:0", "ws://127.0.0.1:0"),
            ("wss://[::1]:10000", "wss://[::1]:10000"),
            ("wss://:10000", "wss://0.0.0.0:10000"),
            ("quic://0.0.0.0:10001", "quic://0.0.0.0:10001"),
        ] {
            assert_eq!(text.parse::<ListenUrl>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_driver_needs_a_name_and_a_socket() {
        let driver: DriverAt = "a.b=unix:///x/csi.sock".parse().unwrap();
        assert_eq!((driver.name.as_str(), driver.socket.path().to_str()), ("a.b", Some("/x/csi.sock")));
        assert!(matches!("unix:///x".parse::<DriverAt>(), Err(InvalidValue::DriverWithoutName(_))));
        assert!(matches!("=unix:///x".parse::<DriverAt>(), Err(InvalidValue::DriverName(_))));
        assert!(matches!("a.b=x".parse::<DriverAt>(), Err(InvalidValue::Socket(_))));
    }
    #[test]
    fn duration_out_of_bounds_names_the_bounds() {
        let read = duration_within(Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(read("1s").unwrap(), Duration::from_secs(1));
        assert_eq!(read("1m").unwrap(), Duration::from_secs(60));
        for (text, found) in [("999ms", "999ms"), ("61s", "61s")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(found) && error.contains("1s to 60s"), "{error}");
        }
        assert!(matches!(read("10"), Err(InvalidValue::Duration { .. })));
    }
}
