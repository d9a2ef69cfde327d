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

use super::authority::ProperAuthority;
use super::front::Front;
use crate::call::{Fault, MethodPath, Outcome, Replies, Reply};
use crate::grpc::{read_metadata, room, write_outcome};
use crate::observe::Abandoned;
use crate::routing::Inquiry;
use csi_proto::Code;

/// How long a new connection may take to say that it speaks HTTP/2.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Largest request message in bytes. CSI requests are a few KiB; a list of volume ids may be larger.
const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// Most open calls on one connection. More wait at the caller.
const MAX_CALLS: u32 = 1024;

/// Most bytes of request headers.
const HEADER_LIST: u32 = 64 * 1024;

/// Calls taken from a connection in a row. Then other tasks run, which send on what these calls have asked, so that the next process
/// works on them while this one takes more: a burst of 64 calls gets through the whole chain half as fast again as when it travels in
/// one piece.
const BATCH: u64 = 8;

/// Longest time that is ever waited; a caller may ask for eleven thousand years.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) async fn serve(
    socket: UnixStream,
    front: Arc<Front>,
    mut stopping: watch::Receiver<Option<Instant>>,
) {
    let mut builder = Builder::new();
    builder
        .initial_window_size(Windows::AT_ONCE.stream)
        .initial_connection_window_size(Windows::AT_ONCE.connection)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(HEADER_LIST)
        .max_concurrent_streams(MAX_CALLS);
    let socket = match QuietSocket::new(socket) {
        Ok(socket) => ProperAuthority::new(socket),
        Err(error) => return tracing::warn!(%error, "a caller's connection cannot be watched"),
    };
    let handshake = tokio::select! {
        // First, so that a caller who has spoken already is heard.
        biased;
        handshake = timeout(HANDSHAKE, builder.handshake::<_, Framed>(socket)) => handshake,
        _ = stopping.wait_for(Option::is_some) => return tracing::debug!("a caller had not spoken when serving ended"),
    };
    let mut connection = match handshake {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "a caller does not speak HTTP/2"),
        Err(_) => return tracing::debug!("a caller did not speak"),
    };
    let mut open = true;
    // Polled by this task, which has to run for each of them anyway, to read its request and to write its answer.
    let mut calls = FuturesUnordered::new();
    for turn in 1_u64.. {
        if turn.is_multiple_of(BATCH) {
            yield_now().await;
        }
        let accepted = tokio::select! {
            accepted = poll_fn(|cx| {
                // First, so that the connection sends what they write.
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
                let call = stream(request, respond, Arc::clone(&front), stopping.clone());
                // A call that panics is dropped, which resets its stream. The others continue.
                calls.push(AssertUnwindSafe(call).catch_unwind());
            }
            Some(Err(error)) => return tracing::debug!(%error, "a caller's connection broke"),
            None => return,
        }
    }
}

