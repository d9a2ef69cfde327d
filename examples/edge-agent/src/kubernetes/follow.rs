//! Following the node's objects at the hub, for ever.

use edge_transport::{Failure, ReplyEvent};
use prost::{DecodeError, Message};
use tokio::sync::{mpsc, oneshot};

use super::hub::{AskError, Hub};
use super::metadata::{Assembly, ChangeError};
use super::retries::Retries;
use super::view::PluginView;
use edge_csi_common::kubernetes::message::{Update, Watch};

/// A change that is complete, and where to say what was made of it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) update: Update,
    /// The number of the watch that it came with, from 1.
    pub(super) watch: u64,
    /// What to ask from then on.
    pub(super) taken: oneshot::Sender<Result<Watch, ChangeError>>,
}

/// The receiver of the changes of a watch.
struct Taker {
    changes: mpsc::Sender<Change>,
    /// The number of the watch.
    watch: u64,
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    NotAsked(#[from] AskError),
    #[error("the hub ended it: {0}")]
    Failed(Failure),
    #[error("the hub ended it")]
    Finished,
    #[error("an update cannot be read: {0}")]
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
    let mut retries = Retries::new("the pods of this node are not followed", seed);
    let mut taker = Taker { changes, watch: 0 };
    loop {
        hub.connected().await;
        taker.watch += 1;
        let ended = watch(&hub, &mut position, &taker, &view, &mut retries).await;
        match &ended {
            Ended::ReceiverClosed => return,
            Ended::Change(error) if error.asks_anew() => position = Watch::default(),
            _ => {}
        }
        let text = ended.to_string();
        view.follows(Err(&text));
        tokio::time::sleep(retries.failed(&text)).await;
    }
}

async fn watch(
    hub: &Hub,
    position: &mut Watch,
    taker: &Taker,
    view: &PluginView,
    retries: &mut Retries,
) -> Ended {
    let mut updates = match hub.watch(*position).await {
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
            Ok(Some(update)) => match taker.take(update).await {
                Ok(next) => {
                    *position = next;
                    view.follows(Ok(()));
                    retries.succeeded();
                }
                Err(ended) => return ended,
            },
            Err(error) => return error.into(),
        }
    }
}

impl Taker {
    async fn take(&self, update: Update) -> Result<Watch, Ended> {
        let (taken, answer) = oneshot::channel();
        let change = Change { update, watch: self.watch, taken };
        self.changes.send(change).await.map_err(|_| Ended::ReceiverClosed)?;
        Ok(answer.await.map_err(|_| Ended::ReceiverClosed)??)
    }
}
