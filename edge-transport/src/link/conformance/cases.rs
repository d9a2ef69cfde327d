//! The cases of the suite. Each case gets a new pair of ends and returns a description of any violation.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt, StreamExt};

use super::Outcome;
use super::traffic::{Checker, HEAD, body, check, numbered, receive, send};
use crate::link::{Lane, Link, LinkError, WireFrame};

/// Two ends of a link, and its largest frame in bytes.
type Pair = ((Link, Link), usize);

/// Maximum number of bytes that a link may accept while its other end does not read.
const UNREAD_BOUND: usize = 64 << 20;

/// Timeout for noticing a dropped end.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn both_ends_are_described(((left, right), _): Pair) -> Outcome {
    if left.kind() != right.kind() {
        return Err(format!("the ends report different kinds: {} and {}", left.kind(), right.kind()));
    }
    if left.remote().is_empty() || right.remote().is_empty() {
        return Err("an end reports no address of the other".to_owned());
    }
    Ok(())
}

pub(super) async fn every_size_arrives(((mut left, mut right), max_frame): Pair) -> Outcome {
    let around = |size: usize| [size.saturating_sub(1), size, size + 1];
    let edges = [1, 125, 256, 1_200, 4 << 10, 8 << 10, 16 << 10, 64 << 10];
    let large = [1 << 20, 4 << 20, max_frame];
    let sizes = edges.into_iter().flat_map(around).chain(large).filter(|size| *size <= max_frame);
    for size in sizes {
        let whole = body(0, 0, size);
        // All bytes in the head, all in the body, and half each.
        let heads = if size > 128 << 10 { vec![HEAD] } else { vec![0, size / 2, size] };
        for head in heads {
            let frame = WireFrame::new(Lane::Call(1), false, whole.slice(..head), whole.slice(head..));
            let (sent, received) = tokio::join!(send(&mut left, [frame]), receive(&mut right));
            sent.map_err(|error| format!("{size} bytes: {error}"))?;
            let received = received.map_err(|error| format!("{size} bytes: {error}"))?;
            if received != whole {
                return Err(format!("received {} bytes that differ from the {size} sent", received.len()));
            }
        }
    }
    Ok(())
}

pub(super) async fn lanes_keep_order(((mut left, mut right), _): Pair) -> Outcome {
    const LANES: u64 = 50;
    const ROUNDS: u64 = 12;
    let frames = (0..ROUNDS).flat_map(|position| {
        let calls = (0..LANES).map(move |lane| {
            let size = if (lane + position) % 7 == 0 { 40_000 } else { 300 };
            numbered(Lane::Call(lane), position, position + 1 == ROUNDS, size)
        });
        calls.chain([numbered(Lane::Control, position, false, 10)])
    });
    let count = usize::try_from(ROUNDS * (LANES + 1)).unwrap_or(usize::MAX);
    let (sent, checked) = tokio::join!(send(&mut left, frames), check(&mut right, count));
    sent.and(checked)
}

pub(super) async fn many_lanes_stay_open(((mut left, mut right), _): Pair) -> Outcome {
    const LANES: u64 = 500;
    let mut checker = Checker::default();
    for position in 0..3 {
        let calls = (0..LANES).map(|lane| numbered(Lane::Call(lane), position, position == 2, 100));
        let frames = calls.chain([numbered(Lane::Control, position, false, 10)]);
        let receiving = async {
            for _ in 0..=LANES {
                checker.check(&receive(&mut right).await?)?;
            }
            Ok(())
        };
        let (sent, received) = tokio::join!(send(&mut left, frames), receiving);
        sent.and(received)?;
    }
    // Streams of finished lanes can be reused.
    let again = (0..LANES).map(|lane| numbered(Lane::Call(lane + LANES), 0, true, 100));
    let (sent, checked) =
        tokio::join!(send(&mut left, again), check(&mut right, usize::try_from(LANES).unwrap_or(usize::MAX)));
    sent.and(checked)
}

pub(super) async fn too_large_is_refused(((mut left, mut right), max_frame): Pair) -> Outcome {
    send(&mut left, [numbered(Lane::Call(1), 0, false, 10)]).await?;
    let large = WireFrame::new(Lane::Call(1), false, Bytes::from_static(b"h"), vec![0; max_frame].into());
    poll_fn(|cx| Pin::new(&mut left).poll_ready(cx)).await.map_err(|error| format!("not ready: {error}"))?;
    match Pin::new(&mut left).start_send(large) {
        Err(LinkError::TooLarge { found, max }) if found == max_frame + 1 && max == max_frame => {}
        other => return Err(format!("a frame of one byte too many returned {other:?}; expected TooLarge")),
    }
    send(&mut left, [numbered(Lane::Call(1), 1, true, 10)]).await?;
    check(&mut right, 2).await
}

