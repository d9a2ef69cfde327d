//! The durable record of a volume: everything needed to continue alone after a power loss.
//!
//! A record contains paths, contexts and references to secrets, never secrets. The schema is
//! `proto/edge_csi/volumes/v1/record.proto` of this crate. Fields are only added, under new numbers, and
//! [`SCHEMA`] is incremented when an older reader would misinterpret the record.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use prost::{DecodeError, Message};

use super::explanation::CallFailure;
use super::staging;
use crate::driver::{ConsumerSpec, VolumeSpec};
use crate::excerpt::chain;
use crate::generated::record as stored;
use crate::lifecycle::{
    Base, Call, Expansion, ExpansionPhase, Failure, Mismatch, Rpc, Snapshot, Target, TargetState,
};
use crate::message::{InvalidConsumer, InvalidDesired};
use crate::mounts::{DeviceNumber, MountIdentity};
use crate::name::{ConsumerId, VolumeKey};
use crate::store::{BootId, MAX_PAYLOAD_BYTES, RecordKey, RecordKind};

/// The version of the schema that is written. A record of a later version is left unchanged.
pub const SCHEMA: u32 = 1;

/// The record kind of volumes.
pub const KIND: RecordKind = RecordKind(1);

/// The record of a volume.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The spec, with the publish context of its attach.
    pub spec: Arc<VolumeSpec>,
    /// The name of the volume's directory below `ROOT/DRIVER`.
    pub directory: String,
    /// The consumers, wanted or being released.
    pub consumers: BTreeMap<ConsumerId, RecordedConsumer>,
    /// The state of the volume.
    pub snapshot: Snapshot,
    /// The boot id of the node when the state was recorded.
    pub boot: BootId,
    /// The mount at the staging path.
    pub staged: Option<MountIdentity>,
    /// True if the staging directory was created, and was not seen to be absent since.
    pub touched: bool,
    /// The node id of the attach, if this node attached the volume.
    pub node_id: Option<String>,
    /// The last failure.
    pub last_error: Option<CallFailure>,
}

/// The record of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedConsumer {
    /// The consumer and its target.
    pub spec: Arc<ConsumerSpec>,
    /// The mount at the consumer's target.
    pub mounted: Option<MountIdentity>,
    /// The block device at the consumer's target.
    pub device: Option<DeviceNumber>,
    /// True if a call may have created the target, and the target was not seen to be absent since.
    pub touched: bool,
}

/// The reason why a record is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes do not match the schema.
    #[error("not a record of a volume")]
    Malformed(#[from] DecodeError),
    /// The record was written by a later version.
    #[error("schema {found} is not supported, at most {SCHEMA}; use the version that wrote the record")]
    Schema {
        /// The schema version of the record.
        found: u32,
    },
    /// A field is invalid.
    #[error("{field} is invalid: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// The violation, and the expected value.
        reason: String,
    },
}

fn invalid_field(field: &'static str, reason: impl ToString) -> RecordError {
    RecordError::Field { field, reason: reason.to_string() }
}

/// Returns the record key of a volume: `DRIVER/NAME`, since an id may be longer than a key.
pub(super) fn record_key(key: &VolumeKey, directory: &str) -> Result<RecordKey, RecordError> {
    RecordKey::new(KIND, format!("{}/{directory}", key.driver)).map_err(|error| invalid_field("key", error))
}

impl Record {
    /// Creates the record of a new volume.
    pub(super) fn new(spec: Arc<VolumeSpec>, directory: String, boot: BootId) -> Self {
        Self {
            spec,
            directory,
            consumers: BTreeMap::new(),
            snapshot: Snapshot::default(),
            boot,
            staged: None,
            touched: false,
            node_id: None,
            last_error: None,
        }
    }

