//! The desired set of a node, validated.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::DriverName;
use prost::Message;

use super::wire;
use crate::driver::{
    Access, Attach, ConsumerSpec, DriverPolicy, SecretReference, SecretReferences, VolumeSpec,
};
use crate::name::VolumeKey;
use crate::node::DesiredVolume;

/// All desired volumes of a node, with a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a revision, the volumes and the drivers")]
pub struct DesiredSet {
    /// The revision, from 1. A higher one replaces a lower one.
    pub revision: u64,
    /// The desired volumes, without duplicates. Other volumes of the node are unpublished and unstaged.
    pub volumes: Vec<DesiredVolume>,
    /// The volumes of [`Attach::Awaited`] that are attached. A volume with a publish context need not be listed.
    pub attached: BTreeSet<VolumeKey>,
    /// The policies of drivers. A driver that is not listed has [`DriverPolicy::default`].
    pub policies: BTreeMap<DriverName, DriverPolicy>,
}

impl DesiredSet {
    /// Creates a set of volumes whose drivers have the default policy.
    #[must_use]
    pub fn new(revision: u64, volumes: Vec<DesiredVolume>) -> Self {
        Self { revision, volumes, attached: BTreeSet::new(), policies: BTreeMap::new() }
    }

    /// The policy of a driver.
    #[must_use]
    pub fn policy(&self, driver: &DriverName) -> DriverPolicy {
        self.policies.get(driver).cloned().unwrap_or_default()
    }

    /// Whether this set reports an externally attached volume as attached.
    #[must_use]
    pub fn is_attached(&self, volume: &VolumeSpec) -> bool {
        volume.attach() == Attach::Awaited
            && (!volume.publish_context().is_empty() || self.attached.contains(volume.key()))
    }

    /// Encodes the request for this set. Deterministic.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let volumes = self.volumes.iter().map(|volume| wire::DesiredVolume {
            attached: self.attached.contains(volume.spec.key()),
            consumers: volume.consumers.iter().map(|consumer| (&**consumer).into()).collect(),
            ..(&*volume.spec).into()
        });
        let drivers = self.policies.iter().map(wire::DriverPolicy::from);
        let desired = wire::DesiredVolumes {
            revision: self.revision,
            volumes: volumes.collect(),
            drivers: drivers.collect(),
        };
        wire::Request { request: Some(wire::request::Request::Desired(desired)) }.encode_to_vec()
    }
}

/// Encodes a request for a report on every volume.
#[must_use]
pub fn query() -> Vec<u8> {
    wire::Request { request: Some(wire::request::Request::Query(wire::VolumesQuery {})) }.encode_to_vec()
}

/// The maximum size of the tag and length of an embedded message in bytes.
const EMBEDDED_OVERHEAD: usize = 8;

/// The maximum number of bytes that a volume adds to [`DesiredSet::encode`], without its consumers.
#[must_use]
pub fn volume_bytes(spec: &VolumeSpec) -> usize {
    wire::DesiredVolume { attached: true, ..spec.into() }.encoded_len() + EMBEDDED_OVERHEAD
}

/// The maximum number of bytes that a consumer adds to its volume.
#[must_use]
pub fn consumer_bytes(consumer: &ConsumerSpec) -> usize {
    wire::Consumer::from(consumer).encoded_len() + EMBEDDED_OVERHEAD
}

/// The maximum number of bytes that a driver policy adds to [`DesiredSet::encode`].
#[must_use]
pub fn policy_bytes(driver: &DriverName, policy: &DriverPolicy) -> usize {
    wire::DriverPolicy::from((driver, policy)).encoded_len() + EMBEDDED_OVERHEAD
}

/// Converts the volume without its consumers.
impl From<&VolumeSpec> for wire::DesiredVolume {
    fn from(spec: &VolumeSpec) -> Self {
        let access = match spec.access() {
            Access::Block => wire::desired_volume::Access::Block(wire::Block {}),
            Access::Filesystem { fs_type, mount_flags } => {
                let (fs_type, mount_flags) = (fs_type.clone(), mount_flags.clone());
                wire::desired_volume::Access::Filesystem(wire::Filesystem { fs_type, mount_flags })
            }
        };
        let secrets = spec.secrets();
        Self {
            driver: spec.key().driver.to_string(),
            volume_id: spec.key().id.to_string(),
            access: Some(access),
            access_mode: spec.mode().into(),
            read_only: spec.is_read_only(),
            ephemeral: spec.is_ephemeral(),
            attach: spec.attach().into(),
            volume_context: spec.volume_context().clone(),
            publish_context: spec.publish_context().clone(),
            secrets: (*secrets != SecretReferences::default()).then(|| secrets.into()),
            fs_group: spec.fs_group(),
            selinux_label: spec.selinux_label().map(str::to_owned),
            consumers: Vec::new(),
            attached: false,
        }
    }
}

impl From<&SecretReferences> for wire::SecretReferences {
    fn from(secrets: &SecretReferences) -> Self {
        let encode = |reference: &Option<SecretReference>| {
            reference.as_ref().map(|reference| wire::SecretReference {
                namespace: reference.namespace().to_owned(),
                name: reference.name().to_owned(),
            })
        };
        Self {
            controller_publish: encode(&secrets.controller_publish),
            node_stage: encode(&secrets.node_stage),
            node_publish: encode(&secrets.node_publish),
            controller_expand: encode(&secrets.controller_expand),
            node_expand: encode(&secrets.node_expand),
        }
    }
}

impl From<&ConsumerSpec> for wire::Consumer {
    fn from(consumer: &ConsumerSpec) -> Self {
        Self {
            id: consumer.id().to_string(),
            target_path: consumer.target_path().to_string(),
            read_only: consumer.is_read_only(),
            fs_group: consumer.own_fs_group(),
            pod: consumer.pod_info().map(|pod| wire::PodInfo {
                name: pod.name().to_owned(),
                namespace: pod.namespace().to_owned(),
                uid: pod.uid().to_owned(),
                service_account: pod.service_account().to_owned(),
            }),
        }
    }
}

impl From<(&DriverName, &DriverPolicy)> for wire::DriverPolicy {
    fn from((name, policy): (&DriverName, &DriverPolicy)) -> Self {
        let modes = [
            (policy.persistent, wire::LifecycleMode::Persistent),
            (policy.ephemeral, wire::LifecycleMode::Ephemeral),
        ];
        Self {
            driver: name.to_string(),
            attach_required: (!policy.attach_required).then_some(false),
            pod_info_on_mount: policy.pod_info_on_mount,
            lifecycle_modes: modes.iter().filter(|(has, _)| *has).map(|(_, mode)| (*mode).into()).collect(),
            fs_group_policy: policy.fs_group_policy.into(),
            requires_republish: policy.requires_republish,
            selinux_mount: policy.selinux_mount,
            token_requests: policy.token_requests.clone(),
            token_in_secrets: policy.token_in_secrets,
        }
    }
}
