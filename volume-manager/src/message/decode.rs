//! Decoding of requests with bounded memory. An empty element of a list takes two bytes on the wire and hundreds once
//! it is decoded, so the elements are counted before any is decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csi_proto::fields::{Value, count, fields};
use csi_proto::{DriverName, VolumeId};
use prost::Message;

use super::desired::DesiredSet;
use super::error::{InvalidConsumer, InvalidDesired, InvalidMessage};
use super::{
    MAX_CONSUMERS, MAX_POLICIES, MAX_POLICY_BYTES, MAX_REQUEST_BYTES, MAX_TOKEN_REQUESTS, MAX_VOLUME_BYTES,
    MAX_VOLUMES, wire,
};
use crate::driver::{
    Access, AccessMode, Attach, ConsumerSpec, DriverPolicy, InvalidSpec, MountPath, PodInfo, SecretReference,
    SecretReferences, VolumeSpec,
};
use crate::excerpt::short;
use crate::name::{ConsumerId, VolumeKey};
use crate::node::DesiredVolume;

/// The field number of the consumers in [`wire::DesiredVolume`].
const CONSUMERS: u32 = 15;

/// The field number of the token requests in [`wire::DriverPolicy`].
const TOKEN_REQUESTS: u32 = 8;

/// The maximum size of the audience of a token request in bytes.
const MAX_AUDIENCE_BYTES: usize = 4096;

/// A request to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Replaces the desired set.
    Desired(DesiredSet),
    /// Requests a report on every volume.
    Query,
}

