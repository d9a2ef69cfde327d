//! Large answers through every part: 4 MiB in one message, 16 MiB in a stream, and a reader that stops reading.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]
#![allow(clippy::print_stdout, reason = "figures are for the person that runs it")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::csi::v1::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};
use edge_csi_tests::cluster::TestCluster;
use edge_csi_tests::csi::channel;
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::wait;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, async_trait};

/// Blocks that make a message of about 256 KiB.
const BLOCKS: usize = 20_000;

/// A driver with metadata of any length: `max_results` messages, each of as many blocks as `snapshot_id` says.
#[derive(Clone, Default)]
struct Large {
    /// The number of stream messages that were read from the driver.
    taken: Arc<AtomicUsize>,
}

fn block(number: usize) -> csi::BlockMetadata {
    // Large numbers, so that every entry has the same size on the wire.
    csi::BlockMetadata { byte_offset: (1 << 40) + number as i64, size_bytes: 1 << 12 }
}

type Messages = Pin<Box<dyn Stream<Item = Result<csi::GetMetadataAllocatedResponse, Status>> + Send>>;

#[async_trait]
impl SnapshotMetadata for Large {
    type GetMetadataAllocatedStream = Messages;
    type GetMetadataDeltaStream =
        Pin<Box<dyn Stream<Item = Result<csi::GetMetadataDeltaResponse, Status>> + Send>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Messages>, Status> {
        let (messages, taken) = (request.get_ref().max_results as usize, Arc::clone(&self.taken));
        let blocks: usize = request.get_ref().snapshot_id.parse().unwrap();
        Ok(Response::new(Box::pin(stream::iter(0..messages).map(move |number| {
            taken.fetch_add(1, Ordering::SeqCst);
            Ok(csi::GetMetadataAllocatedResponse {
                block_metadata: (0..blocks).map(|at| block(number * blocks + at)).collect(),
                ..Default::default()
            })
        }))))
    }

    async fn get_metadata_delta(
        &self,
        _: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

async fn cluster_with(driver: Large, over: LinkKind) -> TestCluster {
    let mut cluster = TestCluster::empty(over);
    let listener = UnixListener::bind(cluster.driver_socket()).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(SnapshotMetadataServer::new(driver).max_encoding_message_size(usize::MAX))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(server);
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&[]).unwrap();
    let client = metadata(&cluster);
    wait::until("a relayed call is answered", || {
        let mut client = client.clone();
        async move { client.get_metadata_allocated(of(0, 0)).await.ok() }
    })
    .await;
    cluster
}

fn metadata(cluster: &TestCluster) -> SnapshotMetadataClient<tonic::transport::Channel> {
    SnapshotMetadataClient::new(channel(&cluster.proxy_socket())).max_decoding_message_size(usize::MAX)
}

fn of(messages: i32, blocks: usize) -> csi::GetMetadataAllocatedRequest {
    let snapshot_id = blocks.to_string();
    csi::GetMetadataAllocatedRequest { snapshot_id, max_results: messages, ..Default::default() }
}

async fn read_to_end(mut stream: tonic::Streaming<csi::GetMetadataAllocatedResponse>, from: usize) -> usize {
    let mut blocks = from;
    while let Some(message) = stream.message().await.unwrap() {
        for found in message.block_metadata {
            assert_eq!(found, block(blocks));
            blocks += 1;
        }
    }
    blocks
}

async fn large_answers_over(over: LinkKind) {
    let cluster = cluster_with(Large::default(), over).await;
    let mut client = metadata(&cluster);
    let stream = client.get_metadata_allocated(of(1, 17 * BLOCKS)).await.unwrap().into_inner();
    assert_eq!(read_to_end(stream, 0).await, 17 * BLOCKS);

    let stream = client.get_metadata_allocated(of(64, BLOCKS)).await.unwrap().into_inner();
    assert_eq!(read_to_end(stream, 0).await, 64 * BLOCKS);
}

#[tokio::test]
async fn large_messages_and_streams_arrive_over_a_websocket() {
    large_answers_over(LinkKind::Wss).await;
}

#[tokio::test]
async fn large_messages_and_streams_arrive_over_quic() {
    large_answers_over(LinkKind::Quic).await;
}

/// Returns the peak memory of hub, agent and proxy, in KiB.
fn peaks(cluster: &TestCluster) -> [u64; 3] {
    [&cluster.hub, &cluster.agent, &cluster.proxy]
        .map(|process| process.as_ref().unwrap().peak_kib().unwrap())
}

/// One reader reads nothing. Other streams continue, and no process grows by the unread bytes.
async fn a_reader_stops_over(over: LinkKind) {
    let driver = Large::default();
    let taken = Arc::clone(&driver.taken);
    let cluster = cluster_with(driver, over).await;
    // Measures the memory of a stream that is read, so that only the memory of unread bytes counts below.
    let stream = metadata(&cluster).get_metadata_allocated(of(64, BLOCKS)).await.unwrap().into_inner();
    assert_eq!(read_to_end(stream, 0).await, 64 * BLOCKS);
    taken.store(0, Ordering::SeqCst);
    let peaks_before = peaks(&cluster);
    let mut stream = metadata(&cluster).get_metadata_allocated(of(64, BLOCKS)).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.block_metadata.len(), BLOCKS);

    // The buffers are full once fifty checks in a row find no further message.
    let (mut before, mut checks) = (0, 0);
    wait::until("the driver is held up", || {
        let now = taken.load(Ordering::SeqCst);
        checks = if now == before { checks + 1 } else { 0 };
        before = now;
        std::future::ready((checks == 50).then_some(()))
    })
    .await;
    assert!(before <= 32, "{before} of 64 messages of 256 KiB were taken from the driver without a reader");

    // Meanwhile other streams on the same links are read to their ends.
    for _ in 0..3 {
        let other = metadata(&cluster).get_metadata_allocated(of(64, BLOCKS)).await.unwrap().into_inner();
        assert_eq!(read_to_end(other, 0).await, 64 * BLOCKS);
    }
    assert_eq!(taken.load(Ordering::SeqCst), before + 3 * 64, "the one that is not read has moved");
    for ((name, before), after) in ["hub", "agent", "proxy"].iter().zip(peaks_before).zip(peaks(&cluster)) {
        println!("{over:?}: {name} had at most {before} KiB, with an unread stream {after} KiB");
        assert!(after < before + 12 * 1024, "{name} had {before} KiB, and then {after}");
    }
    assert_eq!(read_to_end(stream, BLOCKS).await, 64 * BLOCKS);
}

#[tokio::test]
async fn an_unread_stream_blocks_only_itself_over_a_websocket() {
    a_reader_stops_over(LinkKind::Wss).await;
}

#[tokio::test]
async fn an_unread_stream_blocks_only_itself_over_quic() {
    a_reader_stops_over(LinkKind::Quic).await;
}
