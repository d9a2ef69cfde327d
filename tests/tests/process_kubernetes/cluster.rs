//! A stub of a hub with an API server: sends objects that a test sets, and records the status that the node reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::request::Kind as Asked;
use edge_csi_common::kubernetes::message::{
    Attachment, Claim, Driver, DriverReport, Fetched, NodeStatus, Object, ObjectKey, PersistentVolume, Pod,
    PodVolume, PodVolumeStatus, Request, SecretAnswer, SecretName, StatusResult, TokenAnswer, Update, Watch,
};
use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::wait;
use edge_transport::hub::{Hub, Rules};
use edge_transport::link::ListenOptions;
use edge_transport::{PeerId, ReplySender, Service, ServiceName};
use futures_util::FutureExt as _;
use prost::Message;
use tokio::sync::watch;

/// One instance of a hub with its Kubernetes feed.
#[derive(Clone)]
pub(crate) struct Cluster {
    source: u64,
    shared: Arc<Shared>,
    hub: Option<Hub>,
}

struct Shared {
    objects: Mutex<BTreeMap<ObjectKey, Kind>>,
    /// Every change so far. The first one contains all initial objects.
    log: watch::Sender<Vec<Update>>,
    watched: Mutex<Vec<Watch>>,
    statuses: Mutex<Vec<NodeStatus>>,
    secrets: Mutex<BTreeMap<String, String>>,
    /// The answer to statuses; without one, the request ends.
    answer: Mutex<Option<StatusResult>>,
    /// Counts the ends of watches.
    ended: watch::Sender<u64>,
}

impl Cluster {
    /// Starts a hub that listens at this unix socket, with these objects.
    pub(crate) fn start(socket: &str, source: u64, objects: Vec<Kind>) -> Self {
        let objects: BTreeMap<_, _> = objects.into_iter().map(|kind| (key(&kind), kind)).collect();
        let whole = Update { source, revision: 1, snapshot: true, complete: true, ..Update::default() };
        let shared = Arc::new(Shared {
            objects: Mutex::new(objects),
            log: watch::Sender::new(vec![whole]),
            watched: Mutex::default(),
            statuses: Mutex::default(),
            secrets: Mutex::default(),
            answer: Mutex::new(Some(StatusResult::default())),
            ended: watch::Sender::default(),
        });
        let mut cluster = Self { source, shared, hub: None };
        cluster.start_hub(socket);
        cluster
    }

    /// Starts another hub with all present objects.
    pub(crate) fn start_hub(&mut self, socket: &str) {
        // A unix socket is bound at once.
        let listening = Hub::builder().listen(socket.parse().unwrap(), ListenOptions::default());
        let builder = listening.now_or_never().unwrap().unwrap();
        let serving = Self { hub: None, ..self.clone() };
        let service = ServiceName::new(SERVICE).unwrap();
        self.hub = Some(builder.service(service, Rules::nodes_only(), serving).start().unwrap());
    }

    /// Ends the hub.
    pub(crate) async fn stop_hub(&mut self) {
        if let Some(hub) = self.hub.take() {
            hub.close().await;
        }
    }

    /// Changes some objects and removes others, as one change.
    pub(crate) fn change(&self, changed: Vec<Kind>, removed: &[Kind]) {
        let removed: Vec<_> = removed.iter().map(key).collect();
        let mut objects = self.shared.objects.lock().unwrap();
        for key in &removed {
            objects.remove(key);
        }
        for kind in &changed {
            objects.insert(key(kind), kind.clone());
        }
        self.shared.log.send_modify(|log| {
            let revision = log.len() as u64 + 1;
            let changed = changed.into_iter().map(|kind| Object { object: Some(kind) }).collect();
            let (source, versions) = (self.source, versions(revision));
            let change =
                Update { source, revision, complete: true, changed, removed, versions, ..Update::default() };
            log.push(change);
        });
    }

    /// Sets the value of the one key of a secret, by `NAMESPACE/NAME`.
    pub(crate) fn secret(&self, name: &str, value: &str) {
        self.shared.secrets.lock().unwrap().insert(name.to_owned(), value.to_owned());
    }

