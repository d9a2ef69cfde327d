//! What is on disk of a volume: all that is needed to go on, with no one's help, after a power cut.
//!
//! Paths, contexts, and references to secrets; never the value of a secret. The schema is
//! `proto/edge_csi/volumes/v1/record.proto` of this crate. It only grows: fields are added under new numbers, and
//! [`SCHEMA`] rises when a reader of the one before would do wrong with the record.

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
use crate::lifecycle::{Base, Call, Expansion, Failure, Half, Mismatch, Rpc, Snapshot, Target, TargetState};
use crate::message::{InvalidConsumer, InvalidDesired};
use crate::mounts::{DeviceNumber, MountIdentity};
use crate::name::{ConsumerId, VolumeKey};
use crate::store::{BootId, MAX_PAYLOAD_BYTES, RecordKey, RecordKind};

/// The version of the schema that is written. A record of a later one is left as it is, not guessed at.
pub const SCHEMA: u32 = 1;

/// The kind of the records of volumes.
pub const KIND: RecordKind = RecordKind(1);

/// A volume as it is on disk.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// What it is, with the publish context that its attach gave.
    pub spec: Arc<VolumeSpec>,
    /// The name of its directory below `ROOT/DRIVER`.
    pub directory: String,
    /// Its consumers, wanted or on their way out.
    pub consumers: BTreeMap<ConsumerId, RecordedConsumer>,
    /// Where it is.
    pub snapshot: Snapshot,
    /// The boot in which that was so.
    pub boot: BootId,
    /// What was mounted at the staging path.
    pub staged: Option<MountIdentity>,
    /// Whether the staging directory was made, and was not seen to be gone since.
    pub touched: bool,
    /// The id under which the node was attached, if it was attached from here.
    pub node_id: Option<String>,
    /// What the last failure said.
    pub last_error: Option<CallFailure>,
}

/// A consumer as it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedConsumer {
    /// Who it is, and where.
    pub spec: Arc<ConsumerSpec>,
    /// What was mounted at its target.
    pub mounted: Option<MountIdentity>,
    /// Which block device was seen at its target.
    pub device: Option<DeviceNumber>,
    /// Whether a driver was called that may have made the target, and it was not seen to be gone since.
    pub touched: bool,
}

/// Why bytes are no record of a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No message of this schema.
    #[error("it is no record of a volume: {0}")]
    Malformed(#[from] DecodeError),
    /// Written by a later version.
    #[error("it has schema {found}, and at most {SCHEMA} is known; use the version that wrote it")]
    Schema {
        /// Its version.
        found: u32,
    },
    /// A field has a value that cannot be.
    #[error("{field} cannot be right: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong.
        reason: String,
    },
}

fn wrong(field: &'static str, reason: impl ToString) -> RecordError {
    RecordError::Field { field, reason: reason.to_string() }
}

/// The key under which a volume is recorded: `DRIVER/NAME`, since an id may be longer than a key.
pub(super) fn record_key(key: &VolumeKey, directory: &str) -> Result<RecordKey, RecordError> {
    RecordKey::new(KIND, format!("{}/{directory}", key.driver)).map_err(|error| wrong("key", error))
}

impl Record {
    /// The record of a volume to which nothing was done yet.
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

    /// The bytes of a record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        stored::Record::from(self).encode_to_vec()
    }

    /// The bytes of a record, without what is merely told to people if they would be too many otherwise.
    ///
    /// # Errors
    /// How many bytes there are, if they are more than a record may have all the same.
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

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are no record, are of a later schema, or say something that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record = stored::Record::decode(bytes)?;
        if record.schema == 0 || record.schema > SCHEMA {
            return Err(RecordError::Schema { found: record.schema });
        }
        record.try_into()
    }
}

/// One failure of each class, as [`Failure::as_str`] has them: no more is kept of a class, which is for people.
const CLASSES: [Failure; 5] = [
    Failure::Final,
    Failure::Uncertain,
    Failure::NeverRetry,
    Failure::Contradicted(Mismatch::Wrong),
    Failure::NotSent,
];

/// The number under which a value is stored: one more than its index, so that an absent field is no value.
fn number<T: PartialEq>(all: &[T], value: &T) -> u32 {
    let index = all.iter().position(|one| one == value).unwrap_or_default();
    u32::try_from(index).unwrap_or_default().saturating_add(1)
}

fn value<T: Copy>(field: &'static str, all: &[T], number: u32) -> Result<T, RecordError> {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index
        .and_then(|index| all.get(index))
        .copied()
        .ok_or_else(|| wrong(field, format_args!("number {number}")))
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
                node_half: expansion.half == Half::Node,
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
    let spec = consumer.spec.ok_or_else(|| wrong("consumer", "it is missing"))?;
    let recorded = RecordedConsumer {
        spec: Arc::new(spec.try_into().map_err(|error: InvalidConsumer| wrong("consumer", chain(&error)))?),
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
        let spec = record.spec.ok_or_else(|| wrong("spec", "it is missing"))?;
        let spec = spec.try_into().map_err(|error: InvalidDesired| wrong("spec", chain(&error)))?;
        if !staging::is_directory_name(&record.directory) {
            return Err(wrong("directory", "it is no name of a volume's directory"));
        }
        let mut consumers = BTreeMap::new();
        let mut targets = BTreeMap::new();
        for consumer in record.consumers {
            let (consumer, target) = checked_consumer(consumer)?;
            let id = consumer.spec.id().clone();
            consumers.insert(id.clone(), consumer);
            if targets.insert(id, target).is_some() {
                return Err(wrong("consumer.id", "it is there twice"));
            }
        }
        // It is told to people and decides nothing, so one that is not understood is no reason to refuse the rest.
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
            let consumer = consumer.map_err(|error| wrong("calling.consumer", error))?;
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
                half: if expansion.node_half { Half::Node } else { Half::Controller },
            }),
        };
        Ok(Self {
            spec: Arc::new(spec),
            directory: record.directory,
            consumers,
            snapshot,
            boot: record.boot.parse().map_err(|error| wrong("boot", error))?,
            staged: record.staged.map(MountIdentity::from),
            touched: record.touched,
            node_id: record.node_id,
            last_error,
        })
    }
}

#[cfg(test)]
mod tests;
