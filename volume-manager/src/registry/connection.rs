//! One gRPC call on a connection of its own.
//!
//! A registrar is called twice in its life, so there is no pool, no reconnect and no background task: the connection
//! is driven by the future that makes the call, and ends with it.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::pluginregistration::v1::registration_client::RegistrationClient;
use csi_proto::pluginregistration::v1::{InfoRequest, PluginInfo, RegistrationStatus};
use h2::client::SendRequest;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::GrpcService;
use tonic::codegen::{BoxFuture, StdError};

/// How long a dial may take.
const DIAL: Duration = Duration::from_secs(10);

/// How long GetInfo may take.
const GET_INFO: Duration = Duration::from_secs(1);

/// How long NotifyRegistrationStatus may take.
const NOTIFY: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// The authority that the Kubernetes components send over unix sockets.
const ORIGIN: &str = "http://localhost";

/// Why a registrar gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Nobody could be reached.
    #[error("dialling {}: {source}", path.display())]
    Dial { path: PathBuf, source: io::Error },
    /// Reached, but not in HTTP/2.
    #[error("the connection failed: {0}")]
    Connection(#[from] h2::Error),
    /// Not in time.
    #[error("{what} took longer than {} s", bound.as_secs())]
    Late { what: &'static str, bound: Duration },
    /// Answered with an error.
    #[error("{call} answered {:?}: {}", status.code(), status.message())]
    Status { call: &'static str, status: Box<tonic::Status> },
}

/// Asks the registrar on a socket for its driver.
pub(super) async fn get_info(path: &Path) -> Result<PluginInfo, CallError> {
    const CALL: &str = "GetInfo";
    call(path, CALL, GET_INFO, async |mut client| client.get_info(InfoRequest {}).await).await
}

/// Tells the registrar on a socket what became of its driver.
pub(super) async fn notify(path: &Path, status: RegistrationStatus) -> Result<(), CallError> {
    const CALL: &str = "NotifyRegistrationStatus";
    call(path, CALL, NOTIFY, async |mut client| client.notify_registration_status(status).await).await?;
    Ok(())
}

async fn call<T>(
    path: &Path,
    what: &'static str,
    bound: Duration,
    method: impl AsyncFnOnce(RegistrationClient<Connection>) -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, CallError> {
    let dial = |source| CallError::Dial { path: path.to_owned(), source };
    let stream = timeout(DIAL, UnixStream::connect(path))
        .await
        .map_err(|_| CallError::Late { what: "the dial", bound: DIAL })?
        .map_err(dial)?;
    timeout(bound, async {
        let (requests, connection) = h2::client::handshake(stream).await?;
        let client = RegistrationClient::with_origin(Connection { requests }, http::Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_ANSWER);
        let (mut answer, mut connection) = (pin!(method(client)), pin!(connection));
        let mut open = true;
        let answer = loop {
            // The answer first: a server may close right behind it. A call whose connection ended ends by itself.
            tokio::select! {
                biased;
                answer = &mut answer => break answer,
                _ = &mut connection, if open => open = false,
            }
        };
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(CallError::Status { call: what, status: Box::new(status) }),
        }
    })
    .await
    .map_err(|_| CallError::Late { what, bound })?
}

/// An HTTP/2 connection as tonic wants it. Requests are unary, so their bodies are sent whole.
struct Connection {
    requests: SendRequest<Bytes>,
}

impl GrpcService<tonic::body::Body> for Connection {
    type ResponseBody = Answer;
    type Error = StdError;
    type Future = BoxFuture<http::Response<Answer>, StdError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.requests.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let mut requests = self.requests.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (response, mut upload) = requests.send_request(http::Request::from_parts(head, ()), false)?;
            upload.send_data(body, true)?;
            Ok(response.await?.map(|stream| Answer { stream, data_ended: false }))
        })
    }
}

/// The body of a response, trailers included.
struct Answer {
    stream: h2::RecvStream,
    data_ended: bool,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.stream.flow_control().release_capacity(data.len())?;
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}
