//! Telling the hub of the node, whenever there is something new to tell.

use tokio::sync::watch;

use super::hub::Hub;
use super::retries::Retries;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{NodeStatus, StatusTaken};

/// What is to be told, in which life of the hub, and since which watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    /// Of the status, for who is told that it was written.
    pub(super) number: u64,
    pub(super) source: u64,
    /// The hub keeps what it was told for as long as the node listens, so each watch is told anew.
    pub(super) watch: u64,
    pub(super) status: NodeStatus,
}

/// Tells the latest news until the hub has taken them, and says in `written` of which status the volumes in use were written.
/// Ends when there will be no more.
pub(super) async fn tell(
    hub: Hub,
    mut news: watch::Receiver<Option<News>>,
    written: watch::Sender<u64>,
    seed: u64,
) {
    let mut retries = Retries::new("the hub has not taken the status of this node", seed);
    while news.changed().await.is_ok() {
        loop {
            let Some(latest) = news.borrow_and_update().clone() else { break };
            hub.connected().await;
            let taken: Result<StatusTaken, _> = hub.ask(Kind::Status(latest.status)).await;
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
