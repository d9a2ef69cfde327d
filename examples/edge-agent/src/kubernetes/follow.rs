//! Watches the node's objects at the hub, and starts a new watch when one ends.

use edge_transport::{Failure, ReplyEvent};
use prost::{DecodeError, Message};
use tokio::sync::{mpsc, oneshot};

use super::hub::{Hub, RequestError};
use super::metadata::{Assembly, ChangeError};
use super::retries::Retries;
use super::view::PluginView;
use edge_csi_common::kubernetes::message::{Update, Watch};

/// A complete change, with a sender for the result of applying it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) update: Update,
    /// The number of the watch that received the change, from 1.
    pub(super) watch: u64,
    /// Receives the position after the change, or why it was not applied.
    pub(super) applied: oneshot::Sender<Result<Watch, ChangeError>>,
}

/// Passes the changes of the watches to the plugin.
struct ChangeSender {
    changes: mpsc::Sender<Change>,
    /// The number of the current watch, from 1; 0 before the first.
    watch: u64,
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the hub ended the watch: {0}")]
    Failed(Failure),
    #[error("the hub ended the watch")]
    Finished,
    #[error("cannot decode an update of the hub: {0}")]
    Malformed(#[from] DecodeError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("the receiver of the changes is closed")]
    ReceiverClosed,
}

/// Watches the changes after `position`, sends each one, and waits until it was applied. Ends when the
/// receiver is closed.
pub(super) async fn follow(
    hub: Hub,
    mut position: Watch,
    changes: mpsc::Sender<Change>,
    view: PluginView,
    seed: u64,
) {
    let mut retries = Retries::new("the watch of this node's pods ended", seed);
    let mut sender = ChangeSender { changes, watch: 0 };
    loop {
        hub.connected().await;
        sender.watch += 1;
        let ended = watch(&hub, &mut position, &sender, &view, &mut retries).await;
        match &ended {
            Ended::ReceiverClosed => return,
            Ended::Change(error) if error.needs_snapshot() => {
                (position.source, position.revision) = (0, 0);
            }
            _ => {}
        }
        let text = ended.to_string();
        view.set_watch(Err(&text));
        tokio::time::sleep(retries.failed(&text)).await;
    }
}

async fn watch(
    hub: &Hub,
    position: &mut Watch,
    sender: &ChangeSender,
    view: &PluginView,
    retries: &mut Retries,
) -> Ended {
    let mut updates = match hub.watch(position.clone()).await {
        Ok(updates) => updates,
        Err(error) => return error.into(),
    };
    let mut assembly = Assembly::default();
    loop {
        let part = match updates.next().await {
            Some(Ok(ReplyEvent::Message(bytes))) => Update::decode(bytes),
            Some(Ok(_)) | None => return Ended::Finished,
            Some(Err(failure)) => return Ended::Failed(failure),
        };
        let change = match part {
            Ok(part) => assembly.add(part),
            Err(error) => return error.into(),
        };
        match change {
            Ok(None) => {}
            Ok(Some(update)) => match sender.apply(update).await {
                Ok(next) => {
                    *position = next;
                    view.set_watch(Ok(()));
                    retries.succeeded();
                }
                Err(ended) => return ended,
            },
            Err(error) => return error.into(),
        }
    }
}

impl ChangeSender {
    async fn apply(&self, update: Update) -> Result<Watch, Ended> {
        let (applied, result) = oneshot::channel();
        let change = Change { update, watch: self.watch, applied };
        self.changes.send(change).await.map_err(|_| Ended::ReceiverClosed)?;
        Ok(result.await.map_err(|_| Ended::ReceiverClosed)??)
    }
}
