//! A caller that does with codes what the sidecars do.

use std::error::Error as _;
use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::csi::within;

/// First wait before a call is repeated; then twice as long each time. The sidecars begin with a second.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Whether the sidecars take the status as the end of the operation. All others mean that it may be running.
///
/// Where the connection to the socket breaks, grpc-go says `UNAVAILABLE`; tonic's client has other codes for that, but then
/// the status has a cause.
#[must_use]
pub fn is_final(status: &Status) -> bool {
    let may_run =
        matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted);
    !may_run && status.source().is_none()
}

/// What became of a call, and how often it was made.
#[derive(Debug)]
#[non_exhaustive]
pub struct Learnt<T> {
    /// The answer, or the final status.
    pub end: Result<T, Status>,
    /// How often it was asked for.
    pub asked: u32,
}

/// Makes a call again and again, with so much time each, until it has an answer or a final status.
pub async fn until_final<T, M: Clone, F: Future<Output = Result<tonic::Response<T>, Status>>>(
    message: M,
    time: Duration,
    mut call: impl FnMut(Request<M>) -> F,
) -> Learnt<T> {
    let (mut wait, mut asked) = (FIRST_WAIT, 0);
    loop {
        asked += 1;
        match call(within(time, message.clone())).await {
            Ok(answer) => return Learnt { end: Ok(answer.into_inner()), asked },
            Err(status) if is_final(&status) => return Learnt { end: Err(status), asked },
            Err(_) => {}
        }
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(LONGEST_WAIT);
    }
}

/// The four controller calls during a volume's lifetime, each repeated until its answer is final.
#[derive(Debug, Clone)]
pub struct Sidecar {
    client: ControllerClient<Channel>,
    time: Duration,
}

impl Sidecar {
    /// One that gives each call so much time.
    #[must_use]
    pub const fn new(client: ControllerClient<Channel>, time: Duration) -> Self {
        Self { client, time }
    }

    /// Makes a volume: its id.
    pub async fn create(&self, name: &str) -> Learnt<String> {
        let request = crate::csi::create_volume(name);
        let learnt =
            until_final(request, self.time, async |request| self.client.clone().create_volume(request).await)
                .await;
        let id = learnt.end.map(|answer| answer.volume.unwrap_or_default().volume_id);
        Learnt { end: id, asked: learnt.asked }
    }

    /// Deletes a volume.
    pub async fn delete(&self, id: &str) -> Learnt<csi::DeleteVolumeResponse> {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        until_final(request, self.time, async |request| self.client.clone().delete_volume(request).await)
            .await
    }

    /// Makes a volume available to a node.
    pub async fn publish(&self, id: &str, node: &str) -> Learnt<csi::ControllerPublishVolumeResponse> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            volume_capability: crate::csi::create_volume(id).volume_capabilities.into_iter().next(),
            ..Default::default()
        };
        until_final(request, self.time, async |request| {
            self.client.clone().controller_publish_volume(request).await
        })
        .await
    }

    /// Undoes [`publish`](Self::publish).
    pub async fn unpublish(&self, id: &str, node: &str) -> Learnt<csi::ControllerUnpublishVolumeResponse> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        until_final(request, self.time, async |request| {
            self.client.clone().controller_unpublish_volume(request).await
        })
        .await
    }
}
