//! Reports the status of the node to the hub, whenever it changes.

use tokio::sync::watch;

use super::hub::Hub;
use super::order::StatusOrder;
use super::retries::Retries;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{NodeStatus, StatusResult};

/// A status, with the instance of the hub and the watch that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatusUpdate {
    /// The number of the status, for the acknowledgement.
    pub(super) number: u64,
    pub(super) source: u64,
    /// The number of the watch. The hub drops a status with its watch, so each watch gets the status again.
    pub(super) watch: u64,
    pub(super) status: NodeStatus,
}

/// Sends the latest status until the hub has accepted it, and sends its number to `written` once the volumes in
/// use were written. Ends when the sender is dropped.
pub(super) async fn run(
    hub: Hub,
    mut order: StatusOrder,
    mut updates: watch::Receiver<Option<StatusUpdate>>,
    written: watch::Sender<u64>,
    seed: u64,
) {
    let mut retries = Retries::new("the hub has not accepted the status of this node", seed);
    while updates.changed().await.is_ok() {
        loop {
            let Some(latest) = updates.borrow_and_update().clone() else { break };
            hub.connected().await;
            let status = NodeStatus { number: Some(order.number(latest.number)), ..latest.status };
            let reply: Result<StatusResult, _> = hub.request(Kind::Status(status)).await;
            if let Ok(result) = &reply
                && (result.volumes_in_use || result.failure.is_empty())
            {
                written.send_replace(latest.number);
            }
            let failure = match reply {
                Ok(result) => {
                    order.answered(&result).await;
                    if result.failure.is_empty() {
                        retries.succeeded();
                        break;
                    }
                    result.failure
                }
                Err(error) => {
                    if error.may_be_received() {
                        order.lost();
                    }
                    error.to_string()
                }
            };
            tokio::time::sleep(retries.failed(&failure)).await;
        }
    }
}
