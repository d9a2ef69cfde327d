//! The handle to the volumes of a node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::timeout;

use super::change::VolumeChange;
use super::core::{Counts, KnownDriver, Node, Query, Reply, ReplyTo, Request};
use super::desired::{DesiredVolume, Published, Reconciled};
use super::error::{
    AttachError, Closed, ExpandError, InspectError, PublishError, ReconcileError, UnpublishError,
};
use super::explanation::Explanation;
use super::watch::Changes;
use crate::driver::{CallOutcome, ConsumerSpec, DriverPolicy, HealthIssue, VolumeSpec, VolumeStats};
use crate::name::{ConsumerId, VolumeKey};
use crate::registry::{DriverEndpoint, DriverEvent};

/// A handle to all volumes of a node. Cheap to clone; clones share the volumes.
///
/// Requests are recorded before any call is made for them. Dropping a future only stops waiting: a published volume
/// stays wanted, across restarts too, until it is unpublished.
#[derive(Debug, Clone)]
pub struct Volumes {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) changes: broadcast::WeakSender<VolumeChange>,
}

/// A query of the node's current state.
type Read = Box<dyn FnOnce(&Node, Duration) + Send>;

pub(super) enum Command {
    Request(Request),
    Read(Read),
    Registered { name: DriverName, endpoint: DriverEndpoint, policy: DriverPolicy },
    Deregistered(DriverName),
}

impl<T: Send> ReplyTo<T> for oneshot::Sender<T> {
    fn answer(self: Box<Self>, answer: T) {
        // The request may have been abandoned.
        let _ = self.send(answer);
    }

    fn is_closed(&self) -> bool {
        // This is the channel's own method, not a recursion.
        Self::is_closed(self)
    }
}

impl Volumes {
    async fn request<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, Closed> {
        self.begin(request).await?.await.map_err(|_| Closed)
    }

