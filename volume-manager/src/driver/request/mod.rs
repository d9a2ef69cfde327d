//! Builds the requests from a volume's spec and its driver's capabilities.

use std::collections::BTreeMap;

use csi_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, NodeExpandVolumeRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, VolumeCapability,
};

use super::access::sent_mode;
use super::call_error::RequestError;
use super::consumer_spec::ConsumerSpec;
use super::facts::DriverFacts;
use super::mount_path::MountPath;
use super::operation::Operation;
use super::policy::DriverPolicy;
use super::secret_reference::SecretReference;
use super::secrets::{SecretValues, TOKENS};
use super::volume_spec::VolumeSpec;

/// Builds the requests about one volume for one connection of its driver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requests<'a> {
    pub(super) volume: &'a VolumeSpec,
    pub(super) facts: &'a DriverFacts,
    pub(super) policy: &'a DriverPolicy,
}

impl<'a> Requests<'a> {
    /// Checks that the driver supports the operation. Teardown calls are always allowed: if an upgraded driver no longer has a
    /// capability, the driver itself decides about its existing volumes.
    pub(super) fn check(&self, operation: &Operation) -> Result<(), RequestError> {
        let (volume, name) = (self.volume, &self.facts.name);
        if volume.key().driver != *name {
            return Err(RequestError::Driver { expected: volume.key().driver.clone(), found: name.clone() });
        }
        // Checked before setup calls only: a volume that exists can always be torn down.
        let is_setup = matches!(
            operation,
            Operation::ControllerPublish | Operation::NodeStage { .. } | Operation::NodePublish { .. }
        );
        if is_setup && !self.policy.admits(volume) {
            return Err(RequestError::LifecycleMode { mode: volume.lifecycle_mode() });
        }
        let (controller, node) = (&self.facts.capabilities.controller, &self.facts.capabilities.node);
        let (capability, present) = match operation {
            Operation::ControllerPublish => ("PUBLISH_UNPUBLISH_VOLUME", controller.publish_unpublish),
            Operation::NodeStage { .. } => ("STAGE_UNSTAGE_VOLUME", node.stage_unstage),
            Operation::ControllerExpand { .. } => ("EXPAND_VOLUME of its controller", controller.expand),
            Operation::NodeExpand { .. } => ("EXPAND_VOLUME of its node service", node.expand),
            Operation::Stats { .. } => ("GET_VOLUME_STATS", node.volume_stats),
            Operation::Health { .. } => ("GET_VOLUME_HEALTH", node.volume_health),
            Operation::NodePublish { consumer, .. } => {
                if !self.policy.token_requests.is_empty() && consumer.pod_info().is_none() {
                    return Err(RequestError::NoPod { consumer: consumer.id().clone() });
                }
                return Ok(());
            }
            Operation::ControllerUnpublish { .. }
            | Operation::NodeUnstage { .. }
            | Operation::NodeUnpublish { .. } => return Ok(()),
        };
        if !present {
            return Err(RequestError::Capability { capability });
        }
        let persistent_only = !matches!(operation, Operation::Stats { .. } | Operation::Health { .. });
        if persistent_only && volume.is_ephemeral() {
            return Err(RequestError::Ephemeral);
        }
        Ok(())
    }

