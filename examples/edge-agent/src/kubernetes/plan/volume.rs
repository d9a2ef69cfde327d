//! From a pod's volume to a volume and its consumer, and from a CSIDriver to a policy.

use std::sync::Arc;

use csi_proto::name::{InvalidDriverName, InvalidVolumeId};
use csi_proto::{DriverName, VolumeId};
use volume_manager::driver::{
    Access, AccessMode, Attach, ConsumerSpec, DriverPolicy, FsGroupPolicy, InvalidSecretReference,
    InvalidSpec, PodInfo, SecretReference, SecretReferences, TokenRequest, VolumeSpec, VolumeSpecBuilder,
};
use volume_manager::{ConsumerId, VolumeKey};

use super::super::layout::{KubeletDirectory, NoPlace, inline_volume_id};
use super::super::metadata::Metadata;
use super::entry::Expansion;
use edge_csi_common::kubernetes::message::{
    Driver, InlineVolume, PersistentVolume, Pod, PodVolume, SecretName,
};

/// A pod's volume, found.
#[derive(Debug)]
pub(super) struct Found {
    /// What its directory is called: the PersistentVolume, or the pod's name for an inline one.
    pub(super) name: String,
    /// The volume, not attached.
    pub(super) spec: Arc<VolumeSpec>,
    /// The pod.
    pub(super) consumer: ConsumerSpec,
    /// What its claim asks for.
    pub(super) expansion: Option<Expansion>,
    /// Whether it may be had by one node alone, though another mode of it counts.
    pub(super) read_write_once: bool,
}

/// Why a pod's volume cannot be found, or cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotFound {
    /// The claim is not known.
    #[error("claim {0} is not known on this node yet")]
    Claim(String),
    /// The claim has no volume.
    #[error("claim {0} is not bound yet")]
    Unbound(String),
    /// The volume is not known.
    #[error("PersistentVolume {0} is not known on this node yet, or is not of CSI")]
    PersistentVolume(String),
    /// The volume is bound to another claim.
    #[error("PersistentVolume {name} is bound to claim UID {found}, and the pod's claim is {expected}")]
    OtherClaim {
        /// Its name.
        name: String,
        /// The pod's claim.
        expected: String,
        /// The volume's.
        found: String,
    },
    /// Neither a claim nor an inline volume.
    #[error("it is neither of a claim nor inline; this agent is too old for it")]
    Unknown,
    /// A mode that is not known.
    #[error("access mode {found:?} of PersistentVolume {name} is not known here")]
    AccessMode {
        /// The volume.
        name: String,
        /// The mode.
        found: String,
    },
    /// The driver's name.
    #[error("its driver cannot be: {0}")]
    Driver(#[from] InvalidDriverName),
    /// The handle.
    #[error("its volumeHandle cannot be: {0}")]
    Handle(#[from] InvalidVolumeId),
    /// A secret's name.
    #[error("its secret cannot be: {0}")]
    Secret(#[from] InvalidSecretReference),
    /// A bound is broken.
    #[error("it cannot be: {0}")]
    Spec(#[from] InvalidSpec),
    /// The path is empty.
    #[error("it has no place: {0}")]
    Place(#[from] NoPlace),
}

/// Finds a volume of a pod.
pub(super) fn find(
    metadata: &Metadata,
    directory: &KubeletDirectory,
    pod: &Pod,
    volume: &PodVolume,
    id: &ConsumerId,
) -> Result<Found, NotFound> {
    let (name, spec, expansion, read_write_once) = match &volume.inline {
        Some(inline) => (volume.name.clone(), of_inline(pod, volume, inline)?, None, true),
        None if volume.claim.is_empty() => return Err(NotFound::Unknown),
        None => of_claim(metadata, pod, volume)?,
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

fn of_inline(pod: &Pod, volume: &PodVolume, inline: &InlineVolume) -> Result<VolumeSpec, NotFound> {
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

type OfClaim = (String, VolumeSpec, Option<Expansion>, bool);

fn of_claim(metadata: &Metadata, pod: &Pod, volume: &PodVolume) -> Result<OfClaim, NotFound> {
    let claim =
        metadata.claim(&pod.namespace, &volume.claim).ok_or_else(|| NotFound::Claim(volume.claim.clone()))?;
    if claim.volume.is_empty() {
        return Err(NotFound::Unbound(volume.claim.clone()));
    }
    let found = metadata
        .persistent_volume(&claim.volume)
        .ok_or_else(|| NotFound::PersistentVolume(claim.volume.clone()))?;
    if !found.claim_uid.is_empty() && found.claim_uid != claim.uid {
        return Err(NotFound::OtherClaim {
            name: found.name.clone(),
            expected: claim.uid.clone(),
            found: found.claim_uid.clone(),
        });
    }
    let spec = of_persistent(metadata, found)?;
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

fn of_persistent(metadata: &Metadata, volume: &PersistentVolume) -> Result<VolumeSpec, NotFound> {
    let driver = DriverName::new(&volume.driver)?;
    // Without an object a driver attaches: so Kubernetes has it.
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

/// The modes of one node and, with more to its name, of one pod.
const READ_WRITE_ONCE: &str = "ReadWriteOnce";

/// A description with the mode of the one before, and as writable as that.
pub(super) fn with_mode_of(spec: &VolumeSpec, before: &VolumeSpec) -> VolumeSpecBuilder {
    let builder = VolumeSpec::builder(spec.key().clone(), spec.access().clone(), before.mode())
        .attach(spec.attach())
        .read_only(before.is_read_only())
        .volume_context(spec.volume_context().clone())
        .secrets(spec.secrets().clone());
    if spec.is_ephemeral() { builder.ephemeral() } else { builder }
}

/// Of the modes of the list, which has no order, the one counts that allows most. With `ReadWriteMany` that is as
/// with the attacher; other mixtures the attacher refuses. What a driver of the older modes gets is settled at the call.
fn access_mode(volume: &PersistentVolume) -> Result<AccessMode, NotFound> {
    // From the one that allows least.
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
        found => Err(NotFound::AccessMode { name: volume.name.clone(), found: found.to_owned() }),
    };
    let ranks = volume.access_modes.iter().map(rank).collect::<Result<Vec<usize>, _>>()?;
    let most = ranks.into_iter().max().and_then(|rank| RANKS.get(rank));
    Ok(most.copied().unwrap_or(AccessMode::SingleNodeWriter))
}

fn secret(name: Option<&SecretName>) -> Result<Option<SecretReference>, NotFound> {
    let reference = name.map(|secret| SecretReference::new(&secret.namespace, &secret.name));
    Ok(reference.transpose()?)
}

/// What a driver's object says. What it leaves out is as the API server would have filled it in.
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
