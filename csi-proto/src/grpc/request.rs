//! What is to be sent.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Method, Uri, Version};

use super::{APPLICATION_GRPC, GRPC_TIMEOUT, timeout};

/// A call: its path, metadata and one message, which passes byte for byte.
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
    /// The path cannot be one of HTTP/2.
    #[error("method {path}: not a path; expected one like /csi.v1.Identity/Probe")]
    Path {
        /// The path.
        path: String,
    },
    /// The length does not fit into the prefix of a message.
    #[error("the request has {found} bytes; at most 4 GiB can be sent")]
    TooLarge {
        /// Its length in bytes.
        found: usize,
    },
}

impl Request {
    /// A call of the method at this path, like `/csi.v1.Identity/Probe`. Each message of the answer may have up to `max_message`
    /// bytes.
    ///
    /// # Errors
    /// If the path is none, or the message does not fit into its prefix.
    pub fn new(path: &str, body: Bytes, max_message: usize) -> Result<Self, InvalidRequest> {
        let found = body.len();
        u32::try_from(found).map_err(|_| InvalidRequest::TooLarge { found })?;
        let invalid = || InvalidRequest::Path { path: path.to_owned() };
        let mut uri = Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        // Every CSI client says so; some drivers refuse a socket path here.
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

    /// The same request with the time that the server has. The wait here is the caller's to end.
    #[must_use]
    pub fn with_timeout(mut self, time: Duration) -> Self {
        if let Ok(value) = HeaderValue::from_str(&timeout::format(time)) {
            self.head.headers_mut().insert(GRPC_TIMEOUT, value);
        }
        self
    }

    /// The metadata, to add to. Names that gRPC uses itself are not for callers.
    pub fn metadata_mut(&mut self) -> &mut HeaderMap {
        self.head.headers_mut()
    }
}
