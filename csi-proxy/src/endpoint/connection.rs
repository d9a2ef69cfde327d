//! One connection of a sidecar: HTTP/2 streams become calls.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::grpc::{
    APPLICATION_GRPC, Framed, GRPC_TIMEOUT, MAX_FRAME, MessageError, Messages, QuietSocket, ReadError,
    Windows, is_grpc, timeout as grpc_timeout,
};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::authority::AuthorityRewriter;
use super::service::EndpointService;
use crate::call::{Fault, MethodPath, Outcome, Replies, Reply};
use crate::grpc::{read_metadata, reserve_capacity, write_outcome};
use crate::observe::Abandoned;
use crate::routing::InboundCall;
use csi_proto::Code;

/// How long the HTTP/2 handshake of a new connection may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a request message in bytes. CSI requests are a few KiB; a list of volume ids may be larger.
const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// The maximum number of open calls per connection. Further calls wait at the caller.
const MAX_CALLS: u32 = 1024;

/// The maximum size of the request headers in bytes.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// The number of calls accepted from a connection in a row. Then other tasks run and forward these calls, so that the
/// next process works on them while this one accepts more: a burst of 64 calls passes the whole chain in two thirds of
/// the time of one batch.
const ACCEPT_BATCH: u64 = 8;

/// The maximum wait; a `grpc-timeout` may be eleven thousand years.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) async fn serve(
    socket: UnixStream,
    service: Arc<EndpointService>,
    mut stopping: watch::Receiver<Option<Instant>>,
) {
    let mut builder = Builder::new();
    builder
        .initial_window_size(Windows::UNARY.stream)
        .initial_connection_window_size(Windows::UNARY.connection)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_CALLS);
    let socket = match QuietSocket::new(socket) {
        Ok(socket) => AuthorityRewriter::new(socket),
        Err(error) => return tracing::warn!(%error, "cannot register connection"),
    };
    let handshake = tokio::select! {
        // Polled first, so that a caller that has sent its preface is served.
        biased;
        handshake = timeout(HANDSHAKE_TIMEOUT, builder.handshake::<_, Framed>(socket)) => handshake,
        _ = stopping.wait_for(Option::is_some) => return tracing::debug!("connection closed before its handshake, shutting down"),
    };
    let mut connection = match handshake {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "HTTP/2 handshake failed"),
        Err(_) => return tracing::debug!("HTTP/2 handshake timed out"),
    };
    let mut open = true;
    // This task polls the calls, since it runs for each of them anyway to read requests and write answers.
    let mut calls = FuturesUnordered::new();
    for turn in 1_u64.. {
        if turn.is_multiple_of(ACCEPT_BATCH) {
            yield_now().await;
        }
        let accepted = tokio::select! {
            accepted = poll_fn(|cx| {
                // The calls are polled first, so that the connection sends what they write.
                while let Poll::Ready(Some(_)) = calls.poll_next_unpin(cx) {}
                connection.poll_accept(cx)
            }) => accepted,
            _ = stopping.wait_for(Option::is_some), if open => {
                open = false;
                connection.graceful_shutdown();
                continue;
            }
        };
        match accepted {
            Some(Ok((request, respond))) => {
                let call = serve_call(request, respond, service.current(), stopping.clone());
                // A panicking call is dropped, which resets its stream. The others continue.
                calls.push(AssertUnwindSafe(call).catch_unwind());
            }
            Some(Err(error)) => return tracing::debug!(%error, "connection lost"),
            None => return,
        }
    }
}

/// Ends the wait for an answer: at the deadline of the caller, or when the endpoint stops.
///
/// The deadline is not shortened to answer before the timer of the caller. The caller's own timer reports
/// `DEADLINE_EXCEEDED` as well, so an earlier answer would add nothing, while an answer of the driver in the last
/// moments would be lost: sidecars wait as little as a second, and retry.
async fn wait_end(end: Instant, waited: Duration, mut stopping: watch::Receiver<Option<Instant>>) -> Fault {
    let stopped = async {
        // Does not fail, since the sender outlives the connection.
        let until = stopping.wait_for(Option::is_some).await.ok().and_then(|until| *until);
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = sleep_until(end) => Fault::Deadline { waited },
        () = stopped => Fault::Draining { what: "the endpoint".to_owned() },
    }
}

