//! Creates the listening socket.

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

/// The backlog of connections that wait for `accept`.
const BACKLOG: i32 = 128;

/// How long to wait for another process that creates a socket in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another process listens on the socket.
    #[error("{address} is in use: another process listens on it; stop that process or choose another path")]
    Live {
        /// The socket.
        address: SocketAddress,
    },
    /// The path is not a socket. The file is left unchanged.
    #[error("{address} is not a socket but another kind of file; remove it or choose another path")]
    NotASocket {
        /// The path.
        address: SocketAddress,
    },
    /// The operating system reported an error.
    #[error("cannot {what} {address}: {source}")]
    Io {
        /// The failed action.
        what: &'static str,
        /// The socket.
        address: SocketAddress,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The device and inode of a path, to distinguish our socket from a later one.
pub(super) fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

pub(super) async fn listen(address: &SocketAddress) -> Result<UnixListener, ServeError> {
    if address.path().extension().is_none_or(|extension| extension != "sock") {
        tracing::warn!(%address, "socket name does not end in .sock, as the CSI spec requires");
    }
    let failed = |what| move |source: io::Error| ServeError::Io { what, address: address.clone(), source };
    let _guard = lock_directory(address.path()).await.map_err(failed("lock the directory of"))?;
    remove_stale(address).await?;
    let listener = bind(address.path()).map_err(failed("listen on"))?;
    UnixListener::from_std(listener).map_err(failed("register"))
}

/// Locks the directory until the guard is dropped. Of two processes that find the same stale socket, the second would
/// otherwise remove the socket that the first has just created.
///
/// A directory that cannot be locked, because it is not readable or its filesystem has no locks, is used without a
/// lock.
async fn lock_directory(socket: &Path) -> io::Result<Option<File>> {
    let Some(Ok(directory)) = socket.parent().map(File::open) else { return Ok(None) };
    let locked =
        spawn_blocking(move || flock(&directory, FlockOperation::LockExclusive).ok().map(|()| directory));
    match timeout(LOCK_TIMEOUT, locked).await {
        Ok(locked) => Ok(locked.unwrap_or_default()),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("held by another process for {LOCK_TIMEOUT:?}"),
        )),
    }
}

/// Removes the socket of a dead process.
async fn remove_stale(address: &SocketAddress) -> Result<(), ServeError> {
    let path = address.path();
    let failed = |what| move |source: io::Error| ServeError::Io { what, address: address.clone(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("inspect")(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ServeError::NotASocket { address: address.clone() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(%address, "replacing stale socket");
            std::fs::remove_file(path).map_err(failed("remove the stale"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or the backlog is full, or permission denied: a listener exists.
        Ok(_) | Err(_) => Err(ServeError::Live { address: address.clone() }),
    }
}

/// Binds with mode 0600 from the start: the file takes the mode of the unbound socket, so there is neither a window
/// nor a need for the umask, which is process-wide.
fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
