//! Connections that a listener has accepted and whose handshake has not started.

use std::fmt;
use std::future::IntoFuture;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Link, LinkError};

/// Where a connection comes from, as far as this is known before its handshake. Once handshake slots are scarce, a
/// hub gives each source only a share of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Not known. A hub does not limit the share of such connections.
    Unknown,
    /// The first address of a network: the first 24 bits of an IPv4 address, 48 bits of an IPv6 address. These are
    /// the smallest networks that are routed on the Internet, so that more sources cost an attacker more networks,
    /// not more addresses.
    Network(IpAddr),
    /// The processes of a user of this host.
    User {
        /// User id.
        uid: u32,
    },
}

/// Returns the network of an address.
impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Network(match address.to_canonical() {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                Ipv4Addr::new(a, b, c, 0).into()
            }
            IpAddr::V6(address) => {
                let [a, b, c, ..] = address.segments();
                Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).into()
            }
        })
    }
}

/// A handshake below the frames, such as TLS and websocket.
pub type Handshake = Pin<Box<dyn Future<Output = Result<Link, LinkError>> + Send>>;

/// A connection whose handshake has not started. Every future of a link implements this trait: the handshake is
/// the future, and its first byte has arrived.
pub trait PendingLink: Send {
    /// Ready when the first byte has arrived, without reading it. Until then a hub does not count the connection
    /// as a handshake; it keeps at most 1024 such connections of a listener, each for 2 s. May be called again after it was
    /// ready. Default: ready, for connections that send nothing first, and for futures.
    ///
    /// # Errors
    /// If the connection is lost. The hub drops it.
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    /// Starts the handshake. The future runs in a task of its own, within twice `hello_timeout` of the hub's settings; dropping
    /// it ends the connection. Dropping `self` instead of calling this refuses the connection.
    fn handshake(self: Box<Self>) -> Handshake;
}

impl<F> PendingLink for F
where
    F: Future<Output = Result<Link, LinkError>> + Send + 'static,
{
    fn handshake(self: Box<Self>) -> Handshake {
        Box::into_pin(self)
    }
}

/// A link that is being accepted. Awaiting it performs the handshake below the frames; dropping it refuses the
/// link.
pub struct Incoming {
    pending: Box<dyn PendingLink>,
    source: Source,
}

impl Incoming {
    /// Wraps a handshake, usually a future, or a connection whose first byte can be awaited. The source is
    /// unknown.
    #[must_use]
    pub fn new(pending: impl PendingLink + 'static) -> Self {
        Self { pending: Box::new(pending), source: Source::Unknown }
    }

    /// Sets the source. Default [`Source::Unknown`].
    #[must_use]
    pub const fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// The source of the connection.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Ready when the first byte has arrived.
    ///
    /// # Errors
    /// If the connection is lost before.
    pub fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.pending.poll_first_byte(cx)
    }

    /// Changes the link when its handshake is complete. For listeners that wrap another.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Link) -> Link + Send + 'static) -> Self {
        let Self { pending, source } = self;
        Self::new(Mapped { pending, change }).with_source(source)
    }
}

impl IntoFuture for Incoming {
    type Output = Result<Link, LinkError>;
    type IntoFuture = Handshake;

    fn into_future(self) -> Handshake {
        self.pending.handshake()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("source", &self.source).finish_non_exhaustive()
    }
}

/// A connection whose link is changed after the handshake.
struct Mapped<C> {
    pending: Box<dyn PendingLink>,
    change: C,
}

impl<C: FnOnce(Link) -> Link + Send + 'static> PendingLink for Mapped<C> {
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.pending.poll_first_byte(cx)
    }

    fn handshake(self: Box<Self>) -> Handshake {
        let Self { pending, change } = *self;
        Box::pin(async move { pending.handshake().await.map(change) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_source() {
        for (one, other, same) in [
            ("203.0.113.7", "203.0.113.250", true),
            ("203.0.113.7", "203.0.114.7", false),
            ("203.0.113.7", "::ffff:203.0.113.9", true),
            ("2001:db8:1:2::1", "2001:db8:1:ffff::2", true),
            ("2001:db8:1::1", "2001:db8:2::1", false),
        ] {
            let [one, other] = [one, other].map(|address| Source::from(address.parse::<IpAddr>().unwrap()));
            assert_eq!(one == other, same, "{one:?} {other:?}");
        }
    }
}
