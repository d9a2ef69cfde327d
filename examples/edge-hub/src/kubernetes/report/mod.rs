//! Writes the status of a node to the API server, as its kubelet would: CSINode, labels and annotations of the
//! Node, `status.volumesInUse`, and expanded claims. Only differences are written, and a Node is never created.
//!
//! Another hub may write a later status of the node at the same time. Each write carries the `resourceVersion` that was read, and
//! a status with an [`order`] is not written after a later one.

mod bounds;
mod claim;
mod csi_node;
mod label;
mod node;
mod order;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use self::bounds::OutOfBounds;
use self::csi_node::CsiNodeStep;
pub(super) use self::csi_node::settings_without_effect;
use self::node::LabelRefused;
use self::order::Superseded;
use super::api_error::ApiError;
use super::events;
use super::node_feed::NodeFeed;
use super::node_name::NodeName;
use super::node_statuses::Scope;
use edge_csi_common::kubernetes::message::{ExpandedClaim, NodeDriver, NodeStatus};

/// The maximum number of attempts of a write that conflicts.
const MAX_ATTEMPTS: usize = 5;

/// The time limit for writing a status.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a status was not written completely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReportFailure {
    /// The status is out of bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The Node does not exist.
    #[error(
        "Node {0} not found; the hub does not create Nodes: join the node to the cluster under the name of the agent"
    )]
    NoNode(NodeName),
    /// A later status was written, perhaps by another hub.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// A topology segment that cannot be a label.
    #[error(transparent)]
    Label(#[from] LabelRefused),
    /// The node's kubelet writes the CSINode.
    #[error("the kubelet of {0} writes its CSINode: start the agent without --csi-node")]
    KubeletWrites(NodeName),
    /// The claim is not used on this node.
    #[error("claim {namespace}/{name} with UID {uid} is not used on this node")]
    ForeignClaim { namespace: String, name: String, uid: String },
    /// A request to the API server failed.
    #[error("{target}: {cause}")]
    Api {
        /// The object or the part of it that was being written.
        target: &'static str,
        cause: ApiError,
    },
    /// Writing took longer than [`TIMEOUT`].
    #[error("the API server did not accept the status within {} s", TIMEOUT.as_secs())]
    Slow,
}

/// The result of writing a status.
#[derive(Debug)]
pub(super) struct Written {
    /// Whether `status.volumesInUse` was written.
    pub(super) volumes_in_use: bool,
    /// The UID of the Node if everything was written, else the failure.
    pub(super) all: Result<String, ReportFailure>,
}

/// Writes what is in scope of a node's status, as much of it as can be written.
pub(super) async fn write(
    client: &Client,
    feed: &NodeFeed,
    name: &NodeName,
    scope: Scope,
    status: &NodeStatus,
) -> Written {
    // Written first and reported separately, since the node's mounts wait for it.
    let volumes_in_use = AtomicBool::new(false);
    let work = async {
        bounds::check(status)?;
        let nodes: Api<Node> = Api::all(client.clone());
        let found = match scope {
            Scope::All => retried(|| try_node(&nodes, name, status, &volumes_in_use)).await?,
            Scope::CsiNode => read_node(&nodes, name).await?,
        };
        let (drivers, refused) = node::accepted(&found, &status.drivers);
        let uid = found.metadata.uid.clone().unwrap_or_default();
        // The labels are written first: the scheduler relies on them once CSINode names their keys.
        let csi_nodes: Api<CSINode> = Api::all(client.clone());
        retried(|| try_csi_node(&csi_nodes, (name, &uid), scope, status, &drivers)).await?;
        for claim in &status.expanded {
            write_claim(client, feed, name, claim).await?;
        }
        refused.map_or(Ok(uid), |refused| Err(refused.into()))
    };
    let all = tokio::time::timeout(TIMEOUT, work).await.unwrap_or(Err(ReportFailure::Slow));
    Written { volumes_in_use: volumes_in_use.into_inner(), all }
}

fn failed(target: &'static str) -> impl FnOnce(kube::Error) -> ReportFailure {
    move |error| ReportFailure::Api { target, cause: error.into() }
}

/// Retries a write that conflicts.
async fn retried<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, ReportFailure>
where
    F: Future<Output = Result<T, ReportFailure>>,
{
    let mut left = MAX_ATTEMPTS;
    loop {
        left -= 1;
        match attempt().await {
            Err(ReportFailure::Api { cause: ApiError::Conflict(_), .. }) if left > 0 => {}
            done => return done,
        }
    }
}

async fn read_node(nodes: &Api<Node>, name: &NodeName) -> Result<Node, ReportFailure> {
    let found = nodes.get_opt(name.as_str()).await.map_err(failed("reading the Node"))?;
    found.ok_or_else(|| ReportFailure::NoNode(name.clone()))
}

