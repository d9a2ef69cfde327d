//! The handle to the volumes of a node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{broadcast, mpsc, oneshot};

use super::change::Change;
use super::core::{Counts, KnownDriver, Node, Query, Reply, ReplyTo, Request};
use super::desired::{DesiredVolume, Published, Reconciled};
use super::error::{
    AttachError, ExpandError, InspectError, PublishError, ReconcileError, Stopped, UnpublishError,
};
use super::explanation::Explanation;
use super::watch::Changes;
use crate::driver::{CallOutcome, ConsumerSpec, DriverPolicy, HealthIssue, VolumeSpec, VolumeStats};
use crate::name::{ConsumerId, VolumeKey};
use crate::registry::{DriverEndpoint, DriverEvent};

/// All volumes of a node. Cheap to clone; clones are the same volumes.
///
/// What is asked for is recorded before anything is done about it. A future that is dropped ends the wait and nothing
/// else: a volume that was wanted stays wanted, over restarts too, until it is unpublished.
#[derive(Debug, Clone)]
pub struct Volumes {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) changes: broadcast::WeakSender<Change>,
}

/// Something to find out of the volumes, as they are at a time.
type Read = Box<dyn FnOnce(&Node, Duration) + Send>;

pub(super) enum Command {
    Request(Request),
    Read(Read),
    Registered { name: DriverName, endpoint: DriverEndpoint, policy: DriverPolicy },
    Deregistered(DriverName),
}

impl<T: Send> ReplyTo<T> for oneshot::Sender<T> {
    fn answer(self: Box<Self>, answer: T) {
        // It need not be waited for.
        let _ = self.send(answer);
    }

    fn is_closed(&self) -> bool {
        // That of the channel.
        Self::is_closed(self)
    }
}

