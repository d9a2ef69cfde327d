//! Watches of the API server, each in a task of its own. What they read is cut at once to what is kept.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::board::Board;
use super::core::{Event, Kind};
use super::failure;
use super::read::Cut;
use super::service::NodeService;

/// Why watches do not go on, by what Kubernetes calls their objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Troubles(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Troubles {
    fn troubles(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the watch of this kind does not go on.
    pub(super) fn of(&self, kind: Kind) -> Option<String> {
        self.troubles().get(kind.resource()).cloned()
    }

    /// Says how it is; whether that is news.
    fn set(&self, resource: &'static str, trouble: Option<String>) -> bool {
        let mut troubles = self.troubles();
        let before = match trouble.clone() {
            Some(trouble) => troubles.insert(resource, trouble),
            None => troubles.remove(resource),
        };
        before != trouble
    }
}

/// Starts them all. They end with the set.
pub(super) fn start(
    client: &Client,
    board: &Board,
    troubles: &Troubles,
    service: NodeService,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let all = watcher::Config::default;
    // A pod without a node is nobody's.
    tasks.spawn(watch_kept::<Pod>(client, all().fields("spec.nodeName!="), board, troubles));
    tasks.spawn(watch_kept::<PersistentVolumeClaim>(client, all(), board, troubles));
    tasks.spawn(watch_kept::<PersistentVolume>(client, all(), board, troubles));
    tasks.spawn(watch_kept::<VolumeAttachment>(client, all(), board, troubles));
    tasks.spawn(watch_kept::<CSIDriver>(client, all(), board, troubles));
    tasks.spawn(service.clone().keep_events());
    // A Node that is new is told of; nothing is kept of it.
    let nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
    tasks.spawn(watch(nodes, all(), "nodes", troubles.clone(), move |event| {
        if let watcher::Event::Apply(node) | watcher::Event::InitApply(node) = event
            && let (Some(name), Some(uid)) = (node.metadata.name, node.metadata.uid)
        {
            // One Node's trouble is not the others'.
            let service = service.clone();
            tokio::spawn(async move { service.saw_node(&name, &uid).await });
        }
    }));
    tasks
}

/// Watches a kind of which the board keeps something.
fn watch_kept<K>(
    client: &Client,
    config: watcher::Config,
    board: &Board,
    troubles: &Troubles,
) -> impl Future<Output = ()> + use<K>
where
    K: Cut + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let board = board.clone();
    watch(Api::<K>::all(client.clone()), config, K::KIND.resource(), troubles.clone(), move |event| {
        board.take(match event {
            watcher::Event::Init => Event::Began(K::KIND),
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                Event::Applied(K::KIND, object.key(), object.cut())
            }
            watcher::Event::InitDone => Event::Done(K::KIND),
            watcher::Event::Delete(object) => Event::Deleted(K::KIND, object.key()),
        });
    })
}

/// Follows a resource for ever.
async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    resource: &'static str,
    troubles: Troubles,
    take: impl Fn(watcher::Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // That a list begins is not yet an answer.
                let answered = !matches!(event, watcher::Event::Init);
                if answered && troubles.set(resource, None) {
                    tracing::info!(resource, "the watch of the API server goes on");
                }
                take(event);
            }
            Err(error) => {
                let trouble = failure::of_watch(&error);
                if failure::is_routine(&error) {
                    tracing::debug!(resource, "the API server is to list anew: {trouble}");
                } else if troubles.set(resource, Some(trouble.clone())) {
                    tracing::warn!(resource, "the watch of the API server does not go on: {trouble}");
                }
            }
        }
    }
}