/// Writes `status.volumesInUse`, for which mounts wait, then labels and annotations. Returns the Node before the writes.
async fn try_node(
    nodes: &Api<Node>,
    name: &NodeName,
    status: &NodeStatus,
    volumes_in_use: &AtomicBool,
) -> Result<Node, ReportFailure> {
    // An earlier attempt may have written to a Node that was deleted since.
    volumes_in_use.store(false, Ordering::Relaxed);
    let found = read_node(nodes, name).await?;
    let mut version = in_order(nodes, &found, status).await?;
    if let Some(mut patch) = node::volumes_in_use(&found, &status.volumes_in_use) {
        patch["metadata"]["resourceVersion"] = version.into();
        let patch = Patch::Merge(&patch);
        let patched = nodes.patch_status(name.as_str(), &PatchParams::default(), &patch).await;
        version = patched.map_err(failed("status.volumesInUse of the Node"))?.metadata.resource_version;
    }
    volumes_in_use.store(true, Ordering::Relaxed);
    if let Some(mut patch) = node::metadata(&found, &node::accepted(&found, &status.drivers).0) {
        patch["metadata"]["resourceVersion"] = version.into();
        let patch = Patch::Merge(&patch);
        let patched = nodes.patch_metadata(name.as_str(), &PatchParams::default(), &patch).await;
        patched.map_err(failed("labels and annotations of the Node"))?;
    }
    Ok(found)
}

/// Checks that an object has no mark of a later status, and marks it with this one if an earlier one may still be written.
/// Returns the `resourceVersion` for the next write.
async fn in_order<K>(api: &Api<K>, found: &K, status: &NodeStatus) -> Result<Option<String>, ReportFailure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let metadata = found.meta();
    let Some(annotation) = order::mark(metadata.annotations.as_ref(), status.number.as_ref())? else {
        return Ok(metadata.resource_version.clone());
    };
    let patch = json!({ "metadata": {
        "resourceVersion": metadata.resource_version,
        "annotations": { order::ANNOTATION: annotation },
    }});
    let name = metadata.name.as_deref().unwrap_or_default();
    let patched = api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    Ok(patched.map_err(failed("the annotation with the number of the status"))?.metadata.resource_version)
}

async fn try_csi_node(
    csi_nodes: &Api<CSINode>,
    (name, uid): (&NodeName, &str),
    scope: Scope,
    status: &NodeStatus,
    drivers: &[&NodeDriver],
) -> Result<(), ReportFailure> {
    let target = "CSINode";
    let found = csi_nodes.get_opt(name.as_str()).await.map_err(failed(target))?;
    if scope == Scope::CsiNode && found.as_ref().is_some_and(csi_node::is_written_by_kubelet) {
        return Err(ReportFailure::KubeletWrites(name.clone()));
    }
    let mut version = match &found {
        Some(found) => in_order(csi_nodes, found, status).await?,
        None => None,
    };
    match csi_node::step(found.as_ref(), drivers, (name.as_str(), uid)) {
        None => {}
        Some(CsiNodeStep::Create(mut new)) => {
            new.metadata.annotations = order::created(status.number.as_ref());
            // If the CSINode exists by now, this is a conflict, and the next attempt reads it.
            csi_nodes.create(&PostParams::default(), &new).await.map_err(failed(target))?;
        }
        Some(CsiNodeStep::Change(patches)) => {
            for mut patch in patches {
                patch["metadata"]["resourceVersion"] = version.take().into();
                let patch = Patch::Merge(&patch);
                let now = csi_nodes.patch(name.as_str(), &PatchParams::default(), &patch).await;
                version = now.map_err(failed(target))?.metadata.resource_version;
            }
        }
    }
    Ok(())
}

async fn write_claim(
    client: &Client,
    feed: &NodeFeed,
    node: &NodeName,
    expanded: &ExpandedClaim,
) -> Result<(), ReportFailure> {
    let ExpandedClaim { namespace, name, uid, .. } = expanded;
    match feed.read(|core| core.claim_waits(node, (namespace, name, uid))) {
        Some(true) => {}
        // The claim does not wait for the node: an earlier report was written.
        Some(false) => return Ok(()),
        None => {
            let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.clone());
            return Err(ReportFailure::ForeignClaim { namespace, name, uid });
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    if let Some(claim) = retried(|| try_claim(&claims, expanded)).await? {
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let event = claim::expansion_event(&claim, node, events::now());
        // The event is optional: the claim's status has the size.
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            let failure = ApiError::from(error);
            tracing::debug!(%node, claim = name, %failure, "cannot write the event of an expanded claim");
        }
    }
    Ok(())
}

/// Writes the size of an expanded claim, and returns the claim if its status has changed.
async fn try_claim(
    claims: &Api<PersistentVolumeClaim>,
    expanded: &ExpandedClaim,
) -> Result<Option<PersistentVolumeClaim>, ReportFailure> {
    let target = "the size of a claim";
    let found = claims.get_opt(&expanded.name).await.map_err(failed(target))?;
    let Some(patch) = found.and_then(|found| claim::expansion_patch(&found, expanded)) else {
        return Ok(None);
    };
    let patch = Patch::Merge(&patch);
    let patched = claims.patch_status(&expanded.name, &PatchParams::default(), &patch).await;
    patched.map(Some).map_err(failed(target))
}