impl Volumes {
    async fn ask<T: Send + 'static>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Stopped> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Request(request(Reply::new(sender)))).await?;
        receiver.await.map_err(|_| Stopped)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Node, Duration) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (sender, receiver) = oneshot::channel();
        let read = move |node: &Node, now| drop(sender.send(read(node, now)));
        self.send(Command::Read(Box::new(read))).await?;
        receiver.await.map_err(|_| Stopped)
    }

    async fn send(&self, command: Command) -> Result<(), Stopped> {
        self.commands.send(command).await.map_err(|_| Stopped)
    }

    /// Brings a volume to a consumer's target, and waits until it is there, as the mount table shows.
    ///
    /// Asking again for what is there answers at once. If the driver is not registered it is waited for, however long.
    ///
    /// # Errors
    /// If it cannot be; or if the driver answered with an error that is not merely a delay. In the latter case
    /// ([`PublishError::Failed`]) the volume stays wanted, and is tried again: call [`unpublish`](Self::unpublish) to
    /// give it up.
    pub async fn publish(
        &self,
        volume: impl Into<Arc<VolumeSpec>>,
        consumer: impl Into<Arc<ConsumerSpec>>,
    ) -> Result<Published, PublishError> {
        let (spec, consumer) = (volume.into(), consumer.into());
        self.ask(|reply| Request::Publish { spec, consumer, reply }).await?
    }

    /// Takes a volume from a consumer's target, and waits until nothing of it is there. The last consumer's volume is
    /// then unstaged and detached; [`watch`](Self::watch) tells when nothing is left of it.
    ///
    /// A consumer that does not have the volume is no error.
    ///
    /// # Errors
    /// If the driver answered with an error. It is tried again all the same.
    pub async fn unpublish(&self, key: &VolumeKey, consumer: &ConsumerId) -> Result<(), UnpublishError> {
        let (key, consumer) = (key.clone(), consumer.clone());
        self.ask(|reply| Request::Unpublish { key, consumer, reply }).await?
    }

    /// Makes a volume at least so large, in bytes, and answers its size. What a crash interrupts goes on after it.
    ///
    /// # Errors
    /// If it cannot grow.
    pub async fn expand(&self, key: &VolumeKey, required_bytes: u64) -> Result<u64, ExpandError> {
        self.ask(|reply| Request::Expand { key: key.clone(), required_bytes, reply }).await?
    }

    /// A volume of [`Attach::Awaited`](crate::driver::Attach::Awaited) was attached by others, with this publish
    /// context (which may be empty). Answers whether the volume is known, when what was said is on disk.
    ///
    /// # Errors
    /// If the context cannot be given to a driver, or it is not on disk.
    pub async fn attached(
        &self,
        key: &VolumeKey,
        publish_context: BTreeMap<String, String>,
    ) -> Result<bool, AttachError> {
        let publish_context = Some(publish_context);
        self.ask(|reply| Request::Attach { key: key.clone(), publish_context, reply }).await?
    }

    /// Others are going to detach the volume, or have: what is above is taken down. Answers whether it is known, when
    /// that is on disk.
    ///
    /// It may be mounted still when this answers. Before it is detached, wait until [`watch`](Self::watch) or
    /// [`explain`](Self::explain) tells that it is CREATED, or is not known any more.
    ///
    /// # Errors
    /// If it is not on disk.
    pub async fn detached(&self, key: &VolumeKey) -> Result<bool, AttachError> {
        self.ask(|reply| Request::Attach { key: key.clone(), publish_context: None, reply }).await?
    }

    /// Makes these volumes, and no others, wanted; answers when that is on disk. [`watch`](Self::watch) and
    /// [`explain`](Self::explain) tell how it goes on.
    ///
    /// Whatever is not in the set is taken down. Hand in whole sets only: half of one unmounts the other half.
    ///
    /// # Errors
    /// If the set cannot be recorded. What single volumes cannot have is in the answer.
    pub async fn reconcile(
        &self,
        desired: impl IntoIterator<Item = DesiredVolume>,
    ) -> Result<Reconciled, ReconcileError> {
        let desired = desired.into_iter().collect();
        self.ask(|reply| Request::Reconcile { desired, reply }).await?
    }

    /// How full a volume is, as its driver says.
    ///
    /// It is a call like others: it waits for its turn, and while it runs no other call is made for the volume.
    ///
    /// # Errors
    /// If the volume is not mounted, or the driver does not say.
    pub async fn stats(&self, key: &VolumeKey) -> Result<VolumeStats, InspectError> {
        match self.ask(|reply| Request::Inspect { key: key.clone(), query: Query::Stats, reply }).await?? {
            CallOutcome::Stats(stats) => Ok(stats),
            _ => Err(other_answer(key)),
        }
    }

    /// What is wrong with a volume, as its driver says; empty if nothing is known to be. Alpha in the spec.
    ///
    /// # Errors
    /// If the volume is not mounted, or the driver does not say.
    pub async fn health(&self, key: &VolumeKey) -> Result<Vec<HealthIssue>, InspectError> {
        match self.ask(|reply| Request::Inspect { key: key.clone(), query: Query::Health, reply }).await?? {
            CallOutcome::Health(issues) => Ok(issues),
            _ => Err(other_answer(key)),
        }
    }

    /// Where a volume is, why it waits, who holds it, and when it is tried again. `None` if nothing is known of it.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn explain(&self, key: &VolumeKey) -> Result<Option<Explanation>, Stopped> {
        let key = key.clone();
        self.read(move |node, now| node.explain(&key, now)).await
    }

    /// Every volume, in order.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn list(&self) -> Result<Vec<VolumeKey>, Stopped> {
        self.read(|node, _| node.keys().cloned().collect()).await
    }

    /// The records that cannot be read: what they are called in the store, and why. They are kept.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn quarantined(&self) -> Result<Vec<(String, String)>, Stopped> {
        self.read(|node, _| node.quarantined().to_vec()).await
    }

    /// How many volumes there are, by state.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn counts(&self) -> Result<Counts, Stopped> {
        self.read(|node, _| node.counts()).await
    }

    /// The drivers that are registered, in order, with what they said of themselves and of this node.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn drivers(&self) -> Result<Vec<KnownDriver>, Stopped> {
        self.read(|node, _| node.known_drivers()).await
    }

    /// The changes of all volumes from now on.
    #[must_use]
    pub fn watch(&self) -> Changes {
        let receiver = match self.changes.upgrade() {
            Some(changes) => changes.subscribe(),
            // Nobody runs the volumes: the stream has ended.
            None => broadcast::channel(1).1,
        };
        Changes(receiver)
    }

    /// A driver is there. It is connected to, again and again until it answers, and its volumes go on.
    ///
    /// Registered anew, its calls go by the new policy. Whether an attach is made for a volume that was begun stays as it was
    /// until this is opened again.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn driver_registered(
        &self,
        name: DriverName,
        endpoint: DriverEndpoint,
        policy: DriverPolicy,
    ) -> Result<(), Stopped> {
        self.send(Command::Registered { name, endpoint, policy }).await
    }

    /// A driver is gone. Its volumes stay as they are, and wait for it.
    ///
    /// # Errors
    /// If nobody runs the volumes.
    pub async fn driver_gone(&self, name: DriverName) -> Result<(), Stopped> {
        self.send(Command::Deregistered(name)).await
    }

    /// Follows the events of a [`registry`](crate::registry), until it or the volumes end. `policy` says what is known
    /// of a driver besides its registration.
    pub async fn follow(
        &self,
        mut drivers: mpsc::Receiver<DriverEvent>,
        policy: impl Fn(&DriverName) -> DriverPolicy + Send,
    ) {
        while let Some(event) = drivers.recv().await {
            let told = match event {
                DriverEvent::Registered { name, endpoint, .. } => {
                    let policy = policy(&name);
                    self.driver_registered(name, endpoint, policy).await
                }
                DriverEvent::Deregistered { name, .. } => self.driver_gone(name).await,
            };
            if told.is_err() {
                return;
            }
        }
    }
}

fn other_answer(key: &VolumeKey) -> InspectError {
    let message = "it answered something that was not asked".to_owned();
    InspectError::Failed { driver: key.driver.clone(), message }
}
