//! What is on disk of a volume: all that is needed to go on, with no one's help, after a power cut.
//!
//! Paths, contexts, and references to secrets; never the value of a secret. The schema only grows: fields are added
//! under new numbers, and [`SCHEMA`] rises when a reader of the one before would do wrong with the record.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use csi_proto::{DriverName, VolumeId};
use prost::Message;

use super::explanation::{ErrorClass, LastError};
use super::staging;
use crate::driver::{
    Access, AccessMode, Attach, ConsumerSpec, MountPath, PodInfo, SecretReference, SecretReferences,
    VolumeSpec,
};
use crate::lifecycle::{Base, Call, Expansion, Half, Rpc, Snapshot, Target, TargetState};
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
    pub last_error: Option<LastError>,
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
    #[error("it is no record of a volume: {reason}")]
    Malformed {
        /// What the decoder said.
        reason: String,
    },
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
    /// The bytes of a record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Stored::from(self).encode_to_vec()
    }

    /// The bytes of a record, without what is merely told to people if they would be too many otherwise.
    ///
    /// # Errors
    /// How many bytes there are, if they are more than a record may have all the same.
    pub(super) fn payload(mut self) -> Result<Vec<u8>, usize> {
        let bytes = self.encode();
        if bytes.len() <= MAX_PAYLOAD_BYTES {
            return Ok(bytes);
        }
        self.last_error = None;
        let mounted = self.consumers.values_mut().filter_map(|consumer| consumer.mounted.as_mut());
        mounted.chain(self.staged.as_mut()).for_each(|mount| mount.source.clear());
        let bytes = self.encode();
        if bytes.len() <= MAX_PAYLOAD_BYTES { Ok(bytes) } else { Err(bytes.len()) }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are no record, are of a later schema, or say something that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let stored =
            Stored::decode(bytes).map_err(|error| RecordError::Malformed { reason: error.to_string() })?;
        if stored.schema == 0 || stored.schema > SCHEMA {
            return Err(RecordError::Schema { found: stored.schema });
        }
        stored.checked()
    }
}

#[derive(Clone, PartialEq, Message)]
struct Stored {
    #[prost(uint32, tag = "1")]
    schema: u32,
    #[prost(message, optional, tag = "2")]
    spec: Option<StoredSpec>,
    #[prost(string, tag = "3")]
    directory: String,
    #[prost(message, repeated, tag = "4")]
    consumers: Vec<StoredConsumer>,
    #[prost(uint32, tag = "5")]
    base: u32,
    #[prost(bool, tag = "6")]
    attached: bool,
    #[prost(uint64, tag = "7")]
    granted_bytes: u64,
    #[prost(uint64, tag = "8")]
    capacity_bytes: u64,
    #[prost(message, optional, tag = "9")]
    expansion: Option<StoredExpansion>,
    #[prost(string, tag = "10")]
    boot: String,
    #[prost(message, optional, tag = "11")]
    staged: Option<StoredMount>,
    #[prost(string, optional, tag = "12")]
    node_id: Option<String>,
    #[prost(message, optional, tag = "13")]
    last_error: Option<StoredError>,
    #[prost(message, optional, tag = "14")]
    calling: Option<StoredCall>,
    #[prost(bool, tag = "15")]
    touched: bool,
    #[prost(bool, tag = "16")]
    attached_here: bool,
}

