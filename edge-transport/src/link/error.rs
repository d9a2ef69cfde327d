//! Why links end or are not established.

use std::path::PathBuf;

use super::LinkKind;

/// Why a link ended or was not established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The socket failed.
    #[error("{doing}: {source}")]
    Io {
        /// The failed operation, with the address.
        doing: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The handshake below the frames (TLS, websocket, QUIC) failed.
    #[error("{kind} handshake with {remote} failed: {cause}")]
    Handshake {
        /// Kind of link.
        kind: LinkKind,
        /// The other end.
        remote: String,
        /// The error of the lower layer.
        cause: String,
    },
    /// A frame is larger than the link allows.
    #[error(
        "frame of {found} bytes; at most {max} are allowed: raise the frame limit at both ends or send less"
    )]
    TooLarge {
        /// Bytes of the frame.
        found: usize,
        /// Bound in bytes.
        max: usize,
    },
    /// The received bytes are not a frame.
    #[error("not a frame: {cause}")]
    Malformed {
        /// The violation.
        cause: String,
    },
    /// An address is not usable.
    #[error("address {address:?}: {cause}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong with it, and what is expected.
        cause: String,
    },
    /// The path of a unix socket cannot be used.
    #[error("{cause}")]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// What is wrong with the path, and what to do.
        cause: String,
    },
    /// The path of a unix socket exists and is not a socket.
    #[error("{} exists and is not a socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another process listens on a unix socket.
    #[error("socket {} is in use by a running process: stop it or choose another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The queue of a [`LinkSender`](super::LinkSender) is full.
    #[error(
        "{max} connections wait for the hub already: refuse this one, so that its peer tries again later"
    )]
    QueueFull {
        /// The bound of the queue.
        max: usize,
    },
    /// The hub of a [`LinkSender`](super::LinkSender) has ended.
    #[error("the hub accepts no more links: it was drained or closed")]
    QueueClosed,
    /// The connection was lost without a close.
    #[error("connection lost")]
    Lost,
}

#[cfg(any(feature = "uds", feature = "ws"))]
/// Classifies the result of an `accept`. An error of one connection, or a transient one such as too many open files, is
/// returned as the inner error; any other error is the listener's.
pub(super) async fn classify<T>(
    outcome: std::io::Result<T>,
    address: impl Fn() -> String,
) -> Result<Result<T, LinkError>, LinkError> {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    let source = match outcome {
        Ok(accepted) => return Ok(Ok(accepted)),
        Err(source) => source,
    };
    let fatal = matches!(source.kind(), InvalidInput | NotConnected);
    let per_connection = matches!(source.kind(), ConnectionAborted | ConnectionReset | Interrupted);
    let error = LinkError::Io { doing: format!("accept on {}", address()), source };
    if fatal {
        return Err(error);
    }
    if !per_connection {
        // Out of descriptors or memory: the connection stays in the backlog, and an immediate retry would spin.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Ok(Err(error))
}
