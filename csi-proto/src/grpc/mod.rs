//! The part of gRPC that CSI uses, directly on HTTP/2 over unix sockets: one request message, some response messages, a status.
//!
//! A [`Client`] keeps one [`Connection`] and reconnects when it has ended; use [`Connection`] to manage connections yourself.
//! Bodies are opaque bytes; [`Connection::unary`] is for typed messages. [`CallError::delivery`] reports whether the request
//! may have reached the server.
//!
//! The client does not use tonic for two reasons: tonic converts transport failures into codes like those of the
//! server, without reporting whether the request was sent, and a call costs twice as much.
//!
//! A server can use the same framing: [`Messages`], [`Framed`], [`QuietSocket`], [`timeout`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use csi_proto::csi::v1::{ProbeRequest, ProbeResponse};
//! use csi_proto::grpc::{Connection, Windows};
//! use csi_proto::Method;
//!
//! # async fn probe() -> Result<(), Box<dyn std::error::Error>> {
//! let wait = Duration::from_secs(5);
//! let driver = Connection::open("/csi/csi.sock".as_ref(), Windows::UNARY, wait).await?;
//! let probe = driver.unary(Method::Probe.path(), ProbeRequest {}, wait, 64 * 1024);
//! let answer: ProbeResponse = tokio::time::timeout(wait, probe).await??;
//! # let _ = answer;
//! # Ok(())
//! # }
//! ```

mod client;
mod connection;
#[cfg(feature = "testing")]
mod connector;
mod error;
mod message;
mod messages;
mod request;
mod response;
mod socket;
mod status;
pub mod timeout;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};

pub use self::client::Client;
pub use self::connection::{Connection, Windows};
#[cfg(feature = "testing")]
pub use self::connector::Connector;
pub use self::error::{CallError, ConnectError, UnaryError};
pub use self::message::{Framed, MessageError};
pub use self::messages::{Messages, ReadError};
pub use self::request::{InvalidRequest, Request};
pub use self::response::{Part, Response};
pub use self::socket::QuietSocket;
pub use self::status::{GRPC_MESSAGE, GRPC_STATUS, Status, encode_message};

/// The maximum size of a received HTTP/2 frame, in bytes: large messages over a unix socket need few system calls.
pub const MAX_FRAME: u32 = 256 * 1024;

/// The maximum size of headers or trailers from a server, in bytes: a status message may be long.
const MAX_HEADERS: u32 = 1024 * 1024;

/// The name of the timeout header; see [`timeout`] for its values.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The content type of gRPC.
pub const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether the content type in the headers is gRPC with protobuf.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = value.and_then(|value| value.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+proto") || rest.starts_with(b";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_grpc_with_protobuf() {
        let table = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc+json", false),
            ("application/grpc-web", false),
            ("application/json", false),
        ];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(is_grpc(&headers), expected, "{value}");
        }
    }
}
