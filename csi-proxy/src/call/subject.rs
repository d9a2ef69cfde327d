//! The resources that an operation affects.

#![cfg_attr(
    not(feature = "runtime"),
    allow(dead_code, reason = "only the dispatcher and the router use this module")
)]

use std::fmt;
use std::sync::Arc;

use csi_proto::method::{RequestField, VolumeKey};
use csi_proto::{DriverName, Method};

use crate::call::protobuf::{Fields, Value, fields, last_field, text};

/// The maximum length of a [`Subject`] in bytes. The spec allows 128; a call with a longer subject is refused.
pub const MAX_SUBJECT: usize = 4096;

/// The maximum number of [`Subject`]s of one operation. A call with more subjects is refused.
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
#[allow(clippy::exhaustive_enums, reason = "the key of a stored row")]
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
    /// The request is not a protobuf message, or has a group, which proto3 does not have and readers treat differently.
    #[error("the request is not a protobuf message without groups")]
    NotAMessage,
    /// A required field is absent or empty.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field is not text, or longer than [`MAX_SUBJECT`] bytes.
    #[error("{field} is malformed, or has more than {MAX_SUBJECT} bytes")]
    Unreadable {
        /// The field.
        field: &'static str,
    },
    /// A request names more than [`MAX_SUBJECTS`] volumes or snapshots.
    #[error("{field} has more than {MAX_SUBJECTS} entries")]
    TooMany {
        /// The field.
        field: &'static str,
    },
}

/// The subjects of a request; the first one names the operation. Empty if the method has none.
///
/// # Errors
/// If the method has a subject and the request does not name it, or there are too many.
pub(crate) fn request_subjects(method: Method, request: &Fields<'_>) -> Result<Vec<Subject>, BadRequest> {
    let (Some(key), Some(RequestField { name: field, number, .. })) =
        (method.volume_key(), method.volume_field())
    else {
        return Ok(Vec::new());
    };
    let make = constructor_of(key).ok_or(BadRequest::UnknownMethod)?;
    let mut subjects = Vec::new();
    match key {
        VolumeKey::SourceVolumeIds => add_subjects(request.of(number), field, make, &mut subjects)?,
        // The last value counts, as in protobuf decoding.
        _ => add_subjects(request.of(number).last(), field, make, &mut subjects)?,
    }
    match subjects.is_empty() || subjects.iter().any(|subject| subject.id().is_empty()) {
        true => Err(BadRequest::Missing { field }),
        false => Ok(subjects),
    }
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

/// All subjects of an operation; the empty name or id if the request names none.
///
/// # Errors
/// If the request has more than the limits allow, or cannot be decoded.
pub(crate) fn operation_subjects(method: Method, request: &Fields<'_>) -> Result<Vec<Subject>, BadRequest> {
    let mut subjects = match (request_subjects(method, request), method.volume_key()) {
        // The driver rejects such a request; its copies must coalesce until then.
        (Err(BadRequest::Missing { .. }), Some(key)) => {
            vec![constructor_of(key).ok_or(BadRequest::UnknownMethod)?(Box::default())]
        }
        (subjects, _) => subjects?,
    };
    if method == Method::DeleteVolumeGroupSnapshot {
        add_subjects(request.of(SNAPSHOT_IDS), "snapshot_ids", Subject::Snapshot, &mut subjects)?;
    }
    Ok(subjects)
}

/// Adds the subjects that a field names.
fn add_subjects<'a>(
    values: impl IntoIterator<Item = Value<'a>>,
    field: &'static str,
    make: fn(Box<str>) -> Subject,
    subjects: &mut Vec<Subject>,
) -> Result<(), BadRequest> {
    for value in values {
        let id = value.text().filter(|id| id.len() <= MAX_SUBJECT).ok_or(BadRequest::Unreadable { field })?;
        if subjects.len() == MAX_SUBJECTS {
            return Err(BadRequest::TooMany { field });
        }
        subjects.push(make(id.into()));
    }
    Ok(())
}

/// Whether the method creates a resource whose id is only in its response.
pub(crate) fn is_create(method: Method) -> bool {
    matches!(method, Method::CreateVolume | Method::CreateSnapshot | Method::CreateVolumeGroupSnapshot)
}

/// The subjects that a successful response adds to those of the request: the ids of the created resources.
pub(crate) fn created_subjects(method: Method, answer: &[u8]) -> Vec<Subject> {
    let created = last_field(answer, CREATED).and_then(Value::bytes).unwrap_or_default();
    let one = |resource, number, make: fn(Box<str>) -> Subject| Some(make(text(resource, number)?.into()));
    let mut subjects = Vec::from_iter(match method {
        Method::CreateVolume => one(created, VOLUME_ID, Subject::Volume),
        Method::CreateSnapshot => one(created, SNAPSHOT_ID, Subject::Snapshot),
        Method::CreateVolumeGroupSnapshot => one(created, GROUP_SNAPSHOT_ID, Subject::GroupSnapshot),
        _ => None,
    });
    if method == Method::CreateVolumeGroupSnapshot {
        let snapshots =
            fields(created).into_iter().flat_map(|fields| fields.of(SNAPSHOTS)).take(MAX_SUBJECTS);
        subjects.extend(snapshots.filter_map(|one_of| one(one_of.bytes()?, SNAPSHOT_ID, Subject::Snapshot)));
    }
    subjects.retain(|subject| subject.id().len() <= MAX_SUBJECT);
    subjects
}
