//! Converts a pod's volume to a volume and its consumer, and a CSIDriver to a policy.

use std::sync::Arc;

use csi_proto::name::{InvalidDriverName, InvalidVolumeId};
use csi_proto::{DriverName, VolumeId};
use volume_manager::driver::{
    Access, AccessMode, Attach, ConsumerSpec, DriverPolicy, FsGroupPolicy, InvalidSecretReference,
    InvalidSpec, PodInfo, SecretReference, SecretReferences, TokenRequest, VolumeSpec, VolumeSpecBuilder,
};
use volume_manager::{ConsumerId, VolumeKey};

use super::super::layout::{InvalidPath, KubeletDirectory, inline_volume_id};
use super::super::metadata::Metadata;
use super::entry::Expansion;
use edge_csi_common::kubernetes::message::{
    Driver, InlineVolume, PersistentVolume, Pod, PodVolume, SecretName,
};

/// A pod's volume, converted from its objects.
#[derive(Debug)]
pub(super) struct Found {
    /// The name of its directory: of the PersistentVolume, or of the inline volume.
    pub(super) name: String,
    /// The volume, without an attachment.
    pub(super) spec: Arc<VolumeSpec>,
    /// The pod as a consumer of the volume.
    pub(super) consumer: ConsumerSpec,
    /// The expansion that its claim requests.
    pub(super) expansion: Option<Expansion>,
    /// Whether one of its access modes is for one node, even if another one is used.
    pub(super) read_write_once: bool,
}