    /// Returns the reference to the secret of the operation.
    pub(super) fn secret(&self, operation: &Operation) -> Option<&'a SecretReference> {
        let secrets = self.volume.secrets();
        let reference = match operation {
            Operation::ControllerPublish | Operation::ControllerUnpublish { .. } => {
                &secrets.controller_publish
            }
            Operation::NodeStage { .. } => &secrets.node_stage,
            Operation::NodePublish { .. } => &secrets.node_publish,
            Operation::ControllerExpand { .. } => &secrets.controller_expand,
            Operation::NodeExpand { .. } => &secrets.node_expand,
            Operation::NodeUnstage { .. }
            | Operation::NodeUnpublish { .. }
            | Operation::Stats { .. }
            | Operation::Health { .. } => &None,
        };
        reference.as_ref()
    }

    pub(super) fn controller_publish(
        &self,
        secrets: &SecretValues,
    ) -> Result<ControllerPublishVolumeRequest, RequestError> {
        Ok(ControllerPublishVolumeRequest {
            volume_id: self.volume_id(),
            node_id: self.facts.node_id.clone().ok_or(RequestError::NoNodeId)?,
            volume_capability: Some(self.controller_capability()),
            // A driver without the capability receives only the access mode.
            readonly: self.volume.is_read_only() && self.facts.capabilities.controller.publish_read_only,
            secrets: secrets.to_message(),
            volume_context: self.volume.volume_context().clone(),
        })
    }

    pub(super) fn controller_unpublish(
        &self,
        node_id: Option<&String>,
        secrets: &SecretValues,
    ) -> Result<ControllerUnpublishVolumeRequest, RequestError> {
        // An empty id would detach the volume from every node.
        let node_id = node_id.or(self.facts.node_id.as_ref()).filter(|id| !id.is_empty());
        Ok(ControllerUnpublishVolumeRequest {
            volume_id: self.volume_id(),
            node_id: node_id.ok_or(RequestError::NoNodeId)?.clone(),
            secrets: secrets.to_message(),
        })
    }

    pub(super) fn node_stage(&self, path: &MountPath, secrets: &SecretValues) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.volume_id(),
            publish_context: self.volume.publish_context().clone(),
            staging_target_path: path.as_str().to_owned(),
            volume_capability: Some(self.mount_capability(self.volume.fs_group())),
            secrets: secrets.to_message(),
            volume_context: self.volume.volume_context().clone(),
        }
    }

    pub(super) fn node_publish(
        &self,
        consumer: &ConsumerSpec,
        staging_path: &MountPath,
        tokens: Option<String>,
        secrets: &SecretValues,
    ) -> NodePublishVolumeRequest {
        let mut volume_context = self.volume.volume_context().clone();
        if self.policy.pod_info_on_mount {
            volume_context.extend(self.pod_info(consumer));
        }
        let mut secrets = secrets.to_message();
        if let Some(tokens) = tokens {
            let map = if self.policy.token_in_secrets { &mut secrets } else { &mut volume_context };
            map.insert(TOKENS.to_owned(), tokens);
        }
        let group = consumer.own_fs_group().or_else(|| self.volume.fs_group());
        NodePublishVolumeRequest {
            volume_id: self.volume_id(),
            publish_context: self.volume.publish_context().clone(),
            staging_target_path: self.staging(staging_path),
            target_path: consumer.target_path().as_str().to_owned(),
            volume_capability: Some(self.mount_capability(group)),
            readonly: self.volume.is_read_only() || consumer.is_read_only(),
            secrets,
            volume_context,
        }
    }

    pub(super) fn controller_expand(
        &self,
        required_bytes: u64,
        secrets: &SecretValues,
    ) -> ControllerExpandVolumeRequest {
        ControllerExpandVolumeRequest {
            volume_id: self.volume_id(),
            capacity_range: Some(at_least(required_bytes)),
            secrets: secrets.to_message(),
            volume_capability: Some(self.controller_capability()),
        }
    }

    pub(super) fn node_expand(
        &self,
        required_bytes: u64,
        volume_path: &MountPath,
        staging_path: &MountPath,
        secrets: &SecretValues,
    ) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: self.volume_id(),
            volume_path: volume_path.as_str().to_owned(),
            capacity_range: Some(at_least(required_bytes)),
            staging_target_path: self.staging(staging_path),
            volume_capability: Some(self.mount_capability(None)),
            secrets: secrets.to_message(),
        }
    }

    pub(super) fn volume_id(&self) -> String {
        self.volume.key().id.as_str().to_owned()
    }

    /// The staging path, for a driver that stages volumes like this one.
    pub(super) fn staging(&self, path: &MountPath) -> String {
        let stages = self.facts.capabilities.node.stage_unstage && !self.volume.is_ephemeral();
        if stages { path.as_str().to_owned() } else { String::new() }
    }

    fn controller_capability(&self) -> VolumeCapability {
        let multi_writer = self.facts.capabilities.controller.single_node_multi_writer;
        self.volume.access().capability(sent_mode(self.volume.mode(), multi_writer), None, None)
    }

    fn mount_capability(&self, group: Option<u32>) -> VolumeCapability {
        let node = &self.facts.capabilities.node;
        let label = self.volume.selinux_label().filter(|_| self.policy.selinux_mount);
        // The categories of a label have commas, which would end the option if it were not quoted.
        let flag = label.map(|label| format!("context=\"{label}\""));
        let mode = sent_mode(self.volume.mode(), node.single_node_multi_writer);
        self.volume.access().capability(mode, flag, group.filter(|_| node.volume_mount_group))
    }

    /// The pod information under kubelet's keys (`podInfoOnMount`).
    fn pod_info(&self, consumer: &ConsumerSpec) -> BTreeMap<String, String> {
        let ephemeral = ("ephemeral", if self.volume.is_ephemeral() { "true" } else { "false" });
        let pod = consumer.pod_info().map(|pod| {
            [
                ("pod.name", pod.name()),
                ("pod.namespace", pod.namespace()),
                ("pod.uid", pod.uid()),
                ("serviceAccount.name", pod.service_account()),
            ]
        });
        pod.into_iter()
            .flatten()
            .chain([ephemeral])
            .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
            .collect()
    }
}

/// Returns a capacity range without an upper bound.
fn at_least(bytes: u64) -> CapacityRange {
    CapacityRange { required_bytes: i64::try_from(bytes).unwrap_or(i64::MAX), limit_bytes: 0 }
}

#[cfg(test)]
mod tests;