/// When the wait for an answer ends without one, and why: the caller's time is over, or that of the endpoint.
///
/// Nothing is taken off the caller's time so that this answer could come before its own timer. The caller's own end is
/// `DEADLINE_EXCEEDED` as well, so it would learn nothing from ours, while a driver's answer in the last moments would be lost to
/// it: sidecars wait as little as a second, and ask again for what they have missed.
async fn cut(end: Instant, waited: Duration, mut stopping: watch::Receiver<Option<Instant>>) -> Fault {
    let stopped = async {
        // The sender lives as long as the connection.
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

/// One call. Ends when the caller leaves; what the call has set going does not.
async fn stream(
    request: Request<RecvStream>,
    mut respond: SendResponse<Framed>,
    front: Arc<Front>,
    stopping: watch::Receiver<Option<Instant>>,
) {
    let (head, body) = request.into_parts();
    if let Some(response) = not_grpc(&head.method, &head.headers) {
        let _ = respond.send_response(response, true);
        return;
    }
    let waited = match remaining(&head.headers) {
        Ok(remaining) => remaining.unwrap_or(front.settings.ceiling).min(LONGEST),
        Err(outcome) => return only_trailers(&mut respond, &outcome),
    };
    let end = Instant::now() + waited;
    let mut cut = pin!(cut(end, waited, stopping));
    let abandoned = Abandoned::default();
    let question = async {
        let method = MethodPath::new(head.uri.path())
            .map_err(|error| Outcome::from_endpoint(Code::UNIMPLEMENTED, error.to_string()))?;
        let metadata = read_metadata(&head.headers);
        let body = request_message(Messages::new(body, MAX_REQUEST)).await?;
        Ok::<_, Outcome>(Inquiry { method, metadata, body, end, abandoned: abandoned.clone() })
    };
    let mut answer = pin!(async {
        let mut replies = match question.await {
            Ok(question) => front.answer(question).await,
            Err(outcome) => Replies::outcome(outcome),
        };
        let first = replies.next().await;
        (first, replies)
    });
    let (first, replies) = tokio::select! {
        biased;
        answer = &mut answer => answer,
        fault = &mut cut => {
            // Before `answer` is dropped.
            abandoned.because(&fault);
            return only_trailers(&mut respond, &fault.into());
        }
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    match first {
        Some(Reply::Message(message)) => messages(&mut respond, message, replies, cut, &abandoned).await,
        Some(Reply::End(outcome)) => only_trailers(&mut respond, &outcome),
        // `Replies` always ends with an outcome, so this is never met.
        None => respond.send_reset(Reason::INTERNAL_ERROR),
    }
}

/// The one message of a request.
async fn request_message(mut messages: Messages) -> Result<Bytes, Outcome> {
    let refuse = |text: &str| Outcome::from_endpoint(Code::UNIMPLEMENTED, text);
    let read = |error| match error {
        ReadError::Message(MessageError::TooLarge { found, max }) => {
            Fault::RequestTooLarge { found: found as u64, max: max as u64 }.into()
        }
        ReadError::Message(error) => refuse(&format!("the request cannot be read: {error}")),
        ReadError::Http(_) => Fault::CallerGone.into(),
    };
    let message = messages.next().await.map_err(read)?;
    let message = message.ok_or_else(|| refuse("a request holds exactly one message; this one has none"))?;
    match messages.next().await.map_err(read)? {
        None => Ok(message),
        Some(_) => Err(refuse("a request holds exactly one message; this one has more")),
    }
}

/// An answer with at least one message. A whole unary answer is handed to the connection without a pause in between, so it
/// leaves in one write.
async fn messages(
    respond: &mut SendResponse<Framed>,
    first: Bytes,
    mut replies: Replies,
    mut cut: Pin<&mut impl Future<Output = Fault>>,
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
                        room = room(&mut stream) => match room {
                            Ok(()) => continue,
                            Err(_) => return,
                        },
                        fault = &mut cut => fault,
                    }
                }
                Some(Reply::End(outcome)) => break outcome,
                None => return stream.send_reset(Reason::INTERNAL_ERROR),
            },
            fault = &mut cut => fault,
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return,
        };
        abandoned.because(&fault);
        break fault.into();
    };
    finish(&mut stream, &outcome);
}

fn finish(stream: &mut SendStream<Framed>, outcome: &Outcome) {
    let mut trailers = HeaderMap::with_capacity(4);
    write_outcome(outcome, &mut trailers);
    // Fails only if the caller has left.
    let _ = stream.send_trailers(trailers);
}

fn only_trailers(respond: &mut SendResponse<Framed>, outcome: &Outcome) {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC);
    write_outcome(outcome, response.headers_mut());
    // Fails only if the caller has left.
    let _ = respond.send_response(response, true);
}

/// What to tell a caller that does not speak gRPC with protobuf.
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

/// The time that the caller gives.
fn remaining(headers: &HeaderMap) -> Result<Option<Duration>, Outcome> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    match grpc_timeout::parse(value.as_bytes()) {
        Ok(remaining) => Ok(Some(remaining)),
        Err(error) => Err(Outcome::from_endpoint(Code::INVALID_ARGUMENT, error.to_string())),
    }
}
