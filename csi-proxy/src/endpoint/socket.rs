//! Opening the socket.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::address::SocketAddress;

/// Connections that wait for `accept`.
const BACKLOG: i32 = 128;

/// How long others may take to open a socket in the same directory.
const TURN: Duration = Duration::from_secs(10);

/// A socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Somebody listens there.
    #[error("{address} is in use: another process listens on it; stop that one or choose another path")]
    Live {
        /// The socket.
        address: SocketAddress,
    },
    /// Something else than a socket is there. It is left alone.
    #[error("{address} is not a socket but another kind of file; remove it or choose another path")]
    NotASocket {
        /// The path.
        address: SocketAddress,
    },
    /// The operating system refused.
    #[error("cannot {what} {address}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The socket.
        address: SocketAddress,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Which file a path is, to tell our socket from one that came later.
pub(super) fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

pub(super) async fn listen(address: &SocketAddress) -> Result<UnixListener, ServeError> {
    if address.path().extension().is_none_or(|extension| extension != "sock") {
        tracing::warn!(%address, "the CSI spec wants a socket whose name ends in .sock");
    }
    let failed = |what| move |source: io::Error| ServeError::Io { what, address: address.clone(), source };
    let _turn = turn(address.path()).await.map_err(failed("wait for its directory's lock to open"))?;
    clear(address).await?;
    let listener = open(address.path()).map_err(failed("listen on"))?;
    UnixListener::from_std(listener).map_err(failed("register"))
}

/// The right to open a socket in the directory, until this is dropped. Of two that find the same stale socket, the second
/// would else remove what the first has just opened.
///
/// A directory that cannot be locked, because it may not be read or its filesystem has no locks, is no obstacle.
async fn turn(socket: &Path) -> io::Result<Option<File>> {
    let Some(Ok(directory)) = socket.parent().map(File::open) else { return Ok(None) };
    let locked =
        spawn_blocking(move || flock(&directory, FlockOperation::LockExclusive).ok().map(|()| directory));
    match timeout(TURN, locked).await {
        Ok(locked) => Ok(locked.unwrap_or_default()),
        Err(_) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("held by another process for {TURN:?}")))
        }
    }
}

/// Removes what a dead process left.
async fn clear(address: &SocketAddress) -> Result<(), ServeError> {
    let path = address.path();
    let failed = |what| move |source: io::Error| ServeError::Io { what, address: address.clone(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ServeError::NotASocket { address: address.clone() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(%address, "replacing a socket that nobody listens on");
            std::fs::remove_file(path).map_err(failed("remove the stale"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or the queue is full, or not allowed: somebody is there.
        Ok(_) | Err(_) => Err(ServeError::Live { address: address.clone() }),
    }
}

/// Binds with mode 0600 from the first moment: the file takes the mode of the unbound socket, so there is neither a window
/// nor a need for the umask, which belongs to the whole process.
fn open(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