    /// Makes writes of statuses fail for this reason, or succeed without one.
    pub(crate) fn fails(&self, failure: &str) {
        self.answers(Some(StatusResult { failure: failure.to_owned(), ..StatusResult::default() }));
    }

    /// Sets the answer to statuses; with `None` the request ends without one.
    pub(crate) fn answers(&self, answer: Option<StatusResult>) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    /// Ends the node's watch, as a hub does that considers the node lost. The node may watch again.
    pub(crate) fn ends_the_watch(&self) {
        self.shared.ended.send_modify(|ended| *ended += 1);
    }

    /// Returns the node's last watch.
    pub(crate) fn asked_last(&self) -> Option<Watch> {
        self.shared.watched.lock().unwrap().last().cloned()
    }

    /// Returns whether all reported statuses fulfil the condition.
    pub(crate) fn always_reported(&self, is: impl Fn(&NodeStatus) -> bool) -> bool {
        self.shared.statuses.lock().unwrap().iter().all(is)
    }

    /// Returns the number of statuses that the node has reported.
    pub(crate) fn statuses(&self) -> usize {
        self.shared.statuses.lock().unwrap().len()
    }

    /// Waits until the last status of the node fulfils the condition, and returns the status.
    pub(crate) async fn reported(&self, what: &str, is: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        let last = || self.shared.statuses.lock().unwrap().last().cloned();
        wait::until(&format!("the node reports that {what}"), async || last().filter(|status| is(status)))
            .await
    }

    /// Waits until the node reports this pod's volume as published, or the reason why it is not.
    pub(crate) async fn volume_reported(
        &self,
        pod: &str,
        is: impl Fn(&PodVolumeStatus) -> bool,
    ) -> NodeStatus {
        let of_pod = |status: &NodeStatus| {
            let mut volumes = status.pod_volumes.iter();
            volumes.any(|volume| volume.pod == pod && is(volume))
        };
        self.reported(&format!("a volume of {pod} is as it should be"), of_pod).await
    }

    fn whole(&self) -> Vec<Update> {
        let revision = self.shared.log.borrow().len() as u64;
        let objects = self.shared.objects.lock().unwrap();
        let (source, snapshot) = (self.source, true);
        // Each object is in a separate part.
        let parts = objects.values().map(|kind| {
            let changed = vec![Object { object: Some(kind.clone()) }];
            Update { source, revision, snapshot, changed, ..Update::default() }
        });
        let versions = versions(revision);
        let last = Update { source, revision, snapshot, complete: true, versions, ..Update::default() };
        parts.chain([last]).collect()
    }

    /// Answers a report of drivers, and keeps the call open if there is no failure.
    async fn keep_csi_node(&self, status: NodeStatus, mut replies: ReplySender) {
        self.shared.statuses.lock().unwrap().push(status);
        let answer = self.shared.answer.lock().unwrap().clone().unwrap_or_default();
        let sent = replies.send(answer.encode_to_vec().into()).await;
        if sent.is_ok() && answer.failure.is_empty() {
            replies.cancelled().await;
        }
    }

    async fn updates(&self, watch: Watch, mut replies: ReplySender) {
        self.shared.watched.lock().unwrap().push(watch.clone());
        let (mut log, mut ended) = (self.shared.log.subscribe(), self.shared.ended.subscribe());
        let mut sent = usize::try_from(watch.revision).unwrap();
        if watch.source != self.source {
            let whole = self.whole();
            sent = usize::try_from(whole[0].revision).unwrap();
            for part in whole {
                if replies.send(part.encode_to_vec().into()).await.is_err() {
                    return;
                }
            }
        }
        // The first answer is sent even if there is no change.
        let revision = sent as u64;
        let greeting = Update { source: self.source, revision, complete: true, ..Update::default() };
        if replies.send(greeting.encode_to_vec().into()).await.is_err() {
            return;
        }
        loop {
            let later = log.borrow_and_update().get(sent..).unwrap_or_default().to_vec();
            sent += later.len();
            for update in later {
                if replies.send(update.encode_to_vec().into()).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = log.changed() => if changed.is_err() {
                    return;
                },
                _ = ended.changed() => return,
            }
        }
    }
}