    /// Encodes the record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        stored::Record::from(self).encode_to_vec()
    }

    /// Encodes the record, without diagnostics if it would be too large with them.
    ///
    /// # Errors
    /// The size in bytes, if the record is too large even without diagnostics.
    pub(super) fn payload(&self) -> Result<Vec<u8>, usize> {
        let bytes = self.encode();
        if bytes.len() <= MAX_PAYLOAD_BYTES {
            return Ok(bytes);
        }
        let mut cut = self.clone();
        cut.last_error = None;
        let mounted = cut.consumers.values_mut().filter_map(|consumer| consumer.mounted.as_mut());
        mounted.chain(cut.staged.as_mut()).for_each(|mount| mount.source.clear());
        let bytes = cut.encode();
        if bytes.len() <= MAX_PAYLOAD_BYTES { Ok(bytes) } else { Err(bytes.len()) }
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a record, have a later schema, or are invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record = stored::Record::decode(bytes)?;
        if record.schema == 0 || record.schema > SCHEMA {
            return Err(RecordError::Schema { found: record.schema });
        }
        record.try_into()
    }
}

/// One failure of each class, see [`Failure::as_str`]. Only the class is stored, for diagnostics.
const CLASSES: [Failure; 5] = [
    Failure::Final,
    Failure::Uncertain,
    Failure::NeverRetry,
    Failure::Contradicted(Mismatch::Wrong),
    Failure::NotSent,
];

/// Returns the stored number of a value: its index plus 1, so that 0 is absent.
fn number<T: PartialEq>(all: &[T], value: &T) -> u32 {
    let index = all.iter().position(|candidate| candidate == value).unwrap_or_default();
    u32::try_from(index).unwrap_or_default().saturating_add(1)
}

fn value<T: Copy>(field: &'static str, all: &[T], number: u32) -> Result<T, RecordError> {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index.and_then(|index| all.get(index)).copied().ok_or_else(|| {
        invalid_field(field, format_args!("found number {number}, expected 1..={}", all.len()))
    })
}

impl From<&MountIdentity> for stored::Mount {
    fn from(mount: &MountIdentity) -> Self {
        Self {
            major: mount.device.major,
            minor: mount.device.minor,
            root: mount.root.as_os_str().as_bytes().to_vec().into(),
            fs_type: mount.fs_type.as_bytes().to_vec().into(),
            source: mount.source.as_bytes().to_vec().into(),
        }
    }
}

impl From<stored::Mount> for MountIdentity {
    fn from(mount: stored::Mount) -> Self {
        let device = DeviceNumber { major: mount.major, minor: mount.minor };
        let [root, fs_type, source] =
            [mount.root, mount.fs_type, mount.source].map(|bytes| OsString::from_vec(bytes.into()));
        Self::new(device, root.into(), fs_type, source)
    }
}

impl From<&Record> for stored::Record {
    fn from(record: &Record) -> Self {
        let snapshot = &record.snapshot;
        let consumers = record
            .consumers
            .iter()
            .filter_map(|(id, consumer)| Some((consumer, snapshot.targets.get(id)?).into()));
        Self {
            schema: SCHEMA,
            spec: Some((&*record.spec).into()),
            directory: record.directory.clone(),
            consumers: consumers.collect(),
            base: number(&Base::ALL, &snapshot.base),
            attached: snapshot.attached,
            attached_here: snapshot.attached_here,
            granted_bytes: snapshot.granted_bytes,
            capacity_bytes: snapshot.capacity_bytes,
            expansion: snapshot.expansion.map(|expansion| stored::Expansion {
                required_bytes: expansion.required_bytes,
                node_phase: expansion.phase == ExpansionPhase::Node,
            }),
            boot: record.boot.to_string(),
            staged: record.staged.as_ref().map(stored::Mount::from),
            touched: record.touched,
            node_id: record.node_id.clone(),
            calling: snapshot.calling.as_ref().map(|call| stored::Call {
                rpc: number(&Rpc::ALL, &call.rpc),
                consumer: call.consumer.as_ref().map(|consumer| consumer.as_str().to_owned()),
            }),
            last_error: record.last_error.as_ref().map(|error| stored::LastError {
                rpc: number(&Rpc::ALL, &error.rpc),
                class: number(&CLASSES.map(Failure::as_str), &error.class.as_str()),
                code: error.code,
                message: error.message.clone(),
            }),
        }
    }
}

