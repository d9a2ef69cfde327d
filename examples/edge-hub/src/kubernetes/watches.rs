//! Watches of the API server, each in a task of its own. Each object is converted at once to its stored part.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::api_error;
use super::core::{Event, Kind};
use super::node_feed::NodeFeed;
use super::records::Record;
use super::service::NodeService;

/// The resource whose watch has no objects in the feed.
const NODES: &str = "nodes";

/// The minimum time between lists of a kind that nodes cause.
const RELIST_INTERVAL: Duration = Duration::from_secs(60);

/// The time limit for reading the API server's `resourceVersion`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The errors of failing watches, by resource.
#[derive(Debug, Clone, Default)]
pub(super) struct WatchErrors(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl WatchErrors {
    fn errors(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error of the watch of this kind, if it fails.
    pub(super) fn of(&self, kind: Kind) -> Option<String> {
        self.errors().get(kind.resource()).cloned()
    }

    /// Returns the error of the watch of Nodes, if it fails or has not started yet. The hub is ready without it: only a
    /// Node that is created anew waits for the next report of its node.
    pub(super) fn of_nodes(&self) -> Option<String> {
        self.errors().get(NODES).cloned()
    }

    /// Sets or clears an error; returns whether it has changed.
    fn set(&self, resource: &'static str, error: Option<String>) -> bool {
        let mut errors = self.errors();
        let before = match error.clone() {
            Some(error) => errors.insert(resource, error),
            None => errors.remove(resource),
        };
        before != error
    }
}

/// Starts all watches. Dropping the set ends them.
pub(super) fn start(
    client: &Client,
    feed: &NodeFeed,
    errors: &WatchErrors,
    service: NodeService,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let all = watcher::Config::default;
    // The API server sends no pods without a node.
    tasks.spawn(watch_objects::<Pod>(client, all().fields("spec.nodeName!="), feed, errors));
    tasks.spawn(watch_objects::<PersistentVolumeClaim>(client, all(), feed, errors));
    tasks.spawn(watch_objects::<PersistentVolume>(client, all(), feed, errors));
    tasks.spawn(watch_objects::<VolumeAttachment>(client, all(), feed, errors));
    tasks.spawn(watch_objects::<CSIDriver>(client, all(), feed, errors));
    tasks.spawn(service.clone().repeat_events());
    // A new Node is only reported to the service; nothing of it is kept.
    let nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
    errors.set(NODES, Some("not listed yet".to_owned()));
    tasks.spawn(watch(nodes, all(), NODES, errors.clone(), move |event| {
        if let watcher::Event::Apply(node) | watcher::Event::InitApply(node) = event
            && let (Some(name), Some(uid)) = (node.metadata.name, node.metadata.uid)
        {
            // In a task of its own: a slow write for one Node must not delay the others.
            let service = service.clone();
            tokio::spawn(async move { service.node_seen(&name, &uid).await });
        }
    }));
    tasks
}

/// Watches a kind with objects in the feed. A watch that is behind what a node has from another hub is replaced.
fn watch_objects<K>(
    client: &Client,
    config: watcher::Config,
    feed: &NodeFeed,
    errors: &WatchErrors,
) -> impl Future<Output = ()> + use<K>
where
    K: Record + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (api, feed, errors) = (Api::<K>::all(client.clone()), feed.clone(), errors.clone());
    async move {
        let mut earliest = Instant::now();
        loop {
            if let Some(version) = server_version(&api).await {
                feed.apply(Event::ServerVersion(K::KIND, version));
            }
            let into_feed = |event| apply(&feed, event);
            tokio::select! {
                () = watch(api.clone(), config.clone(), K::KIND.resource(), errors.clone(), into_feed) => {}
                () = feed.list_wanted(K::KIND, earliest) => {}
            }
            earliest = Instant::now() + RELIST_INTERVAL;
        }
    }
}

/// Returns the API server's latest `resourceVersion`; `None` if the server does not answer soon. A list itself has it too, but
/// `watcher` does not pass it on.
async fn server_version<K: Resource + Clone + DeserializeOwned + Debug>(api: &Api<K>) -> Option<u64> {
    let least = ListParams::default().limit(1);
    let list = tokio::time::timeout(VERSION_TIMEOUT, api.list_metadata(&least)).await;
    number(list.ok()?.ok()?.metadata.resource_version.as_deref())
}

/// Returns a `resourceVersion` as a number; `None` if it is not one.
fn number(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}

fn apply<K: Record>(feed: &NodeFeed, event: watcher::Event<K>) {
    let (event, version) = match event {
        watcher::Event::Init => (Event::ListStarted(K::KIND), None),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            let (key, version) = (object.key(), number(object.meta().resource_version.as_deref()));
            (Event::Applied(K::KIND, key, object.into_value()), version)
        }
        watcher::Event::InitDone => (Event::ListFinished(K::KIND), None),
        watcher::Event::Delete(object) => {
            let version = number(object.meta().resource_version.as_deref());
            (Event::Deleted(K::KIND, object.key()), version)
        }
    };
    feed.apply(event);
    if let Some(version) = version {
        feed.apply(Event::Version(K::KIND, version));
    }
}

/// Watches a resource without end, and passes each event to `handle`.
async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    resource: &'static str,
    errors: WatchErrors,
    handle: impl Fn(watcher::Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // The start of a list is not yet an answer of the API server.
                let answered = !matches!(event, watcher::Event::Init);
                if answered && errors.set(resource, None) {
                    tracing::info!(resource, "watch started");
                }
                handle(event);
            }
            Err(error) => {
                let text = api_error::watch_error_text(&error);
                if api_error::is_routine(&error) {
                    tracing::debug!(resource, "watch expired, listing again: {text}");
                } else if errors.set(resource, Some(text.clone())) {
                    tracing::warn!(resource, "watch failed, retrying: {text}");
                }
            }
        }
    }
}
