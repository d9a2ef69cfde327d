//! What a node says of itself, written to the API server as its kubelet would: CSINode, labels and annotations of the Node,
//! `status.volumesInUse`, and claims that are larger now. Only what differs is written, and a Node is never made.

mod bounds;
mod claim;
mod csi_node;
mod label;
mod node;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};

use self::bounds::OutOfBounds;
use self::csi_node::CsiNodeStep;
use self::node::LabelRefused;
use super::api_error::ApiError;
use super::events;
use super::node_feed::NodeFeed;
use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::{ExpandedClaim, NodeDriver, NodeStatus};

/// The maximum number of attempts of a write that conflicts.
const TRIES: usize = 5;

/// The longest time that writing a status takes.
const BOUND: Duration = Duration::from_secs(30);

/// Why a status was not written, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReportFailure {
    /// The status itself cannot be.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The Node does not exist.
    #[error(
        "Node {0} not found; the hub does not create Nodes: join the node to the cluster under the name of the agent"
    )]
    NoNode(NodeName),
    /// A topology segment that cannot be a label.
    #[error(transparent)]
    Label(#[from] LabelRefused),
    /// The claim is not used on this node.
    #[error("claim {namespace}/{name} with UID {uid} is not used on this node")]
    ForeignClaim {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// The API server did not take it.
    #[error("{what}: {cause}")]
    Api {
        /// What was being written.
        what: &'static str,
        /// What became of it.
        cause: ApiError,
    },
    /// It took too long.
    #[error("the API server did not take the status within {} s", BOUND.as_secs())]
    Slow,
}

/// What of a status was written.
#[derive(Debug)]
pub(super) struct Written {
    /// Whether the volumes in use were.
    pub(super) volumes_in_use: bool,
    /// The UID of the Node, if all was.
    pub(super) all: Result<String, ReportFailure>,
}

/// Writes a node's status, as much of it as can be written.
pub(super) async fn write(client: &Client, feed: &NodeFeed, name: &NodeName, status: &NodeStatus) -> Written {
    // First, since the node's mounts wait for it, whatever the result of the rest.
    let volumes_in_use = AtomicBool::new(false);
    let work = async {
        bounds::check(status)?;
        let nodes: Api<Node> = Api::all(client.clone());
        let found = retried(|| try_node(&nodes, name, status, &volumes_in_use)).await?;
        let (drivers, refused) = node::accepted(&found, &status.drivers);
        let uid = found.metadata.uid.clone().unwrap_or_default();
        // The labels are written first: the scheduler relies on them once CSINode names their keys.
        let csi_nodes: Api<CSINode> = Api::all(client.clone());
        retried(|| try_csi_node(&csi_nodes, (name, &uid), &drivers)).await?;
        for claim in &status.expanded {
            write_claim(client, feed, name, claim).await?;
        }
        refused.map_or(Ok(uid), |refused| Err(refused.into()))
    };
    let all = tokio::time::timeout(BOUND, work).await.unwrap_or(Err(ReportFailure::Slow));
    Written { volumes_in_use: volumes_in_use.into_inner(), all }
}

fn failed(what: &'static str) -> impl FnOnce(kube::Error) -> ReportFailure {
    move |error| ReportFailure::Api { what, cause: error.into() }
}

/// Retries a write that conflicts.
async fn retried<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, ReportFailure>
where
    F: Future<Output = Result<T, ReportFailure>>,
{
    let mut left = TRIES;
    loop {
        left -= 1;
        match attempt().await {
            Err(ReportFailure::Api { cause: ApiError::Conflict(_), .. }) if left > 0 => {}
            done => return done,
        }
    }
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
    let found = nodes.get_opt(name.as_str()).await.map_err(failed("reading the Node"))?;
    let found = found.ok_or_else(|| ReportFailure::NoNode(name.clone()))?;
    if let Some(patch) = node::volumes_in_use(&found, &status.volumes_in_use) {
        let patch = Patch::Merge(&patch);
        let patched = nodes.patch_status(name.as_str(), &PatchParams::default(), &patch).await;
        patched.map_err(failed("status.volumesInUse of the Node"))?;
    }
    volumes_in_use.store(true, Ordering::Relaxed);
    if let Some(patch) = node::metadata(&found, &node::accepted(&found, &status.drivers).0) {
        let patch = Patch::Merge(&patch);
        let patched = nodes.patch_metadata(name.as_str(), &PatchParams::default(), &patch).await;
        patched.map_err(failed("labels and annotations of the Node"))?;
    }
    Ok(found)
}

async fn try_csi_node(
    csi_nodes: &Api<CSINode>,
    (name, uid): (&NodeName, &str),
    drivers: &[&NodeDriver],
) -> Result<(), ReportFailure> {
    let what = "CSINode";
    let found = csi_nodes.get_opt(name.as_str()).await.map_err(failed(what))?;
    match csi_node::step(found.as_ref(), drivers, (name.as_str(), uid)) {
        None => {}
        Some(CsiNodeStep::Make(new)) => {
            // A second one is a conflict, and is then read.
            csi_nodes.create(&PostParams::default(), &new).await.map_err(failed(what))?;
        }
        Some(CsiNodeStep::Change(patches)) => {
            let mut version = found.and_then(|found| found.metadata.resource_version);
            for mut patch in patches {
                patch["metadata"]["resourceVersion"] = version.take().into();
                let patch = Patch::Merge(&patch);
                let now = csi_nodes.patch(name.as_str(), &PatchParams::default(), &patch).await;
                version = now.map_err(failed(what))?.metadata.resource_version;
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
        // Nothing is asked of the node: it says once more what is written.
        Some(false) => return Ok(()),
        None => {
            let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.clone());
            return Err(ReportFailure::ForeignClaim { namespace, name, uid });
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    if let Some(claim) = retried(|| try_claim(&claims, expanded)).await? {
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let event = claim::grown_event(&claim, node, events::now());
        // The claim says its size, with or without one.
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            let failure = ApiError::from(error);
            tracing::debug!(%node, claim = name, %failure, "the event of a larger claim is not written");
        }
    }
    Ok(())
}

/// Writes the size; the claim if that was new.
async fn try_claim(
    claims: &Api<PersistentVolumeClaim>,
    expanded: &ExpandedClaim,
) -> Result<Option<PersistentVolumeClaim>, ReportFailure> {
    let what = "the size of a claim";
    let found = claims.get_opt(&expanded.name).await.map_err(failed(what))?;
    let Some(patch) = found.and_then(|found| claim::grown(&found, expanded)) else { return Ok(None) };
    let patch = Patch::Merge(&patch);
    let patched = claims.patch_status(&expanded.name, &PatchParams::default(), &patch).await;
    patched.map(Some).map_err(failed(what))
}
