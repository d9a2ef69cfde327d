//! One HTTP/2 connection to a server on a unix socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use h2::client::{Builder, SendRequest};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::error::{CallError, ConnectError, UnaryError};
use super::message::Framed;
use super::request::Request;
use super::response::Response;
use super::socket::QuietSocket;
use super::{MAX_FRAME, MAX_HEADERS};
use crate::Code;

/// Flow control windows: unread bytes that the other end may send.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Windows {
    /// Bytes on one stream.
    pub stream: u32,
    /// Bytes on all streams of a connection together.
    pub connection: u32,
}

impl Windows {
    /// Windows for unary messages, which are read as they arrive: 1 MiB per stream, 4 MiB per connection.
    pub const UNARY: Self = Self { stream: 1024 * 1024, connection: 4 * 1024 * 1024 };

    /// Windows for streams, which are read only as fast as their callers read: 256 KiB per stream, 16 MiB per
    /// connection. Many stalled streams do not block the others.
    pub const STREAMING: Self = Self { stream: 256 * 1024, connection: 16 * 1024 * 1024 };
}

/// A connection to a server. Clones share the connection, which closes when all clones and responses are dropped.
#[derive(Debug, Clone)]
pub struct Connection {
    requests: SendRequest<Framed>,
    shared: Arc<Shared>,
}

/// Keeps the connection's task running until dropped.
#[derive(Debug)]
pub(super) struct Shared {
    closed: watch::Sender<bool>,
    task: AbortHandle,
    peer: Option<i32>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// Connects to a socket with a timeout.
    ///
    /// # Errors
    /// If the socket is missing, has no listener or denies access, or on timeout.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its I/O and time drivers enabled.
    pub async fn open(path: &Path, windows: Windows, bound: Duration) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::new(path, source);
        let dial = async {
            let socket = UnixStream::connect(path).await.map_err(failed)?;
            let peer = socket.peer_cred().ok().and_then(|peer| peer.pid());
            let socket = QuietSocket::new(socket).map_err(failed)?;
            Self::begin(path, socket, peer, windows).await
        };
        let late = |_| ConnectError::Late { path: path.to_owned(), bound };
        timeout(bound, dial).await.map_err(late)?
    }

    /// Starts HTTP/2 on a connected socket. The path is used in logs and errors.
    pub(super) async fn begin<T>(
        path: &Path,
        socket: T,
        peer: Option<i32>,
        windows: Windows,
    ) -> Result<Self, ConnectError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(windows.stream)
            .initial_connection_window_size(windows.connection)
            .max_frame_size(MAX_FRAME)
            .max_header_list_size(MAX_HEADERS)
            .handshake(socket)
            .await;
        let (requests, connection) =
            handshake.map_err(|source| ConnectError::Http2 { path: path.to_owned(), source })?;
        let closed = watch::Sender::new(false);
        let closing = closed.clone();
        let socket = path.to_owned();
        let task = tokio::spawn(async move {
            // The connection's calls report their own errors.
            let end = connection.await;
            closing.send_replace(true);
            tracing::debug!(socket = %socket.display(), ?end, "gRPC connection ended");
        });
        tracing::debug!(socket = %path.display(), "gRPC connection opened");
        let shared = Shared { closed, task: task.abort_handle(), peer };
        Ok(Self { requests, shared: Arc::new(shared) })
    }

    /// The id of the process that was listening at the time of the connect, as the kernel reports it.
    #[must_use]
    pub fn peer_process(&self) -> Option<i32> {
        self.shared.peer
    }

    /// Whether the connection accepts no more calls. Open calls may still succeed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Waits until the connection accepts no more calls. Cancel safe.
    pub async fn closed(&self) {
        // Cannot fail: `self` owns the sender.
        let _ = self.shared.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Sends a call and waits for the response headers. Dropping the future cancels the call. Calls above the server's limit of
    /// concurrent streams wait.
    ///
    /// # Errors
    /// If there is no response; the error reports whether the request may have been sent.
    pub async fn send(&self, request: Request) -> Result<Response, CallError> {
        let Request { head, body, max_message } = request;
        let unsent = |source| {
            // Nothing was written for this call, whatever the reason.
            self.shared.closed.send_replace(true);
            CallError::Closed(source)
        };
        let mut requests = self.requests.clone().ready().await.map_err(unsent)?;
        let (response, mut upload) = requests.send_request(head, false).map_err(unsent)?;
        // The response below reports an error of the stream in full.
        let _ = upload.send_data(Framed::new(body), true);
        let response = response.await.map_err(|error| {
            if error.is_go_away() || error.is_io() {
                self.shared.closed.send_replace(true);
            }
            CallError::on_stream(error)
        })?;
        Response::begin(response, max_message, Arc::clone(&self.shared))
    }

    /// Sends a unary call with typed messages. `time` is sent as the server's timeout; the caller must limit its own
    /// wait. The response may have up to `max_message` bytes.
    ///
    /// # Errors
    /// If the call fails or the server returns an error.
    pub async fn unary<Q: Message, A: Message + Default>(
        &self,
        path: &str,
        request: Q,
        time: Duration,
        max_message: usize,
    ) -> Result<A, UnaryError> {
        let body = request.encode_to_vec();
        // The message may contain secrets, so it is dropped as soon as it is encoded.
        drop(request);
        let request = Request::new(path, body.into(), max_message)?.with_timeout(time);
        let (message, status) = self.send(request).await?.whole().await?;
        match message {
            Some(message) if status.code == Code::OK => Ok(A::decode(message)?),
            _ => Err(UnaryError::Status(status)),
        }
    }
}