pub(super) async fn full_load_both_ways(((left, right), max_frame): Pair) -> Outcome {
    const ROUNDS: u64 = 64;
    // 16 MiB of large frames on one lane each way, with small calls and control frames in between.
    let large = max_frame.min(256 << 10) - HEAD;
    let load = || {
        (0..ROUNDS).flat_map(move |position| {
            let single = move |n| numbered(Lane::Call(10 + position * 16 + n), 0, true, 600);
            [
                numbered(Lane::Call(1), position, position + 1 == ROUNDS, large),
                numbered(Lane::Control, position, false, 20),
            ]
            .into_iter()
            .chain((0..16).map(single))
        })
    };
    let count = usize::try_from(ROUNDS * 18).unwrap_or(usize::MAX);
    let ((mut to_right, mut from_right), (mut to_left, mut from_left)) = (left.split(), right.split());
    let (a, b, c, d) = tokio::join!(
        send(&mut to_right, load()),
        check(&mut from_left, count),
        send(&mut to_left, load()),
        check(&mut from_right, count),
    );
    a.and(b).and(c).and(d)
}

pub(super) async fn back_pressure(((mut left, mut right), max_frame): Pair) -> Outcome {
    let size = max_frame.min(64 << 10) - HEAD;
    let mut sent = 0;
    poll_fn(|cx| {
        loop {
            match Pin::new(&mut left).poll_ready(cx) {
                Poll::Pending => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(format!("sending failed: {error}"))),
                Poll::Ready(Ok(())) if sent * size > UNREAD_BOUND => {
                    return Poll::Ready(Err(format!(
                        "{} unread bytes were accepted; at most {UNREAD_BOUND} are allowed",
                        sent * size
                    )));
                }
                Poll::Ready(Ok(())) => {}
            }
            let position = u64::try_from(sent).unwrap_or(u64::MAX);
            if let Err(error) = Pin::new(&mut left).start_send(numbered(Lane::Call(1), position, false, size))
            {
                return Poll::Ready(Err(format!("sending failed: {error}")));
            }
            sent += 1;
        }
    })
    .await?;
    let (flushed, checked) = tokio::join!(left.flush(), check(&mut right, sent));
    flushed.map_err(|error| format!("flushing failed: {error}"))?;
    checked
}

pub(super) async fn closing_loses_nothing(((mut left, mut right), _): Pair) -> Outcome {
    let frames = (0..100).map(|lane| numbered(Lane::Call(lane), 0, lane % 2 == 0, 5_000));
    let closing = async {
        for frame in frames {
            left.feed(frame).await.map_err(|error| format!("sending failed: {error}"))?;
        }
        left.close().await.map_err(|error| format!("closing failed: {error}"))?;
        // Delivery must not depend on the closed end.
        drop(left);
        Ok(())
    };
    let reading = async move {
        check(&mut right, 100).await?;
        for _ in 0..2 {
            match right.next().await {
                None => {}
                Some(Ok(_)) => return Err("received a frame that was never sent".to_owned()),
                Some(Err(error)) => return Err(format!("an orderly end returned an error: {error}")),
            }
        }
        Ok(())
    };
    let (closed, read) = tokio::join!(closing, reading);
    closed.and(read)
}

pub(super) async fn a_cut_is_noticed(((mut left, right), _): Pair) -> Outcome {
    drop(right);
    match tokio::time::timeout(NOTICE_TIMEOUT, left.next()).await {
        Err(_) => return Err(format!("the dropped end was not noticed within {NOTICE_TIMEOUT:?}")),
        Ok(Some(Ok(_))) => return Err("received a frame that was never sent".to_owned()),
        Ok(Some(Err(_)) | None) => {}
    }
    if left.next().await.is_some() {
        return Err("received an item after the end".to_owned());
    }
    let sending =
        async { while send(&mut left, [numbered(Lane::Control, 0, false, 1_000)]).await.is_ok() {} };
    tokio::time::timeout(NOTICE_TIMEOUT, sending)
        .await
        .map_err(|_| "frames are accepted after the end".to_owned())
}
