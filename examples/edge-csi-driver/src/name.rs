//! The proxy's name at the hub.

use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_proto::DriverName;
use edge_transport::PeerId;
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::tls::ClientFiles;

use edge_csi_common::process::Fatal;

/// The name of this process at the hub, which no other process has, since the hub refuses the later of two proxies with
/// one name. With a certificate the name begins with the certificate's name, below which the hub allows any name.
/// Without one, for example with a token, the name begins with `proxy/` and the driver's name.
#[derive(Debug)]
pub(super) struct HubName {
    files: Option<ClientFiles>,
    process: String,
    /// The name without a certificate, or while there is no valid one.
    plain: PeerId,
}

impl HubName {
    pub(super) fn new(driver: &DriverName, files: Option<ClientFiles>) -> Result<Self, Fatal> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let process = process_name(&host, std::process::id(), started);
        let plain = PeerId::new(format!("proxy/{driver}/{process}")).map_err(Fatal::input)?;
        Ok(Self { files, process, plain })
    }

    /// Returns the name for a connection that begins now.
    pub(super) fn current(&self) -> PeerId {
        self.certified().ok().flatten().unwrap_or_else(|| self.plain.clone())
    }

    /// Returns the name that the certificate proves; `None` without a certificate.
    fn certified(&self) -> Result<Option<PeerId>, String> {
        let Some(files) = &self.files else { return Ok(None) };
        let identity = files.identity().map_err(|cause| cause.to_string())?;
        if !identity.has_certificate() {
            return Ok(None);
        }
        let names = identity.names();
        let Some(name) = names.first() else {
            return Err(
                "the certificate in --tls-cert has no name: it needs a DNS or URI name, or a common name"
                    .to_owned(),
            );
        };
        PeerId::new(format!("{name}/{}", self.process)).map(Some).map_err(|cause| cause.to_string())
    }
}

/// Makes each connection of the dialers use the name of the certificate that is valid then: the certificate may be
/// absent when the process starts, and another one may be loaded later.
pub(super) fn dialers(dialers: Vec<Box<dyn Dialer>>, name: &Arc<HubName>) -> Vec<Box<dyn Dialer>> {
    let named = |dialer| Box::new(NamedDialer { dialer, name: Arc::clone(name) }) as Box<dyn Dialer>;
    dialers.into_iter().map(named).collect()
}

struct NamedDialer {
    dialer: Box<dyn Dialer>,
    name: Arc<HubName>,
}

#[async_trait::async_trait]
impl Dialer for NamedDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let address = || self.dialer.address().to_owned();
        let name = self.name.certified().map_err(|cause| LinkError::Address { address: address(), cause })?;
        let link = self.dialer.dial().await?;
        Ok(link.with_name(name.unwrap_or_else(|| self.name.plain.clone())))
    }

    fn address(&self) -> &str {
        self.dialer.address()
    }
}

/// The host and the process id distinguish processes of one host; the start time in microseconds distinguishes
/// containers that share a host name.
fn process_name(host: &str, process: u32, started: u128) -> String {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let host: String = host.trim().chars().filter(allowed).take(63).collect();
    format!("{host}-{process}-{started}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_fits_whatever_the_host_is_called() {
        let driver = "d".repeat(63);
        for host in ["", "node-1\n", "host name/with\u{e9}", &"h".repeat(300)] {
            let name = format!("proxy/{driver}/{}", process_name(host, u32::MAX, u128::from(u64::MAX)));
            assert!(PeerId::new(&name).is_ok(), "{name}");
        }
        assert_ne!(process_name("h", 1, 1), process_name("h", 1, 2));
    }
}
