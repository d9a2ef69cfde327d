#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use csi_proto::DriverName;
use tokio::time::Instant;

use super::super::{ClockTerms, Reachability, RetryRelay};
use super::*;
use crate::call::{Call, CallId, Fault, MethodPath, NodeId, NodeSession, Outcome};
use csi_proto::Code;

/// The ranges of a volume, 10 bytes each, two per message. Each stream breaks after a given number of messages.
#[derive(Debug, Default)]
struct Blocks {
    breaks: Mutex<Vec<usize>>,
    asked: Mutex<Vec<(i64, Option<Duration>)>>,
    refuses: bool,
}

const RANGES: i64 = 8;

#[async_trait]
impl Relay for Arc<Blocks> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let request = csi::GetMetadataDeltaRequest::decode(call.body).unwrap();
        assert_eq!((request.base_snapshot_id.as_str(), request.max_results), ("a", 2));
        let first = self.asked.lock().unwrap().is_empty();
        self.asked.lock().unwrap().push((request.starting_offset, call.remaining));
        if self.refuses && !first {
            return Ok(Replies::outcome(Outcome::from_driver(Code::NOT_FOUND, "deleted")));
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
    let blocks = Arc::new(blocks);
    let reachability = Reachability::new(Duration::from_secs(5));
    let hub = reachability.add_hub();
    hub.connected();
    hub.node_up(&NodeId::new("edge-1").unwrap(), NodeSession { instance: 1, number: 1 });
    hub.synced();
    let terms = ClockTerms::default();
    let relay = RetryRelay::start(Arc::clone(&blocks), reachability, terms).await.unwrap();
    let (messages, outcome) = match relay.relay(call()).await {
        Ok(replies) => replies.collect().await,
        Err(error) => (Vec::new(), error.into()),
    };
    let ranges = |message: Bytes| csi::GetMetadataDeltaResponse::decode(message).unwrap().block_metadata;
    let starts = messages.into_iter().flat_map(ranges).map(|range| range.byte_offset / 10).collect();
    let asked = blocks.asked.lock().unwrap().iter().map(|(offset, _)| *offset).collect();
    (starts, outcome, asked)
}

#[tokio::test(start_paused = true)]
async fn resumes_broken_stream_at_the_last_offset() {
    let blocks = Blocks { breaks: Mutex::new(vec![1, 0, 0, 1]), ..Blocks::default() };
    let (starts, outcome, asked) = read(blocks).await;
    assert_eq!(starts, (0..RANGES).collect::<Vec<_>>());
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(asked, [0, 20, 20, 20, 40]);
}

#[tokio::test(start_paused = true)]
async fn counts_only_attempts_without_progress() {
    let breaks = [vec![0; 12], vec![1], vec![0; 12], vec![1], vec![0; 12], vec![1]].concat();
    let (starts, outcome, asked) = read(Blocks { breaks: Mutex::new(breaks), ..Blocks::default() }).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!((starts.len(), asked.len()), (8, 40));
}

#[tokio::test(start_paused = true)]
async fn stalled_stream_ends_at_the_deadline() {
    let blocks = Blocks { breaks: Mutex::new([vec![0; 100], vec![2]].concat()), ..Blocks::default() };
    let began = Instant::now();
    let (starts, outcome, asked) = read(blocks).await;
    assert_eq!((starts.len(), outcome.code), (4, Code::UNAVAILABLE));
    assert!(asked.len() > 10 && asked.len() <= 33, "{}", asked.len());
    assert!(began.elapsed() <= Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn stream_ended_by_the_driver_is_final() {
    let blocks = Blocks { breaks: Mutex::new(vec![1]), refuses: true, ..Blocks::default() };
    let (_, outcome, asked) = read(blocks).await;
    assert_eq!((outcome.code, asked), (Code::NOT_FOUND, vec![0, 20]));
}

#[tokio::test(start_paused = true)]
async fn retries_stream_without_messages() {
    let blocks = Blocks { breaks: Mutex::new(vec![0]), ..Blocks::default() };
    let (starts, outcome, asked) = read(blocks).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!((starts.len(), asked), (8, vec![0, 0]));
}
