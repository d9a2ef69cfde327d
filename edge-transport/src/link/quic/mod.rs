//! Links over QUIC (RFC 9000) with TLS 1.3, application protocol `edge-session/1`.
//!
//! Calls do not wait for each other: each lane is a stream of its own, opened by its sender with the first frame and finished
//! with the last. Every stream is unidirectional and holds frames behind four bytes of length, high byte first. The first
//! stream of each end carries [`Lane::Control`](super::Lane::Control), ahead of all others; the second carries what has no
//! stream of its own because all [`STREAMS`] that the other end allows are open, so that nothing ever waits for a stream.
//! The control stream begins with the byte 1; each dialling end waits for it, because only then has its certificate been
//! accepted. What other streams bring is read only after the first frame of the control stream, or after the length
//! `0xffff_fffe` on it, which says that none comes first: no request overtakes the hello. Later the same length is a keep-alive: for
//! some seconds after a call the dialling end sends it often, since the other end reaches it only where it last sent from. At the end in good order it carries the length `0xffff_ffff` and then, in eight bytes, how many streams the end
//! has opened in all. A stream that is reset loses its lane's frames and nothing else.
//!
//! Memory per link: idle about 34 KiB, most of it for the streams that might come. In use, up to 1 MiB per stream and 4 MiB
//! in all wait to be read, 4 MiB wait for the other end's acknowledgement, besides what [`Limits`] says. A reply of 4 MiB or a
//! transfer of any length passes; a window limits its speed to 1 MiB (of one stream) for each round trip.
//!
//! Busy hubs want a larger UDP receive buffer than Linux gives by default: `sysctl net.core.rmem_default=4194304`. There is no
//! early data (0-RTT): what it carries can be replayed.
//!
//! [`Limits`]: super::Limits

mod config;
mod dial;
mod keep_alive;
mod lane;
mod listen;
mod receive;
mod send;
mod stream;

use quinn::{Connection, ConnectionError};
use rustls_pki_types::CertificateDer;

pub use self::dial::QuicDialer;
pub use self::listen::{QuicListener, bind};
use super::{Credentials, LinkError, LinkKind};
use crate::tls::peer_names;

/// Streams that one end may have open at once, besides the two that are always open.
pub const STREAMS: u32 = 100;

/// The application protocol that both ends must name (RFC 7301).
pub const ALPN: &[u8] = b"edge-session/1";

/// First byte of the control stream.
const FORMAT: u8 = 1;

/// Application error codes that an end gives when it closes the connection.
mod code {
    /// After the end in good order.
    pub(super) const CLOSED: u32 = 0;
    /// The link was dropped.
    pub(super) const DROPPED: u32 = 1;
}

/// The names in the other end's certificate, which TLS has verified.
fn credentials(connection: &Connection) -> Credentials {
    let shown =
        connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    match shown.as_deref().and_then(|chain| chain.first()) {
        Some(own) => Credentials::Certificate(peer_names(own)),
        None => Credentials::None,
    }
}

fn handshake_failed(remote: &str, cause: impl Into<String>) -> LinkError {
    LinkError::Handshake { kind: LinkKind::Quic, remote: remote.to_owned(), cause: cause.into() }
}

/// Why a connection ended, once the link stands.
fn lost(error: &ConnectionError) -> LinkError {
    match error {
        ConnectionError::TransportError(_) | ConnectionError::VersionMismatch => {
            LinkError::Malformed { cause: error.to_string() }
        }
        ConnectionError::ConnectionClosed(close)
            if close.error_code != quinn::TransportErrorCode::NO_ERROR =>
        {
            LinkError::Malformed { cause: format!("the other end refuses: {close}") }
        }
        _ => LinkError::Cut,
    }
}
