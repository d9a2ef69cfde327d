//! Binds unix sockets with restricted access and safe replacement of stale files.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use tokio::net::{UnixListener, UnixSocket};

/// Longest path of a unix socket in bytes: `sun_path` of `sockaddr_un`, without the terminating NUL byte.
pub const MAX_SOCKET_PATH: usize = 107;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The path is too long for the kernel.
    #[error("socket path {} has {found} bytes; at most {MAX_SOCKET_PATH} are allowed: choose a shorter one", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Length of the path in bytes.
        found: usize,
    },
    /// The path is empty or contains a NUL byte.
    #[error("socket path {} is empty or contains a NUL byte; give a path such as /run/edge-csi/hub.sock", path.display())]
    PathUnusable {
        /// The path.
        path: PathBuf,
    },
    /// The directory does not exist.
    #[error("socket {}: directory {} does not exist: create it first", path.display(), directory.display())]
    NoDirectory {
        /// The path of the socket.
        path: PathBuf,
        /// The directory that is missing.
        directory: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another process listens on the path.
    #[error("socket {} is in use by a running process: stop it or choose another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {doing} socket {}: {source}", path.display())]
    Io {
        /// The failed operation.
        doing: &'static str,
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A listening socket and the guard that removes its file.
#[derive(Debug)]
#[non_exhaustive]
pub struct BoundSocket {
    /// Accepts connections.
    pub listener: UnixListener,
    /// Removes the file when dropped.
    pub file: SocketFile,
}

/// Removes a socket's file when dropped, unless another socket has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_current(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_current() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Listens on a unix socket that only this user (and root) can connect to.
///
/// A stale socket file, on which no process listens, is replaced; a live one is not. The file has mode 0600 before the first
/// connection: the socket does not listen until the mode is set.
///
/// # Errors
/// [`BindError`], which names the path and what to do.
///
/// # Panics
/// Outside of a tokio runtime with I/O.
pub fn bind_socket(path: impl AsRef<Path>) -> Result<BoundSocket, BindError> {
    let (socket, file) = bind_without_listen(path.as_ref())?;
    listen(socket, file)
}

/// Binds a socket without listening: to other processes it appears stale.
fn bind_without_listen(path: &Path) -> Result<(UnixSocket, SocketFile), BindError> {
    check_path(path)?;
    clear_stale(path)?;
    let failed = |doing| move |source| BindError::Io { doing, path: path.to_owned(), source };
    let socket = UnixSocket::new_stream().map_err(failed("create"))?;
    socket.bind(path).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { path: path.to_owned() },
        _ => BindError::Io { doing: "create", path: path.to_owned(), source },
    })?;
    let found = fs::symlink_metadata(path).map_err(failed("read metadata of"))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&found) };
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed("restrict"))?;
    Ok((socket, file))
}

fn listen(socket: UnixSocket, file: SocketFile) -> Result<BoundSocket, BindError> {
    let failed = |source| BindError::Io { doing: "listen on", path: file.path.clone(), source };
    let listener = socket.listen(BACKLOG).map_err(failed)?;
    // A process that started at the same time may have replaced the file as stale. Then this socket is unreachable.
    if !file.is_current() {
        return Err(BindError::InUse { path: file.path.clone() });
    }
    Ok(BoundSocket { listener, file })
}

/// Checks that the kernel accepts the path.
pub(super) fn check_path(path: &Path) -> Result<(), BindError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(BindError::PathUnusable { path: path.to_owned() });
    }
    if bytes.len() > MAX_SOCKET_PATH {
        return Err(BindError::PathTooLong { path: path.to_owned(), found: bytes.len() });
    }
    Ok(())
}

fn clear_stale(path: &Path) -> Result<(), BindError> {
    let failed = |doing| move |source| BindError::Io { doing, path: path.to_owned(), source };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check_directory(path),
        Err(error) => return Err(failed("read metadata of")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    let probe = UnixSocket::new_stream().map_err(failed("probe"))?;
    match probe.connect(path).now_or_never() {
        Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("replace stale"))
        }
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A listener with a full backlog is live, too.
        Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(failed("probe")(error)),
        _ => Err(BindError::InUse { path: path.to_owned() }),
    }
}

fn check_directory(path: &Path) -> Result<(), BindError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => return Ok(()),
    };
    match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(BindError::NoDirectory { path: path.to_owned(), directory: directory.to_owned() })
        }
        // Binding reports any other error of the directory.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn file_has_mode_0600_and_is_removed_with_the_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let bound = bind_socket(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(bound);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn keeps_a_file_that_another_socket_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = bind_socket(&path).unwrap();
        fs::rename(&path, directory.path().join("aside")).unwrap();
        let second = bind_socket(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn replaces_stale_sockets_and_rejects_live_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _live = bind_socket(&path).unwrap();
        assert!(matches!(bind_socket(&path), Err(BindError::InUse { .. })));
        drop(std::os::unix::net::UnixListener::bind(directory.path().join("stale")).unwrap());
        bind_socket(directory.path().join("stale")).unwrap();
    }

    #[tokio::test]
    async fn detects_replacement_by_a_concurrent_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (socket, file) = bind_without_listen(&path).unwrap();
        let other = bind_socket(&path).unwrap();
        assert!(matches!(listen(socket, file), Err(BindError::InUse { .. })));
        assert!(matches!(bind_socket(&path), Err(BindError::InUse { .. })), "the other socket is live");
        drop(other);
    }

    #[tokio::test]
    async fn never_removes_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(bind_socket(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn rejects_bad_paths_before_binding() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(103)));
        let error = bind_socket(&long).unwrap_err().to_string();
        assert!(error.contains("108 bytes") && error.contains("107"), "{error}");
        assert!(matches!(bind_socket(""), Err(BindError::PathUnusable { .. })));
        assert!(matches!(bind_socket("a\0b"), Err(BindError::PathUnusable { .. })));
        let error = bind_socket("/nowhere/at/all/s").unwrap_err();
        assert!(
            matches!(&error, BindError::NoDirectory { directory, .. } if directory == Path::new("/nowhere/at/all")),
            "{error}"
        );
    }

    #[tokio::test]
    async fn names_the_path_that_cannot_be_created() {
        // Not even root may create files in /proc.
        let error = bind_socket("/proc/edge.sock").unwrap_err();
        assert!(matches!(&error, BindError::Io { doing: "create", .. }), "{error}");
        assert!(error.to_string().contains("cannot create socket /proc/edge.sock"), "{error}");
    }
}
