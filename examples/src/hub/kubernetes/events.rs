//! Events of pods whose volumes are not as they should be, as kubelet would write them.
//!
//! A node is believed about the pods that are bound to it, and in the reasons that kubelet has.

mod book;
mod write;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use tokio::sync::Semaphore;

pub(super) use self::book::PodName;
use self::book::{Book, Failure, Order, Reason};
pub(super) use self::write::{COMPONENT, event_name};
use super::node_name::NodeName;
use crate::kubernetes::message::{NodeStatus, PodVolumeStatus};

/// The most bytes of a message.
const MESSAGE: usize = 1024;

/// How often failures that last are looked at.
pub(super) const ROUND: Duration = Duration::from_secs(30);

/// What is written and was. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Events {
    book: Arc<Mutex<Book>>,
    /// One batch is written at a time, so that events take little of the API server.
    writing: Arc<Semaphore>,
    /// Whether it was logged that they are not taken.
    troubled: Arc<AtomicBool>,
    /// In the names of events, so that those of another life of the hub are others.
    life: u64,
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            book: Arc::default(),
            writing: Arc::new(Semaphore::new(1)),
            troubled: Arc::default(),
            life: u64::try_from(now().as_nanos()).unwrap_or_default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing is half written there.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has said how its pods' volumes are. Answers at once; events are written behind.
    pub(super) fn hear(
        &self,
        client: &Client,
        node: &NodeName,
        status: &NodeStatus,
        own: &BTreeSet<PodName>,
    ) {
        let failures =
            status.pod_volumes.iter().filter_map(failure).filter(|failure| own.contains(&failure.pod));
        let orders = self.book().hear(node, failures.collect(), now());
        self.write(client, orders);
    }

    /// Counts the failures that last, at the nodes that are there.
    pub(super) fn tick(&self, client: &Client, is_there: impl Fn(&NodeName) -> bool) {
        let orders = self.book().tick(is_there, now());
        self.write(client, orders);
    }

    fn write(&self, client: &Client, orders: Vec<Order>) {
        if orders.is_empty() {
            return;
        }
        let (events, client) = (self.clone(), client.clone());
        tokio::spawn(async move {
            // It is never closed.
            let _turn = events.writing.acquire().await;
            for order in orders {
                let trouble = write::write(&client, &order, events.life).await.err();
                let was_troubled = events.troubled.swap(trouble.is_some(), Ordering::Relaxed);
                if let Some(failure) = trouble.filter(|_| !was_troubled) {
                    tracing::warn!(node = %order.node, %failure, "an event of a pod is not written");
                }
            }
        });
    }
}

fn failure(volume: &PodVolumeStatus) -> Option<Failure> {
    let failure = volume.failure.as_ref()?;
    Some(Failure {
        pod: PodName {
            uid: volume.uid.clone(),
            namespace: volume.namespace.clone(),
            name: volume.pod.clone(),
        },
        volume: volume.volume.clone(),
        reason: Reason::parse(&failure.reason)?,
        message: cut(&failure.message, MESSAGE).to_owned(),
        waits: failure.waits,
    })
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The time since 1970.
pub(super) fn now() -> Duration {
    // A clock before 1970 is no clock.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
