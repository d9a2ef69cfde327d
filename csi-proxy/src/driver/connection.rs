//! One HTTP/2 connection to a driver, made when it is needed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use h2::client::{Builder, SendRequest};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::DriverSettings;
use super::answer::{Answer, Failure, failure_of};
use crate::address::SocketAddress;
use crate::call::Call;
use crate::fault::Fault;
use crate::grpc::fields::{APPLICATION_GRPC, GRPC_TIMEOUT, write_metadata};
use crate::grpc::io::QuietSocket;
use crate::grpc::message::Framed;
use crate::grpc::{
    CONNECTION_WINDOW, FRAME, HEADER_LIST, SLOW_CONNECTION_WINDOW, SLOW_STREAM_WINDOW, STREAM_WINDOW,
    timeout as grpc_timeout,
};

/// The connection to one driver, if there is one, and how to make the next.
#[derive(Debug)]
pub(super) struct Connections {
    name: DriverName,
    address: SocketAddress,
    settings: DriverSettings,
    windows: Windows,
    authority: Authority,
    current: Mutex<Option<Connection>>,
    dialing: tokio::sync::Mutex<()>,
}

/// What the driver may send before it is read, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    stream: u32,
    connection: u32,
}

impl Windows {
    /// For answers that are read at once.
    pub(super) const AT_ONCE: Self = Self { stream: STREAM_WINDOW, connection: CONNECTION_WINDOW };
    /// For answers that are read as fast as their callers read.
    pub(super) const AS_CALLERS_READ: Self =
        Self { stream: SLOW_STREAM_WINDOW, connection: SLOW_CONNECTION_WINDOW };
}

#[derive(Debug, Clone)]
struct Connection {
    sender: SendRequest<Framed>,
    ended: Arc<AtomicBool>,
}

impl Connections {
    pub(super) fn new(
        name: DriverName,
        address: SocketAddress,
        settings: DriverSettings,
        windows: Windows,
    ) -> Self {
        let (current, dialing) = (Mutex::default(), tokio::sync::Mutex::default());
        // Every CSI client says so; some drivers refuse a socket path here.
        let authority = Authority::from_static("localhost");
        Self { name, address, settings, windows, authority, current, dialing }
    }

    pub(super) fn name(&self) -> &DriverName {
        &self.name
    }

    pub(super) fn address(&self) -> &SocketAddress {
        &self.address
    }

    /// Sends a call and waits for the head of its answer.
    ///
    /// A call that provably never reached the driver, because the connection turned out to be over, is sent once more.
    pub(super) async fn call(&self, call: Call, ceiling: Duration) -> Result<Answer, Fault> {
        match self.attempt(self.request(&call, ceiling)?, &call.body).await {
            Err(Failure::NotSent(_)) => match self.attempt(self.request(&call, ceiling)?, &call.body).await {
                Err(Failure::NotSent(fault) | Failure::Uncertain(fault)) => Err(fault),
                Ok(answer) => Ok(answer),
            },
            Err(Failure::Uncertain(fault)) => Err(fault),
            Ok(answer) => Ok(answer),
        }
    }

    async fn attempt(&self, request: Request<()>, body: &Bytes) -> Result<Answer, Failure> {
        let Connection { sender, ended } = self.connection().await.map_err(Failure::Uncertain)?;
        let unsent = |error: h2::Error| {
            // Nothing was written for this call, whatever the reason.
            ended.store(true, Ordering::Release);
            Failure::NotSent(self.gone(&error))
        };
        let mut sender = sender.ready().await.map_err(unsent)?;
        let (response, mut stream) = sender.send_request(request, false).map_err(unsent)?;
        // An error here is the stream's, and the response below reports it in full.
        let _ = stream.send_data(Framed::new(body.clone()), true);
        let response = response.await.map_err(|error| {
            if error.is_go_away() || error.is_io() {
                ended.store(true, Ordering::Release);
            }
            failure_of(&self.name, &error)
        })?;
        Answer::begin(self.name.clone(), response, self.settings.max_reply).map_err(Failure::Uncertain)
    }

    async fn connection(&self) -> Result<Connection, Fault> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let _dialing = self.dialing.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let connection = self.dial().await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        Ok(connection)
    }

    fn current(&self) -> Option<Connection> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|connection| connection.ended.load(Ordering::Acquire));
        current.clone()
    }

    async fn dial(&self) -> Result<Connection, Fault> {
        let refused = |reason: String| Fault::DriverRefused { driver: self.name.clone(), reason };
        let socket = match timeout(self.settings.connect, UnixStream::connect(self.address.path())).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                let path = self.address.path().display().to_string();
                return Err(Fault::DriverSocketMissing { driver: self.name.clone(), path });
            }
            Ok(Err(error)) => return Err(refused(error.to_string())),
            Err(_) => return Err(refused(format!("not accepted within {:?}", self.settings.connect))),
        };
        let socket = QuietSocket::new(socket).map_err(|error| refused(error.to_string()))?;
        let (sender, connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(self.windows.stream)
            .initial_connection_window_size(self.windows.connection)
            .max_frame_size(FRAME)
            .max_header_list_size(HEADER_LIST)
            .handshake(socket)
            .await
            .map_err(|error| self.gone(&error))?;
        let ended = Arc::new(AtomicBool::new(false));
        let (driver, over) = (self.name.clone(), Arc::clone(&ended));
        tokio::spawn(async move {
            let end = connection.await;
            over.store(true, Ordering::Release);
            tracing::debug!(%driver, ?end, "connection to the driver ended");
        });
        tracing::debug!(driver = %self.name, address = %self.address, "connected to the driver");
        Ok(Connection { sender, ended })
    }

    fn gone(&self, error: &h2::Error) -> Fault {
        Fault::DriverGone { driver: self.name.clone(), reason: error.to_string() }
    }

    /// The head of the call.
    fn request(&self, call: &Call, ceiling: Duration) -> Result<Request<()>, Fault> {
        let mut uri = Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.authority.clone());
        let path = PathAndQuery::try_from(call.method.as_str());
        uri.path_and_query = Some(path.map_err(|error| unusable(call, error))?);
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::from_parts(uri).map_err(|error| unusable(call, error))?;
        *request.headers_mut() = request_headers(call, ceiling);
        Ok(request)
    }
}

fn unusable(call: &Call, error: impl std::fmt::Display) -> Fault {
    Fault::Protocol { reason: format!("method {}: {error}", call.method) }
}

fn request_headers(call: &Call, ceiling: Duration) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
    if let Ok(value) = HeaderValue::from_str(&grpc_timeout::format(ceiling)) {
        headers.insert(GRPC_TIMEOUT, value);
    }
    write_metadata(&call.metadata, &mut headers);
    headers
}
