//! The proxy's name at the hub.

use std::sync::Arc;

use csi_proto::DriverName;
use edge_transport::PeerId;
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::tls::{ClientTls, Identity};

use edge_csi_common::process::Fatal;

/// The name of this process at the hub, which no other process has, since the hub refuses the later of two proxies with
/// one name. With a certificate the name begins with the certificate's name, below which the hub allows any name.
/// Without one, for example with a token, the name begins with `proxy/` and the driver's name.
#[derive(Debug)]
pub(super) struct HubName {
    files: Option<ClientTls>,
    /// The name without a certificate, or while there is no valid one.
    plain: PeerId,
}

impl HubName {
    pub(super) fn new(driver: &DriverName, files: Option<ClientTls>) -> Result<Self, Fatal> {
        let plain = PeerId::of_this_process(format!("proxy/{driver}")).map_err(Fatal::input)?;
        Ok(Self { files, plain })
    }

    /// The name of a proxy in the process of its hub, which needs no certificate.
    pub(super) const fn given(name: PeerId) -> Self {
        Self { files: None, plain: name }
    }

    /// Returns the name for a connection that begins now.
    pub(super) fn current(&self) -> PeerId {
        self.certified().ok().flatten().unwrap_or_else(|| self.plain.clone())
    }

    /// Returns the name that the certificate proves; `None` without a certificate.
    fn certified(&self) -> Result<Option<PeerId>, String> {
        let Some(files) = &self.files else { return Ok(None) };
        let identity = files.identity().map_err(|cause| cause.to_string())?;
        let Some(identity) = identity.filter(Identity::has_certificate) else { return Ok(None) };
        let names = identity.names();
        let Some(name) = names.first() else {
            return Err(
                "the certificate in --tls-cert has no name: it needs a DNS or URI name, or a common name"
                    .to_owned(),
            );
        };
        PeerId::of_this_process(name.as_str()).map(Some).map_err(|cause| cause.to_string())
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

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        Ok(dialers(self.dialer.resolve().await?, &self.name))
    }
}
