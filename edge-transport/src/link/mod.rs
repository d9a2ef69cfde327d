//! Links carry whole frames between two directly connected ends.
//!
//! Every link is a [`futures_core::Stream`] of received frames and a [`futures_sink::Sink`] of frames to send, so that a
//! driver can feed many frames and flush them with one write.
//!
//! Every link guarantees:
//! - frames of one [`Lane`] arrive in the order in which they were sent, whole, and at most once;
//! - [`Sink::poll_ready`] is pending while [`SEND_BUFFER`] bytes wait for the network, so that memory is limited to that buffer
//!   plus one frame, at a dialing end of QUIC two; a frame above the largest size is refused by `start_send` and does not
//!   affect the next;
//! - nothing is sent before `poll_flush` or a full buffer: feed all frames, then flush once;
//! - after `poll_close` the other end reads `None`; a link that is dropped without it yields [`LinkError::Lost`]
//!   there. Some kinds cannot be read after closing: read all frames before. Closing may wait until the other end
//!   has read everything and dropped the link: use a timeout.
//!
//! Memory per link: idle, a few KiB and the kind's own state (see its module); sending, at most [`SEND_BUFFER`] and one frame (at
//! a dialing end of QUIC two); receiving, at most one unfinished frame (over QUIC four, and in its receive window 1 MiB, at a
//! dialing end 4 MiB). A hub limits both further ([`FrameLink::limit_receiving`]). Until it has admitted the peer, a link holds
//! at most 20 KiB, over QUIC 48 KiB. Memory for a frame is used as its bytes arrive, not for an announced length.
//!
//! The suite `conformance` (feature `testing`) checks these guarantees on any implementation.

mod address;
mod certificate;
#[cfg(feature = "testing")]
pub mod conformance;
mod description;
mod error;
#[cfg(feature = "testing")]
pub mod faulty;
mod framed;
mod framing;
pub(crate) mod happy_eyeballs;
#[cfg(any(feature = "ws", feature = "quic"))]
mod host;
mod incoming;
mod limits;
pub mod memory;
mod options;
mod queue;
#[cfg(feature = "quic")]
pub mod quic;
#[cfg(feature = "uds")]
pub mod uds;
#[cfg(feature = "ws")]
pub mod ws;

pub use address::Address;
pub use certificate::PeerCertificate;
pub use description::{Credentials, LinkKind, Protection};
pub use error::LinkError;
#[cfg(any(feature = "uds", feature = "ws"))]
use error::classify;
pub use incoming::Incoming;
pub(crate) use incoming::Source;
use limits::Limits;
pub(crate) use limits::{FREE_UNFINISHED, ReceiveLimits};
pub use limits::{MAX_FRAME_CEILING, MAX_UNADMITTED_FRAME, SEND_BUFFER};
pub use options::{DialOptions, ListenOptions};
pub use queue::{LinkSender, queue};

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
#[cfg(feature = "tls")]
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};

use self::framed::FramedStream;
pub use crate::frame::{DEFAULT_MAX_FRAME, Lane, WireFrame};
use crate::frame::{Frame, Kind, MAX_HEADER, MAX_IDLE_PING, decode, encode};
use crate::name::PeerId;
use crate::token::Token;

/// The frames of a link in both directions, for every kind of link. The stream yields `None` after an orderly close of
/// the other end.
///
/// One task polls stream and sink; the functions here do not block. Dropping the link ends the connection at once.
///
/// The functions have defaults for links that need no limits, such as those inside the process. A link that wraps
/// another must forward them; otherwise the inner link keeps its own limits, and over QUIC a small receive window.
pub trait FrameLink:
    Stream<Item = Result<Bytes, LinkError>> + Sink<WireFrame, Error = LinkError> + Send + Unpin
{
    /// Changes what the link may receive. A link begins with its own limits. A hub lowers them before it reads,
    /// and raises them when it has admitted the peer, and again as its budget allows. After a raise the caller
    /// polls the stream; the link does not wake it.
    ///
    /// A frame larger than `max_frame` bytes, or than the link's own limit, ends the link as soon as its length is known. The
    /// link reads no further while it holds `max_unfinished` bytes of unfinished frames; one read may exceed it.
    fn limit_receiving(&mut self, max_frame: usize, max_unfinished: usize) {
        let _ = (max_frame, max_unfinished);
    }

    /// Bytes of frames that have begun to arrive and are not complete. Bytes that the network's own buffers hold
    /// do not count.
    fn unfinished(&self) -> usize {
        0
    }

    /// When the oldest unfinished frame began to arrive. Only for links that receive several frames at once: on
    /// other links an unfinished frame delays all later ones, and the session's liveness timeout ends the link.
    fn oldest_unfinished(&self) -> Option<Instant> {
        None
    }

    /// Bytes of frames that the link has accepted and not yet written. A hub counts them in its budget for frames that
    /// wait. Bytes that the network's own buffers hold do not count.
    fn unwritten(&self) -> usize {
        0
    }

    /// The certificate chain that the other end has presented, its own certificate first; empty without one. A hub verifies it
    /// again when authorities or revocation lists change.
    #[cfg(feature = "tls")]
    fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        Vec::new()
    }
}

