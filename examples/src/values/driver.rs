//! A driver and where it answers.

use std::fmt;
use std::str::FromStr;

use csi_proto::DriverName;
use csi_proxy::SocketAddress;

use super::InvalidValue;

/// `NAME=unix:///path`: the CSI name of a driver and its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverAt {
    /// The name that GetPluginInfo gives.
    pub name: DriverName,
    /// The driver's own socket.
    pub socket: SocketAddress,
}

impl FromStr for DriverAt {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (name, socket) =
            text.split_once('=').ok_or_else(|| InvalidValue::DriverWithoutName { found: text.to_owned() })?;
        Ok(Self { name: DriverName::new(name)?, socket: socket.parse()? })
    }
}

impl fmt::Display for DriverAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_needs_a_name_and_a_socket() {
        let driver: DriverAt = "a.b=unix:///x/csi.sock".parse().unwrap();
        assert_eq!(driver.to_string(), "a.b=unix:///x/csi.sock");
        assert!(matches!("unix:///x".parse::<DriverAt>(), Err(InvalidValue::DriverWithoutName { .. })));
        assert!(matches!("=unix:///x".parse::<DriverAt>(), Err(InvalidValue::DriverName(_))));
        assert!(matches!("a.b=x".parse::<DriverAt>(), Err(InvalidValue::Socket(_))));
    }
}
