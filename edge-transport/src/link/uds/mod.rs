//! Links over unix sockets, for peers on one host.
//!
//! On the wire: as [`Link::framed`]. The other end's credentials are the user and group of its process, as reported by the
//! kernel.
//!
//! An idle link needs less than 2 KiB: its buffers exist only while they contain bytes.

pub(crate) mod bind;
mod socket;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use tokio::net::{UnixListener, UnixStream};

pub use self::bind::MAX_SOCKET_PATH;
use self::bind::{BoundSocket, SocketFile, bind_socket};
use self::socket::ReadSocket;
use super::framed::FramedStream;
use super::{
    Credentials, Dialer, Incoming, Limits, Link, LinkError, LinkKind, Listener, Protection, classify,
};

/// Accepts links on a unix socket; created by [`bind`].
#[derive(Debug)]
pub(super) struct UdsListener {
    listener: UnixListener,
    file: SocketFile,
    limits: Limits,
}

/// Listens on `path` like [`bind_socket`].
///
/// # Errors
/// [`LinkError`], which names the path and what to do.
///
/// # Panics
/// Outside of a tokio runtime with I/O.
pub(super) fn bind(path: impl AsRef<Path>, limits: Limits) -> Result<UdsListener, LinkError> {
    let BoundSocket { listener, file } = bind_socket(path)?;
    Ok(UdsListener { listener, file, limits })
}

#[async_trait::async_trait]
impl Listener for UdsListener {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        let accepted = classify(self.listener.accept().await, || self.local_address()).await?;
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => return Ok(Incoming::new(std::future::ready(Err(error)))),
        };
        let user = stream.peer_cred().ok();
        let (address, limits) = (self.local_address(), self.limits.clone());
        let accepted = Accepted { stream, first_byte: None, address, limits };
        let incoming = Incoming::with_first_byte(accepted, Accepted::poll_first_byte, Accepted::handshake);
        Ok(match user {
            Some(user) => incoming.from_user(user.uid()),
            None => incoming,
        })
    }

    fn kind(&self) -> LinkKind {
        LinkKind::UDS
    }

    fn local_address(&self) -> String {
        address_of(self.file.path())
    }
}

/// An accepted connection.
struct Accepted {
    stream: UnixStream,
    /// The first byte, once it was read: a unix socket may be reported as readable without one.
    first_byte: Option<u8>,
    address: String,
    limits: Limits,
}

impl Accepted {
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        while self.first_byte.is_none() {
            ready!(self.stream.poll_read_ready(cx)).map_err(|_| LinkError::Lost)?;
            let mut byte = [0];
            match self.stream.try_read(&mut byte) {
                Ok(1..) => self.first_byte = Some(byte[0]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return Poll::Ready(Err(LinkError::Lost)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn handshake(self) -> std::future::Ready<Result<Link, LinkError>> {
        std::future::ready(link(self.stream, self.first_byte, self.address, &self.limits))
    }
}

/// Dials a unix socket.
#[derive(Debug, Clone)]
pub(super) struct UdsDialer {
    path: PathBuf,
    address: String,
    limits: Limits,
}

impl UdsDialer {
    /// Creates a dialer of the socket at `path`.
    ///
    /// # Errors
    /// If the path is empty or longer than [`MAX_SOCKET_PATH`].
    pub(super) fn new(path: impl Into<PathBuf>, limits: Limits) -> Result<Self, LinkError> {
        let path = path.into();
        let address = address_of(&path);
        bind::check_path(&path)
            .map_err(|error| LinkError::Address { address: address.clone(), cause: error.to_string() })?;
        Ok(Self { path, address, limits })
    }
}

#[async_trait::async_trait]
impl Dialer for UdsDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let connect = tokio::time::timeout(self.limits.handshake_timeout, UnixStream::connect(&self.path));
        let stream = connect
            .await
            .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
            .map_err(|source| LinkError::Io { doing: format!("connect to {}", self.address), source })?;
        link(stream, None, self.address.clone(), &self.limits)
    }

    fn address(&self) -> &str {
        &self.address
    }
}

fn address_of(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// Wraps a socket, and the byte that was already read from it.
fn link(
    stream: UnixStream,
    first_byte: Option<u8>,
    remote: String,
    limits: &Limits,
) -> Result<Link, LinkError> {
    let other = stream.peer_cred().map_err(|source| LinkError::Io {
        doing: format!("read the peer credentials of {remote}"),
        source,
    })?;
    let credentials = Credentials::Process { uid: other.uid(), gid: other.gid() };
    let socket = ReadSocket::new(stream)
        .map_err(|source| LinkError::Io { doing: format!("register the link with {remote}"), source })?;
    Ok(Link::new(
        FramedStream::new(socket, limits.max_frame).with_input(first_byte),
        LinkKind::UDS,
        remote,
        credentials,
    )
    .with_protection(Protection::Private))
}
