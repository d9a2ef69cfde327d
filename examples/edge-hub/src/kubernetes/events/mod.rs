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

/// The maximum length of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// The maximum number of events that wait to be written. Further events are dropped; a lasting failure is written
/// later.
const MAX_QUEUED: usize = 2048;

/// The interval at which lasting failures are counted.
pub(super) const TICK_INTERVAL: Duration = Duration::from_secs(30);

/// The written and the waiting events. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Events {
    aggregator: Arc<Mutex<Aggregator>>,
    /// Held while a batch is written, so that events put little load on the API server.
    writing: Arc<Semaphore>,
    /// Bounds the events that wait while the API server is unavailable.
    waiting: Arc<Semaphore>,
    /// Whether the last write failed, so that consecutive failures are logged once.
    failing: Arc<AtomicBool>,
    /// A number in the names of events, different for each instance of the hub.
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
        // No change of the aggregator panics midway, so the data behind a poisoned lock is consistent.
        self.aggregator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the failed volumes of a node's pods. Returns at once; a task writes the events.
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

    /// Counts the ongoing failures of connected nodes.
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
            // The semaphore is never closed.
            let _turn = events.writing.acquire().await;
            for (write, _place) in writes {
                let error = write::write(&client, &write, events.instance).await.err();
                let was_failing = events.failing.swap(error.is_some(), Ordering::Relaxed);
                if let Some(failure) = error.filter(|_| !was_failing) {
                    tracing::warn!(node = %write.node, %failure, "cannot write an event of a pod");
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

/// Returns the time since 1970.
pub(super) fn now() -> Duration {
    // A clock that shows a time before 1970 has not been set.
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