impl From<(&RecordedConsumer, &Target)> for stored::Consumer {
    fn from((consumer, target): (&RecordedConsumer, &Target)) -> Self {
        Self {
            spec: Some((&*consumer.spec).into()),
            wanted: target.wanted,
            state: number(&TargetState::ALL, &target.state),
            mounted: consumer.mounted.as_ref().map(stored::Mount::from),
            touched: consumer.touched,
            device: consumer.device.map(|DeviceNumber { major, minor }| stored::Device { major, minor }),
        }
    }
}

fn checked_consumer(consumer: stored::Consumer) -> Result<(RecordedConsumer, Target), RecordError> {
    let spec = consumer.spec.ok_or_else(|| invalid_field("consumer", "missing"))?;
    let recorded = RecordedConsumer {
        spec: Arc::new(
            spec.try_into().map_err(|error: InvalidConsumer| invalid_field("consumer", chain(&error)))?,
        ),
        mounted: consumer.mounted.map(MountIdentity::from),
        device: consumer.device.map(|stored::Device { major, minor }| DeviceNumber { major, minor }),
        touched: consumer.touched,
    };
    let state = value("consumer.state", &TargetState::ALL, consumer.state)?;
    Ok((recorded, Target { wanted: consumer.wanted, state }))
}

impl TryFrom<stored::Record> for Record {
    type Error = RecordError;

    fn try_from(record: stored::Record) -> Result<Self, RecordError> {
        let spec = record.spec.ok_or_else(|| invalid_field("spec", "missing"))?;
        let spec = spec.try_into().map_err(|error: InvalidDesired| invalid_field("spec", chain(&error)))?;
        if !staging::is_directory_name(&record.directory) {
            return Err(invalid_field("directory", "not the name of a volume's directory"));
        }
        let mut consumers = BTreeMap::new();
        let mut targets = BTreeMap::new();
        for consumer in record.consumers {
            let (consumer, target) = checked_consumer(consumer)?;
            let id = consumer.spec.id().clone();
            consumers.insert(id.clone(), consumer);
            if targets.insert(id, target).is_some() {
                return Err(invalid_field("consumer.id", "duplicate"));
            }
        }
        // The last error is diagnostic, so an unknown one does not invalidate the record.
        let last_error = record.last_error.and_then(|error| {
            Some(CallFailure {
                rpc: value("last_error.rpc", &Rpc::ALL, error.rpc).ok()?,
                class: value("last_error.class", &CLASSES, error.class).ok()?,
                code: error.code,
                message: super::error::bounded(&error.message),
            })
        });
        let calling = record.calling.map(|call| {
            let consumer = call.consumer.map(|id| ConsumerId::new(&id)).transpose();
            let consumer = consumer.map_err(|error| invalid_field("calling.consumer", error))?;
            Ok::<_, RecordError>(Call { rpc: value("calling.rpc", &Rpc::ALL, call.rpc)?, consumer })
        });
        let snapshot = Snapshot {
            calling: calling.transpose()?,
            base: value("base", &Base::ALL, record.base)?,
            attached: record.attached,
            attached_here: record.attached_here,
            targets,
            granted_bytes: record.granted_bytes,
            capacity_bytes: record.capacity_bytes,
            expansion: record.expansion.map(|expansion| Expansion {
                required_bytes: expansion.required_bytes,
                phase: if expansion.node_phase { ExpansionPhase::Node } else { ExpansionPhase::Controller },
            }),
        };
        Ok(Self {
            spec: Arc::new(spec),
            directory: record.directory,
            consumers,
            snapshot,
            boot: record.boot.parse().map_err(|error| invalid_field("boot", error))?,
            staged: record.staged.map(MountIdentity::from),
            touched: record.touched,
            node_id: record.node_id,
            last_error,
        })
    }
}

#[cfg(test)]
mod tests;
