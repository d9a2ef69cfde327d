//! Streaming responses.

use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::connection::Shared;
use super::error::CallError;
use super::is_grpc;
use super::messages::{Messages, ReadError};
use super::status::Status;

/// Part of a response.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_enums,
    clippy::large_enum_variant,
    reason = "gRPC responses have no other parts; moved once"
)]
pub enum Part {
    /// One message.
    Message(Bytes),
    /// The status, which ends the response.
    End(Status),
}

/// A response whose headers have arrived. Dropping it before its end cancels the call.
#[derive(Debug)]
pub struct Response {
    /// `None` for a trailers-only response.
    messages: Option<Messages>,
    /// The status of the headers, for a response without trailers.
    head: Option<Status>,
    /// Keeps the connection open while the response is read.
    _connection: Arc<Shared>,
}

impl Response {
    pub(super) fn begin(
        response: http::Response<RecvStream>,
        max_message: usize,
        connection: Arc<Shared>,
    ) -> Result<Self, CallError> {
        let (head, stream) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(CallError::HttpStatus { found: head.status.as_u16() });
        }
        let (is_grpc, has_type) = (is_grpc(&head.headers), head.headers.contains_key(CONTENT_TYPE));
        let status = Status::read(head.headers);
        if !is_grpc && (has_type || status.is_none()) {
            return Err(CallError::ContentType);
        }
        let messages = (!stream.is_end_stream()).then(|| Messages::new(stream, max_message));
        Ok(Self { messages, head: status, _connection: connection })
    }

    /// Returns the next part. Nothing follows [`Part::End`].
    ///
    /// # Errors
    /// If the response is interrupted or is not gRPC.
    pub async fn next(&mut self) -> Result<Part, CallError> {
        let mut status = None;
        if let Some(messages) = &mut self.messages {
            if let Some(message) = messages.next().await? {
                return Ok(Part::Message(message));
            }
            status = messages.trailers().await.map_err(CallError::on_stream)?.and_then(Status::read);
        }
        status.or_else(|| self.head.take()).map(Part::End).ok_or(CallError::NoStatus)
    }

    /// Returns the size of the next message in bytes, before it is read; 0 if none follows. A caller with limited memory decides
    /// by it whether to read on.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn announced(&mut self) -> Result<usize, CallError> {
        let Some(messages) = &mut self.messages else { return Ok(0) };
        Ok(messages.announced().await?.unwrap_or(0))
    }

    /// Reads the whole response of a unary call: its status and its message, which is present if the status is OK.
    ///
    /// # Errors
    /// If the response is interrupted, is not gRPC, or is not a unary response.
    pub async fn whole(mut self) -> Result<(Option<Bytes>, Status), CallError> {
        let message = match self.next().await? {
            Part::End(status) if status.code == crate::Code::OK => return Err(CallError::NoMessage),
            Part::End(status) => return Ok((None, status)),
            Part::Message(message) => message,
        };
        match self.next().await? {
            Part::End(status) => Ok((Some(message), status)),
            Part::Message(_) => Err(CallError::TwoMessages),
        }
    }
}

impl From<ReadError> for CallError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Message(error) => error.into(),
            ReadError::Http(error) => Self::on_stream(error),
        }
    }
}
