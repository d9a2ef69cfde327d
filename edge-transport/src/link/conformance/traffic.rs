//! Numbered frames, and functions that send, receive and check them.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Sink, SinkExt, Stream, StreamExt};

use crate::link::{Lane, LinkError, WireFrame};

/// Size in bytes of the head of a [`numbered`] frame.
pub(super) const HEAD: usize = 16;

/// Creates a frame with its lane and its position in the lane, and a body of `size` bytes derived from both.
pub(super) fn numbered(lane: Lane, position: u64, last: bool, size: usize) -> WireFrame {
    let number = match lane {
        Lane::Control => u64::MAX,
        Lane::Call(number) => number,
    };
    let mut head = BytesMut::with_capacity(HEAD);
    head.put_u64(number);
    head.put_u64(position);
    WireFrame::new(lane, last, head.freeze(), body(number, position, size))
}

/// Returns bytes that differ by lane and position, cheap to generate and compare even without optimization.
pub(super) fn body(lane: u64, position: u64, size: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(size);
    let pattern = pattern(lane, position);
    while body.len() < size {
        let wanted = (size - body.len()).min(pattern.len());
        body.put_slice(&pattern[..wanted]);
    }
    body.freeze()
}

fn pattern(lane: u64, position: u64) -> [u8; 251] {
    let [.., seed] = (lane ^ position).to_be_bytes();
    std::array::from_fn(|at| seed.wrapping_add(at.to_le_bytes()[0]))
}

/// Checks received frames: whole, each lane in order, no duplicates.
#[derive(Default)]
pub(super) struct Checker {
    next: HashMap<u64, u64>,
    pub(super) frames: usize,
}

impl Checker {
    pub(super) fn check(&mut self, frame: &Bytes) -> Result<(), String> {
        let head = frame
            .first_chunk::<HEAD>()
            .ok_or_else(|| format!("received a frame of {} bytes; expected at least {HEAD}", frame.len()))?;
        let number = |at: usize| head[at..at + 8].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let (lane, position) = (number(0), number(8));
        let expected = self.next.entry(lane).or_default();
        if position != *expected {
            return Err(format!("received frame {position} of lane {lane}; expected {expected}"));
        }
        *expected += 1;
        self.frames += 1;
        let pattern = pattern(lane, position);
        if frame[HEAD..].chunks(pattern.len()).any(|chunk| *chunk != pattern[..chunk.len()]) {
            return Err(format!("frame {position} of lane {lane} was corrupted"));
        }
        Ok(())
    }
}

/// Feeds all frames, then flushes once.
pub(super) async fn send(
    link: &mut (impl Sink<WireFrame, Error = LinkError> + Unpin),
    frames: impl IntoIterator<Item = WireFrame>,
) -> Result<(), String> {
    for frame in frames {
        link.feed(frame).await.map_err(|error| format!("sending failed: {error}"))?;
    }
    link.flush().await.map_err(|error| format!("flushing failed: {error}"))
}

/// Returns the next frame, which must arrive.
pub(super) async fn receive(
    link: &mut (impl Stream<Item = Result<Bytes, LinkError>> + Unpin),
) -> Result<Bytes, String> {
    match link.next().await {
        Some(Ok(frame)) => Ok(frame),
        Some(Err(error)) => Err(format!("receiving failed: {error}")),
        None => Err("the link ended before its last frame".to_owned()),
    }
}

/// Receives and checks this number of frames.
pub(super) async fn check(
    link: &mut (impl Stream<Item = Result<Bytes, LinkError>> + Unpin),
    frames: usize,
) -> Result<(), String> {
    let mut checker = Checker::default();
    while checker.frames < frames {
        checker.check(&receive(link).await?)?;
    }
    Ok(())
}