/// Called with each received frame of a link.
type Observer = Box<dyn FnMut(&Bytes) + Send>;

/// A link of any kind.
pub struct Link {
    io: Box<dyn FrameLink>,
    kind: LinkKind,
    remote: String,
    credentials: Credentials,
    protection: Protection,
    /// Whether this is the link of the hub's own services.
    of_hub: bool,
    /// The token to insert into the hello.
    token: Option<Token>,
    /// Called with each received frame.
    observer: Option<Observer>,
    /// The name to use in place of the dialing peer's own.
    name: Option<PeerId>,
    /// How often the dialing peer pings while no call waits.
    idle_ping: Option<Duration>,
}

impl Link {
    /// Wraps an implementation. State its protection with [`with_protection`](Self::with_protection): without one the
    /// link carries no token, and a hub does not believe its credentials.
    pub fn new(
        io: impl FrameLink + 'static,
        kind: LinkKind,
        remote: impl Into<String>,
        credentials: Credentials,
    ) -> Self {
        Self {
            io: Box::new(io),
            kind,
            remote: remote.into(),
            credentials,
            protection: Protection::None,
            of_hub: false,
            token: None,
            observer: None,
            name: None,
            idle_ping: None,
        }
    }

    /// Frames a byte stream: TCP, a pipe, a serial line, a tunnel. Before each frame are four bytes of its length, high byte
    /// first; the length `0xffff_ffff` marks the orderly end. Unix sockets have the same format. A frame has at most `max_frame`
    /// bytes. State the protection as with [`new`](Self::new).
    ///
    /// An idle link has no buffers.
    pub fn framed(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        kind: LinkKind,
        remote: impl Into<String>,
        credentials: Credentials,
        max_frame: usize,
    ) -> Self {
        Self::new(FramedStream::new(io, max_frame.min(MAX_FRAME_CEILING)), kind, remote, credentials)
    }

    /// States what protects the frames; only the code that builds the link knows it. Default [`Protection::None`].
    #[must_use]
    pub const fn with_protection(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// States how often the dialing peer must ping while no call waits, so that the network does not forget the connection; the
    /// hub then sends no pings, and takes a peer for dead that was silent for two and a half times as long. Between 1 s and 10
    /// minutes. Default: as often as while a call waits, for links that cost nothing.
    #[must_use]
    pub fn with_idle_ping(mut self, every: Duration) -> Self {
        self.idle_ping = Some(every.clamp(Duration::from_secs(1), MAX_IDLE_PING));
        self
    }

    /// Marks the link of the hub's own services, the only one that may use the hub's name.
    pub(crate) const fn of_hub(mut self) -> Self {
        self.of_hub = true;
        self
    }

    /// Whether this is the link of the hub's own services.
    pub(crate) const fn is_of_hub(&self) -> bool {
        self.of_hub
    }

    /// Inserts a token into the hello, if the hello is the first sent frame. For dialing ends; see [`crate::token`].
    #[must_use]
    pub fn with_token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Calls `observer` with each received frame. For logs of listeners that wrap another.
    #[must_use]
    pub fn observe(mut self, observer: impl FnMut(&Bytes) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Sets the name that the dialing peer has on this link, in place of that of its builder: for a name that is read from a
    /// certificate, which may be absent when the peer starts.
    #[must_use]
    pub fn with_name(mut self, name: PeerId) -> Self {
        self.name = Some(name);
        self
    }

    #[cfg(test)]
    pub(crate) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the name of [`with_name`](Self::with_name).
    #[cfg(feature = "runtime")]
    pub(crate) const fn name(&self) -> Option<&PeerId> {
        self.name.as_ref()
    }

    /// Returns the interval of [`with_idle_ping`](Self::with_idle_ping).
    #[cfg(feature = "runtime")]
    pub(crate) const fn idle_ping(&self) -> Option<Duration> {
        self.idle_ping
    }

    /// Kind of the link.
    #[must_use]
    pub const fn kind(&self) -> LinkKind {
        self.kind
    }

    /// The other end's address, for logs.
    #[must_use]
    pub fn remote(&self) -> &str {
        &self.remote
    }

    /// What protects the frames.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// What the other end has proven about itself.
    #[must_use]
    pub const fn credentials(&self) -> &Credentials {
        &self.credentials
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("kind", &self.kind)
            .field("remote", &self.remote)
            .field("credentials", &self.credentials)
            .field("protection", &self.protection)
            .finish_non_exhaustive()
    }
}

impl Stream for Link {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut *self.io).poll_next(cx));
        if let (Some(Ok(frame)), Some(observer)) = (&next, &mut self.observer) {
            observer(frame);
        }
        Poll::Ready(next)
    }
}

