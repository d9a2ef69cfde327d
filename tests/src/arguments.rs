//! Command lines of the reference binaries.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::certificates::Files;

/// A command line.
#[derive(Debug, Clone, Default)]
pub struct Arguments(Vec<OsString>);

impl Arguments {
    /// Returns an empty command line.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the options of a hostpath-driver that stores its volumes in `state`.
    #[must_use]
    pub fn driver(name: &str, socket: &Path, node: &str, state: &Path) -> Self {
        Self::new()
            .pair("--drivername", name)
            .pair("--endpoint", unix(socket))
            .pair("--nodeid", node)
            .pair("--state-dir", state)
    }

    /// Adds one argument.
    #[must_use]
    pub fn flag(mut self, flag: impl AsRef<OsStr>) -> Self {
        self.0.push(flag.as_ref().to_owned());
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn flags<A: AsRef<OsStr>>(self, flags: impl IntoIterator<Item = A>) -> Self {
        flags.into_iter().fold(self, Self::flag)
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn pair(self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.flag(option).flag(value)
    }

    /// Adds an agent's option for a driver that listens on `socket`.
    #[must_use]
    pub fn serving(self, driver: &str, socket: &Path) -> Self {
        self.pair("--driver", format!("{driver}={}", unix(socket)))
    }

    /// Adds the certificate of a hub, which accepts only clients that its authority signed.
    #[must_use]
    pub fn listener(self, own: &Files) -> Self {
        self.certificate(own).pair("--client-ca", &own.authority)
    }

    /// Adds the certificate of a peer, which trusts only hubs that its authority signed.
    #[must_use]
    pub fn dialer(self, own: &Files) -> Self {
        self.certificate(own).pair("--tls-ca", &own.authority)
    }

    fn certificate(self, own: &Files) -> Self {
        self.pair("--tls-cert", &own.certificate).pair("--tls-key", &own.key)
    }
}

impl IntoIterator for Arguments {
    type Item = OsString;
    type IntoIter = std::vec::IntoIter<OsString>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Arguments {
    type Item = &'a OsString;
    type IntoIter = std::slice::Iter<'a, OsString>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Returns the `unix://` URL of a socket.
#[must_use]
pub fn unix(path: &Path) -> String {
    format!("unix://{}", path.display())
}
