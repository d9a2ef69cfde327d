//! What a node shall have: checked, and in the types of the other modules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csi_proto::DriverName;
use prost::Message;

use super::wire;
use crate::driver::{Access, Attach, ConsumerSpec, DriverPolicy, FsGroupPolicy, SecretReference, VolumeSpec};
use crate::name::VolumeKey;
use crate::node::DesiredVolume;

/// All volumes that a node shall have, under a number.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a number, the volumes and the drivers")]
pub struct DesiredSet {
    /// The number, from 1. A higher one replaces a lower one.
    pub revision: u64,
    /// Each volume once. What is not here is taken down.
    pub volumes: Vec<DesiredVolume>,
    /// Volumes of [`Attach::Awaited`] that are attached. A publish context says so too.
    pub attached: BTreeSet<VolumeKey>,
    /// What is known of drivers. One that is not here has [`DriverPolicy::default`].
    pub policies: BTreeMap<DriverName, DriverPolicy>,
}

impl DesiredSet {
    /// A set of volumes whose drivers have the default policy.
    #[must_use]
    pub fn new(revision: u64, volumes: Vec<DesiredVolume>) -> Self {
        Self { revision, volumes, attached: BTreeSet::new(), policies: BTreeMap::new() }
    }

    /// What is known of a driver.
    #[must_use]
    pub fn policy(&self, driver: &DriverName) -> DriverPolicy {
        self.policies.get(driver).cloned().unwrap_or_default()
    }

    /// Whether a volume that others attach is attached, as far as this set says.
    #[must_use]
    pub fn is_attached(&self, volume: &VolumeSpec) -> bool {
        volume.attach() == Attach::Awaited
            && (!volume.publish_context().is_empty() || self.attached.contains(volume.key()))
    }

    /// The bytes of the request that asks for it. The same set has the same bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let volumes = self.volumes.iter().map(|volume| {
            let attached = self.attached.contains(volume.spec.key());
            written_volume(&volume.spec, &volume.consumers, attached)
        });
        let drivers = self.policies.iter().map(|(name, policy)| written_policy(name, policy));
        let desired = wire::DesiredVolumes {
            revision: self.revision,
            volumes: volumes.collect(),
            drivers: drivers.collect(),
        };
        wire::Request { request: Some(wire::request::Request::Desired(desired)) }.encode_to_vec()
    }
}

/// The bytes of a request for a report on every volume.
#[must_use]
pub fn query() -> Vec<u8> {
    wire::Request { request: Some(wire::request::Request::Query(wire::VolumesQuery {})) }.encode_to_vec()
}

/// The most bytes before a message that is inside another one.
const INSIDE: usize = 8;

/// The most bytes that a volume adds to [`DesiredSet::encode`] without its consumers.
#[must_use]
pub fn volume_bytes(spec: &VolumeSpec) -> usize {
    written_volume(spec, &[], true).encoded_len() + INSIDE
}

/// The most bytes that a consumer adds to its volume.
#[must_use]
pub fn consumer_bytes(consumer: &ConsumerSpec) -> usize {
    written_consumer(consumer).encoded_len() + INSIDE
}

/// The most bytes that what is known of a driver adds to [`DesiredSet::encode`].
#[must_use]
pub fn policy_bytes(driver: &DriverName, policy: &DriverPolicy) -> usize {
    written_policy(driver, policy).encoded_len() + INSIDE
}

fn written_volume(spec: &VolumeSpec, consumers: &[Arc<ConsumerSpec>], attached: bool) -> wire::DesiredVolume {
    let access = match spec.access() {
        Access::Block => wire::desired_volume::Access::Block(wire::Block {}),
        Access::Filesystem { fs_type, mount_flags } => {
            wire::desired_volume::Access::Filesystem(wire::Filesystem {
                fs_type: fs_type.clone(),
                mount_flags: mount_flags.clone(),
            })
        }
    };
    let attach = match spec.attach() {
        Attach::Here => wire::Attach::Here,
        Attach::Awaited => wire::Attach::Awaited,
        Attach::NotRequired => wire::Attach::NotRequired,
    };
    let secrets = spec.secrets();
    let secrets = wire::SecretReferences {
        controller_publish: secrets.controller_publish.as_ref().map(written_secret),
        node_stage: secrets.node_stage.as_ref().map(written_secret),
        node_publish: secrets.node_publish.as_ref().map(written_secret),
        controller_expand: secrets.controller_expand.as_ref().map(written_secret),
        node_expand: secrets.node_expand.as_ref().map(written_secret),
    };
    wire::DesiredVolume {
        driver: spec.key().driver.to_string(),
        volume_id: spec.key().id.to_string(),
        access: Some(access),
        access_mode: spec.mode().into(),
        read_only: spec.is_read_only(),
        ephemeral: spec.is_ephemeral(),
        attach: attach.into(),
        volume_context: spec.volume_context().clone(),
        publish_context: spec.publish_context().clone(),
        secrets: (secrets != wire::SecretReferences::default()).then_some(secrets),
        fs_group: spec.fs_group(),
        selinux_label: spec.selinux_label().map(str::to_owned),
        consumers: consumers.iter().map(|consumer| written_consumer(consumer)).collect(),
        attached,
    }
}

fn written_secret(reference: &SecretReference) -> wire::SecretReference {
    wire::SecretReference { namespace: reference.namespace().to_owned(), name: reference.name().to_owned() }
}

fn written_consumer(consumer: &ConsumerSpec) -> wire::Consumer {
    wire::Consumer {
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

fn written_policy(name: &DriverName, policy: &DriverPolicy) -> wire::DriverPolicy {
    let modes = [
        (policy.persistent, wire::LifecycleMode::Persistent),
        (policy.ephemeral, wire::LifecycleMode::Ephemeral),
    ];
    let fs_group_policy = match policy.fs_group_policy {
        FsGroupPolicy::ReadWriteOnceWithFsType => wire::FsGroupPolicy::ReadWriteOnceWithFsType,
        FsGroupPolicy::File => wire::FsGroupPolicy::File,
        FsGroupPolicy::None => wire::FsGroupPolicy::None,
    };
    wire::DriverPolicy {
        driver: name.to_string(),
        attach_required: (!policy.attach_required).then_some(false),
        pod_info_on_mount: policy.pod_info_on_mount,
        lifecycle_modes: modes.iter().filter(|(has, _)| *has).map(|(_, mode)| i32::from(*mode)).collect(),
        fs_group_policy: fs_group_policy.into(),
        requires_republish: policy.requires_republish,
        selinux_mount: policy.selinux_mount,
        token_requests: policy
            .token_requests
            .iter()
            .map(|request| wire::TokenRequest {
                audience: request.audience.clone(),
                expiration_seconds: request.expiration_seconds,
            })
            .collect(),
        token_in_secrets: policy.token_in_secrets,
    }
}
