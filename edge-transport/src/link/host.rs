//! The addresses of a host name.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};

use fastrand::Rng;
use tokio::net::lookup_host;

use super::{Dialer, LinkError, LinkKind};
use crate::link::address::host_and_port;

/// The addresses that a host name has now, in random order, so that the peers of many equal hubs do not all dial the first.
/// Those of the family that the resolver prefers come first.
pub(super) async fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<_> = lookup_host((host, port)).await?.collect();
    let preferred = found.first().map(SocketAddr::is_ipv6);
    // A hasher with random keys is the standard library's source of unpredictable numbers.
    Rng::with_seed(RandomState::new().hash_one(())).shuffle(&mut found);
    found.sort_by_key(|address| Some(address.is_ipv6()) != preferred);
    Ok(found)
}

/// A dialer of each address that a host name has now, with the text of that address; none for an address instead of a name.
pub(super) async fn pinned(
    host: &str,
    port: u16,
    at: Option<SocketAddr>,
    kind: LinkKind,
    dialer: impl Fn(String, SocketAddr) -> Box<dyn Dialer>,
) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
    if at.is_some() || host.parse::<IpAddr>().is_ok() {
        return Ok(Vec::new());
    }
    let doing = || format!("resolve {kind}://{}", host_and_port(host, port));
    let found = addresses_of(host, port).await.map_err(|source| LinkError::Io { doing: doing(), source })?;
    if found.is_empty() {
        let source = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        return Err(LinkError::Io { doing: doing(), source });
    }
    Ok(found.into_iter().map(|at| dialer(format!("{kind}://{at} ({host})"), at)).collect())
}
