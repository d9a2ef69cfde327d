//! The frame decoder: decoded frames encode to the same frame.

use bytes::Bytes;
use edge_transport::advanced::frame::{DEFAULT_MAX_FRAME, Kind, Lane, MIN_MAX_FRAME, decode, encode};

/// Decodes bytes; a decoded frame is encoded and decoded again.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(frame) = decode(bytes.clone(), DEFAULT_MAX_FRAME) else { return };
    assert_eq!(decode(bytes.clone(), MIN_MAX_FRAME).is_ok(), data.len() <= MIN_MAX_FRAME);
    if frame.kind == Kind::Unknown {
        // A decoded frame of an unknown kind has no content, and is never sent.
        return;
    }
    let wire = encode(frame.clone(), Lane::Control);
    let again: Bytes = [wire.head, wire.body].concat().into();
    assert_eq!(decode(again, usize::MAX), Ok(frame));
}
