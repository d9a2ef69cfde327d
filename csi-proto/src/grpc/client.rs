//! A client that connects on demand and reconnects.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::connection::{Connection, Windows};
use super::error::{CallError, ConnectError};
use super::request::Request;
use super::response::Response;

/// A client of the server on a unix socket. All calls share one connection.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    windows: Windows,
    connect_timeout: Duration,
    #[cfg(feature = "testing")]
    connector: Option<super::Connector>,
    current: Mutex<Option<Connection>>,
    dialing: tokio::sync::Mutex<()>,
}

impl Client {
    /// Creates a client of the server at this socket, with a timeout for each connect. Connects on the first call.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, windows: Windows, connect_timeout: Duration) -> Self {
        let (current, dialing) = (Mutex::default(), tokio::sync::Mutex::default());
        Self {
            path: path.into(),
            windows,
            connect_timeout,
            #[cfg(feature = "testing")]
            connector: None,
            current,
            dialing,
        }
    }

    /// Uses connections of `connector` instead of the socket, whose path is only logged.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_connector(mut self, connector: super::Connector) -> Self {
        self.connector = Some(connector);
        self
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a call and waits for the response headers. A request that the server provably has not processed is sent once more
    /// on a new connection: gRPC's transparent retry.
    ///
    /// # Errors
    /// If there is no response; the error reports whether the request may have been sent.
    pub async fn send(&self, request: Request) -> Result<Response, CallError> {
        // What is seldom needed is boxed: every call would carry it in its future, which is moved several times.
        let connection = match self.current() {
            Some(connection) => connection,
            None => Box::pin(self.dial()).await?,
        };
        match connection.send(request.clone()).await {
            Err(CallError::Closed(_) | CallError::Refused(_)) => {
                Box::pin(async { self.dial().await?.send(request).await }).await
            }
            ended => ended,
        }
    }

    /// Returns the open connection, or a new one that concurrent callers share.
    async fn dial(&self) -> Result<Connection, ConnectError> {
        let _dialing = self.dialing.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let connection = self.open().await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        Ok(connection)
    }

    async fn open(&self) -> Result<Connection, ConnectError> {
        #[cfg(feature = "testing")]
        if let Some(connector) = &self.connector {
            return connector.open(&self.path, self.windows).await;
        }
        Connection::open(&self.path, self.windows, self.connect_timeout).await
    }

    fn current(&self) -> Option<Connection> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|connection| connection.is_closed());
        current.clone()
    }
}
