//! The status of the node, as sent to the hub. No I/O, no clock: it changes only with its input, so that an equal
//! status is sent once.

mod failure;

use std::collections::{BTreeMap, BTreeSet};

use csi_proxy::NodeSegment;
use prost::Message;
use volume_manager::advanced::message::Refused;
use volume_manager::driver::Attach;
use volume_manager::node::{Explanation, KnownDriver, VolumeState, Waiting};
use volume_manager::{ConsumerId, VolumeKey};

use self::failure::failure;
use super::fs_group::GroupState;
use super::in_use::unique_volume_name;
use super::plan::{Assignment, Expansion, Plan, PodVolumePlan};
use edge_csi_common::excerpt::excerpt;
use edge_csi_common::kubernetes::message::{ExpandedClaim, NodeDriver, NodeStatus, PodVolumeStatus};

/// The maximum size of a reason in bytes.
const MAX_REASON_BYTES: usize = 1024;

/// The maximum size of a status in bytes; beyond it reasons are cut and events left out first, then pod volumes.
const MAX_STATUS_BYTES: usize = 1 << 20;

/// The maximum number of drivers that a hub accepts.
const MAX_DRIVERS: usize = 64;

/// The maximum number of expanded claims that a hub accepts.
const MAX_EXPANDED: usize = 1024;

/// The maximum number of pod volumes that a hub accepts.
const MAX_POD_VOLUMES: usize = 8192;

/// The maximum size of a reason in bytes in a status that exceeds its maximum size.
const SHORT_REASON_BYTES: usize = 64;

/// The observed state of the node.
#[derive(Debug, Default)]
pub(super) struct Observation {
    /// The registered drivers.
    pub(super) drivers: Vec<KnownDriver>,
    /// The state of each volume.
    pub(super) volumes: BTreeMap<VolumeKey, Explanation>,
    /// The consumers that the volume manager refuses.
    pub(super) refused: Vec<Refused>,
    /// The finished expansions, with the resulting sizes in bytes.
    pub(super) expanded: BTreeMap<Expansion, u64>,
    /// The states of the fsGroup jobs.
    pub(super) groups: BTreeMap<ConsumerId, GroupState>,
}

impl Observation {
    /// Returns the volumes that are or may be staged or published.
    pub(super) fn mounted(&self) -> BTreeSet<VolumeKey> {
        let mounted = self.volumes.values().filter(|explanation| {
            // A volume with an unreadable record may be in any state.
            explanation.state.is_none_or(|state| {
                !matches!(
                    state,
                    VolumeState::Created
                        | VolumeState::NodeReady
                        | VolumeState::ControllerPublish
                        | VolumeState::ControllerUnpublish
                )
            })
        });
        mounted.map(|explanation| explanation.key.clone()).collect()
    }
}

/// Computes the status of the node.
pub(super) fn node_status(
    plan: Option<&Plan>,
    seen: &Observation,
    segment: Option<&NodeSegment>,
) -> NodeStatus {
    let mut in_use = seen.mounted();
    for volume in plan.iter().flat_map(|plan| &plan.set.volumes) {
        // A volume is in use even before it is attached, so that it is not detached between attachment and mount.
        if volume.spec.attach() == Attach::Awaited && !volume.consumers.is_empty() {
            in_use.insert(volume.spec.key().clone());
        }
    }
    let mut status = NodeStatus {
        drivers: seen.drivers.iter().filter_map(|driver| node_driver(driver, segment)).collect(),
        volumes_in_use: in_use.iter().map(unique_volume_name).collect(),
        expanded: expanded(plan, seen),
        pod_volumes: plan
            .iter()
            .flat_map(|plan| plan.pod_volumes.iter().map(|volume| pod_volume(volume, plan, seen)))
            .collect(),
        // Set when the status is sent.
        number: None,
    };
    fit(&mut status);
    status
}

/// Cuts a status to the limits. Volumes in use are never left out, since the cluster would detach them.
fn fit(status: &mut NodeStatus) {
    status.drivers.truncate(MAX_DRIVERS);
    status.expanded.truncate(MAX_EXPANDED);
    status.pod_volumes.truncate(MAX_POD_VOLUMES);
    if status.encoded_len() > MAX_STATUS_BYTES {
        for volume in &mut status.pod_volumes {
            volume.reason = excerpt(&volume.reason, SHORT_REASON_BYTES).to_owned();
            volume.failure = None;
        }
    }
    while status.encoded_len() > MAX_STATUS_BYTES && !status.pod_volumes.is_empty() {
        status.pod_volumes.truncate(status.pod_volumes.len() / 2);
    }
}

