//! A caller that handles status codes as the CSI sidecars do.

use std::error::Error as _;
use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::csi::within;

/// Backoff after the first attempt, doubled after each further one. The sidecars begin with 1 s.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Longest backoff.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Returns whether the sidecars treat the status as the end of the operation. After any other status the operation
/// may be running.
///
/// grpc-go returns `UNAVAILABLE` for a broken connection to the socket. tonic's client returns other codes, with a
/// source.
#[must_use]
pub fn is_final(status: &Status) -> bool {
    let may_run =
        matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted);
    !may_run && status.source().is_none()
}

/// The final result of a call, and the number of its attempts.
#[derive(Debug)]
#[non_exhaustive]
pub struct FinalResult<T> {
    /// The answer, or the final status.
    pub result: Result<T, Status>,
    /// The number of attempts.
    pub attempts: u32,
}

/// Repeats a call, with the timeout `time` for each attempt, until it has an answer or a final status.
pub async fn until_final<T, M: Clone, F: Future<Output = Result<tonic::Response<T>, Status>>>(
    message: M,
    time: Duration,
    mut call: impl FnMut(Request<M>) -> F,
) -> FinalResult<T> {
    let (mut wait, mut attempts) = (FIRST_WAIT, 0);
    loop {
        attempts += 1;
        match call(within(time, message.clone())).await {
            Ok(answer) => return FinalResult { result: Ok(answer.into_inner()), attempts },
            Err(status) if is_final(&status) => return FinalResult { result: Err(status), attempts },
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
    /// Returns a sidecar with this timeout for each attempt.
    #[must_use]
    pub const fn new(client: ControllerClient<Channel>, time: Duration) -> Self {
        Self { client, time }
    }

    /// Creates a volume, and returns its id.
    pub async fn create(&self, name: &str) -> FinalResult<String> {
        let request = crate::csi::create_volume(name);
        let created =
            until_final(request, self.time, async |request| self.client.clone().create_volume(request).await)
                .await;
        let id = created.result.map(|answer| answer.volume.unwrap_or_default().volume_id);
        FinalResult { result: id, attempts: created.attempts }
    }

    /// Deletes a volume.
    pub async fn delete(&self, id: &str) -> FinalResult<csi::DeleteVolumeResponse> {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        until_final(request, self.time, async |request| self.client.clone().delete_volume(request).await)
            .await
    }

    /// Makes a volume available to a node.
    pub async fn publish(&self, id: &str, node: &str) -> FinalResult<csi::ControllerPublishVolumeResponse> {
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
    pub async fn unpublish(
        &self,
        id: &str,
        node: &str,
    ) -> FinalResult<csi::ControllerUnpublishVolumeResponse> {
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