impl FrameLink for Link {
    fn limit_receiving(&mut self, max_frame: usize, max_unfinished: usize) {
        self.io.limit_receiving(max_frame, max_unfinished);
    }

    fn unfinished(&self) -> usize {
        self.io.unfinished()
    }

    fn oldest_unfinished(&self) -> Option<Instant> {
        self.io.oldest_unfinished()
    }

    fn unwritten(&self) -> usize {
        self.io.unwritten()
    }

    #[cfg(feature = "tls")]
    fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        self.io.peer_chain()
    }
}

impl Sink<WireFrame> for Link {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut *self.io).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        let frame = match self.token.take() {
            None => frame,
            Some(token) => add_token(frame, token),
        };
        Pin::new(&mut *self.io).start_send(frame)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut *self.io).poll_close(cx)
    }
}

/// Adds the token to the frame, if it is a hello.
fn add_token(frame: WireFrame, token: Token) -> WireFrame {
    match decode(frame.head.clone(), MAX_HEADER * 2) {
        Ok(Frame { kind: Kind::Hello(mut hello), .. }) => {
            hello.token = Some(token);
            encode(Frame::link(Kind::Hello(hello)), frame.lane)
        }
        _ => frame,
    }
}

/// Accepts links. One slow handshake must not delay the next: `accept` returns before the handshake. Dropping the listener
/// closes its socket and ends no accepted link. The suite `conformance::run_listener` (feature `testing`) checks an
/// implementation.
#[async_trait::async_trait]
pub trait Listener: Send {
    /// Waits for the next connection, in the order in which connections arrive.
    ///
    /// The hub drops the future when it drains or closes: a dropped future must lose no connection, so take one only as the last
    /// step. The hub calls it again at once, from one task: bound what the listener holds, and wait after an error that would
    /// return at once again.
    ///
    /// # Errors
    /// Only if the listener itself has failed, for the hub then accepts nothing more from it. A failed handshake is the error of
    /// its [`Incoming`].
    async fn accept(&mut self) -> Result<Incoming, LinkError>;

    /// Kind of the links. Constant, and the same as that of the links.
    fn kind(&self) -> LinkKind;

    /// The address to dial, with the real port if 0 was requested. Constant and not empty.
    fn local_address(&self) -> String;
}

/// Dials one address. Each call makes one attempt and, if it succeeds, a new link. The suite `conformance::run_dialer` (feature
/// `testing`) checks an implementation.
#[async_trait::async_trait]
pub trait Dialer: Send + Sync {
    /// Establishes a link, up to the first frame.
    ///
    /// A peer drops the future after `dial_timeout` of its settings, or when another path is faster; the connection must end with
    /// it. Several calls may run at once and must not wait for each other. Called on the peer's runtime: do not block.
    ///
    /// # Errors
    /// If the attempt fails; the caller decides when to retry. [`LinkError::Address`] means that no later attempt can succeed
    /// without another configuration. The text names the address.
    async fn dial(&self) -> Result<Link, LinkError>;

    /// The address, for logs and [`PeerState`](crate::PeerState). Constant and not empty.
    fn address(&self) -> &str;

    /// A dialer of each address that the name of the host has now, for a [`HubSet`](crate::HubSet), which dials each. Empty if
    /// the dialer has only one address, as is the default.
    ///
    /// # Errors
    /// If the name cannot be resolved. The text names it.
    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        Ok(Vec::new())
    }
}

#[async_trait::async_trait]
impl<L: Listener + ?Sized> Listener for Box<L> {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        (**self).accept().await
    }

    fn kind(&self) -> LinkKind {
        (**self).kind()
    }

    fn local_address(&self) -> String {
        (**self).local_address()
    }
}

#[async_trait::async_trait]
impl<D: Dialer + ?Sized> Dialer for Box<D> {
    async fn dial(&self) -> Result<Link, LinkError> {
        (**self).dial().await
    }

    fn address(&self) -> &str {
        (**self).address()
    }

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        (**self).resolve().await
    }
}

#[async_trait::async_trait]
impl<D: Dialer + ?Sized> Dialer for Arc<D> {
    async fn dial(&self) -> Result<Link, LinkError> {
        (**self).dial().await
    }

    fn address(&self) -> &str {
        (**self).address()
    }

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        (**self).resolve().await
    }
}
