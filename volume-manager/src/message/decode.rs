//! From bytes to a checked request, piece by piece, so that no message can take more memory than its bounds allow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csi_proto::{DriverName, VolumeId};
use prost::Message;

use super::desired::DesiredSet;
use super::error::{InvalidDesired, InvalidMessage};
use super::scan::{Fields, Value};
use super::{
    MAX_CONSUMERS, MAX_POLICIES, MAX_POLICY_BYTES, MAX_REQUEST_BYTES, MAX_TOKEN_REQUESTS, MAX_VOLUME_BYTES,
    MAX_VOLUMES, wire,
};
use crate::driver::{
    Access, AccessMode, Attach, ConsumerSpec, DriverPolicy, FsGroupPolicy, MountPath, PodInfo,
    SecretReference, SecretReferences, TokenRequest, VolumeSpec,
};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::DesiredVolume;

/// The field of [`wire::DesiredVolume`] that has the consumers.
const CONSUMERS: u64 = 15;

/// The field of [`wire::DriverPolicy`] that has the token requests.
const TOKEN_REQUESTS: u64 = 8;

/// The most bytes of the audience of a token request.
const MAX_AUDIENCE_BYTES: usize = 4096;

/// How much of a name that cannot be is repeated in an error, in characters.
const EXCERPT: usize = 64;

/// What is asked of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// These volumes, and no others.
    Desired(DesiredSet),
    /// A report on every volume.
    Query,
}

impl Request {
    /// Reads a request and checks all of it. A set with one volume that cannot be is refused as a whole: taken without it,
    /// it would take that volume down.
    ///
    /// # Errors
    /// If it breaks a bound or says something that cannot be; the error names the volume and the field.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(InvalidMessage::TooLarge { found: bytes.len(), bound: MAX_REQUEST_BYTES });
        }
        let mut request = None;
        for field in Fields::of(bytes) {
            let read = match field? {
                (1, Value::Bytes(desired)) => Self::Desired(read_set(desired)?),
                (2, Value::Bytes(_)) => Self::Query,
                _ => continue,
            };
            if request.replace(read).is_some() {
                return Err(InvalidMessage::SeveralRequests);
            }
        }
        request.ok_or(InvalidMessage::NoRequest)
    }
}

fn read_set(bytes: &[u8]) -> Result<DesiredSet, InvalidMessage> {
    for (field, number, bound) in [("volumes", 2, MAX_VOLUMES), ("drivers", 3, MAX_POLICIES)] {
        let found = Fields::of(bytes).occurrences(number)?;
        if found > bound {
            return Err(InvalidMessage::TooMany { field, found, bound });
        }
    }
    let mut set = DesiredSet::new(0, Vec::new());
    let mut keys = BTreeSet::new();
    let mut drivers = 0;
    for field in Fields::of(bytes) {
        match field? {
            (1, Value::Number(revision)) => set.revision = revision,
            (2, Value::Bytes(volume)) => {
                let index = set.volumes.len();
                let (volume, attached) = read_volume(volume)
                    .map_err(|(volume, source)| InvalidMessage::Volume { index, volume, source })?;
                let key = volume.spec.key().clone();
                if attached {
                    set.attached.insert(key.clone());
                }
                if !keys.insert(key.clone()) {
                    return Err(InvalidMessage::VolumeTwice { key });
                }
                set.volumes.push(volume);
            }
            (3, Value::Bytes(policy)) => {
                let index = drivers;
                drivers += 1;
                read_policy(policy, &mut set.policies)
                    .map_err(|source| InvalidMessage::Driver { index, source })?;
            }
            _ => {}
        }
    }
    if set.revision == 0 { Err(InvalidMessage::NoRevision) } else { Ok(set) }
}

