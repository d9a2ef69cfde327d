//! Errors of connections and calls.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use h2::Reason;

use super::message::MessageError;
use super::request::InvalidRequest;
use super::status::Status;
use crate::Delivery;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket does not exist.
    #[error("{} does not exist: is the server running, and is this its socket?", path.display())]
    Missing {
        /// The socket.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The socket exists and nothing listens on it.
    #[error("nothing listens on {}: the server has ended", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// This process may not connect.
    #[error("connecting to {} is not permitted: check its mode and owner, and those of its directories", path.display())]
    Forbidden {
        /// The socket.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// Another system error.
    #[error("connecting to {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The server did not accept in time.
    #[error("the connection to {} was not accepted within {bound:?}", path.display())]
    Late {
        /// The socket.
        path: PathBuf,
        /// The timeout.
        bound: Duration,
    },
    /// The HTTP/2 handshake failed.
    #[error("{} does not speak HTTP/2: {source}", path.display())]
    Http2 {
        /// The socket.
        path: PathBuf,
        /// The HTTP/2 error.
        source: h2::Error,
    },
}

impl ConnectError {
    /// The kind of the system error; `TimedOut` and `InvalidData` for other failures.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Missing { source, .. }
            | Self::Refused { source, .. }
            | Self::Forbidden { source, .. }
            | Self::Io { source, .. } => source.kind(),
            Self::Late { .. } => io::ErrorKind::TimedOut,
            Self::Http2 { .. } => io::ErrorKind::InvalidData,
        }
    }

    pub(super) fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path, source },
            io::ErrorKind::ConnectionRefused => Self::Refused { path, source },
            io::ErrorKind::PermissionDenied => Self::Forbidden { path, source },
            _ => Self::Io { path, source },
        }
    }
}

/// Why a call has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No connection could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection ended, or accepted no more calls, before the request was written.
    #[error("{0}")]
    Closed(#[source] h2::Error),
    /// The server reports that it has not processed the request: `REFUSED_STREAM`, or `GOAWAY` with an earlier stream as the
    /// last one (RFC 9113, sections 6.8 and 8.7).
    #[error("{0}")]
    Refused(#[source] h2::Error),
    /// The connection or the stream ended before the response was complete.
    #[error("{0}")]
    Lost(#[source] h2::Error),
    /// The received bytes are not HTTP/2.
    #[error("{0}")]
    Http2(#[source] h2::Error),
    /// The HTTP status is not 200.
    #[error("HTTP status {found}; expected 200")]
    HttpStatus {
        /// The status.
        found: u16,
    },
    /// The response is not gRPC with protobuf.
    #[error("the content type is not application/grpc")]
    ContentType,
    /// The response ends without a numeric status.
    #[error("the answer ends without a grpc-status")]
    NoStatus,
    /// The messages cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A unary call succeeded without a message.
    #[error("the status is OK, but the answer contains no message")]
    NoMessage,
    /// A unary call returned more than one message.
    #[error("the answer of a unary method contains two messages")]
    TwoMessages,
}

impl CallError {
    /// Whether the server may have started the request. [`Delivery::NotSent`] requires a proof.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::Connect(_) | Self::Closed(_) | Self::Refused(_) => Delivery::NotSent,
            Self::Lost(_)
            | Self::Http2(_)
            | Self::HttpStatus { .. }
            | Self::ContentType
            | Self::NoStatus
            | Self::Message(_)
            | Self::NoMessage
            | Self::TwoMessages => Delivery::Unknown,
        }
    }

    /// Classifies an error of a stream after the request was passed to HTTP/2.
    pub(super) fn on_stream(source: h2::Error) -> Self {
        let refused =
            source.is_reset() && source.is_remote() && source.reason() == Some(Reason::REFUSED_STREAM);
        // A GOAWAY with any other reason also ends streams that the server has processed.
        let shut_down =
            source.is_go_away() && source.is_remote() && source.reason() == Some(Reason::NO_ERROR);
        if refused || shut_down {
            return Self::Refused(source);
        }
        match source.reason() {
            Some(
                Reason::PROTOCOL_ERROR
                | Reason::FRAME_SIZE_ERROR
                | Reason::COMPRESSION_ERROR
                | Reason::FLOW_CONTROL_ERROR
                | Reason::STREAM_CLOSED
                | Reason::HTTP_1_1_REQUIRED
                | Reason::INTERNAL_ERROR,
            ) => Self::Http2(source),
            _ => Self::Lost(source),
        }
    }
}

/// Why a unary call has no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnaryError {
    /// The request cannot be sent.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// The call has no response.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The server returned an error.
    #[error("{}: {}", .0.code, .0.message)]
    Status(Status),
    /// The server returned OK with a message that cannot be decoded.
    #[error("the message cannot be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
}

impl UnaryError {
    /// Whether the server may have started the request.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::Request(_) => Delivery::NotSent,
            Self::Call(error) => error.delivery(),
            Self::Status(_) | Self::Decode(_) => Delivery::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_socket_errors() {
        let error = |kind: io::ErrorKind| ConnectError::new(Path::new("/csi.sock"), kind.into());
        assert!(matches!(error(io::ErrorKind::NotFound), ConnectError::Missing { .. }));
        assert!(matches!(error(io::ErrorKind::ConnectionRefused), ConnectError::Refused { .. }));
        let forbidden = error(io::ErrorKind::PermissionDenied);
        assert!(matches!(forbidden, ConnectError::Forbidden { .. }), "{forbidden}");
        assert_eq!(forbidden.kind(), io::ErrorKind::PermissionDenied);
        assert!(matches!(error(io::ErrorKind::WouldBlock), ConnectError::Io { .. }));
    }
}
