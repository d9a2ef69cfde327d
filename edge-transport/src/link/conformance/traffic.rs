//! Numbered frames, and functions that send, receive and check them.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Sink, SinkExt, Stream, StreamExt};

use crate::link::{Lane, LinkError, WireFrame};

/// Bytes of the head that [`numbered`] gives a frame.
pub(super) const HEAD: usize = 16;

/// Creates a frame with its lane and its position in the lane, and a body of `size` bytes derived from both.
pub(super) fn numbered(lane: Lane, place: u64, last: bool, size: usize) -> WireFrame {
    let number = match lane {
        Lane::Control => u64::MAX,
        Lane::Call(number) => number,
    };
    let mut head = BytesMut::with_capacity(HEAD);
    head.put_u64(number);
    head.put_u64(place);
    WireFrame::new(lane, last, head.freeze(), body(number, place, size))
}

/// Returns bytes that differ by lane and position, cheap to generate and compare even without optimization.
pub(super) fn body(lane: u64, place: u64, size: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(size);
    let row = row(lane, place);
    while body.len() < size {
        let wanted = (size - body.len()).min(row.len());
        body.put_slice(&row[..wanted]);
    }
    body.freeze()
}

fn row(lane: u64, place: u64) -> [u8; 251] {
    let [.., seed] = (lane ^ place).to_be_bytes();
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
            .ok_or_else(|| format!("received a frame of {} bytes", frame.len()))?;
        let number = |at: usize| head[at..at + 8].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let (lane, place) = (number(0), number(8));
        let expected = self.next.entry(lane).or_default();
        if place != *expected {
            return Err(format!("received frame {place} of lane {lane}; expected {expected}"));
        }
        *expected += 1;
        self.frames += 1;
        let row = row(lane, place);
        if frame[HEAD..].chunks(row.len()).any(|chunk| *chunk != row[..chunk.len()]) {
            return Err(format!("frame {place} of lane {lane} was corrupted"));
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
