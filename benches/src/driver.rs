//! A driver on a unix socket that answers every unary call immediately with the same bytes: the baseline of all ratios. Only
//! calls for volumes with a certain id prefix hang.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::Either;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use crate::bytes_codec::BytesCodec;
use crate::payload::{HANG_PREFIX, RELEASE_PREFIX, volume_starts_with};

/// Answers every method of `csi.v1.Controller` with the same message.
#[derive(Debug, Clone)]
pub struct FixedAnswer {
    reply: Bytes,
    release: Arc<Notify>,
}

impl FixedAnswer {
    /// Creates a service that answers with this message.
    #[must_use]
    pub fn new(reply: Bytes) -> Self {
        Self { reply, release: Arc::default() }
    }
}

impl NamedService for FixedAnswer {
    const NAME: &'static str = "csi.v1.Controller";
}

impl UnaryService<Bytes> for FixedAnswer {
    type Response = Bytes;
    type Future = Either<Ready<Result<Response<Bytes>, Status>>, BoxFuture<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (request, reply) = (request.into_inner(), Response::new(self.reply.clone()));
        if volume_starts_with(&request, HANG_PREFIX) {
            let release = Arc::clone(&self.release);
            return Either::Right(Box::pin(async move {
                release.notified().await;
                Ok(reply)
            }));
        }
        if volume_starts_with(&request, RELEASE_PREFIX) {
            self.release.notify_waiters();
        }
        Either::Left(ready(Ok(reply)))
    }
}

impl Service<http::Request<Body>> for FixedAnswer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.clone();
        Box::pin(async move { Ok(Grpc::new(BytesCodec).unary(answer, request).await) })
    }
}

/// Serves [`FixedAnswer`] on a unix socket until the future is dropped. Replaces an existing file.
///
/// # Errors
/// Returns an error if the socket cannot be bound.
pub async fn serve(socket: &Path, reply: Bytes) -> std::io::Result<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    tonic::transport::Server::builder()
        .add_service(FixedAnswer::new(reply))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .map_err(std::io::Error::other)
}
