//! Command lines of our own binaries.

use std::ffi::{OsStr, OsString};

use edge_csi_tests::certificates::Files;

use super::certificates::Certificates;
use super::leg::LinkKind;

/// A command line.
#[derive(Debug)]
pub(crate) struct Arguments(pub(crate) Vec<OsString>);

impl Arguments {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.0.push(flag.into());
        self
    }

    pub(crate) fn pair(mut self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.extend([option.into(), value.as_ref().to_owned()]);
        self
    }

    /// What the hub needs to be sure of those who connect.
    pub(crate) fn listener(self, certificates: &Certificates) -> Self {
        self.pair("--tls-cert", &certificates.hub.certificate)
            .pair("--tls-key", &certificates.hub.key)
            .pair("--client-ca", &certificates.authority)
    }

    /// What those who connect need.
    pub(crate) fn dialer(self, kind: LinkKind, certificates: &Certificates, own: &Files) -> Self {
        match kind {
            LinkKind::Uds => self,
            LinkKind::Ws => self.flag("--insecure"),
            LinkKind::Wss | LinkKind::Quic => self
                .pair("--tls-cert", &own.certificate)
                .pair("--tls-key", &own.key)
                .pair("--tls-ca", &certificates.authority),
        }
    }
}