fn bounded<M: Message + Default>(
    bytes: &[u8],
    bound: usize,
    list: (&'static str, u64, usize),
) -> Result<M, InvalidDesired> {
    if bytes.len() > bound {
        return Err(InvalidDesired::TooLarge { found: bytes.len(), bound });
    }
    let malformed = |reason: String| InvalidDesired::Malformed { reason };
    let (field, number, most) = list;
    let found = Fields::of(bytes).occurrences(number).map_err(|error| malformed(error.to_string()))?;
    if found > most {
        return Err(InvalidDesired::TooMany { field, found, bound: most });
    }
    M::decode(bytes).map_err(|error| malformed(error.to_string()))
}

/// The volume, and whether others have attached it; or what it calls itself, and what is wrong with it.
fn read_volume(bytes: &[u8]) -> Result<(DesiredVolume, bool), (String, InvalidDesired)> {
    let unnamed = |error| ("it cannot be read".to_owned(), error);
    let list = ("consumers", CONSUMERS, MAX_CONSUMERS);
    let volume: wire::DesiredVolume = bounded(bytes, MAX_VOLUME_BYTES, list).map_err(unnamed)?;
    let attached = volume.attached;
    let name = format!("{}/{}", excerpt(&volume.driver), excerpt(&volume.volume_id));
    checked_volume(volume).map(|volume| (volume, attached)).map_err(|error| (name, error))
}

fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn checked_volume(volume: wire::DesiredVolume) -> Result<DesiredVolume, InvalidDesired> {
    let key = VolumeKey { driver: DriverName::new(volume.driver)?, id: VolumeId::new(volume.volume_id)? };
    let access = match volume.access.ok_or(InvalidDesired::NoAccess)? {
        wire::desired_volume::Access::Block(_) => Access::Block,
        wire::desired_volume::Access::Filesystem(wire::Filesystem { fs_type, mount_flags }) => {
            Access::Filesystem { fs_type, mount_flags }
        }
    };
    let mode = known::<AccessMode>("access_mode", volume.access_mode)?;
    let attach = match known("attach", volume.attach)? {
        wire::Attach::Here => Attach::Here,
        wire::Attach::Awaited => Attach::Awaited,
        wire::Attach::NotRequired => Attach::NotRequired,
    };
    if volume.attached && attach != Attach::Awaited {
        return Err(InvalidDesired::AttachedByNobody);
    }
    let mut spec = VolumeSpec::builder(key, access, mode)
        .read_only(volume.read_only)
        .volume_context(volume.volume_context)
        .publish_context(volume.publish_context)
        .secrets(checked_secrets(volume.secrets.unwrap_or_default())?);
    spec = match (volume.ephemeral, attach) {
        // An ephemeral volume is never attached; that the field says nothing must not make it wrong.
        (true, Attach::Here) => spec.ephemeral(),
        (true, attach) => spec.ephemeral().attach(attach),
        (false, attach) => spec.attach(attach),
    };
    if let Some(group) = volume.fs_group {
        spec = spec.fs_group(group);
    }
    if let Some(label) = volume.selinux_label {
        spec = spec.selinux_label(label);
    }
    let spec = Arc::new(spec.build()?);
    let mut ids = BTreeSet::new();
    let mut consumers = Vec::with_capacity(volume.consumers.len());
    for (index, consumer) in volume.consumers.into_iter().enumerate() {
        let consumer = checked_consumer(index, consumer)?;
        if !ids.insert(consumer.id().clone()) {
            return Err(InvalidDesired::ConsumerTwice { index, id: consumer.id().to_string() });
        }
        consumers.push(Arc::new(consumer));
    }
    Ok(DesiredVolume { spec, consumers })
}

/// The value of an enum's number.
fn known<E: TryFrom<i32>>(field: &'static str, found: i32) -> Result<E, InvalidDesired> {
    E::try_from(found).map_err(|_| InvalidDesired::Number { field, found })
}

fn checked_secrets(secrets: wire::SecretReferences) -> Result<SecretReferences, InvalidDesired> {
    let checked = |field, reference: Option<wire::SecretReference>| {
        reference
            .map(|reference| SecretReference::new(reference.namespace, reference.name))
            .transpose()
            .map_err(|source| InvalidDesired::Secret { field, source })
    };
    Ok(SecretReferences {
        controller_publish: checked("controller_publish", secrets.controller_publish)?,
        node_stage: checked("node_stage", secrets.node_stage)?,
        node_publish: checked("node_publish", secrets.node_publish)?,
        controller_expand: checked("controller_expand", secrets.controller_expand)?,
        node_expand: checked("node_expand", secrets.node_expand)?,
    })
}

fn checked_consumer(index: usize, consumer: wire::Consumer) -> Result<ConsumerSpec, InvalidDesired> {
    let id = ConsumerId::new(&consumer.id).map_err(|source| InvalidDesired::ConsumerId { index, source })?;
    let target =
        MountPath::new(&consumer.target_path).map_err(|source| InvalidDesired::Target { index, source })?;
    let mut spec = ConsumerSpec::new(id, target).read_only(consumer.read_only);
    if let Some(group) = consumer.fs_group {
        spec = spec.fs_group(group);
    }
    if let Some(pod) = consumer.pod {
        let pod = PodInfo::new(pod.name, pod.namespace, pod.uid, pod.service_account);
        spec = spec.pod(pod.map_err(|source| InvalidDesired::Pod { index, source })?);
    }
    Ok(spec)
}

fn read_policy(
    bytes: &[u8],
    policies: &mut BTreeMap<DriverName, DriverPolicy>,
) -> Result<(), InvalidDesired> {
    let list = ("token_requests", TOKEN_REQUESTS, MAX_TOKEN_REQUESTS);
    let policy: wire::DriverPolicy = bounded(bytes, MAX_POLICY_BYTES, list)?;
    let name = DriverName::new(policy.driver.clone())?;
    let checked = checked_policy(policy)?;
    if policies.insert(name.clone(), checked).is_some() {
        return Err(InvalidDesired::DriverTwice { name: name.to_string() });
    }
    Ok(())
}

fn checked_policy(policy: wire::DriverPolicy) -> Result<DriverPolicy, InvalidDesired> {
    let mut checked = DriverPolicy {
        attach_required: policy.attach_required.unwrap_or(true),
        pod_info_on_mount: policy.pod_info_on_mount,
        requires_republish: policy.requires_republish,
        selinux_mount: policy.selinux_mount,
        token_in_secrets: policy.token_in_secrets,
        fs_group_policy: match known("fs_group_policy", policy.fs_group_policy)? {
            wire::FsGroupPolicy::ReadWriteOnceWithFsType => FsGroupPolicy::ReadWriteOnceWithFsType,
            wire::FsGroupPolicy::File => FsGroupPolicy::File,
            wire::FsGroupPolicy::None => FsGroupPolicy::None,
        },
        ..DriverPolicy::default()
    };
    if !policy.lifecycle_modes.is_empty() {
        (checked.persistent, checked.ephemeral) = (false, false);
    }
    for mode in policy.lifecycle_modes {
        match known("lifecycle_modes", mode)? {
            wire::LifecycleMode::Persistent => checked.persistent = true,
            wire::LifecycleMode::Ephemeral => checked.ephemeral = true,
        }
    }
    for request in policy.token_requests {
        let found = request.audience.len();
        if found > MAX_AUDIENCE_BYTES {
            let field = "token_requests.audience";
            return Err(InvalidDesired::TooLong { field, found, bound: MAX_AUDIENCE_BYTES });
        }
        let (audience, expiration_seconds) = (request.audience, request.expiration_seconds);
        checked.token_requests.push(TokenRequest { audience, expiration_seconds });
    }
    Ok(checked)
}
