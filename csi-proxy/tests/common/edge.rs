//! A dispatcher in front of a counting driver.

use std::path::Path;

use bytes::Bytes;
use csi_proxy::{Call, Dispatcher, Fault, OperationCounts, Outcome, Relay as _, SocketAddress};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::counting::CountingDriver;
use super::{driver_name, in_time};

/// The answer to a call.
pub type Answer = Result<(Vec<Bytes>, Outcome), Fault>;

pub struct Edge {
    _directory: TempDir,
    pub driver: CountingDriver,
    pub dispatcher: Dispatcher,
}

impl Edge {
    pub fn holding() -> Self {
        Self::with(CountingDriver::holding)
    }

    pub fn free() -> Self {
        Self::with(CountingDriver::free)
    }

    fn with(serve: fn(&Path) -> (CountingDriver, SocketAddress)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (driver, address) = serve(directory.path());
        let dispatcher = Dispatcher::new().with_driver(driver_name(), address);
        Self { _directory: directory, driver, dispatcher }
    }

    pub fn ask(&self, call: Call) -> JoinHandle<Answer> {
        let dispatcher = self.dispatcher.clone();
        tokio::spawn(async move { asked(&dispatcher, call).await })
    }

    /// Waits until the counts of the dispatcher match.
    pub async fn until(&self, right: impl Fn(OperationCounts) -> bool) {
        in_time(async {
            while !right(self.dispatcher.operation_counts()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

pub async fn asked(dispatcher: &Dispatcher, call: Call) -> Answer {
    let replies = dispatcher.relay(call).await?;
    Ok(replies.collect().await)
}
