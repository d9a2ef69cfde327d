//! A relay that goes on with a stream of block metadata after its link was lost.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use futures_util::stream;
use prost::Message as _;
use tokio::time::{Instant, sleep};

use super::{Relay, RelayError};
use crate::call::Call;
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::replies::{Replies, Reply};

/// First pause before a stream is asked to go on; doubles from try to try.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Tries in a row that bring nothing before the stream ends with the last failure: more than half a minute.
const MAX_TRIES: u32 = 20;

/// Carries calls as another relay does. A stream of `GetMetadataAllocated` or `GetMetadataDelta` that breaks off on its way is
/// asked for anew from where it was, by `starting_offset`, for as long as its caller waits and at most 20 times without progress.
///
/// Only what has begun goes on: a call that fails before its first message fails. What the driver ends stays ended.
#[derive(Debug)]
pub struct ResumingRelay<R>(Arc<R>);

impl<R: Relay> ResumingRelay<R> {
    /// Goes on with the streams of this relay.
    #[must_use]
    pub fn new(way: R) -> Self {
        Self(Arc::new(way))
    }
}

impl<R> Clone for ResumingRelay<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[async_trait]
impl<R: Relay + 'static> Relay for ResumingRelay<R> {
    async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
        let method = Method::from_path(call.method.as_str());
        let Some(method @ (Method::GetMetadataAllocated | Method::GetMetadataDelta)) = method else {
            return self.0.relay(call).await;
        };
        let end = call.remaining.map(|remaining| Instant::now() + remaining);
        let replies = self.0.relay(call.clone()).await?;
        let reading =
            Reading { way: Arc::clone(&self.0), call, method, end, replies, offset: None, tries: 0 };
        let parts = stream::unfold(Some(reading), |reading| async move {
            let mut reading = reading?;
            match reading.next().await {
                message @ Reply::Message(_) => Some((message, Some(reading))),
                end @ Reply::End(_) => Some((end, None)),
            }
        });
        Ok(Replies::stream(parts))
    }
}

/// A stream that is being read.
struct Reading<R> {
    way: Arc<R>,
    call: Call,
    method: Method,
    end: Option<Instant>,
    replies: Replies,
    /// Where what was read ends, in bytes of the volume; `None` before anything was.
    offset: Option<i64>,
    tries: u32,
}

impl<R: Relay> Reading<R> {
    async fn next(&mut self) -> Reply {
        loop {
            let outcome = match self.replies.next().await {
                Some(Reply::Message(message)) => {
                    if let Some(offset) = end_of(self.method, &message) {
                        (self.offset, self.tries) = (Some(offset), 0);
                    }
                    return Reply::Message(message);
                }
                Some(Reply::End(outcome)) => outcome,
                None => Fault::ServiceLost { what: "the answer".to_owned() }.into(),
            };
            let (Some(offset), Some(true)) = (self.offset, outcome.fault().map(is_lost)) else {
                return Reply::End(outcome);
            };
            if let Err(outcome) = self.go_on(offset, outcome).await {
                return Reply::End(outcome);
            }
        }
    }

