//! Reports the status of the node to the hub, whenever it changes.

use tokio::sync::watch;

use super::hub::Hub;
use super::retries::Retries;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{NodeStatus, StatusResult};

/// A status, with the instance of the hub and the watch that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatusUpdate {
    /// The number of the status, for the acknowledgement.
    pub(super) number: u64,
    pub(super) source: u64,
    /// The hub keeps a status as long as the node's watch, so each watch gets it again.
    pub(super) watch: u64,
    pub(super) status: NodeStatus,
}

/// Sends the latest status until the hub has accepted it, and puts its number into `written` once the volumes in use were
/// written. Ends when the sender is dropped.
pub(super) async fn run(
    hub: Hub,
    mut updates: watch::Receiver<Option<StatusUpdate>>,
    written: watch::Sender<u64>,
    seed: u64,
) {
    let mut retries = Retries::new("the hub has not taken the status of this node", seed);
    while updates.changed().await.is_ok() {
        loop {
            let Some(latest) = updates.borrow_and_update().clone() else { break };
            hub.connected().await;
            let taken: Result<StatusResult, _> = hub.ask(Kind::Status(latest.status)).await;
            if let Ok(taken) = &taken
                && (taken.volumes_in_use || taken.failure.is_empty())
            {
                written.send_replace(latest.number);
            }
            let failure = match taken {
                Ok(taken) if taken.failure.is_empty() => {
                    retries.succeeded();
                    break;
                }
                Ok(taken) => taken.failure,
                Err(error) => error.to_string(),
            };
            tokio::time::sleep(retries.failed(&failure)).await;
        }
    }
}
