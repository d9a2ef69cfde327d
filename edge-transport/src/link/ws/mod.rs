//! Links over websocket (RFC 6455), plain (`ws`) or over TLS (`wss`).
//!
//! Two ends of this crate agree in the TLS handshake on the protocol `edge-session/1` (RFC 7301), and need no websocket: the
//! accepting end sends a byte 1 once it has verified the other, and then both send frames like
//! [`Link::framed`](super::Link::framed). Behind a reverse proxy that ends TLS, and without TLS, they use a websocket:
//!
//! One binary message is one frame. Messages above 16 KiB travel in fragments of at most 16 KiB; a larger fragment ends the
//! link. Text messages are refused, pings are answered, a close frame is the orderly end. The path of the request is ignored.
//!
//! An idle websocket needs about 7 KiB (11 over TLS): a read buffer of 4 KiB (1 over TLS, whose library has its own of 4), and
//! the libraries' own state. The read buffer grows with the fragments, to at most 48 KiB.

mod dial;
mod listen;
mod meter;
mod stream;
mod upgraded;

use std::io;

use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

pub(super) use self::dial::WsDialer;
pub(super) use self::listen::bind;
pub use self::upgraded::{accept, upgrade_response};
use super::{Limits, LinkError, LinkKind};

/// The first byte of an accepting end without a websocket: it has verified the dialing end.
const GREETING: u8 = 1;

/// Size in bytes of the read buffer of a plain connection, allocated while the link exists.
const READ_BUFFER: usize = 4 << 10;

/// The same over TLS, which reads from the connection into a buffer of its own: here a read is only a copy. With less than 1 KiB
/// the library would allocate a buffer for each frame.
const TLS_READ_BUFFER: usize = 1 << 10;

/// Size in bytes of the fragments of a larger message. The library keeps a buffer for the largest fragment that it has
/// received until the link ends, and a sender needs no second buffer for the whole message.
const FRAGMENT: usize = 16 << 10;

/// Bytes buffered before a write without a flush.
const WRITE_BUFFER: usize = 32 << 10;

/// The library's own limit of its write buffer; the link stops well below.
const WRITE_CEILING: usize = 256 << 10;

fn config(max_frame: usize, read_buffer: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(read_buffer)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(WRITE_CEILING)
        .max_message_size(Some(max_frame))
        .max_frame_size(Some(FRAGMENT))
}

fn timed_out(limits: &Limits) -> String {
    format!("timed out after {:?}", limits.handshake_timeout)
}

/// Describes an error of the handshake and what to do.
fn explain(error: Error) -> String {
    match error {
        Error::Http(response) if response.status().as_u16() == 503 => {
            "the hub is overloaded; try again later".to_owned()
        }
        Error::Http(response) => format!("the server answered {} instead of a websocket", response.status()),
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the other end closed the connection: check that its port serves websocket, and that TLS is used at both ends or at neither"
                .to_owned()
        }
        error => error.to_string(),
    }
}

fn handshake_failed(kind: LinkKind, remote: &str, cause: impl Into<String>) -> LinkError {
    LinkError::Handshake { kind, remote: remote.to_owned(), cause: cause.into() }
}