    /// Asks for the rest.
    async fn go_on(&mut self, offset: i64, mut last: Outcome) -> Result<(), Outcome> {
        loop {
            let pause = (FIRST_PAUSE * 2_u32.saturating_pow(self.tries.min(8))).min(LONGEST_PAUSE);
            let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
            if self.tries >= MAX_TRIES || left.is_some_and(|left| left <= pause) {
                return Err(last);
            }
            self.tries += 1;
            sleep(pause).await;
            let mut call = self.call.clone();
            call.body = starting_at(self.method, &call.body, offset);
            call.remaining = self.end.map(|end| end.saturating_duration_since(Instant::now()));
            tracing::info!(id = %call.id, method = %call.method, offset, "a stream of block metadata broke off and goes on from where it was");
            match self.way.relay(call).await {
                Ok(replies) => {
                    self.replies = replies;
                    return Ok(());
                }
                Err(error) if is_lost(error.fault()) => last = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether a stream can go on after this: it failed on its way, and the way may be back soon.
const fn is_lost(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::LinkLost { .. }
            | Fault::NodeOffline { .. }
            | Fault::HubUnreachable { .. }
            | Fault::ServiceLost { .. }
            | Fault::Draining { .. }
    )
}

/// Where the ranges of a message end, if it has any.
fn end_of(method: Method, message: &Bytes) -> Option<i64> {
    let ranges = match method {
        Method::GetMetadataAllocated => {
            csi::GetMetadataAllocatedResponse::decode(message.clone()).ok()?.block_metadata
        }
        _ => csi::GetMetadataDeltaResponse::decode(message.clone()).ok()?.block_metadata,
    };
    ranges.last().map(|range| range.byte_offset.saturating_add(range.size_bytes))
}

/// The request for the rest: the same bytes, and a field behind them that counts in the place of the one that is there.
fn starting_at(method: Method, body: &Bytes, starting_offset: i64) -> Bytes {
    let more = match method {
        Method::GetMetadataAllocated => {
            csi::GetMetadataAllocatedRequest { starting_offset, ..Default::default() }.encode_to_vec()
        }
        _ => csi::GetMetadataDeltaRequest { starting_offset, ..Default::default() }.encode_to_vec(),
    };
    let mut whole = BytesMut::with_capacity(body.len() + more.len());
    whole.put_slice(body);
    whole.put_slice(&more);
    whole.freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::sync::Mutex;

    use csi_proto::DriverName;

    use super::*;
    use crate::call::{CallId, MethodPath, NodeId};
    use crate::code::Code;

    /// Ranges of a volume, each of 10 bytes, two in a message. Every stream breaks off after so many messages.
    #[derive(Debug, Default)]
    struct Blocks {
        breaks: Mutex<Vec<usize>>,
        asked: Mutex<Vec<(i64, Option<Duration>)>>,
        refuses: bool,
    }

    const RANGES: i64 = 8;

    #[async_trait]
    impl Relay for Blocks {
        async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
            let request = csi::GetMetadataDeltaRequest::decode(call.body).unwrap();
            assert_eq!((request.base_snapshot_id.as_str(), request.max_results), ("a", 2));
            let first = self.asked.lock().unwrap().is_empty();
            self.asked.lock().unwrap().push((request.starting_offset, call.remaining));
            if self.refuses && !first {
                return Ok(Replies::outcome(Outcome::from_driver(Code::NOT_FOUND, "gone")));
            }
            let end = self.breaks.lock().unwrap().pop();
            let starts: Vec<_> = (request.starting_offset / 10..RANGES).collect();
            let message = |starts: &[i64]| {
                let range = |start: &i64| csi::BlockMetadata { byte_offset: start * 10, size_bytes: 10 };
                let block_metadata = starts.iter().map(range).collect();
                let message = csi::GetMetadataDeltaResponse { block_metadata, ..Default::default() };
                Reply::Message(message.encode_to_vec().into())
            };
            let mut parts: Vec<_> = starts.chunks(2).map(message).collect();
            let lost = Fault::LinkLost { reason: "cut".to_owned() };
            parts.truncate(end.unwrap_or(usize::MAX));
            parts.push(Reply::End(end.map_or_else(Outcome::ok, |_| lost.into())));
            Ok(Replies::stream(stream::iter(parts)))
        }
    }

    fn call() -> Call {
        let (node, driver) = (NodeId::new("edge-1").unwrap(), DriverName::new("csi-hostpath").unwrap());
        let method = MethodPath::new(Method::GetMetadataDelta.path()).unwrap();
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: "a".to_owned(),
            target_snapshot_id: "b".to_owned(),
            max_results: 2,
            ..Default::default()
        };
        Call::new(CallId::from_bytes([7; 16]), node, driver, method, request.encode_to_vec().into())
            .with_remaining(Duration::from_secs(60))
    }

    async fn read(blocks: Blocks) -> (Vec<i64>, Outcome, Vec<i64>) {
        let relay = ResumingRelay::new(blocks);
        let (messages, outcome) = relay.relay(call()).await.unwrap().collect().await;
        let ranges = |message: Bytes| csi::GetMetadataDeltaResponse::decode(message).unwrap().block_metadata;
        let starts = messages.into_iter().flat_map(ranges).map(|range| range.byte_offset / 10).collect();
        let asked = relay.0.asked.lock().unwrap().iter().map(|(offset, _)| *offset).collect();
        (starts, outcome, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_breaks_off_goes_on_from_where_it_was_with_nothing_twice_and_nothing_missing() {
        let blocks = Blocks { breaks: Mutex::new(vec![1, 0, 0, 1]), ..Blocks::default() };
        let (starts, outcome, asked) = read(blocks).await;
        assert_eq!(starts, (0..RANGES).collect::<Vec<_>>());
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(asked, [0, 20, 20, 20, 40]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_its_callers_time_is_over_or_nothing_comes_any_more() {
        let blocks = Blocks { breaks: Mutex::new([vec![0; 100], vec![2]].concat()), ..Blocks::default() };
        let began = Instant::now();
        let (starts, outcome, asked) = read(blocks).await;
        assert_eq!((starts.len(), outcome.code), (4, Code::UNAVAILABLE));
        assert_eq!(asked.len(), 1 + MAX_TRIES as usize);
        assert!(began.elapsed() <= Duration::from_secs(60), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_begun_and_what_the_driver_ends_is_not_asked_again() {
        let (_, outcome, asked) = read(Blocks { breaks: Mutex::new(vec![0]), ..Blocks::default() }).await;
        assert_eq!((outcome.code, asked), (Code::UNAVAILABLE, vec![0]));
        let blocks = Blocks { breaks: Mutex::new(vec![1]), refuses: true, ..Blocks::default() };
        let (_, outcome, asked) = read(blocks).await;
        assert_eq!((outcome.code, asked), (Code::NOT_FOUND, vec![0, 20]));
    }
}