#[async_trait]
impl Service for Cluster {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        assert_eq!(source.as_str(), NODE);
        let answer = match Request::decode(request.body).unwrap().request.unwrap() {
            Asked::Watch(watch) => return self.updates(watch, replies).await,
            Asked::Drivers(DriverReport { drivers, number }) => {
                let status = NodeStatus { drivers, number, ..NodeStatus::default() };
                return self.keep_csi_node(status, replies).await;
            }
            Asked::Status(status) => {
                self.shared.statuses.lock().unwrap().push(status);
                let answer = self.shared.answer.lock().unwrap().clone();
                let Some(answer) = answer else { return };
                answer.encode_to_vec()
            }
            Asked::Secret(query) => {
                let SecretName { namespace, name } = query.secret.unwrap();
                let value = self.shared.secrets.lock().unwrap().get(&format!("{namespace}/{name}")).cloned();
                let fetched = if value.is_some() { Fetched::Found } else { Fetched::NotFound };
                let values = value.map(|value| ("password".to_owned(), value)).into_iter().collect();
                SecretAnswer { fetched: fetched.into(), reason: String::new(), values }.encode_to_vec()
            }
            Asked::Token(_) => TokenAnswer::default().encode_to_vec(),
        };
        let _ = replies.send_and_finish(answer.into(), Bytes::new()).await;
    }
}

/// The `resourceVersion` of all pods at this revision.
pub(crate) fn versions(revision: u64) -> BTreeMap<u32, u64> {
    [(1, 100 + revision)].into()
}

fn key(kind: &Kind) -> ObjectKey {
    let (number, namespace, name) = match kind {
        Kind::Pod(pod) => (1, pod.namespace.as_str(), &pod.name),
        Kind::Claim(claim) => (2, claim.namespace.as_str(), &claim.name),
        Kind::PersistentVolume(volume) => (3, "", &volume.name),
        Kind::Attachment(attachment) => (4, "", &attachment.name),
        Kind::Driver(driver) => (5, "", &driver.name),
    };
    ObjectKey { kind: number, namespace: namespace.to_owned(), name: name.clone() }
}

pub(crate) fn pod(name: &str, volumes: impl IntoIterator<Item = PodVolume>) -> Kind {
    Kind::Pod(Pod {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        volumes: volumes.into_iter().collect(),
        ..Pod::default()
    })
}

pub(crate) fn of_claim(claim: &str) -> PodVolume {
    PodVolume { name: "data".into(), claim: claim.into(), ..PodVolume::default() }
}

pub(crate) fn claim(name: &str, volume: &str, expand_to: u64) -> Kind {
    Kind::Claim(Claim {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        volume: volume.into(),
        expand_to,
    })
}

pub(crate) fn persistent_volume(name: &str, handle: &str) -> PersistentVolume {
    PersistentVolume {
        name: name.into(),
        driver: DRIVER.into(),
        volume_handle: handle.into(),
        access_modes: vec!["ReadWriteOnce".into()],
        ..PersistentVolume::default()
    }
}

pub(crate) fn driver(attach_required: bool) -> Kind {
    let lifecycle_modes = vec!["Persistent".into(), "Ephemeral".into()];
    Kind::Driver(Driver { name: DRIVER.into(), attach_required, lifecycle_modes, ..Driver::default() })
}

pub(crate) fn attachment(volume: &str, attached: bool) -> Kind {
    Kind::Attachment(Attachment {
        name: format!("csi-{volume}"),
        attacher: DRIVER.into(),
        volume: volume.into(),
        attached,
        ..Attachment::default()
    })
}

/// Returns the names of the volumes that are reported in use.
pub(crate) fn in_use(status: &NodeStatus) -> BTreeSet<&str> {
    status.volumes_in_use.iter().map(String::as_str).collect()
}
