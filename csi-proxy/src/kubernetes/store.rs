//! The store of a proxy at the API server.
//!
//! | Row | Request | When another proxy was first |
//! |---|---|---|
//! | created | POST | 409; the row is read with a GET |
//! | replaced | PUT of a `resourceVersion` and UID | 409 or 404; the same |
//! | removed | DELETE of a `resourceVersion` and UID | 409 or 404; the same |
//!
//! The revision of a row is the `resourceVersion` with the UID. No request names a `resourceVersion` to read from, so each GET
//! and LIST is consistent: it contains every write that has ended.
//!
//! Objects have no finalizers. An object that was deleted by hand is a row that was removed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::DriverName;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};

use super::driver_node::{self, DriverNode, DriverNodes};
use super::object::{DRIVER_LABEL, Kind, Object, Version};
use super::placement::{self, Placements};
use super::request::{RequestError, within};
use crate::call::{NodeId, Subject};
use crate::driver_info::DriverInfoStore;
use crate::routing::store::{PlacementStore, StoreError, Written};
use crate::routing::{Change, Claim, Defect, Revision, Row};

/// The time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of objects in one page of a list.
const PAGE: u32 = 500;

/// How often a list that has expired is begun again.
const MAX_LISTS: usize = 3;

/// How often the record of a node that another proxy writes at the same time is read and written again.
const MAX_UPDATES: usize = 5;

/// The placements, claims and decommissioned nodes of one driver, as objects in a namespace. Cheap to clone.
///
/// An object that is not a row of this driver is ignored with an error in the log: its name is blocked when a call needs it. A
/// write ends with [`StoreError::Late`] after at most 20 s.
///
/// Driver info is kept in memory only: it is a cache, and would be a write for each node and refresh. After a restart, sidecars
/// get their start-up answers once a node is connected.
#[derive(Clone)]
pub struct KubernetesStore {
    driver: DriverName,
    placements: Api<Object<Placements>>,
    nodes: Api<Object<DriverNodes>>,
    driver_info: Arc<Mutex<BTreeMap<NodeId, Bytes>>>,
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesStore").field("driver", &self.driver).finish_non_exhaustive()
    }
}

impl KubernetesStore {
    /// Creates the store of a driver with its objects in this namespace. Sends nothing yet.
    #[must_use]
    pub fn new(client: Client, namespace: &str, driver: DriverName) -> Self {
        let placements = Api::namespaced(client.clone(), namespace);
        Self { driver, placements, nodes: Api::namespaced(client, namespace), driver_info: Arc::default() }
    }

    /// The row of a key; `None` if it does not exist.
    async fn read(&self, key: &Subject) -> Result<Option<Row>, RequestError> {
        let found = get(&self.placements, &placement::name(&self.driver, key)).await?;
        Ok(found.map(|object| placement::row(&self.driver, key.clone(), &object)))
    }

