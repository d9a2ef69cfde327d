//! Binds unix sockets with restricted access and safe replacement of stale files.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use tokio::net::{UnixListener, UnixSocket};

use crate::link::LinkError;

/// Longest path of a unix socket in bytes: `sun_path` of `sockaddr_un`, without the terminating NUL byte.
pub const MAX_SOCKET_PATH: usize = 107;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A listening socket and the guard that removes its file.
#[derive(Debug)]
#[non_exhaustive]
pub struct BoundSocket {
    /// Accepts connections.
    pub listener: UnixListener,
    /// Removes the file when dropped.
    pub(super) file: SocketFile,
}

impl BoundSocket {
    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Removes a socket's file when dropped, unless another socket has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
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
/// [`LinkError`], which names the path and what to do.
///
/// # Panics
/// Outside of a tokio runtime with I/O.
pub fn bind_socket(path: impl AsRef<Path>) -> Result<BoundSocket, LinkError> {
    let (socket, file) = bind_without_listen(path.as_ref())?;
    listen(socket, file)
}

/// Binds a socket without listening: to other processes it appears stale.
fn bind_without_listen(path: &Path) -> Result<(UnixSocket, SocketFile), LinkError> {
    check_path(path)?;
    clear_stale(path)?;
    let failed = |doing| move |source| failure(doing, path, source);
    let socket = UnixSocket::new_stream().map_err(failed("create"))?;
    socket.bind(path).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => LinkError::InUse { path: path.to_owned() },
        _ => failure("create", path, source),
    })?;
    let found = fs::symlink_metadata(path).map_err(failed("read metadata of"))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&found) };
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed("restrict"))?;
    Ok((socket, file))
}

fn listen(socket: UnixSocket, file: SocketFile) -> Result<BoundSocket, LinkError> {
    let listener = socket.listen(BACKLOG).map_err(|source| failure("listen on", &file.path, source))?;
    // A process that started at the same time may have replaced the file as stale. Then this socket is unreachable.
    if !file.is_current() {
        return Err(LinkError::InUse { path: file.path.clone() });
    }
    Ok(BoundSocket { listener, file })
}

fn failure(doing: &str, path: &Path, source: io::Error) -> LinkError {
    LinkError::Io { doing: format!("cannot {doing} socket {}", path.display()), source }
}

fn unusable(path: &Path, cause: String) -> LinkError {
    LinkError::SocketPath { path: path.to_owned(), cause }
}

/// Checks that the kernel accepts the path.
pub(super) fn check_path(path: &Path) -> Result<(), LinkError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        let cause = "is empty or contains a NUL byte; give a path such as /run/edge-csi/hub.sock";
        return Err(unusable(path, format!("socket path {} {cause}", path.display())));
    }
    if bytes.len() > MAX_SOCKET_PATH {
        let (found, shown) = (bytes.len(), path.display());
        let cause = format!(
            "socket path {shown} has {found} bytes; at most {MAX_SOCKET_PATH} are allowed: choose a shorter one"
        );
        return Err(unusable(path, cause));
    }
    Ok(())
}

fn clear_stale(path: &Path) -> Result<(), LinkError> {
    let failed = |doing| move |source| failure(doing, path, source);
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check_directory(path),
        Err(error) => return Err(failed("read metadata of")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(LinkError::NotASocket { path: path.to_owned() });
    }
    let probe = UnixSocket::new_stream().map_err(failed("probe"))?;
    match probe.connect(path).now_or_never() {
        Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("replace stale"))
        }
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A listener with a full backlog is live, too.
        Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(failed("probe")(error)),
        _ => Err(LinkError::InUse { path: path.to_owned() }),
    }
}

fn check_directory(path: &Path) -> Result<(), LinkError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => return Ok(()),
    };
    match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (shown, directory) = (path.display(), directory.display());
            let cause = format!("socket {shown}: directory {directory} does not exist: create it first");
            Err(unusable(path, cause))
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
        assert!(matches!(bind_socket(&path), Err(LinkError::InUse { .. })));
        drop(std::os::unix::net::UnixListener::bind(directory.path().join("stale")).unwrap());
        bind_socket(directory.path().join("stale")).unwrap();
    }

    #[tokio::test]
    async fn detects_replacement_by_a_concurrent_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (socket, file) = bind_without_listen(&path).unwrap();
        let other = bind_socket(&path).unwrap();
        assert!(matches!(listen(socket, file), Err(LinkError::InUse { .. })));
        assert!(matches!(bind_socket(&path), Err(LinkError::InUse { .. })), "the other socket is live");
        drop(other);
    }

    #[tokio::test]
    async fn never_removes_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(bind_socket(&path), Err(LinkError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn rejects_bad_paths_before_binding() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(103)));
        let error = bind_socket(&long).unwrap_err().to_string();
        assert!(error.contains("108 bytes") && error.contains("107"), "{error}");
        for unusable in ["", "a\0b"] {
            let error = bind_socket(unusable).unwrap_err().to_string();
            assert!(error.contains("is empty or contains a NUL byte"), "{error}");
        }
        let error = bind_socket("/nowhere/at/all/s").unwrap_err();
        assert!(
            matches!(&error, LinkError::SocketPath { cause, .. } if cause.contains("directory /nowhere/at/all does not exist")),
            "{error}"
        );
    }

    #[tokio::test]
    async fn names_the_path_that_cannot_be_created() {
        // Not even root may create files in /proc.
        let error = bind_socket("/proc/edge.sock").unwrap_err();
        assert!(matches!(&error, LinkError::Io { .. }), "{error}");
        assert!(error.to_string().contains("cannot create socket /proc/edge.sock"), "{error}");
    }
}