/// Returns the CSINode entry of a driver; `None` until the driver has answered.
fn node_driver(driver: &KnownDriver, segment: Option<&NodeSegment>) -> Option<NodeDriver> {
    let facts = driver.facts.as_ref()?;
    let mut segments = facts.topology.clone();
    if segments.is_empty()
        && let Some(Ok(topology)) = segment.map(|segment| segment.topology(&driver.name))
    {
        segments = topology.segments;
    }
    Some(NodeDriver {
        name: driver.name.to_string(),
        node_id: facts.node_id.clone()?,
        segments,
        max_volumes: facts.max_volumes.unwrap_or_default(),
        ready: driver.connected,
    })
}

/// Returns the finished expansions that claims still request.
fn expanded(plan: Option<&Plan>, seen: &Observation) -> Vec<ExpandedClaim> {
    let requested = plan.iter().flat_map(|plan| &plan.expansions);
    let done = requested.filter_map(|expansion| Some((expansion, *seen.expanded.get(expansion)?)));
    done.map(|(expansion, bytes)| ExpandedClaim {
        namespace: expansion.namespace.clone(),
        name: expansion.name.clone(),
        uid: expansion.uid.clone(),
        bytes,
    })
    .collect()
}

fn pod_volume(volume: &PodVolumePlan, plan: &Plan, seen: &Observation) -> PodVolumeStatus {
    let (published, reason) = match &volume.assignment {
        Assignment::Unassigned(reason) => (false, reason.clone()),
        Assignment::Assigned { key, consumer, missing } => {
            let explanation = seen.volumes.get(key);
            let published = explanation.is_some_and(|explanation| is_published(explanation, consumer));
            let refused = seen.refused.iter().find(|refused| {
                refused.consumer == consumer.as_str()
                    && refused.driver == key.driver.as_str()
                    && refused.volume_id == key.id.as_str()
            });
            let group = seen.groups.get(consumer).filter(|_| published);
            let (published, group) = match group {
                Some(GroupState::Pending(reason) | GroupState::Failed(reason)) => (false, Some(reason)),
                Some(GroupState::Applied(remark)) => (true, Some(remark)),
                None => (published, None),
            };
            let reason = match (published, missing, refused, explanation) {
                (_, None, None, Some(_)) if group.is_some() => group.cloned().unwrap_or_default(),
                (true, None, _, Some(explanation)) => explanation.unapplied.join("; "),
                (_, Some(missing), _, _) => missing.clone(),
                (_, None, Some(refused), _) => refused.reason.clone(),
                (false, None, None, Some(explanation))
                    if explanation.waiting == Waiting::Attach && plan.unmarked.contains(key) =>
                {
                    "the volume waits until the Node's status.volumesInUse contains it".to_owned()
                }
                (false, None, None, Some(explanation)) => waiting_reason(explanation),
                (_, None, None, None) => "the volume manager has not processed the volume yet".to_owned(),
            };
            (published, reason)
        }
    };
    let mut failure = failure(volume, seen, published, &reason);
    if let Some(failure) = &mut failure {
        failure.message = excerpt(&failure.message, MAX_REASON_BYTES).to_owned();
    }
    PodVolumeStatus {
        published,
        reason: excerpt(&reason, MAX_REASON_BYTES).to_owned(),
        failure,
        ..volume.status.clone()
    }
}

/// Whether the volume is published for a consumer that is still wanted.
pub(super) fn is_published(explanation: &Explanation, consumer: &ConsumerId) -> bool {
    let mut holders = explanation.consumers.iter();
    holders.any(|holder| holder.consumer == *consumer && holder.published && holder.wanted)
}

/// Returns why a volume waits, without a time, so that the status does not change with time alone.
fn waiting_reason(explanation: &Explanation) -> String {
    let reason = match &explanation.waiting {
        Waiting::Nothing | Waiting::Record | Waiting::CallSlot { .. } | Waiting::Check { .. } => {
            "a call is in progress".to_owned()
        }
        Waiting::Store { reason, .. } => format!("the node's store cannot be written: {reason}"),
        Waiting::Registration => format!("driver {} is not registered", explanation.key.driver),
        Waiting::Driver { last_error: None } => {
            format!("driver {} is not connected yet", explanation.key.driver)
        }
        Waiting::Driver { last_error: Some(error) } => {
            format!("driver {} cannot be connected to: {error}", explanation.key.driver)
        }
        Waiting::Call { rpc, .. } => format!("{rpc} runs"),
        Waiting::Attach => "the volume waits for its VolumeAttachment".to_owned(),
        Waiting::Retry { .. } => "the last call failed and is retried".to_owned(),
        Waiting::Quarantine { reason } => format!("the volume's record on the node cannot be read: {reason}"),
        Waiting::ForeignMount { .. } => "the volume's staging directory has a foreign bind mount".to_owned(),
        Waiting::OtherDriver { rpc } => format!("the driver does not implement {rpc}"),
        Waiting::Request { rpc } => format!("the driver refused {rpc}"),
        Waiting::Refused { reason } => reason.clone(),
        _ => "the volume waits".to_owned(),
    };
    match &explanation.last_error {
        Some(error) => format!("{reason}; last error: {error}"),
        None => reason,
    }
}

#[cfg(test)]
mod tests;
