//! Watches of the API server, each in a task of its own. What they read is cut at once to what is kept.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

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

/// Why watches do not go on, by kind.
#[derive(Debug, Clone, Default)]
pub(super) struct Troubles(Arc<Mutex<[Option<String>; 5]>>);

impl Troubles {
    /// Why the watch of this kind does not go on.
    pub(super) fn of(&self, kind: Kind) -> Option<String> {
        let troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        troubles[kind as usize - 1].clone()
    }

    /// Says how it is; whether that is news.
    fn set(&self, kind: Kind, trouble: Option<String>) -> bool {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut troubles[kind as usize - 1];
        let news = *place != trouble;
        *place = trouble;
        news
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
    tasks.spawn(watch::<Pod>(
        client.clone(),
        all().fields("spec.nodeName!="),
        board.clone(),
        troubles.clone(),
    ));
    tasks.spawn(watch::<PersistentVolumeClaim>(client.clone(), all(), board.clone(), troubles.clone()));
    tasks.spawn(watch::<PersistentVolume>(client.clone(), all(), board.clone(), troubles.clone()));
    tasks.spawn(watch::<VolumeAttachment>(client.clone(), all(), board.clone(), troubles.clone()));
    tasks.spawn(watch::<CSIDriver>(client.clone(), all(), board.clone(), troubles.clone()));
    tasks.spawn(service.clone().keep_events());
    tasks.spawn(watch_nodes(client.clone(), service));
    tasks
}

/// A Node that is new is told of; nothing is kept of it.
async fn watch_nodes(client: Client, service: NodeService) {
    let nodes = watcher(Api::<PartialObjectMeta<Node>>::all(client), watcher::Config::default());
    let mut events = pin!(nodes.default_backoff());
    let mut trouble = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => {
                trouble = None;
                if let (Some(name), Some(uid)) = (node.metadata.name, node.metadata.uid) {
                    // One Node's trouble is not the others'.
                    let service = service.clone();
                    tokio::spawn(async move { service.saw_node(&name, &uid).await });
                }
            }
            Ok(_) => {}
            Err(error) => {
                let cause = failure::of_watch(&error);
                if !failure::is_routine(&error) && trouble.as_ref() != Some(&cause) {
                    tracing::warn!(resource = "nodes", "the watch of the API server does not go on: {cause}");
                }
                trouble = Some(cause);
            }
        }
    }
}

async fn watch<K>(client: Client, config: watcher::Config, board: Board, troubles: Troubles)
where
    K: Resource<DynamicType = ()> + Cut + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let resource = K::KIND.resource();
    let mut events = pin!(watcher(Api::<K>::all(client), config).default_backoff());
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let trouble = failure::of_watch(&error);
                if failure::is_routine(&error) {
                    tracing::debug!(resource, "the API server is to list anew: {trouble}");
                } else if troubles.set(K::KIND, Some(trouble.clone())) {
                    tracing::warn!(resource, "the watch of the API server does not go on: {trouble}");
                }
                continue;
            }
        };
        let event = match event {
            watcher::Event::Init => {
                board.take(Event::Began(K::KIND));
                continue;
            }
            watcher::Event::InitApply(object) => Event::Listed(K::KIND, object.key(), object.cut()),
            watcher::Event::InitDone => Event::Done(K::KIND),
            watcher::Event::Apply(object) => Event::Applied(K::KIND, object.key(), object.cut()),
            watcher::Event::Delete(object) => Event::Deleted(K::KIND, object.key()),
        };
        if troubles.set(K::KIND, None) {
            tracing::info!(resource, "the watch of the API server goes on");
        }
        board.take(event);
    }
}
