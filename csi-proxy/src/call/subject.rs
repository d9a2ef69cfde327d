//! The resources that an operation affects.

#![cfg_attr(
    not(feature = "runtime"),
    allow(dead_code, reason = "only the dispatcher and the router use this module")
)]

use std::fmt;
use std::sync::Arc;

use csi_proto::method::{RequestField, VolumeKey};
use csi_proto::{DriverName, Method};

use crate::call::protobuf::{Field, Value, fields, last_field};

/// The maximum length of a [`Subject`] in bytes. The spec allows 128; a call with a longer subject is not an
/// operation.
pub const MAX_SUBJECT: usize = 4096;

/// The maximum number of [`Subject`]s of one operation. A call with more subjects is not an operation.
pub const MAX_SUBJECTS: usize = 1024;

/// The field of DeleteVolumeGroupSnapshotRequest that names the snapshots of the group.
const SNAPSHOT_IDS: u32 = 2;

// The fields of the responses to create methods: the created resource, and the field of its id.
const CREATED: u32 = 1;
const VOLUME_ID: u32 = 2;
const SNAPSHOT_ID: u32 = 2;
const GROUP_SNAPSHOT_ID: u32 = 1;
const SNAPSHOTS: u32 = 2;

/// A resource that an operation affects. At most one operation of a driver runs on each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// A volume without an id yet, by its requested name.
    VolumeName(Box<str>),
    /// A volume, by its id.
    Volume(Box<str>),
    /// A snapshot, by its id.
    Snapshot(Box<str>),
    /// A snapshot of a group of volumes, by its id.
    GroupSnapshot(Box<str>),
}

impl Subject {
    /// The name or id.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::VolumeName(id) | Self::Volume(id) | Self::Snapshot(id) | Self::GroupSnapshot(id) => id,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::VolumeName(_) => "volume named",
            Self::Volume(_) => "volume",
            Self::Snapshot(_) => "snapshot",
            Self::GroupSnapshot(_) => "group snapshot",
        };
        write!(f, "{kind} {:?}", self.id())
    }
}

/// A subject of a driver. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<(DriverName, Subject)>);

impl Key {
    /// Creates a subject of this driver.
    #[must_use]
    pub fn new(driver: DriverName, subject: Subject) -> Self {
        Self(Arc::new((driver, subject)))
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &DriverName {
        &self.0.0
    }

    /// The subject.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.0.1
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(self.driver()).field(self.subject()).finish()
    }
}

/// Why the subjects of a request are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// The method is of a later version of the spec.
    #[error("unknown method: the node of the call cannot be determined; use a route to a fixed node")]
    UnknownMethod,
    /// A required field is absent or empty.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field is malformed, or longer than [`MAX_SUBJECT`] bytes.
    #[error("{field} is malformed or too long")]
    Unreadable {
        /// The field.
        field: &'static str,
    },
}

/// The subjects of a request; the first one names the operation. Empty if the method has none.
///
/// # Errors
/// If the method has a subject and the request does not name it.
pub(crate) fn request_subjects(method: Method, request: &[Field<'_>]) -> Result<Vec<Subject>, BadRequest> {
    let (Some(key), Some(RequestField { name: field, number, .. })) =
        (method.volume_key(), method.volume_field())
    else {
        return Ok(Vec::new());
    };
    let make = constructor_of(key).ok_or(BadRequest::UnknownMethod)?;
    let repeated = key == VolumeKey::SourceVolumeIds;
    let subjects = field_subjects(request, number, repeated, make).ok_or(BadRequest::Unreadable { field })?;
    if subjects.is_empty() || subjects.iter().any(|subject| subject.id().is_empty()) {
        return Err(BadRequest::Missing { field });
    }
    if subjects.iter().any(|subject| subject.id().len() > MAX_SUBJECT) {
        return Err(BadRequest::Unreadable { field });
    }
    Ok(subjects)
}

fn constructor_of(key: VolumeKey) -> Option<fn(Box<str>) -> Subject> {
    Some(match key {
        VolumeKey::Name => Subject::VolumeName,
        VolumeKey::VolumeId | VolumeKey::SourceVolumeId | VolumeKey::SourceVolumeIds => Subject::Volume,
        VolumeKey::SnapshotId | VolumeKey::TargetSnapshotId => Subject::Snapshot,
        VolumeKey::GroupSnapshotId => Subject::GroupSnapshot,
        _ => return None,
    })
}

/// All subjects of an operation; the empty name or id if the request names none. `None` if the request has more
/// than the limits allow, or cannot be decoded.
pub(crate) fn operation_subjects(method: Method, request: &[Field<'_>]) -> Option<Vec<Subject>> {
    let mut subjects = match request_subjects(method, request) {
        // The driver rejects such a request; its copies must coalesce until then.
        Err(BadRequest::Missing { .. }) => vec![constructor_of(method.volume_key()?)?(Box::default())],
        subjects => subjects.ok()?,
    };
    if method == Method::DeleteVolumeGroupSnapshot {
        subjects.extend(field_subjects(request, SNAPSHOT_IDS, true, Subject::Snapshot).unwrap_or_default());
    }
    let usable = |subject: &Subject| subject.id().len() <= MAX_SUBJECT;
    (subjects.len() <= MAX_SUBJECTS && subjects.iter().all(usable)).then_some(subjects)
}

/// The subjects that a field names; `None` if the field is not text.
fn field_subjects(
    fields: &[Field<'_>],
    number: u32,
    repeated: bool,
    make: fn(Box<str>) -> Subject,
) -> Option<Vec<Subject>> {
    let mut found = fields.iter().filter(|field| field.number == number);
    let name = |field: &Field<'_>| field.value.text().map(|id| make(id.into()));
    match repeated {
        true => found.map(name).collect(),
        // The last value counts, as in protobuf decoding.
        false => found.next_back().map(name).into_iter().collect(),
    }
}

/// Whether the method creates a resource whose id is only in its response.
pub(crate) fn is_create(method: Method) -> bool {
    matches!(method, Method::CreateVolume | Method::CreateSnapshot | Method::CreateVolumeGroupSnapshot)
}

/// The subjects that a successful response adds to those of the request: the ids of the created resources.
pub(crate) fn created_subjects(method: Method, answer: &[u8]) -> Vec<Subject> {
    let created = last_field(answer, CREATED).and_then(Value::bytes).and_then(fields).unwrap_or_default();
    let one = |id, make| field_subjects(&created, id, false, make).unwrap_or_default();
    let mut subjects = match method {
        Method::CreateVolume => one(VOLUME_ID, Subject::Volume),
        Method::CreateSnapshot => one(SNAPSHOT_ID, Subject::Snapshot),
        Method::CreateVolumeGroupSnapshot => {
            let snapshots = created.iter().filter(|field| field.number == SNAPSHOTS);
            let snapshots = snapshots.filter_map(|field| fields(field.value.bytes()?)).take(MAX_SUBJECTS);
            let ids =
                snapshots.filter_map(|fields| field_subjects(&fields, SNAPSHOT_ID, false, Subject::Snapshot));
            one(GROUP_SNAPSHOT_ID, Subject::GroupSnapshot).into_iter().chain(ids.flatten()).collect()
        }
        _ => Vec::new(),
    };
    subjects.retain(|subject| !subject.id().is_empty() && subject.id().len() <= MAX_SUBJECT);
    subjects
}