/// Why a pod's volume cannot be converted: an object is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodVolumeError {
    /// The claim is not known.
    #[error("claim {0} is not known on this node yet")]
    Claim(String),
    /// The claim has no volume.
    #[error("claim {0} is not bound yet")]
    Unbound(String),
    /// The volume is not known.
    #[error("PersistentVolume {0} is not known on this node yet, or is not a CSI volume")]
    PersistentVolume(String),
    /// The volume is bound to another claim.
    #[error("PersistentVolume {name} is bound to claim UID {found}; expected {expected}, the pod's claim")]
    OtherClaim {
        /// The PersistentVolume's name.
        name: String,
        /// The UID of the pod's claim.
        expected: String,
        /// The claim UID in the PersistentVolume.
        found: String,
    },
    /// Neither a claim nor an inline volume.
    #[error("the volume has neither a claim nor an inline driver; update the agent")]
    Unknown,
    /// An unknown access mode.
    #[error("unknown access mode {found:?} of PersistentVolume {name}; update the agent")]
    AccessMode {
        /// The PersistentVolume's name.
        name: String,
        /// The access mode.
        found: String,
    },
    /// The driver's name is invalid.
    #[error("invalid driver of the volume: {0}")]
    Driver(#[from] InvalidDriverName),
    /// The handle is invalid.
    #[error("invalid volumeHandle: {0}")]
    Handle(#[from] InvalidVolumeId),
    /// A secret reference is invalid.
    #[error("invalid secret of the volume: {0}")]
    Secret(#[from] InvalidSecretReference),
    /// The volume exceeds a bound.
    #[error("invalid volume: {0}")]
    Spec(#[from] InvalidSpec),
    /// The volume has no valid target path.
    #[error("the volume has no target path: {0}")]
    Path(#[from] InvalidPath),
}

/// Converts a volume of a pod, with the objects of the node.
pub(super) fn find(
    metadata: &Metadata,
    directory: &KubeletDirectory,
    pod: &Pod,
    volume: &PodVolume,
    id: &ConsumerId,
) -> Result<Found, PodVolumeError> {
    let (name, spec, expansion, read_write_once) = match &volume.inline {
        Some(inline) => (volume.name.clone(), inline_volume(pod, volume, inline)?, None, true),
        None if volume.claim.is_empty() => return Err(PodVolumeError::Unknown),
        None => claimed_volume(metadata, pod, volume)?,
    };
    let target = match spec.access() {
        Access::Filesystem { .. } => directory.mount(&pod.uid, &name)?,
        Access::Block => directory.device(&pod.uid, &name)?,
    };
    let info = PodInfo::new(&pod.name, &pod.namespace, &pod.uid, &pod.service_account)?;
    let mut consumer = ConsumerSpec::new(id.clone(), target).read_only(volume.read_only).pod(info);
    if let Some(group) = pod.fs_group.filter(|_| !spec.access().is_block()) {
        consumer = consumer.fs_group(group);
    }
    Ok(Found { name, spec: Arc::new(spec), consumer, expansion, read_write_once })
}

fn inline_volume(pod: &Pod, volume: &PodVolume, inline: &InlineVolume) -> Result<VolumeSpec, PodVolumeError> {
    let driver = DriverName::new(&inline.driver)?;
    let key = VolumeKey { driver, id: inline_volume_id(&pod.uid, &volume.name)? };
    let access = Access::Filesystem { fs_type: inline.fs_type.clone(), mount_flags: Vec::new() };
    let secrets = SecretReferences {
        node_publish: secret(inline.node_publish_secret.as_ref())?,
        ..SecretReferences::default()
    };
    Ok(VolumeSpec::builder(key, access, AccessMode::SingleNodeWriter)
        .ephemeral()
        .volume_context(inline.volume_attributes.clone())
        .secrets(secrets)
        .build()?)
}

type ClaimedVolume = (String, VolumeSpec, Option<Expansion>, bool);

fn claimed_volume(
    metadata: &Metadata,
    pod: &Pod,
    volume: &PodVolume,
) -> Result<ClaimedVolume, PodVolumeError> {
    let claim = metadata
        .claim(&pod.namespace, &volume.claim)
        .ok_or_else(|| PodVolumeError::Claim(volume.claim.clone()))?;
    if claim.volume.is_empty() {
        return Err(PodVolumeError::Unbound(volume.claim.clone()));
    }
    let found = metadata
        .persistent_volume(&claim.volume)
        .ok_or_else(|| PodVolumeError::PersistentVolume(claim.volume.clone()))?;
    if !found.claim_uid.is_empty() && found.claim_uid != claim.uid {
        return Err(PodVolumeError::OtherClaim {
            name: found.name.clone(),
            expected: claim.uid.clone(),
            found: found.claim_uid.clone(),
        });
    }
    let spec = persistent_volume(metadata, found)?;
    let expansion = (claim.expand_to > 0).then(|| Expansion {
        key: spec.key().clone(),
        namespace: claim.namespace.clone(),
        name: claim.name.clone(),
        uid: claim.uid.clone(),
        bytes: claim.expand_to,
    });
    let once = found.access_modes.iter().any(|mode| mode.starts_with(READ_WRITE_ONCE));
    Ok((found.name.clone(), spec, expansion, once))
}

fn persistent_volume(metadata: &Metadata, volume: &PersistentVolume) -> Result<VolumeSpec, PodVolumeError> {
    let driver = DriverName::new(&volume.driver)?;
    // A driver without a CSIDriver requires attachments, as in Kubernetes.
    let attaches = metadata.driver(driver.as_str()).is_none_or(|driver| driver.attach_required);
    let key = VolumeKey { driver, id: VolumeId::new(&volume.volume_handle)? };
    let access = if volume.block {
        Access::Block
    } else {
        Access::Filesystem { fs_type: volume.fs_type.clone(), mount_flags: volume.mount_options.clone() }
    };
    let secrets = SecretReferences {
        node_stage: secret(volume.node_stage_secret.as_ref())?,
        node_publish: secret(volume.node_publish_secret.as_ref())?,
        node_expand: secret(volume.node_expand_secret.as_ref())?,
        ..SecretReferences::default()
    };
    let mode = access_mode(volume)?;
    Ok(VolumeSpec::builder(key, access, mode)
        .attach(if attaches { Attach::Awaited } else { Attach::NotRequired })
        .read_only(volume.read_only || mode == AccessMode::MultiNodeReaderOnly)
        .volume_context(volume.volume_attributes.clone())
        .secrets(secrets)
        .build()?)
}

/// The access mode for one node, and the prefix of `ReadWriteOncePod`.
const READ_WRITE_ONCE: &str = "ReadWriteOnce";

/// Returns a builder of the spec with the access mode and the read-only flag of the previous spec.
pub(super) fn with_mode_of(spec: &VolumeSpec, before: &VolumeSpec) -> VolumeSpecBuilder {
    let builder = VolumeSpec::builder(spec.key().clone(), spec.access().clone(), before.mode())
        .attach(spec.attach())
        .read_only(before.is_read_only())
        .volume_context(spec.volume_context().clone())
        .secrets(spec.secrets().clone());
    if spec.is_ephemeral() { builder.ephemeral() } else { builder }
}

/// Returns the widest access mode of a volume; the order of the list has no meaning. With `ReadWriteMany` the
/// external-attacher does the same; it refuses other mixtures. The mode for drivers with the older modes is chosen
/// at the call.
fn access_mode(volume: &PersistentVolume) -> Result<AccessMode, PodVolumeError> {
    // From the narrowest to the widest.
    const RANKS: [AccessMode; 4] = [
        AccessMode::MultiNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeWriter,
        AccessMode::MultiNodeMultiWriter,
    ];
    let rank = |mode: &String| match mode.as_str() {
        "ReadOnlyMany" => Ok(0),
        "ReadWriteOncePod" => Ok(1),
        READ_WRITE_ONCE => Ok(2),
        "ReadWriteMany" => Ok(3),
        found => Err(PodVolumeError::AccessMode { name: volume.name.clone(), found: found.to_owned() }),
    };
    let ranks = volume.access_modes.iter().map(rank).collect::<Result<Vec<usize>, _>>()?;
    let widest = ranks.into_iter().max().and_then(|rank| RANKS.get(rank));
    Ok(widest.copied().unwrap_or(AccessMode::SingleNodeWriter))
}

fn secret(name: Option<&SecretName>) -> Result<Option<SecretReference>, PodVolumeError> {
    let reference = name.map(|secret| SecretReference::new(&secret.namespace, &secret.name));
    Ok(reference.transpose()?)
}

/// Returns the policy of a CSIDriver. Missing fields get the API server's defaults.
pub(super) fn policy(driver: &Driver) -> DriverPolicy {
    let has = |mode: &str| driver.lifecycle_modes.iter().any(|found| found == mode);
    let mut policy = DriverPolicy::default();
    policy.attach_required = driver.attach_required;
    policy.pod_info_on_mount = driver.pod_info_on_mount;
    policy.persistent = driver.lifecycle_modes.is_empty() || has("Persistent");
    policy.ephemeral = has("Ephemeral");
    policy.fs_group_policy = match driver.fs_group_policy.as_str() {
        "File" => FsGroupPolicy::File,
        "None" => FsGroupPolicy::None,
        _ => FsGroupPolicy::ReadWriteOnceWithFsType,
    };
    policy.requires_republish = driver.requires_republish;
    policy.selinux_mount = driver.selinux_mount;
    policy.token_in_secrets = driver.token_in_secrets;
    let requests = driver.token_requests.iter().map(|request| TokenRequest {
        audience: request.audience.clone(),
        expiration_seconds: request.expiration_seconds,
    });
    policy.token_requests = requests.collect();
    policy
}