    /// Sends a request, and returns the receiver of its answer.
    async fn begin<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<oneshot::Receiver<T>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Request(request(Reply::new(sender)))).await?;
        Ok(receiver)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Node, Duration) -> T + Send + 'static,
    ) -> Result<T, Closed> {
        let (sender, receiver) = oneshot::channel();
        let read = move |node: &Node, now| drop(sender.send(read(node, now)));
        self.send(Command::Read(Box::new(read))).await?;
        receiver.await.map_err(|_| Closed)
    }

    async fn send(&self, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)
    }

    /// Publishes a volume at a consumer's target, and waits until the mount table shows it.
    ///
    /// A repeated request for a published volume returns immediately. The driver, the store and temporary errors are
    /// waited for without limit; see [`publish_within`](Self::publish_within).
    ///
    /// # Errors
    /// If the request is invalid, or if the driver returned an error that will not resolve by itself. In the
    /// latter case ([`PublishError::Failed`]) the volume stays wanted and is retried until
    /// [`unpublish`](Self::unpublish) is called.
    pub async fn publish(
        &self,
        volume: impl Into<Arc<VolumeSpec>>,
        consumer: impl Into<Arc<ConsumerSpec>>,
    ) -> Result<Published, PublishError> {
        let (spec, consumer) = (volume.into(), consumer.into());
        self.request(|reply| Request::Publish { spec, consumer, reply }).await?
    }

    /// Publishes a volume as [`publish`](Self::publish) does, but waits for at most `bound`. The error then says what the
    /// volume waits for. The volume stays wanted in any case.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), and [`PublishError::NotInTime`].
    pub async fn publish_within(
        &self,
        volume: impl Into<Arc<VolumeSpec>>,
        consumer: impl Into<Arc<ConsumerSpec>>,
        bound: Duration,
    ) -> Result<Published, PublishError> {
        let (spec, consumer) = (volume.into(), consumer.into());
        let (key, id) = (spec.key().clone(), consumer.id().clone());
        let mut answer = self.begin(|reply| Request::Publish { spec, consumer, reply }).await?;
        if let Ok(answer) = timeout(bound, &mut answer).await {
            return answer.map_err(|_| Closed)?;
        }
        let explanation = self.explain(&key).await?;
        match (answer.try_recv(), explanation) {
            // The answer came before the explanation, which therefore explains no wait.
            (Ok(answer), _) => answer,
            (Err(_), Some(explanation)) => Err(PublishError::NotInTime {
                consumer: id,
                after: bound,
                explanation: Box::new(explanation),
            }),
            (Err(_), None) => Err(PublishError::Released { key, consumer: id }),
        }
    }

    /// Unpublishes a volume from a consumer's target, and waits until nothing of it remains there. After its last
    /// consumer the volume is unstaged and detached; [`watch`](Self::watch) reports when it is removed.
    ///
    /// An unknown consumer is not an error.
    ///
    /// # Errors
    /// If the driver returned an error. The call is still retried.
    pub async fn unpublish(&self, key: &VolumeKey, consumer: &ConsumerId) -> Result<(), UnpublishError> {
        let (key, consumer) = (key.clone(), consumer.clone());
        self.request(|reply| Request::Unpublish { key, consumer, reply }).await?
    }

    /// Expands a volume to at least `required_bytes`, and returns its size. An interrupted expansion continues after a
    /// crash.
    ///
    /// # Errors
    /// If the volume cannot be expanded.
    pub async fn expand(&self, key: &VolumeKey, required_bytes: u64) -> Result<u64, ExpandError> {
        self.request(|reply| Request::Expand { key: key.clone(), required_bytes, reply }).await?
    }

    /// Reports that a volume of [`Attach::Awaited`](crate::driver::Attach::Awaited) was attached externally, with this
    /// publish context, which may be empty. Returns whether the volume is known, when the context is on disk.
    ///
    /// # Errors
    /// If the context is invalid, or is not on disk.
    pub async fn attached(
        &self,
        key: &VolumeKey,
        publish_context: BTreeMap<String, String>,
    ) -> Result<bool, AttachError> {
        let publish_context = Some(publish_context);
        self.request(|reply| Request::Attach { key: key.clone(), publish_context, reply }).await?
    }

    /// Reports that the volume will be or was detached externally, and unstages it. Returns whether the volume is
    /// known, when the request is on disk.
    ///
    /// The volume may still be mounted when this returns. Before it is detached, wait until [`watch`](Self::watch) or
    /// [`explain`](Self::explain) reports CREATED, or that it is unknown.
    ///
    /// # Errors
    /// If the request is not on disk.
    pub async fn detached(&self, key: &VolumeKey) -> Result<bool, AttachError> {
        self.request(|reply| Request::Attach { key: key.clone(), publish_context: None, reply }).await?
    }

    /// Replaces the desired set of volumes, and returns when the set is on disk. [`watch`](Self::watch) and
    /// [`explain`](Self::explain) report the progress.
    ///
    /// Volumes that are not in the set are unpublished and unstaged, so the set must be complete.
    ///
    /// # Errors
    /// If the set cannot be recorded. Rejections of single volumes are in the result.
    pub async fn reconcile(
        &self,
        desired: impl IntoIterator<Item = DesiredVolume>,
    ) -> Result<Reconciled, ReconcileError> {
        let desired = desired.into_iter().collect();
        self.request(|reply| Request::Reconcile { desired, reply }).await?
    }

    /// Returns the usage of a volume, as reported by its driver.
    ///
    /// This is an ordinary call: it waits for a call slot, and while it runs no other call is made for the volume.
    ///
    /// # Errors
    /// If the volume is not mounted, or its driver does not support the query or returned an error.
    pub async fn stats(&self, key: &VolumeKey) -> Result<VolumeStats, InspectError> {
        match self
            .request(|reply| Request::Inspect { key: key.clone(), query: Query::Stats, reply })
            .await??
        {
            CallOutcome::Stats(stats) => Ok(stats),
            _ => Err(unexpected_response(key)),
        }
    }

    /// Returns the health issues of a volume, as reported by its driver, or an empty list if none are known. The
    /// RPC is alpha in the spec.
    ///
    /// # Errors
    /// If the volume is not mounted, or its driver does not support the query or returned an error.
    pub async fn health(&self, key: &VolumeKey) -> Result<Vec<HealthIssue>, InspectError> {
        match self
            .request(|reply| Request::Inspect { key: key.clone(), query: Query::Health, reply })
            .await??
        {
            CallOutcome::Health(issues) => Ok(issues),
            _ => Err(unexpected_response(key)),
        }
    }

    /// Returns the state of a volume, why it waits, its consumers, and its next retry, or `None` if the volume is
    /// unknown.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn explain(&self, key: &VolumeKey) -> Result<Option<Explanation>, Closed> {
        let key = key.clone();
        self.read(move |node, now| node.explain(&key, now)).await
    }

    /// Returns the keys of all volumes, in ascending order.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn list(&self) -> Result<Vec<VolumeKey>, Closed> {
        self.read(|node, _| node.keys().cloned().collect()).await
    }

    /// Returns the unreadable records, which are kept: the name in the store, and the reason.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn quarantined(&self) -> Result<Vec<(String, String)>, Closed> {
        self.read(|node, _| node.quarantined().to_vec()).await
    }

    /// Returns the number of volumes by state.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn counts(&self) -> Result<Counts, Closed> {
        self.read(|node, _| node.counts()).await
    }

    /// Returns the registered drivers, sorted by name, with their identity and capabilities.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn drivers(&self) -> Result<Vec<KnownDriver>, Closed> {
        self.read(|node, _| node.known_drivers()).await
    }

    /// Subscribes to the changes of all volumes.
    #[must_use]
    pub fn watch(&self) -> Changes {
        let receiver = match self.changes.upgrade() {
            Some(changes) => changes.subscribe(),
            // The volume manager has shut down: the stream has ended.
            None => broadcast::channel(1).1,
        };
        Changes(receiver)
    }

    /// Registers a driver. The driver is dialed until it responds, and its volumes continue.
    ///
    /// After a repeated registration, calls use the new policy. The attach mode of existing volumes does not change
    /// before the volumes are opened again.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn driver_registered(
        &self,
        name: DriverName,
        endpoint: DriverEndpoint,
        policy: DriverPolicy,
    ) -> Result<(), Closed> {
        self.send(Command::Registered { name, endpoint, policy }).await
    }

    /// Deregisters a driver. The driver's volumes stay mounted and wait for its next registration.
    ///
    /// # Errors
    /// If the volume manager has shut down.
    pub async fn driver_deregistered(&self, name: DriverName) -> Result<(), Closed> {
        self.send(Command::Deregistered(name)).await
    }

    /// Applies the events of a [`registry`](crate::registry) until it ends or the volume manager shuts down. `policy`
    /// supplies the policy of each driver.
    pub async fn follow(
        &self,
        mut drivers: mpsc::Receiver<DriverEvent>,
        policy: impl Fn(&DriverName) -> DriverPolicy + Send,
    ) {
        while let Some(event) = drivers.recv().await {
            let sent = match event {
                DriverEvent::Registered { name, endpoint, .. } => {
                    let policy = policy(&name);
                    self.driver_registered(name, endpoint, policy).await
                }
                DriverEvent::Deregistered { name, .. } => self.driver_deregistered(name).await,
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

fn unexpected_response(key: &VolumeKey) -> InspectError {
    let message = "unexpected response type".to_owned();
    InspectError::Failed { driver: key.driver.clone(), message }
}
