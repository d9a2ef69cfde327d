//! Events of pods whose volumes are not as they should be, as kubelet would write them.
//!
//! A node is believed about the pods that are bound to it, and in the reasons that kubelet has.

mod aggregator;
mod write;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use tokio::sync::Semaphore;

pub(super) use self::aggregator::PodName;
use self::aggregator::{Book, Failure, Order, REASONS};
pub(super) use self::write::event;
use super::node_name::NodeName;
use edge_csi_common::excerpt::excerpt;
use edge_csi_common::kubernetes::message::{NodeStatus, PodVolumeStatus};

/// The most bytes of a message.
const MESSAGE: usize = 1024;

/// The most events that wait to be written. Of more, those that last come again.
const WAITING: usize = 2048;

/// How often failures that last are looked at.
pub(super) const ROUND: Duration = Duration::from_secs(30);

/// What is written and was. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Events {
    book: Arc<Mutex<Book>>,
    /// One batch is written at a time, so that events take little of the API server.
    writing: Arc<Semaphore>,
    /// A place for each that waits, so that they are bounded while the API server takes none.
    waiting: Arc<Semaphore>,
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
            waiting: Arc::new(Semaphore::new(WAITING)),
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
        let found = orders.len();
        let places = std::iter::from_fn(|| Arc::clone(&self.waiting).try_acquire_owned().ok());
        let orders: Vec<_> = orders.into_iter().zip(places).collect();
        if orders.len() < found {
            let dropped = found - orders.len();
            tracing::debug!(dropped, "too many events wait to be written: those that last come again");
        }
        if orders.is_empty() {
            return;
        }
        let (events, client) = (self.clone(), client.clone());
        tokio::spawn(async move {
            // It is never closed.
            let _turn = events.writing.acquire().await;
            for (order, _place) in orders {
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
        reason: REASONS.into_iter().find(|reason| *reason == failure.reason)?,
        message: excerpt(&failure.message, MESSAGE).to_owned(),
        waits: failure.waits,
    })
}

/// The time since 1970.
pub(super) fn now() -> Duration {
    // A clock before 1970 is no clock.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use hyper::{Request, Response};
    use kube::client::Body;
    use tokio::sync::watch;

    use super::*;
    use edge_csi_common::kubernetes::message::PodVolumeFailure;

    /// A status of a node with so many pods, all of which fail, and the pods.
    fn failing(round: usize, pods: usize) -> (NodeStatus, BTreeSet<PodName>) {
        let failure = PodVolumeFailure {
            reason: "FailedMount".to_owned(),
            message: "no such device".to_owned(),
            waits: false,
        };
        let volume = |pod: usize| PodVolumeStatus {
            namespace: "ns".to_owned(),
            pod: format!("web-{pod}"),
            uid: format!("{round}-{pod}"),
            volume: "data".to_owned(),
            failure: Some(failure.clone()),
            ..PodVolumeStatus::default()
        };
        let pod_volumes: Vec<_> = (0..pods).map(volume).collect();
        let own = pod_volumes.iter().filter_map(self::failure).map(|failure| failure.pod).collect();
        (NodeStatus { pod_volumes, ..NodeStatus::default() }, own)
    }

    #[tokio::test]
    async fn events_that_an_api_server_does_not_take_wait_in_a_bounded_number() {
        let asked = Arc::new(AtomicUsize::new(0));
        let asks = Arc::clone(&asked);
        let (answer, answers) = watch::channel(false);
        let api = tower::service_fn(move |_: Request<Body>| {
            asks.fetch_add(1, Ordering::Relaxed);
            let mut answers = answers.clone();
            async move {
                let _ = answers.wait_for(|answers| *answers).await;
                let event = br#"{"metadata":{},"involvedObject":{}}"#;
                Response::builder().status(201).body(Body::from(event.to_vec()))
            }
        });
        let (client, events) = (Client::new(api, "default"), Events::new());
        let node = NodeName::new("edge-1").unwrap();
        let hear = |round| {
            let (status, own) = failing(round, 64);
            events.hear(&client, &node, &status, &own);
        };
        let written = async || {
            // Every batch that waits has a clone of its own.
            while Arc::strong_count(&events.writing) > 1 {
                tokio::task::yield_now().await;
            }
            asked.load(Ordering::Relaxed)
        };
        (0..100).for_each(hear);
        answer.send_replace(true);
        assert_eq!(written().await, WAITING, "of 6400");
        hear(100);
        assert_eq!(written().await, WAITING + 64, "there is room again");
    }
}
