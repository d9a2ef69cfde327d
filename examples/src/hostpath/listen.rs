//! The driver's socket: its owner's only, a stale one replaced, a live one left alone; and serving on it.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::service::Service;

/// Most calls open at once on one connection.
const MAX_STREAMS: u32 = 256;

/// How long clients have to close their connections when no call runs any more.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why the driver cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody answers on the socket.
    #[error("{} is in use: another driver answers there; stop it, or choose another --endpoint", path.display())]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// Something else than a socket has the name.
    #[error("{} is there and no socket: it is left as it is; choose another --endpoint", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The server ended with an error.
    #[error("the server on {} failed: {source}", path.display())]
    Serve {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// A socket on which nobody is served yet. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    socket: BlockingListener,
}

impl Listener {
    /// Makes the socket. Call this before any thread is started that makes files: it changes the umask for a moment.
    ///
    /// # Errors
    /// If a live driver or something that is no socket has the path, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::NotASocket { path: path.to_owned() });
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                Ok(_) => return Err(ListenError::Live { path: path.to_owned() }),
                Err(error) => return Err(failed(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder).map_err(failed)?;
                }
            }
            Err(error) => return Err(failed(error)),
        }
        let before = umask(Mode::from_raw_mode(0o177));
        let socket = BlockingListener::bind(path);
        umask(before);
        let socket = socket.map_err(failed)?;
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { path: path.to_owned(), socket })
    }

    /// Serves until `stop` comes, then until every call has ended.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn serve(self, service: &Service, stop: impl Future<Output = ()>) -> Result<(), ListenError> {
        let failed = |source| ListenError::Bind { path: self.path.clone(), source };
        let listener = UnixListener::from_std(self.socket.try_clone().map_err(failed)?).map_err(failed)?;
        let (stopped, is_stopped) = oneshot::channel();
        let server = Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .add_routes(service.routes())
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                stop.await;
                // Nobody listens if the server has failed meanwhile.
                let _ = stopped.send(());
            });
        let all_ended = async {
            if is_stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            service.idle().await;
            // The last answers are on their way. A client that does not say goodbye must not hold up the end.
            tokio::time::sleep(FAREWELL).await;
        };
        let ended = tokio::select! {
            ended = server => ended,
            () = all_ended => Ok(()),
        };
        service.idle().await;
        ended.map_err(|source| ListenError::Serve { path: self.path.clone(), source })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be gone with its folder.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_a_live_one_and_a_file_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/csi.sock");
        let live = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path), Err(ListenError::Live { .. })));
        drop(live);
        assert!(!path.exists());

        drop(BlockingListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket without its process is what is tested");
        drop(Listener::bind(&path).unwrap());

        fs::write(&path, "x").unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }
}
