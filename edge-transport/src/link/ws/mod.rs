//! Links over websocket (RFC 6455), plain (`ws`) or over TLS (`wss`).
//!
//! One binary message is one frame; large messages travel in fragments of 16 KiB. Text messages are refused, pings are
//! answered, a close frame is the end in good order. The path of the request is of no account.
//!
//! An idle link holds about 7 KiB (14 over TLS): 4 KiB to read into, and the libraries' own state.

mod dial;
mod listen;
mod stream;

use std::io;

use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

pub use self::dial::WsDialer;
pub use self::listen::{WsListener, bind};
use super::{Limits, LinkError, LinkKind};

/// Bytes asked for in one read, and kept for it while the link lives.
const READ_BUFFER: usize = 4 << 10;

/// Bytes collected before they are written without waiting for a flush.
const WRITE_BUFFER: usize = 32 << 10;

/// The library's own bound on what waits in it; the link stops well before.
const WRITE_CEILING: usize = 256 << 10;

fn config(limits: &Limits) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(WRITE_CEILING)
        .max_message_size(Some(limits.max_frame))
        .max_frame_size(Some(limits.max_frame))
}

fn timed_out(limits: &Limits) -> String {
    format!("not done within {:?}", limits.handshake_timeout)
}

/// What went wrong before the first frame, in words that help.
fn explain(error: Error) -> String {
    match error {
        Error::Http(response) if response.status().as_u16() == 503 => {
            "the hub cannot take this link now: it is busy, try again later".to_owned()
        }
        Error::Http(response) => format!("the server answered {} instead of a websocket", response.status()),
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the other end hung up: is its port a websocket one, and TLS used at both ends or neither?"
                .to_owned()
        }
        error => error.to_string(),
    }
}

fn handshake_failed(kind: LinkKind, remote: &str, cause: impl Into<String>) -> LinkError {
    LinkError::Handshake { kind, remote: remote.to_owned(), cause: cause.into() }
}
