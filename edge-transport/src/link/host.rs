//! The host that a dialer reaches over a network.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};

use fastrand::Rng;
use tokio::net::lookup_host;

use super::address::host_and_port;
use super::happy_eyeballs::{ATTEMPT_DELAY, first_ok};
use super::{LinkError, LinkKind};

/// A host name or address (IPv6 without brackets), and a port.
#[derive(Debug, Clone)]
pub(super) struct Host {
    kind: LinkKind,
    name: String,
    port: u16,
    address: String,
    /// The only address of the name that is dialed.
    at: Option<SocketAddr>,
}

impl Host {
    pub(super) fn new(kind: LinkKind, name: &str, port: u16) -> Self {
        let address = format!("{kind}://{}", host_and_port(name, port));
        Self { kind, name: name.to_owned(), port, address, at: None }
    }

    #[cfg(feature = "ws")]
    pub(super) const fn kind(&self) -> LinkKind {
        self.kind
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The address in the form of a URL, for logs.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Makes an attempt at each address that the name has now, staggered, until one succeeds.
    pub(super) async fn first_ok<T, A: Future<Output = Result<T, LinkError>>>(
        &self,
        attempt: impl Fn(SocketAddr) -> A,
    ) -> Result<T, LinkError> {
        let candidates = match self.at {
            Some(address) => vec![address],
            None => self.lookup().await?,
        };
        let outcome = first_ok(candidates, ATTEMPT_DELAY, attempt).await;
        outcome.unwrap_or_else(|| Err(self.unresolved(no_address())))
    }

    /// The same host at each address that its name has now; none for an address instead of a name.
    pub(super) async fn resolve(&self) -> Result<Vec<Self>, LinkError> {
        if self.at.is_some() || self.name.parse::<IpAddr>().is_ok() {
            return Ok(Vec::new());
        }
        let pinned = |at| {
            let address = format!("{}://{at} ({})", self.kind, self.name);
            Self { address, at: Some(at), ..self.clone() }
        };
        Ok(self.lookup().await?.into_iter().map(pinned).collect())
    }

    /// The addresses, at least one, in random order, so that the peers of many equal hubs do not all dial the first. Those of
    /// the family that the resolver prefers come first.
    async fn lookup(&self) -> Result<Vec<SocketAddr>, LinkError> {
        let found = lookup_host((&*self.name, self.port)).await.map_err(|source| self.unresolved(source))?;
        let mut found: Vec<_> = found.collect();
        if found.is_empty() {
            return Err(self.unresolved(no_address()));
        }
        let preferred = found.first().map(SocketAddr::is_ipv6);
        // A hasher with random keys is the standard library's source of unpredictable numbers.
        Rng::with_seed(RandomState::new().hash_one(())).shuffle(&mut found);
        found.sort_by_key(|address| Some(address.is_ipv6()) != preferred);
        Ok(found)
    }

    fn unresolved(&self, source: io::Error) -> LinkError {
        LinkError::Io { doing: format!("resolve {}", self.address), source }
    }
}

pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the host name has no address")
}
