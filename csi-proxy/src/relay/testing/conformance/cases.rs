//! The cases of a bus without faults.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::{Code, Method};
use tokio::task::JoinSet;

use super::Violation;
use super::far_end::{PAUSED, STREAMED, failure, link_lost, numbered};
use super::suite::{Suite, TIMEOUT, call, collect, expect, until, within};
use crate::call::{CallNumber, Fence, GivenUp, Metadata, Outcome, Reply, Term};

const LARGE: usize = 4 * 1024 * 1024;
const CONCURRENT_CALLS: u32 = 64;

pub(super) const CREATE: &str = Method::CreateVolume.path();
pub(super) const STREAM: &str = Method::GetMetadataAllocated.path();
const OF_LATER_VERSION: &str = "/csi.v1.Controller/MethodOfALaterVersion";

/// How long before the first message of a stream must have arrived while the driver pauses.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// The cases with one message at most.
pub(super) async fn unary(suite: &Suite) -> Result<(), Violation> {
    for method in [CREATE, OF_LATER_VERSION] {
        method_passes(suite, method).await?;
    }
    header_passes(suite).await?;
    body_is_dropped(suite).await?;
    many_at_once(suite).await?;
    cancelled_call_continues(suite).await
}

/// The cases with more messages.
pub(super) async fn streams(suite: &Suite) -> Result<(), Violation> {
    stream_passes(suite).await?;
    method_passes(suite, STREAM).await?;
    stream_is_not_buffered(suite).await
}

/// A relay for unary calls must not pass a part of a stream on as if it were the whole.
pub(super) async fn stream_is_refused(suite: &Suite) -> Result<(), Violation> {
    let case = "a relay for unary calls refuses a stream with a fault, and passes no part of it on";
    let (messages, outcome) = suite.answer(case, "stream", STREAM, Bytes::new()).await?;
    expect(case, messages.is_empty() && outcome.fault().is_some(), || {
        format!("{} messages, {outcome:?}", messages.len())
    })
}

/// Checks all calls so far: a copy is harmless, but costs the driver a second read.
pub(super) fn calls_arrive_once(suite: &Suite) -> Result<(), Violation> {
    let case = "a call arrives once unless the bus is cut";
    match suite.far.repeated().first() {
        Some(one) => {
            let found = format!("{} copies of {}", one.copies, one.call.method);
            Err(Violation { case, found })
        }
        None => Ok(()),
    }
}

async fn method_passes(suite: &Suite, method: &str) -> Result<(), Violation> {
    let case = "a body and a message pass byte for byte";
    let large: Bytes = (0..LARGE).map(|at| (at % 251) as u8).collect::<Vec<_>>().into();
    for body in [Bytes::new(), Bytes::from_static(&[0, 0xff, 0xf8, 0x7f, 1]), large] {
        let (messages, outcome) = suite.answer(case, "echo", method, body.clone()).await?;
        expect(case, outcome == Outcome::ok(), || format!("{method}: {outcome:?}"))?;
        let lengths: Vec<_> = messages.iter().map(Bytes::len).collect();
        let found = || format!("{method}: sent {} bytes, received {lengths:?}", body.len());
        expect(case, messages == [body.clone()], found)?;
    }
    let case = "a status of the driver passes unchanged, with code, message, details and trailers";
    for code in Code::ALL.into_iter().skip(1) {
        let body = Bytes::copy_from_slice(&code.number().to_be_bytes());
        let (messages, outcome) = suite.answer(case, "fail", method, body).await?;
        let expected = failure(code);
        expect(case, outcome == expected && messages.is_empty(), || {
            format!("{method}: {outcome:?}; expected {expected:?}")
        })?;
    }
    let case = "a fault at the far end is a fault at the near end";
    let (_, outcome) = suite.answer(case, "fault", method, Bytes::new()).await?;
    expect(case, outcome.fault() == Some(&link_lost()), || format!("{method}: {outcome:?}"))
}