#[derive(Clone, PartialEq, Message)]
struct StoredCall {
    #[prost(uint32, tag = "1")]
    rpc: u32,
    #[prost(string, optional, tag = "2")]
    consumer: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredSpec {
    #[prost(string, tag = "1")]
    driver: String,
    #[prost(string, tag = "2")]
    id: String,
    #[prost(bool, tag = "3")]
    block: bool,
    #[prost(string, tag = "4")]
    fs_type: String,
    #[prost(string, repeated, tag = "5")]
    mount_flags: Vec<String>,
    #[prost(int32, tag = "6")]
    mode: i32,
    #[prost(bool, tag = "7")]
    read_only: bool,
    #[prost(bool, tag = "8")]
    ephemeral: bool,
    #[prost(uint32, tag = "10")]
    attach: u32,
    #[prost(map = "string, string", tag = "11")]
    volume_context: HashMap<String, String>,
    #[prost(map = "string, string", tag = "12")]
    publish_context: HashMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    secrets: Vec<StoredSecret>,
    #[prost(uint32, optional, tag = "14")]
    fs_group: Option<u32>,
    #[prost(string, optional, tag = "15")]
    selinux_label: Option<String>,
}

/// A reference to a secret. The value is never here.
#[derive(Clone, PartialEq, Message)]
struct StoredSecret {
    /// Which call takes it: the index in [`secret_slots`].
    #[prost(uint32, tag = "1")]
    call: u32,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct StoredConsumer {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    target_path: String,
    #[prost(bool, tag = "3")]
    read_only: bool,
    #[prost(uint32, optional, tag = "4")]
    fs_group: Option<u32>,
    #[prost(message, optional, tag = "5")]
    pod: Option<StoredPod>,
    #[prost(bool, tag = "6")]
    wanted: bool,
    #[prost(uint32, tag = "7")]
    state: u32,
    #[prost(message, optional, tag = "8")]
    mounted: Option<StoredMount>,
    #[prost(bool, tag = "9")]
    touched: bool,
    #[prost(message, optional, tag = "10")]
    device: Option<StoredDevice>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct StoredDevice {
    #[prost(uint32, tag = "1")]
    major: u32,
    #[prost(uint32, tag = "2")]
    minor: u32,
}

#[derive(Clone, PartialEq, Message)]
struct StoredPod {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    uid: String,
    #[prost(string, tag = "4")]
    service_account: String,
}

#[derive(Clone, PartialEq, Message)]
struct StoredExpansion {
    #[prost(uint64, tag = "1")]
    required_bytes: u64,
    #[prost(bool, tag = "2")]
    node_half: bool,
}

#[derive(Clone, PartialEq, Message)]
struct StoredMount {
    #[prost(uint32, tag = "1")]
    major: u32,
    #[prost(uint32, tag = "2")]
    minor: u32,
    #[prost(bytes = "vec", tag = "3")]
    root: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    fs_type: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    source: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredError {
    #[prost(uint32, tag = "1")]
    rpc: u32,
    #[prost(uint32, tag = "2")]
    class: u32,
    #[prost(int32, optional, tag = "3")]
    code: Option<i32>,
    #[prost(string, tag = "4")]
    message: String,
}

const ATTACH: [Attach; 3] = [Attach::Here, Attach::Awaited, Attach::NotRequired];
const CLASSES: [ErrorClass; 5] = [
    ErrorClass::Final,
    ErrorClass::Uncertain,
    ErrorClass::NeverRetry,
    ErrorClass::Contradicted,
    ErrorClass::Prevented,
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

fn secret_slots(secrets: &mut SecretReferences) -> [&mut Option<SecretReference>; 5] {
    [
        &mut secrets.controller_publish,
        &mut secrets.node_stage,
        &mut secrets.node_publish,
        &mut secrets.controller_expand,
        &mut secrets.node_expand,
    ]
}

fn map(entries: &BTreeMap<String, String>) -> HashMap<String, String> {
    entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl From<&MountIdentity> for StoredMount {
    fn from(mount: &MountIdentity) -> Self {
        Self {
            major: mount.device.major,
            minor: mount.device.minor,
            root: mount.root.as_os_str().as_bytes().to_vec(),
            fs_type: mount.fs_type.as_bytes().to_vec(),
            source: mount.source.as_bytes().to_vec(),
        }
    }
}

impl From<StoredMount> for MountIdentity {
    fn from(mount: StoredMount) -> Self {
        let device = DeviceNumber { major: mount.major, minor: mount.minor };
        let root = PathBuf::from(OsString::from_vec(mount.root));
        Self::new(device, root, OsString::from_vec(mount.fs_type), OsString::from_vec(mount.source))
    }
}

impl From<&Record> for Stored {
    fn from(record: &Record) -> Self {
        let snapshot = &record.snapshot;
        let consumers = record
            .consumers
            .iter()
            .filter_map(|(id, consumer)| Some(StoredConsumer::new(consumer, snapshot.targets.get(id)?)));
        Self {
            schema: SCHEMA,
            spec: Some(StoredSpec::from(&*record.spec)),
            directory: record.directory.clone(),
            consumers: consumers.collect(),
            base: number(&Base::ALL, &snapshot.base),
            attached: snapshot.attached,
            attached_here: snapshot.attached_here,
            granted_bytes: snapshot.granted_bytes,
            capacity_bytes: snapshot.capacity_bytes,
            expansion: snapshot.expansion.map(|expansion| StoredExpansion {
                required_bytes: expansion.required_bytes,
                node_half: expansion.half == Half::Node,
            }),
            boot: record.boot.to_string(),
            staged: record.staged.as_ref().map(StoredMount::from),
            touched: record.touched,
            node_id: record.node_id.clone(),
            calling: snapshot.calling.as_ref().map(|call| StoredCall {
                rpc: number(&Rpc::ALL, &call.rpc),
                consumer: call.consumer.as_ref().map(|consumer| consumer.as_str().to_owned()),
            }),
            last_error: record.last_error.as_ref().map(|error| StoredError {
                rpc: number(&Rpc::ALL, &error.rpc),
                class: number(&CLASSES, &error.class),
                code: error.code,
                message: error.message.clone(),
            }),
        }
    }
}

impl From<&VolumeSpec> for StoredSpec {
    fn from(spec: &VolumeSpec) -> Self {
        let (block, fs_type, mount_flags) = match spec.access() {
            Access::Filesystem { fs_type, mount_flags } => (false, fs_type.clone(), mount_flags.clone()),
            Access::Block => (true, String::new(), Vec::new()),
        };
        let mut references = spec.secrets().clone();
        let secrets = (0u32..).zip(secret_slots(&mut references)).filter_map(|(call, reference)| {
            let reference = reference.as_ref()?;
            let (namespace, name) = (reference.namespace().to_owned(), reference.name().to_owned());
            Some(StoredSecret { call, namespace, name })
        });
        Self {
            driver: spec.key().driver.as_str().to_owned(),
            id: spec.key().id.as_str().to_owned(),
            block,
            fs_type,
            mount_flags,
            mode: spec.mode().into(),
            read_only: spec.is_read_only(),
            ephemeral: spec.is_ephemeral(),
            attach: number(&ATTACH, &spec.attach()),
            volume_context: map(spec.volume_context()),
            publish_context: map(spec.publish_context()),
            secrets: secrets.collect(),
            fs_group: spec.fs_group(),
            selinux_label: spec.selinux_label().map(str::to_owned),
        }
    }
}

impl StoredConsumer {
    fn new(consumer: &RecordedConsumer, target: &Target) -> Self {
        let spec = &consumer.spec;
        Self {
            id: spec.id().as_str().to_owned(),
            target_path: spec.target_path().as_str().to_owned(),
            read_only: spec.is_read_only(),
            fs_group: spec.own_fs_group(),
            pod: spec.pod_info().map(|pod| StoredPod {
                name: pod.name().to_owned(),
                namespace: pod.namespace().to_owned(),
                uid: pod.uid().to_owned(),
                service_account: pod.service_account().to_owned(),
            }),
            wanted: target.wanted,
            state: number(&TargetState::ALL, &target.state),
            mounted: consumer.mounted.as_ref().map(StoredMount::from),
            touched: consumer.touched,
            device: consumer.device.map(|device| StoredDevice { major: device.major, minor: device.minor }),
        }
    }

    fn checked(self) -> Result<(ConsumerId, RecordedConsumer, Target), RecordError> {
        let id = ConsumerId::new(&self.id).map_err(|error| wrong("consumer.id", error))?;
        let target =
            MountPath::new(&self.target_path).map_err(|error| wrong("consumer.target_path", error))?;
        let mut spec = ConsumerSpec::new(id.clone(), target).read_only(self.read_only);
        if let Some(group) = self.fs_group {
            spec = spec.fs_group(group);
        }
        if let Some(pod) = self.pod {
            let pod = PodInfo::new(pod.name, pod.namespace, pod.uid, pod.service_account);
            spec = spec.pod(pod.map_err(|error| wrong("consumer.pod", error))?);
        }
        let state = value("consumer.state", &TargetState::ALL, self.state)?;
        let mounted = self.mounted.map(MountIdentity::from);
        let device = self.device.map(|device| DeviceNumber { major: device.major, minor: device.minor });
        let consumer = RecordedConsumer { spec: Arc::new(spec), mounted, device, touched: self.touched };
        Ok((id, consumer, Target { wanted: self.wanted, state }))
    }
}

impl StoredSpec {
    fn checked(self) -> Result<VolumeSpec, RecordError> {
        let driver = DriverName::new(self.driver).map_err(|error| wrong("driver", error))?;
        let id = VolumeId::new(self.id).map_err(|error| wrong("id", error))?;
        let access = if self.block {
            Access::Block
        } else {
            Access::Filesystem { fs_type: self.fs_type, mount_flags: self.mount_flags }
        };
        let mode = AccessMode::try_from(self.mode).map_err(|error| wrong("mode", error))?;
        let mut secrets = SecretReferences::default();
        for stored in self.secrets {
            let reference = SecretReference::new(stored.namespace, stored.name)
                .map_err(|error| wrong("secrets", error))?;
            let slot = usize::try_from(stored.call).ok();
            let slot = slot.and_then(|slot| secret_slots(&mut secrets).into_iter().nth(slot));
            *slot.ok_or_else(|| wrong("secrets.call", stored.call))? = Some(reference);
        }
        let mut builder = VolumeSpec::builder(VolumeKey { driver, id }, access, mode);
        if self.ephemeral {
            builder = builder.ephemeral();
        }
        builder = builder
            .attach(value("attach", &ATTACH, self.attach)?)
            .read_only(self.read_only)
            .volume_context(self.volume_context)
            .publish_context(self.publish_context)
            .secrets(secrets);
        if let Some(group) = self.fs_group {
            builder = builder.fs_group(group);
        }
        if let Some(label) = self.selinux_label {
            builder = builder.selinux_label(label);
        }
        builder.build().map_err(|error| wrong("spec", error))
    }
}

impl Stored {
    fn checked(self) -> Result<Record, RecordError> {
        let spec = self.spec.ok_or_else(|| wrong("spec", "it is missing"))?.checked()?;
        if !staging::is_directory_name(&self.directory) {
            return Err(wrong("directory", "it is no name of a volume's directory"));
        }
        let mut consumers = BTreeMap::new();
        let mut targets = BTreeMap::new();
        for stored in self.consumers {
            let (id, consumer, target) = stored.checked()?;
            consumers.insert(id.clone(), consumer);
            if targets.insert(id, target).is_some() {
                return Err(wrong("consumer.id", "it is there twice"));
            }
        }
        // It is told to people and decides nothing, so one that is not understood is no reason to refuse the rest.
        let last_error = self.last_error.and_then(|error| {
            Some(LastError {
                rpc: value("last_error.rpc", &Rpc::ALL, error.rpc).ok()?,
                class: value("last_error.class", &CLASSES, error.class).ok()?,
                code: error.code,
                message: super::error::bounded(&error.message),
            })
        });
        let calling = self.calling.map(|call| {
            let consumer = call.consumer.map(|id| ConsumerId::new(&id)).transpose();
            let consumer = consumer.map_err(|error| wrong("calling.consumer", error))?;
            Ok::<_, RecordError>(Call { rpc: value("calling.rpc", &Rpc::ALL, call.rpc)?, consumer })
        });
        let snapshot = Snapshot {
            calling: calling.transpose()?,
            base: value("base", &Base::ALL, self.base)?,
            attached: self.attached,
            attached_here: self.attached_here,
            targets,
            granted_bytes: self.granted_bytes,
            capacity_bytes: self.capacity_bytes,
            expansion: self.expansion.map(|expansion| Expansion {
                required_bytes: expansion.required_bytes,
                half: if expansion.node_half { Half::Node } else { Half::Controller },
            }),
        };
        Ok(Record {
            spec: Arc::new(spec),
            directory: self.directory,
            consumers,
            snapshot,
            boot: self.boot.parse().map_err(|error| wrong("boot", error))?,
            staged: self.staged.map(MountIdentity::from),
            touched: self.touched,
            node_id: self.node_id,
            last_error,
        })
    }
}

#[cfg(test)]
mod tests;
