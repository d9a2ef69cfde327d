//! The cases of a bus that is cut.

use bytes::Bytes;
use csi_proto::Delivery;

use super::cases::{CREATE, STREAM};
use super::far_end::{PAUSED, numbered};
use super::suite::{POLL, Suite, TIMEOUT, call, collect, expect, within};
use super::{Cut, Violation};
use crate::call::{Outcome, Reply};

pub(super) async fn run(suite: &Suite, cut: &Cut<'_>, unary_only: bool) -> Result<(), Violation> {
    call_ends(suite, cut).await?;
    works_again(suite).await?;
    if !unary_only {
        stream_ends(suite, cut).await?;
        works_again(suite).await?;
    }
    Ok(())
}

/// A call that the driver executes while the bus is cut.
async fn call_ends(suite: &Suite, cut: &Cut<'_>) -> Result<(), Violation> {
    let case =
        "a call that is cut ends with its answer, or with a fault that does not claim that it was not sent";
    let work = suite.far.work("hang-cut");
    let waiting = {
        let suite = suite.clone();
        tokio::spawn(async move { suite.answer(case, "hang-cut", CREATE, Bytes::new()).await })
    };
    within(case, work.started.notified()).await?;
    cut().await;
    work.release();
    let (_, outcome) = waiting.await.map_err(|error| Violation { case, found: error.to_string() })??;
    expect(case, is_honest(&outcome), || format!("{outcome:?}"))
}

async fn stream_ends(suite: &Suite, cut: &Cut<'_>) -> Result<(), Violation> {
    let case = "a stream that is cut ends with all its messages, or with a fault after the first of them";
    let call = call(case, "pause-cut", STREAM, Bytes::new())?;
    let (first, replies) = within(case, async {
        let mut replies = suite.open(call).await;
        (replies.next().await, replies)
    })
    .await?;
    expect(case, first == Some(Reply::Message(numbered(0))), || format!("{first:?}"))?;
    cut().await;
    suite.far.work("pause-cut").release();
    let (messages, outcome) = within(case, collect(replies)).await?;
    let expected: Vec<_> = (1..PAUSED).map(numbered).collect();
    let is_whole = messages == expected || (expected.starts_with(&messages) && outcome.fault().is_some());
    expect(case, is_whole && is_honest(&outcome), || {
        format!("{} of {} more messages, {outcome:?}", messages.len(), expected.len())
    })
}

/// The driver has answered with success, so that is the only answer; or the answer is lost.
fn is_honest(outcome: &Outcome) -> bool {
    match outcome.fault() {
        Some(fault) => fault.delivery() == Delivery::Unknown,
        None => *outcome == Outcome::ok(),
    }
}

/// Calls may fail until the bus has recovered, but never with a made-up answer.
async fn works_again(suite: &Suite) -> Result<(), Violation> {
    let case = "calls pass again after a cut";
    let body = Bytes::from_static(b"after");
    let passes = async {
        loop {
            let (messages, outcome) = suite.answer(case, "echo", CREATE, body.clone()).await?;
            if outcome.fault().is_none() {
                return expect(case, (messages, &outcome) == (vec![body], &Outcome::ok()), || {
                    format!("{outcome:?}")
                });
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let late = |_| Err(Violation { case, found: format!("no call passed within {TIMEOUT:?}") });
    tokio::time::timeout(TIMEOUT, passes).await.unwrap_or_else(late)
}
