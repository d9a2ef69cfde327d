//! Requests.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Method, Uri, Version};

use super::{APPLICATION_GRPC, GRPC_TIMEOUT, timeout};

/// A call: its path, its metadata and one opaque message.
#[derive(Debug, Clone)]
pub struct Request {
    pub(super) head: http::Request<()>,
    pub(super) body: Bytes,
    pub(super) max_message: usize,
}

/// A request that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The path is not a valid HTTP/2 path.
    #[error("invalid method path {path:?}; expected a path like /csi.v1.Identity/Probe")]
    Path {
        /// The path.
        path: String,
    },
    /// The message is longer than its prefix can express.
    #[error("the request has {found} bytes; at most 4 GiB can be sent")]
    TooLarge {
        /// The message's length in bytes.
        found: usize,
    },
}

impl Request {
    /// Creates a call of the method at this path, like `/csi.v1.Identity/Probe`. Each response message may have up to
    /// `max_message` bytes.
    ///
    /// # Errors
    /// If the path is invalid, or the message is too long for its prefix.
    pub fn new(path: &str, body: Bytes, max_message: usize) -> Result<Self, InvalidRequest> {
        let found = body.len();
        u32::try_from(found).map_err(|_| InvalidRequest::TooLarge { found })?;
        let invalid = || InvalidRequest::Path { path: path.to_owned() };
        let mut uri = Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        // Every CSI client sends this authority; some drivers reject a socket path.
        uri.authority = Some(Authority::from_static("localhost"));
        uri.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| invalid())?);
        let mut head = http::Request::new(());
        *head.method_mut() = Method::POST;
        *head.version_mut() = Version::HTTP_2;
        *head.uri_mut() = Uri::from_parts(uri).map_err(|_| invalid())?;
        head.headers_mut().reserve(8);
        head.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        head.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC);
        Ok(Self { head, body, max_message })
    }

    /// Sets the server's timeout. The caller must limit its own wait.
    #[must_use]
    pub fn with_timeout(mut self, time: Duration) -> Self {
        if let Ok(value) = HeaderValue::from_str(&timeout::format(time)) {
            self.head.headers_mut().insert(GRPC_TIMEOUT, value);
        }
        self
    }

    /// The metadata, for adding entries. Names reserved by gRPC must not be used.
    pub fn metadata_mut(&mut self) -> &mut HeaderMap {
        self.head.headers_mut()
    }
}