    /// Reads the record of a node, and writes it changed.
    async fn update(&self, node: &NodeId, change: impl Fn(&mut DriverNode)) -> Result<(), StoreError> {
        let name = driver_node::name(&self.driver, node);
        let mut last = StoreError::Late;
        for _ in 0..MAX_UPDATES {
            let (found, version) = match get(&self.nodes, &name).await? {
                None => (DriverNode::new(&self.driver, node), None),
                Some(object) => match DriverNode::decode(&self.driver, &object) {
                    Some((_, found)) => (found, Some(object.version())),
                    None => return Err(damaged(&object)),
                },
            };
            let mut changed = found.clone();
            change(&mut changed);
            if changed == found {
                return Ok(());
            }
            let object = changed.encode(&self.driver, node);
            let object = object.map_err(|error| StoreError::Damaged(error.to_string().into()))?;
            let written = match version {
                None => create(&self.nodes, &object).await.map(drop),
                Some(version) if changed.is_empty() => delete(&self.nodes, &name, version).await,
                Some(version) => replace(&self.nodes, object.replacing(version)).await.map(drop),
            };
            match written {
                Ok(()) => return Ok(()),
                Err(error @ (RequestError::Conflict { .. } | RequestError::Absent { .. })) => {
                    last = error.into();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(last)
    }

    /// The records of all nodes.
    async fn records(&self) -> Result<Vec<(NodeId, DriverNode)>, StoreError> {
        let decode = |object| DriverNode::decode(&self.driver, &object).ok_or_else(|| damaged(&object));
        let records = list(&self.nodes, &self.driver, decode).await?;
        // A decommissioned node must not get calls again because its record cannot be read.
        records.into_iter().collect()
    }
}

#[async_trait]
impl PlacementStore for KubernetesStore {
    async fn list(&self) -> Result<Vec<Row>, StoreError> {
        let row = |object| match placement::key_of(&self.driver, &object) {
            Ok(key) => Some(placement::row(&self.driver, key, &object)),
            Err(defect) => {
                let (driver, object) = (&self.driver, object.name());
                tracing::error!(%driver, object, %defect, "this Placement is not a row of the driver and is ignored; delete it");
                None
            }
        };
        Ok(list(&self.placements, &self.driver, row).await?.into_iter().flatten().collect())
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let key = &change.key;
        let object = |new| placement::encode(&self.driver, key, new);
        let written = match (&change.expected, &change.placement) {
            (None, Some(new)) => create(&self.placements, &object(new)).await,
            (Some(expected), Some(new)) => {
                replace(&self.placements, object(new).replacing(Version::of(expected))).await
            }
            (Some(expected), None) => {
                let name = placement::name(&self.driver, key);
                let deleted = delete(&self.placements, &name, Version::of(expected)).await;
                deleted.map(|()| Version::of(expected))
            }
            (None, None) => {
                return Ok(match self.read(key).await? {
                    None => Written::Done(Revision("".into())),
                    found => Written::Conflict(found),
                });
            }
        };
        match written {
            Ok(version) => Ok(Written::Done(version.into())),
            Err(RequestError::Conflict { .. } | RequestError::Absent { .. }) => {
                Ok(Written::Conflict(self.read(key).await?))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
        let records = self.records().await?.into_iter();
        Ok(records.filter(|(_, record)| record.decommissioned).map(|(node, _)| node).collect())
    }

    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
        self.update(node, |record| record.decommissioned = decommissioned).await
    }

    async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError> {
        let records = self.records().await?.into_iter();
        Ok(records.filter_map(|(node, record)| Some((node, Ok(record.claim?.into())))).collect())
    }

    async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError> {
        self.update(node, |record| record.claim = claim.map(Into::into)).await
    }
}

#[async_trait]
impl DriverInfoStore for KubernetesStore {
    async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError> {
        let records = self.driver_info.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(records.clone().into_iter().collect())
    }

    async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError> {
        let mut records = self.driver_info.lock().unwrap_or_else(PoisonError::into_inner);
        match record {
            Some(record) => records.insert(node.clone(), record),
            None => records.remove(node),
        };
        Ok(())
    }
}

fn damaged(object: &Object<DriverNodes>) -> StoreError {
    let what =
        format!("the DriverNode {} is not a record of this driver; correct or delete it", object.name());
    StoreError::Damaged(what.into())
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some("edge-csi".to_owned()), ..PostParams::default() }
}

async fn get<K: Kind>(api: &Api<Object<K>>, name: &str) -> Result<Option<Object<K>>, RequestError> {
    match within(REQUEST_TIMEOUT, name, api.get(name)).await {
        Ok(object) => Ok(Some(object)),
        Err(RequestError::Absent { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn create<K: Kind>(api: &Api<Object<K>>, object: &Object<K>) -> Result<Version, RequestError> {
    let created = within(REQUEST_TIMEOUT, object.name(), api.create(&post_params(), object)).await?;
    Ok(created.version())
}

async fn replace<K: Kind>(api: &Api<Object<K>>, object: Object<K>) -> Result<Version, RequestError> {
    let name = object.name();
    let replaced = within(REQUEST_TIMEOUT, name, api.replace(name, &post_params(), &object)).await?;
    Ok(replaced.version())
}

async fn delete<K: Kind>(api: &Api<Object<K>>, name: &str, version: Version) -> Result<(), RequestError> {
    let Version { resource_version, uid } = version;
    let preconditions = Preconditions { resource_version: Some(resource_version), uid: Some(uid) };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    within(REQUEST_TIMEOUT, name, api.delete(name, &parameters)).await.map(drop)
}

/// Lists the objects of a driver in pages of one consistent list.
async fn list<K: Kind, T>(
    api: &Api<Object<K>>,
    driver: &DriverName,
    convert: impl Fn(Object<K>) -> T,
) -> Result<Vec<T>, RequestError> {
    let mut lists = 0;
    let (mut found, mut parameters) = (Vec::new(), first_page(driver));
    loop {
        let page = match within(REQUEST_TIMEOUT, "", api.list(&parameters)).await {
            // The list took longer than the API server keeps old versions.
            Err(RequestError::Expired { .. }) if lists < MAX_LISTS => {
                lists += 1;
                (found, parameters) = (Vec::new(), first_page(driver));
                continue;
            }
            page => page?,
        };
        found.extend(page.items.into_iter().map(&convert));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

fn first_page(driver: &DriverName) -> ListParams {
    ListParams::default().labels(&format!("{DRIVER_LABEL}={driver}")).limit(PAGE)
}
