//! Length-delimited frames on a byte stream: four bytes of length, high byte first, then the frame. The length `0xffff_ffff`
//! marks an orderly end; a stream that ends without it was lost.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{LinkError, WireFrame};

/// Bytes of the length prefix of each frame.
pub(super) const PREFIX: usize = 4;

/// The length that marks the end: no frame follows.
pub(super) const END: u32 = u32::MAX;

/// The length on a control stream that marks the absence of a frame: other streams may be read from here on.
#[cfg(feature = "quic")]
pub(super) const NO_FRAME: u32 = u32::MAX - 1;

/// A body of at least this size is not copied; for smaller ones a copy is cheaper than another buffer.
const ZERO_COPY_FROM: usize = 8 << 10;

/// Initial memory for an unfinished frame. The memory grows by doubling, so that an announced length alone
/// allocates nothing.
pub(super) const FIRST_RESERVE: usize = 64 << 10;

/// Returns the length prefix of a frame.
pub(super) fn prefix(frame: &WireFrame, max_frame: usize) -> Result<u32, LinkError> {
    let found = frame.len();
    match u32::try_from(found) {
        Ok(length) if found <= max_frame && length != END => Ok(length),
        _ => Err(LinkError::TooLarge { found, max: max_frame }),
    }
}

/// Appends a frame to `tail`. A large body is not copied but returned, to be sent after `tail`.
pub(super) fn encode(
    frame: WireFrame,
    max_frame: usize,
    tail: &mut BytesMut,
) -> Result<Option<Bytes>, LinkError> {
    let length = prefix(&frame, max_frame)?;
    let large = frame.body.len() >= ZERO_COPY_FROM;
    tail.reserve(PREFIX + frame.head.len() + if large { 0 } else { frame.body.len() });
    tail.put_u32(length);
    tail.put_slice(&frame.head);
    if large {
        return Ok(Some(frame.body));
    }
    tail.put_slice(&frame.body);
    Ok(None)
}

/// The next item of a byte stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A whole frame.
    Frame(Bytes),
    /// The orderly end.
    End,
    /// Nothing yet: at least this many more bytes are needed.
    More(usize),
}

/// Removes and returns the next frame of `buffer`.
pub(super) fn decode(buffer: &mut BytesMut, max_frame: usize) -> Result<Decoded, LinkError> {
    let Some(prefix) = buffer.first_chunk::<PREFIX>() else {
        return Ok(Decoded::More(PREFIX - buffer.len()));
    };
    let length = u32::from_be_bytes(*prefix);
    if length == END {
        buffer.advance(PREFIX);
        return Ok(Decoded::End);
    }
    let length = checked(length, max_frame)?;
    if buffer.len() < PREFIX + length {
        return Ok(Decoded::More(PREFIX + length - buffer.len()));
    }
    buffer.advance(PREFIX);
    let frame = buffer.split_to(length).freeze();
    if length >= ZERO_COPY_FROM {
        // The bytes of the next frame would keep the memory of this one, which is not counted any more.
        *buffer = BytesMut::from(&buffer[..]);
    }
    Ok(Decoded::Frame(frame))
}

/// Checks a received length.
pub(super) fn checked(length: u32, max_frame: usize) -> Result<usize, LinkError> {
    let found = usize::try_from(length).unwrap_or(usize::MAX);
    if found > max_frame {
        return Err(LinkError::TooLarge { found, max: max_frame });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Lane;

    fn frame(head: &[u8], body: &[u8]) -> WireFrame {
        WireFrame::new(Lane::Control, false, Bytes::copy_from_slice(head), Bytes::copy_from_slice(body))
    }

    #[test]
    fn decodes_encoded_frames_byte_by_byte() {
        let mut wire = BytesMut::new();
        for (head, body) in [(&b"ab"[..], &b"cd"[..]), (b"", b""), (b"x", b"")] {
            assert_eq!(encode(frame(head, body), 100, &mut wire).unwrap(), None);
        }
        wire.put_u32(END);
        let (mut buffer, mut seen) = (BytesMut::new(), Vec::new());
        for byte in wire {
            buffer.put_u8(byte);
            loop {
                match decode(&mut buffer, 100).unwrap() {
                    Decoded::More(n) => {
                        assert!(n > 0);
                        break;
                    }
                    done => seen.push(done),
                }
            }
        }
        let frames = ["abcd", "", "x"].map(|f| Decoded::Frame(Bytes::from_static(f.as_bytes())));
        assert_eq!(seen[..3], frames);
        assert_eq!(seen[3], Decoded::End);
    }

    /// The first byte of a frame does not keep the memory of the large frame before it.
    #[test]
    fn large_frame_is_freed_when_it_is_dropped() {
        let mut buffer = BytesMut::new();
        buffer.put_u32(1 << 20);
        buffer.resize(PREFIX + (1 << 20), 7);
        buffer.put_u8(0);
        let Decoded::Frame(frame) = decode(&mut buffer, 1 << 20).unwrap() else { panic!("a frame") };
        assert!(frame.is_unique());
        assert_eq!((frame.len(), &buffer[..]), (1 << 20, &[0][..]));
    }

    #[test]
    fn does_not_copy_large_bodies() {
        let body = Bytes::from(vec![7; ZERO_COPY_FROM]);
        let whole = WireFrame::new(Lane::Control, false, Bytes::from_static(b"h"), body.clone());
        let rest = encode(whole, 1 << 20, &mut BytesMut::new()).unwrap().unwrap();
        assert_eq!(rest.as_ptr(), body.as_ptr());
    }

    #[test]
    fn rejects_lengths_over_the_limit() {
        let mut buffer = BytesMut::from(&[0x00, 0x00, 0x00, 0x65][..]);
        assert!(matches!(decode(&mut buffer, 100), Err(LinkError::TooLarge { found: 101, max: 100 })));
        assert!(matches!(
            encode(frame(b"", &[0; 101]), 100, &mut buffer),
            Err(LinkError::TooLarge { found: 101, max: 100 })
        ));
    }
}
