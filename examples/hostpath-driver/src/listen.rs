//! The driver's socket and server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_transport::advanced::{BoundSocket, bind_socket};
use edge_transport::link::LinkError;
use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::service::Service;
use edge_csi_common::state::{PathError, failed};

/// Maximum number of open calls on one connection.
const MAX_STREAMS: u32 = 256;

/// Time for clients to close their connections after the last call.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// An error of the socket or the server.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The folder of the socket cannot be created.
    #[error(transparent)]
    Folder(#[from] PathError),
    /// The socket cannot be created.
    #[error(transparent)]
    Bind(#[from] LinkError),
    /// The server ended with an error.
    #[error("the server on {} failed: {source}", path.display())]
    Serve {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: tonic::transport::Error,
    },
}

/// A bound socket. Its file is removed on drop.
#[derive(Debug)]
pub struct Listener(BoundSocket);

impl Listener {
    /// Creates the socket, and its folder if that is missing.
    ///
    /// # Errors
    /// Returns an error if a live driver, or a file that is not a socket, has the path, or if a system call fails.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime with I/O.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed("make", folder))?;
        }
        Ok(Self(bind_socket(path)?))
    }

    /// Serves until `stop` is sent or dropped, then until every call has ended.
    ///
    /// # Errors
    /// Returns an error if the socket fails.
    pub async fn serve(self, service: &Service, stop: oneshot::Receiver<()>) -> Result<(), ListenError> {
        // The file is removed when the rest of the socket is dropped, at the end.
        let (path, listener) = (self.0.path().to_owned(), self.0.listener);
        let stop = stop.map(drop).shared();
        let server = Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .add_routes(service.routes())
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.clone());
        let all_ended = async {
            stop.await;
            service.idle().await;
            // The last responses are being sent. A client that does not close must not delay the exit.
            tokio::time::sleep(CLOSE_TIMEOUT).await;
        };
        let ended = tokio::select! {
            ended = server => ended,
            () = all_ended => Ok(()),
        };
        service.idle().await;
        ended.map_err(|source| ListenError::Serve { path, source })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener as BlockingListener;

    use super::*;

    #[tokio::test]
    async fn replaces_only_stale_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/csi.sock");
        let live = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path), Err(ListenError::Bind(LinkError::InUse { .. }))));
        drop(live);
        assert!(!path.exists());

        drop(BlockingListener::bind(&path).unwrap());
        assert!(path.exists(), "the socket file exists without its process");
        drop(Listener::bind(&path).unwrap());

        fs::write(&path, "x").unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::Bind(LinkError::NotASocket { .. }))));
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }
}