impl Request {
    /// Decodes and validates a request. One invalid volume rejects the whole set: accepting the rest would unpublish
    /// that volume.
    ///
    /// # Errors
    /// If it exceeds a bound or is invalid; the error names the volume and the field.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(InvalidMessage::TooLarge { found: bytes.len(), bound: MAX_REQUEST_BYTES });
        }
        let mut request = None;
        for field in fields(bytes) {
            let field = field?;
            let read = match (field.number, field.value) {
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
        let found = count(bytes, number)?;
        if found > bound {
            return Err(InvalidMessage::TooMany { field, found, bound });
        }
    }
    let mut set = DesiredSet::new(0, Vec::new());
    let mut keys = BTreeSet::new();
    let mut drivers = 0;
    for field in fields(bytes) {
        let field = field?;
        match (field.number, field.value) {
            (1, Value::Varint(revision)) => set.revision = revision,
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

/// Decodes a message whose list has at most `most` elements.
fn decode_bounded<M: Message + Default>(
    bytes: &[u8],
    bound: usize,
    (field, number, most): (&'static str, u32, usize),
) -> Result<M, InvalidDesired> {
    if bytes.len() > bound {
        return Err(InvalidDesired::TooLarge { found: bytes.len(), bound });
    }
    let found = count(bytes, number)?;
    if found > most {
        return Err(InvalidDesired::TooMany { field, found, bound: most });
    }
    Ok(M::decode(bytes)?)
}

/// Decodes a volume, and whether it is attached externally. The error has the volume's driver and id.
fn read_volume(bytes: &[u8]) -> Result<(DesiredVolume, bool), (String, InvalidDesired)> {
    let unnamed = |error| ("unreadable".to_owned(), error);
    let list = ("consumers", CONSUMERS, MAX_CONSUMERS);
    let volume: wire::DesiredVolume = decode_bounded(bytes, MAX_VOLUME_BYTES, list).map_err(unnamed)?;
    let attached = volume.attached;
    let name = format!("{}/{}", short(&volume.driver), short(&volume.volume_id));
    volume.try_into().map(|volume| (volume, attached)).map_err(|error| (name, error))
}

fn read_policy(
    bytes: &[u8],
    policies: &mut BTreeMap<DriverName, DriverPolicy>,
) -> Result<(), InvalidDesired> {
    let list = ("token_requests", TOKEN_REQUESTS, MAX_TOKEN_REQUESTS);
    let mut policy: wire::DriverPolicy = decode_bounded(bytes, MAX_POLICY_BYTES, list)?;
    let name = DriverName::new(std::mem::take(&mut policy.driver))?;
    if policies.insert(name.clone(), policy.try_into()?).is_some() {
        return Err(InvalidDesired::DriverTwice { name: name.to_string() });
    }
    Ok(())
}

/// Converts the number of an enum value.
fn enum_value<E: TryFrom<i32>>(field: &'static str, found: i32) -> Result<E, InvalidDesired> {
    E::try_from(found).map_err(|_| InvalidDesired::UnknownValue { field, found })
}

impl TryFrom<wire::DesiredVolume> for DesiredVolume {
    type Error = InvalidDesired;

    fn try_from(mut volume: wire::DesiredVolume) -> Result<Self, InvalidDesired> {
        let consumers = std::mem::take(&mut volume.consumers);
        let spec = Arc::new(volume.try_into()?);
        let mut ids = BTreeSet::new();
        let consumers = consumers.into_iter().enumerate().map(|(index, consumer)| {
            let consumer = ConsumerSpec::try_from(consumer)
                .map_err(|source| InvalidDesired::Consumer { index, source })?;
            if !ids.insert(consumer.id().clone()) {
                return Err(InvalidDesired::ConsumerTwice { index, id: consumer.id().to_string() });
            }
            Ok(Arc::new(consumer))
        });
        Ok(Self { spec, consumers: consumers.collect::<Result<_, _>>()? })
    }
}

/// Converts the volume without its consumers.
impl TryFrom<wire::DesiredVolume> for VolumeSpec {
    type Error = InvalidDesired;

    fn try_from(volume: wire::DesiredVolume) -> Result<Self, InvalidDesired> {
        let key = VolumeKey { driver: DriverName::new(volume.driver)?, id: VolumeId::new(volume.volume_id)? };
        let access = match volume.access.ok_or(InvalidDesired::NoAccess)? {
            wire::desired_volume::Access::Block(_) => Access::Block,
            wire::desired_volume::Access::Filesystem(wire::Filesystem { fs_type, mount_flags }) => {
                Access::Filesystem { fs_type, mount_flags }
            }
        };
        let mode = enum_value::<AccessMode>("access_mode", volume.access_mode)?;
        let attach = enum_value("attach", volume.attach)?;
        if volume.attached && attach != Attach::Awaited {
            return Err(InvalidDesired::NotAwaited);
        }
        let mut spec = Self::builder(key, access, mode)
            .read_only(volume.read_only)
            .volume_context(volume.volume_context)
            .publish_context(volume.publish_context)
            .secrets(volume.secrets.unwrap_or_default().try_into()?);
        spec = match (volume.ephemeral, attach) {
            // An ephemeral volume is never attached; the default of the field must not make it invalid.
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
        Ok(spec.build()?)
    }
}

impl TryFrom<wire::SecretReferences> for SecretReferences {
    type Error = InvalidDesired;

    fn try_from(secrets: wire::SecretReferences) -> Result<Self, InvalidDesired> {
        let checked = |field, reference: Option<wire::SecretReference>| {
            reference
                .map(|reference| SecretReference::new(reference.namespace, reference.name))
                .transpose()
                .map_err(|source| InvalidDesired::Secret { field, source })
        };
        Ok(Self {
            controller_publish: checked("controller_publish", secrets.controller_publish)?,
            node_stage: checked("node_stage", secrets.node_stage)?,
            node_publish: checked("node_publish", secrets.node_publish)?,
            controller_expand: checked("controller_expand", secrets.controller_expand)?,
            node_expand: checked("node_expand", secrets.node_expand)?,
        })
    }
}

impl TryFrom<wire::Consumer> for ConsumerSpec {
    type Error = InvalidConsumer;

    fn try_from(consumer: wire::Consumer) -> Result<Self, InvalidConsumer> {
        let id = ConsumerId::new(&consumer.id)?;
        let mut spec = Self::new(id, MountPath::new(&consumer.target_path)?).read_only(consumer.read_only);
        if let Some(group) = consumer.fs_group {
            spec = spec.fs_group(group);
        }
        if let Some(pod) = consumer.pod {
            spec = spec.pod(PodInfo::new(pod.name, pod.namespace, pod.uid, pod.service_account)?);
        }
        Ok(spec)
    }
}

impl TryFrom<wire::DriverPolicy> for DriverPolicy {
    type Error = InvalidDesired;

    fn try_from(policy: wire::DriverPolicy) -> Result<Self, InvalidDesired> {
        for request in &policy.token_requests {
            let (found, bound) = (request.audience.len(), MAX_AUDIENCE_BYTES);
            if found > bound {
                return Err(InvalidSpec::TooLong { field: "token_requests.audience", found, bound }.into());
            }
        }
        let mut modes = Vec::new();
        for mode in policy.lifecycle_modes {
            modes.push(enum_value("lifecycle_modes", mode)?);
        }
        Ok(Self {
            attach_required: policy.attach_required.unwrap_or(true),
            pod_info_on_mount: policy.pod_info_on_mount,
            persistent: modes.is_empty() || modes.contains(&wire::LifecycleMode::Persistent),
            ephemeral: modes.contains(&wire::LifecycleMode::Ephemeral),
            fs_group_policy: enum_value("fs_group_policy", policy.fs_group_policy)?,
            requires_republish: policy.requires_republish,
            selinux_mount: policy.selinux_mount,
            token_requests: policy.token_requests,
            token_in_secrets: policy.token_in_secrets,
        })
    }
}