/// Serves one call. Ends when the caller cancels; the work that the call started continues.
async fn serve_call(
    request: Request<RecvStream>,
    mut respond: SendResponse<Framed>,
    service: Arc<EndpointService>,
    stopping: watch::Receiver<Option<Instant>>,
) {
    let (head, body) = request.into_parts();
    if let Some(response) = not_grpc(&head.method, &head.headers) {
        let _ = respond.send_response(response, true);
        return;
    }
    let waited = match request_timeout(&head.headers) {
        Ok(remaining) => remaining.unwrap_or(service.settings.default_timeout).min(MAX_WAIT),
        Err(outcome) => return send_trailers_only(&mut respond, &outcome),
    };
    let end = Instant::now() + waited;
    let mut wait_end = pin!(wait_end(end, waited, stopping));
    let abandoned = Abandoned::default();
    let inbound = async {
        let method = MethodPath::new(head.uri.path())
            .map_err(|error| Outcome::from_endpoint(Code::UNIMPLEMENTED, error.to_string()))?;
        let metadata = read_metadata(&head.headers);
        let body = request_message(Messages::new(body, MAX_REQUEST)).await?;
        Ok::<_, Outcome>(InboundCall { method, metadata, body, end, abandoned: abandoned.clone() })
    };
    let (first, replies) = {
        // Ends with this block: the messages are sent in its place in the future.
        let mut answer = pin!(async {
            let mut replies = match inbound.await {
                Ok(inbound) => service.answer(inbound).await,
                Err(outcome) => Replies::outcome(outcome),
            };
            let first = replies.next().await;
            (first, replies)
        });
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            fault = &mut wait_end => {
                // Set before `answer` is dropped, which logs this reason.
                abandoned.because(&fault);
                return send_trailers_only(&mut respond, &fault.into());
            }
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        }
    };
    match first {
        Some(Reply::Message(message)) => {
            send_messages(&mut respond, message, replies, wait_end, &abandoned).await;
        }
        Some(Reply::End(outcome)) => send_trailers_only(&mut respond, &outcome),
        // `Replies` always ends with an outcome, so this is unreachable.
        None => respond.send_reset(Reason::INTERNAL_ERROR),
    }
}

/// Reads the only message of a request.
async fn request_message(mut messages: Messages) -> Result<Bytes, Outcome> {
    let reject = |text: &str| Outcome::from_endpoint(Code::UNIMPLEMENTED, text);
    let read_error = |error| match error {
        ReadError::Message(MessageError::TooLarge { found, max }) => {
            Fault::RequestTooLarge { found: found as u64, max: max as u64 }.into()
        }
        ReadError::Message(error) => reject(&format!("invalid request: {error}")),
        ReadError::Http(_) => Fault::Cancelled.into(),
    };
    let message = messages.next().await.map_err(read_error)?;
    let message = message.ok_or_else(|| reject("request has no message; expected exactly one"))?;
    match messages.next().await.map_err(read_error)? {
        None => Ok(message),
        Some(_) => Err(reject("request has several messages; expected exactly one")),
    }
}

/// Sends an answer with at least one message. A whole unary answer is queued without a pause, so it is sent in one
/// write.
async fn send_messages(
    respond: &mut SendResponse<Framed>,
    first: Bytes,
    mut replies: Replies,
    mut wait_end: Pin<&mut impl Future<Output = Fault>>,
    abandoned: &Abandoned,
) {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC);
    let Ok(mut stream) = respond.send_response(response, false) else { return };
    let mut message = first;
    let outcome = loop {
        if stream.send_data(Framed::new(message), false).is_err() {
            return;
        }
        let fault = tokio::select! {
            biased;
            part = replies.next() => match part {
                Some(Reply::Message(next)) => {
                    message = next;
                    tokio::select! {
                        biased;
                        reserved = reserve_capacity(&mut stream) => match reserved {
                            Ok(()) => continue,
                            Err(_) => return,
                        },
                        fault = &mut wait_end => fault,
                    }
                }
                Some(Reply::End(outcome)) => break outcome,
                None => return stream.send_reset(Reason::INTERNAL_ERROR),
            },
            fault = &mut wait_end => fault,
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return,
        };
        abandoned.because(&fault);
        break fault.into();
    };
    send_trailers(&mut stream, &outcome);
}

fn send_trailers(stream: &mut SendStream<Framed>, outcome: &Outcome) {
    let mut trailers = HeaderMap::with_capacity(4);
    write_outcome(outcome, &mut trailers);
    // Fails only if the caller has cancelled.
    let _ = stream.send_trailers(trailers);
}

fn send_trailers_only(respond: &mut SendResponse<Framed>, outcome: &Outcome) {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC);
    write_outcome(outcome, response.headers_mut());
    // Fails only if the caller has cancelled.
    let _ = respond.send_response(response, true);
}

/// The response to a request that is not gRPC with protobuf.
fn not_grpc(method: &Method, headers: &HeaderMap) -> Option<Response<()>> {
    let mut response = Response::new(());
    if method != Method::POST {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    } else if !is_grpc(headers) {
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    } else {
        return None;
    }
    Some(response)
}

/// The timeout of the request.
fn request_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Outcome> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    match grpc_timeout::parse(value.as_bytes()) {
        Ok(remaining) => Ok(Some(remaining)),
        Err(error) => Err(Outcome::from_endpoint(Code::INVALID_ARGUMENT, error.to_string())),
    }
}