async fn header_passes(suite: &Suite) -> Result<(), Violation> {
    let case = "a call keeps its id, node, method, metadata, remaining time and fence";
    let mut metadata = Metadata::default();
    let entries =
        [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("x-a-bin", "AAEC")];
    for (name, value) in entries {
        metadata.insert(name, value).map_err(|error| Violation { case, found: error.to_string() })?;
    }
    let fence = Fence::new(Term::FIRST, CallNumber::FIRST, CallNumber::FIRST, GivenUp::default());
    let fence = fence.map_err(|error| Violation { case, found: error.to_string() })?;
    let sent =
        call(case, "echo", CREATE, Bytes::from_static(b"x"))?.with_metadata(metadata).with_fence(fence);
    let answer = within(case, async { collect(suite.open(sent.clone()).await).await }).await?;
    expect(case, answer.1.is_ok(), || format!("{:?}", answer.1))?;
    let Some(arrived) = suite.far.arrived(sent.id).map(|arrived| arrived.call) else {
        return Err(Violation { case, found: "the call arrived with another id".to_owned() });
    };
    let differs = |what: &str, found: String| Err(Violation { case, found: format!("{what}: {found}") });
    if arrived.node != sent.node {
        return differs("node", arrived.node.to_string());
    }
    if arrived.method != sent.method {
        return differs("method", arrived.method.to_string());
    }
    if arrived.metadata != sent.metadata {
        return differs("metadata", format!("{:?}; expected {:?}", arrived.metadata, sent.metadata));
    }
    if !arrived.remaining.is_some_and(|left| !left.is_zero() && left <= TIMEOUT) {
        return differs("remaining time", format!("{:?}; expected at most {TIMEOUT:?}", arrived.remaining));
    }
    if arrived.fence.is_none() {
        return differs("fence", "none".to_owned());
    }
    Ok(())
}

/// A body may have secrets, and 8 MiB.
async fn body_is_dropped(suite: &Suite) -> Result<(), Violation> {
    struct Body(Vec<u8>, #[allow(dead_code, reason = "its count says whether the body is kept")] Arc<()>);
    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let case = "the body of a call is dropped when the call ends";
    let alive = Arc::new(());
    for driver in ["echo", "fail"] {
        let body = Bytes::from_owner(Body(vec![1; 4], Arc::clone(&alive)));
        drop(suite.answer(case, driver, CREATE, body).await?);
    }
    until(case, "the relay keeps a body", || Arc::strong_count(&alive) == 1).await
}

async fn many_at_once(suite: &Suite) -> Result<(), Violation> {
    let case = "concurrent calls each get their own answer";
    let mut calls = JoinSet::new();
    for number in 0..CONCURRENT_CALLS {
        let suite = suite.clone();
        calls.spawn(async move {
            let body = numbered(number);
            let found = suite.answer(case, "echo", CREATE, body.clone()).await?;
            expect(case, found == (vec![body], Outcome::ok()), || format!("call {number}: {:?}", found.1))
        });
    }
    while let Some(call) = calls.join_next().await {
        call.map_err(|error| Violation { case, found: error.to_string() })??;
    }
    Ok(())
}

async fn cancelled_call_continues(suite: &Suite) -> Result<(), Violation> {
    let case = "a cancelled call ends the wait, not the work, and affects no other call";
    let work = suite.far.work("hang");
    let waiting = {
        let suite = suite.clone();
        tokio::spawn(async move { suite.answer(case, "hang", CREATE, Bytes::new()).await })
    };
    within(case, work.started.notified()).await?;
    waiting.abort();
    let _ = waiting.await;
    let (_, outcome) = suite.answer(case, "echo", CREATE, Bytes::new()).await?;
    expect(case, outcome.is_ok(), || format!("the next call: {outcome:?}"))?;
    work.release();
    within(case, work.done.notified()).await
}

async fn stream_passes(suite: &Suite) -> Result<(), Violation> {
    let case = "a stream passes in order and ends as the driver ended it";
    let (messages, outcome) = suite.answer(case, "stream", STREAM, Bytes::new()).await?;
    let expected: Vec<_> = (0..STREAMED).map(numbered).collect();
    expect(case, messages == expected, || {
        let hint = "a relay for unary calls only is checked with `unary_only()`";
        format!("found {} messages, {outcome:?}; expected {STREAMED} in order; {hint}", messages.len())
    })?;
    expect(case, outcome == failure(Code::OUT_OF_RANGE), || format!("{outcome:?}"))
}

async fn stream_is_not_buffered(suite: &Suite) -> Result<(), Violation> {
    let case = "a message of a stream passes while the driver still produces the next one";
    let call = call(case, "pause", STREAM, Bytes::new())?;
    let first = tokio::time::timeout(FIRST_MESSAGE, async {
        let mut replies = suite.open(call).await;
        (replies.next().await, replies)
    });
    let Ok((first, replies)) = first.await else {
        let found = format!("no message within {FIRST_MESSAGE:?}, although the driver has sent one");
        return Err(Violation { case, found });
    };
    expect(case, first == Some(Reply::Message(numbered(0))), || format!("{first:?}"))?;
    suite.far.work("pause").release();
    let (messages, outcome) = within(case, collect(replies)).await?;
    let expected: Vec<_> = (1..PAUSED).map(numbered).collect();
    expect(case, (&messages, &outcome) == (&expected, &Outcome::ok()), || {
        format!("{} more messages, {outcome:?}", messages.len())
    })
}
