//! Connections to a server inside the process, for tests without sockets.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::DuplexStream;

use super::connection::{Connection, Windows};
use super::error::ConnectError;

type Connect = dyn Fn() -> io::Result<DuplexStream> + Send + Sync;

/// Connects to a server in this process. Cheap to clone.
#[derive(Clone)]
pub struct Connector(Arc<Connect>);

impl Connector {
    /// Uses one end of each connection from `connect`, whose errors are treated like those of a socket.
    pub fn new(connect: impl Fn() -> io::Result<DuplexStream> + Send + Sync + 'static) -> Self {
        Self(Arc::new(connect))
    }

    pub(super) async fn open(&self, path: &Path, windows: Windows) -> Result<Connection, ConnectError> {
        let socket = (self.0)().map_err(|source| ConnectError::new(path, source))?;
        Connection::begin(path, socket, None, windows).await
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}
