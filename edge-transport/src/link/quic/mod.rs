//! Links over QUIC (RFC 9000) with TLS 1.3, application protocol `edge-session/1`.
//!
//! Calls do not wait for each other: each lane is a separate stream, opened by its sender with the first frame and finished
//! with the last. Every stream is unidirectional; each frame follows four bytes of length, high byte first. The first stream of
//! each end carries [`Lane::Control`](super::Lane::Control), ahead of all others; the second carries lanes without a stream,
//! when all [`STREAMS`] that the other end allows are open, so that no lane ever waits for a stream. The control stream begins
//! with the byte 1. Each dialing end waits for this byte, which confirms that the other end has accepted its
//! certificate. Other streams are read only after the first frame of the control stream, or after the length
//! `0xffff_fffe` on it, which marks that no frame precedes: no request overtakes the hello. Later the same length is a
//! keep-alive: for some seconds after a call the dialing end sends it often, because the other end sends to the address
//! that it last received from. An orderly end is the length `0xffff_ffff` on the control stream, followed by the number
//! of opened streams in eight bytes. A reset of a stream loses only the frames of its lane.
//!
//! Memory per link: idle about 34 KiB, most of it for streams that the other end may open, and at a dialing end 110 KiB to
//! receive with its socket. In use, up to 1 MiB per stream wait to be read, and in total 256 KiB at an accepting end (1 MiB
//! while a large frame arrives) and 4 MiB at a dialing one; 4 MiB wait for acknowledgement, in addition to the memory of
//! [other links](super). Replies of 4 MiB and transfers of any length are possible; the stream window limits the rate to 1 MiB
//! per round trip, and to 768 KiB towards an accepting end. A dialing end sends one frame at a time that is larger than
//! [`SEND_BUFFER`](super::SEND_BUFFER) and the last of its lane, in turns with all others, which do not wait for it. An accepting
//! end begins with a window of 12 KiB for all streams; [`limit_receiving`](super::FrameLink::limit_receiving) raises it, which a
//! hub does when it admits the peer.
//!
//! Busy hubs need a larger UDP receive buffer than the default of Linux: `sysctl net.core.rmem_default=4194304`. Early data
//! (0-RTT) is disabled, because it can be replayed.

mod config;
mod dial;
mod keep_alive;
mod lane;
mod listen;
mod receive;
mod send;
mod socket;
mod stream;

use quinn::{Connection, ConnectionError};
use rustls_pki_types::CertificateDer;

pub(super) use self::dial::QuicDialer;
pub(super) use self::listen::bind;
use super::{Credentials, LinkError, LinkKind};
use crate::tls::{LINK_PROTOCOL, peer_certificate};

/// Maximum number of open streams of one end, in addition to the two that are always open.
pub const STREAMS: u32 = 100;

/// The application protocol that both ends must negotiate (RFC 7301).
pub const ALPN: &[u8] = LINK_PROTOCOL;

/// First byte of the control stream.
const FORMAT: u8 = 1;

/// Application error codes of a closed connection.
mod code {
    /// After an orderly end.
    pub(super) const CLOSED: u32 = 0;
    /// The link was dropped.
    pub(super) const DROPPED: u32 = 1;
}

/// The other end's certificate, which TLS has verified.
fn credentials(connection: &Connection) -> Credentials {
    match chain(connection).first() {
        Some(own) => Credentials::Certificate(peer_certificate(own)),
        None => Credentials::None,
    }
}

/// The other end's certificate chain, which TLS keeps.
fn chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast().ok());
    shown.map(|chain| *chain).unwrap_or_default()
}

fn handshake_failed(remote: &str, cause: impl Into<String>) -> LinkError {
    LinkError::Handshake { kind: LinkKind::QUIC, remote: remote.to_owned(), cause: cause.into() }
}

/// Converts the error of an established connection.
fn lost(error: &ConnectionError) -> LinkError {
    match error {
        ConnectionError::TransportError(_) | ConnectionError::VersionMismatch => {
            LinkError::Malformed { cause: error.to_string() }
        }
        ConnectionError::ConnectionClosed(close)
            if close.error_code != quinn::TransportErrorCode::NO_ERROR =>
        {
            LinkError::Malformed { cause: format!("refused by the other end: {close}") }
        }
        _ => LinkError::Lost,
    }
}
