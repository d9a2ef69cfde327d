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
pub(crate) enum Source {
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
pub(super) type Handshake = Pin<Box<dyn Future<Output = Result<Link, LinkError>> + Send>>;

/// A connection whose handshake has not started.
trait PendingLink: Send {
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>>;

    fn handshake(self: Box<Self>) -> Handshake;
}

/// A connection, and the functions that wait for its first byte and perform its handshake.
struct Pending<C, P, H> {
    connection: C,
    first_byte: P,
    handshake: H,
}

impl<C, P, H, F> PendingLink for Pending<C, P, H>
where
    C: Send,
    P: FnMut(&mut C, &mut Context<'_>) -> Poll<Result<(), LinkError>> + Send,
    H: FnOnce(C) -> F + Send,
    F: Future<Output = Result<Link, LinkError>> + Send + 'static,
{
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        (self.first_byte)(&mut self.connection, cx)
    }

    fn handshake(self: Box<Self>) -> Handshake {
        let Self { connection, handshake, .. } = *self;
        Box::pin(handshake(connection))
    }
}

/// A link that is being accepted. Awaiting it performs the handshake below the frames; dropping it refuses the
/// link.
pub struct Incoming {
    pending: Box<dyn PendingLink>,
    source: Source,
}

impl Incoming {
    /// Wraps a handshake. The future runs in a task of its own, within twice `hello_timeout` of the hub's settings; dropping it
    /// ends the connection, also before it was polled. The source is unknown.
    #[must_use]
    pub fn new(handshake: impl Future<Output = Result<Link, LinkError>> + Send + 'static) -> Self {
        Self::with_first_byte(handshake, |_, _| Poll::Ready(Ok(())), |handshake| handshake)
    }

    /// Wraps a connection whose first byte can be awaited without reading it. Until that byte has arrived, a hub does not count
    /// the connection as a handshake; it keeps at most 1024 such connections of a listener, each for 2 s.
    ///
    /// `first_byte` is ready when the byte has arrived, or with an error when the connection is lost; it may be called again
    /// after it was ready. `handshake` then begins the future of [`new`](Self::new). Dropping the connection refuses it.
    #[must_use]
    pub fn with_first_byte<C, F>(
        connection: C,
        first_byte: impl FnMut(&mut C, &mut Context<'_>) -> Poll<Result<(), LinkError>> + Send + 'static,
        handshake: impl FnOnce(C) -> F + Send + 'static,
    ) -> Self
    where
        C: Send + 'static,
        F: Future<Output = Result<Link, LinkError>> + Send + 'static,
    {
        let pending = Pending { connection, first_byte, handshake };
        Self { pending: Box::new(pending), source: Source::Unknown }
    }

    /// States the address that the connection comes from. Once handshake slots are scarce, a hub gives each network only a share
    /// of them: the first 24 bits of an IPv4 address, 48 bits of an IPv6 address. These are the smallest networks that are routed
    /// on the Internet, so that more shares cost an attacker more networks, not more addresses. Without a source, connections
    /// have no limit of their own.
    #[must_use]
    pub fn from_address(mut self, address: IpAddr) -> Self {
        self.source = address.into();
        self
    }

    /// States the user of this host whose process has connected. Users share handshake slots like
    /// [networks](Self::from_address).
    #[must_use]
    pub const fn from_user(mut self, uid: u32) -> Self {
        self.source = Source::User { uid };
        self
    }

    pub(crate) const fn source(&self) -> Source {
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
        Self { pending: Box::new(Mapped { pending, change }), source }
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

    /// A connection without a known source is not limited to a share.
    #[test]
    fn source_is_unknown_by_default() {
        let incoming = Incoming::new(std::future::ready(Err(LinkError::Lost)));
        assert_eq!(incoming.source(), Source::Unknown);
        assert_eq!(incoming.from_user(7).source(), Source::User { uid: 7 });
    }

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
