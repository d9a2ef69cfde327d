//! A driver that never completes an answer.

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use csi_proxy::SocketAddress;
use tokio::net::UnixListener;
use tokio::sync::watch;

use super::{framed, in_time};

/// The service whose answers begin with one message.
const STREAMS: &str = "/csi.v1.SnapshotMetadata/";

/// Counts the RPCs that it has received, and those that were cancelled.
#[derive(Debug, Clone, Default)]
pub struct SilentDriver {
    received: Arc<watch::Sender<usize>>,
    cancelled: Arc<watch::Sender<usize>>,
}

impl SilentDriver {
    /// Serves on a socket in this directory.
    pub fn serve(directory: &Path) -> (Self, SocketAddress) {
        let (driver, socket) = (Self::default(), directory.join("silent.sock"));
        let listener = UnixListener::bind(&socket).unwrap();
        let serving = driver.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let driver = serving.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(socket).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        driver.received.send_modify(|count| *count += 1);
                        tokio::spawn(
                            driver.clone().answer(request.uri().path().starts_with(STREAMS), respond),
                        );
                    }
                });
            }
        });
        (driver, SocketAddress::new(socket.to_str().unwrap()).unwrap())
    }

    async fn answer(self, streams: bool, mut respond: h2::server::SendResponse<Bytes>) {
        if streams {
            let response = http::Response::builder().header("content-type", "application/grpc");
            let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
            stream.send_data(framed(b"first"), false).unwrap();
            poll_fn(|cx| stream.poll_reset(cx)).await.unwrap();
        } else {
            poll_fn(|cx| respond.poll_reset(cx)).await.unwrap();
        }
        self.cancelled.send_modify(|count| *count += 1);
    }

    /// Waits until this many RPCs were received.
    pub async fn received(&self, count: usize) {
        in_time(self.received.subscribe().wait_for(|found| *found == count)).await.unwrap();
    }

    /// Waits until this many RPCs were cancelled.
    pub async fn cancelled(&self, count: usize) {
        in_time(self.cancelled.subscribe().wait_for(|found| *found == count)).await.unwrap();
    }

    pub fn cancelled_now(&self) -> usize {
        *self.cancelled.borrow()
    }
}
