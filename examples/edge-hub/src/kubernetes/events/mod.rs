//! Events of pods with failed volumes, as kubelet writes them.
//!
//! A report of a node is accepted for the pods that are bound to it, and with the reasons that kubelet uses.

mod aggregator;
mod write;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use tokio::sync::Semaphore;

pub(super) use self::aggregator::PodName;
use self::aggregator::{Aggregator, EventWrite, Failure, REASONS};
pub(super) use self::write::event;
use super::node_name::NodeName;
use edge_csi_common::excerpt::excerpt;
use edge_csi_common::kubernetes::message::{NodeStatus, PodVolumeStatus};

/// The most bytes of a message.
const MAX_MESSAGE_BYTES: usize = 1024;

/// The maximum number of events that wait to be written. Beyond it events are dropped; those of lasting failures return.
const MAX_QUEUED: usize = 2048;

/// The interval at which lasting failures are counted.
pub(super) const TICK_INTERVAL: Duration = Duration::from_secs(30);

/// What is written and was. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Events {
    aggregator: Arc<Mutex<Aggregator>>,
    /// One batch is written at a time, so that events take little of the API server.
    writing: Arc<Semaphore>,
    /// A place for each that waits, so that they are bounded while the API server takes none.
    waiting: Arc<Semaphore>,
    /// Whether it was logged that they are not taken.
    failing: Arc<AtomicBool>,
    /// In the names of events, so that those of another instance of the hub are others.
    instance: u64,
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            aggregator: Arc::default(),
            writing: Arc::new(Semaphore::new(1)),
            waiting: Arc::new(Semaphore::new(MAX_QUEUED)),
            failing: Arc::default(),
            instance: u64::try_from(now().as_nanos()).unwrap_or_default(),
        }
    }

    fn aggregator(&self) -> MutexGuard<'_, Aggregator> {
        // Nothing is half written there.
        self.aggregator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has reported how its pods' volumes are. Answers at once; events are written behind.
    pub(super) fn report(
        &self,
        client: &Client,
        node: &NodeName,
        status: &NodeStatus,
        own: &BTreeSet<PodName>,
    ) {
        let failures =
            status.pod_volumes.iter().filter_map(failure).filter(|failure| own.contains(&failure.pod));
        let writes = self.aggregator().report(node, failures.collect(), now());
        self.write(client, writes);
    }

    /// Counts the failures that last, at the nodes that are there.
    pub(super) fn tick(&self, client: &Client, is_connected: impl Fn(&NodeName) -> bool) {
        let writes = self.aggregator().tick(is_connected, now());
        self.write(client, writes);
    }

    fn write(&self, client: &Client, writes: Vec<EventWrite>) {
        let found = writes.len();
        let places = std::iter::from_fn(|| Arc::clone(&self.waiting).try_acquire_owned().ok());
        let writes: Vec<_> = writes.into_iter().zip(places).collect();
        if writes.len() < found {
            let dropped = found - writes.len();
            tracing::debug!(dropped, "event queue is full; lasting failures are written later");
        }
        if writes.is_empty() {
            return;
        }
        let (events, client) = (self.clone(), client.clone());
        tokio::spawn(async move {
            // It is never closed.
            let _turn = events.writing.acquire().await;
            for (write, _place) in writes {
                let error = write::write(&client, &write, events.instance).await.err();
                let was_failing = events.failing.swap(error.is_some(), Ordering::Relaxed);
                if let Some(failure) = error.filter(|_| !was_failing) {
                    tracing::warn!(node = %write.node, %failure, "an event of a pod is not written");
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
        message: excerpt(&failure.message, MAX_MESSAGE_BYTES).to_owned(),
        waits: failure.waits,
    })
}

/// The time since 1970.
pub(super) fn now() -> Duration {
    // A clock before 1970 is not set.
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

    /// A status of a node with this number of failing pods, and the pods.
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
    async fn bounds_the_events_that_wait_for_the_api_server() {
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
        let report = |round| {
            let (status, own) = failing(round, 64);
            events.report(&client, &node, &status, &own);
        };
        let written = async || {
            // Every batch that waits has a clone of its own.
            while Arc::strong_count(&events.writing) > 1 {
                tokio::task::yield_now().await;
            }
            asked.load(Ordering::Relaxed)
        };
        (0..100).for_each(report);
        answer.send_replace(true);
        assert_eq!(written().await, MAX_QUEUED, "of 6400");
        report(100);
        assert_eq!(written().await, MAX_QUEUED + 64, "there is room again");
    }
}
