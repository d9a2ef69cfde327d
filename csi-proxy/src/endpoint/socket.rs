//! Creates the listening socket.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;
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
fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// A listening socket, and the file that it has created.
pub(super) struct Bound {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// The file of a socket.
#[derive(Debug)]
pub(super) struct SocketFile {
    address: SocketAddress,
    id: Option<(u64, u64)>,
}

impl SocketFile {
    /// Removes the file, unless another process has replaced it. Blocks on file I/O.
    pub(super) fn remove(&self) {
        let path = self.address.path();
        if self.id.is_some() && self.id == file_id(path) {
            // It may be removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(super) async fn listen(address: &SocketAddress) -> Result<Bound, ServeError> {
    if address.path().extension().is_none_or(|extension| extension != "sock") {
        tracing::warn!(%address, "socket name does not end in .sock, as the CSI spec requires");
    }
    let failed = |what| move |source: io::Error| ServeError::Io { what, address: address.clone(), source };
    let guard = lock_directory(address.path()).await.map_err(failed("lock the directory of"))?;
    let own = address.clone();
    // A file system that hangs blocks only a thread of the blocking pool.
    let created = spawn_blocking(move || {
        let _guard = guard;
        create(own)
    });
    let (listener, file) =
        created.await.unwrap_or_else(|error| Err(failed("listen on")(io::Error::other(error))))?;
    let listener = UnixListener::from_std(listener).map_err(failed("register"))?;
    Ok(Bound { listener, file })
}

/// Creates the socket in place of one without a listener. Blocks on file I/O.
fn create(address: SocketAddress) -> Result<(StdListener, SocketFile), ServeError> {
    remove_stale(&address)?;
    match bind(address.path()) {
        Ok(listener) => {
            let id = file_id(address.path());
            Ok((listener, SocketFile { address, id }))
        }
        Err(source) => Err(ServeError::Io { what: "listen on", address, source }),
    }
}

/// Locks the directory until the guard is dropped. Of two processes that find the same stale socket, the second would
/// otherwise remove the socket that the first has just created.
///
/// A directory that cannot be locked, because it is not readable or its filesystem has no locks, is used without a
/// lock.
async fn lock_directory(socket: &Path) -> io::Result<Option<File>> {
    let Some(directory) = socket.parent().map(Path::to_owned) else { return Ok(None) };
    let locked = spawn_blocking(move || {
        let directory = File::open(directory).ok()?;
        flock(&directory, FlockOperation::LockExclusive).ok().map(|()| directory)
    });
    match timeout(LOCK_TIMEOUT, locked).await {
        Ok(locked) => Ok(locked.unwrap_or_default()),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("held by another process for {LOCK_TIMEOUT:?}"),
        )),
    }
}

/// Removes the socket of a dead process. Blocks on file I/O.
fn remove_stale(address: &SocketAddress) -> Result<(), ServeError> {
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
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(%address, "replacing stale socket");
            std::fs::remove_file(path).map_err(failed("remove the stale"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or the backlog is full, or permission denied: a listener exists.
        Ok(()) | Err(_) => Err(ServeError::Live { address: address.clone() }),
    }
}

/// Connects without a wait for a place in the backlog, which is an error.
fn connect(path: &Path) -> io::Result<()> {
    let socket = socket()?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Binds with mode 0600 from the start: the file takes the mode of the unbound socket, so there is neither a window
/// nor a need for the umask, which is process-wide.
fn bind(path: &Path) -> io::Result<StdListener> {
    let socket = socket()?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
