//! What an operation is about.

use std::fmt;
use std::sync::Arc;

use csi_proto::method::{RequestField, VolumeKey};
use csi_proto::{DriverName, Method};

use crate::call::protobuf::{Field, Value, fields, last_field};

/// Longest [`Subject`] in bytes. The spec has 128; a call that names something longer takes no part in this.
pub const MAX_SUBJECT: usize = 4096;

/// Most [`Subject`]s that one operation has. A call that names more takes no part in this.
pub const MAX_SUBJECTS: usize = 1024;

/// The field of DeleteVolumeGroupSnapshotRequest that names the snapshots of the group.
const SNAPSHOT_IDS: u32 = 2;

// The fields of the answers that make something: what was made, and where that has its id.
const MADE: u32 = 1;
const VOLUME_ID: u32 = 2;
const SNAPSHOT_ID: u32 = 2;
const GROUP_SNAPSHOT_ID: u32 = 1;
const SNAPSHOTS: u32 = 2;

/// What an operation is about: at most one operation of a driver runs for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// A volume that has no id yet, by the name that it is to get.
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

/// A subject at a driver. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<(DriverName, Subject)>);

impl Key {
    /// What a driver has under this name.
    #[must_use]
    pub fn new(driver: DriverName, subject: Subject) -> Self {
        Self(Arc::new((driver, subject)))
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &DriverName {
        &self.0.0
    }

    /// What of the driver's.
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

/// Why it is not known what a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// The method names what it is about in a way of a later version of the spec.
    #[error("it is not known which node this method is for; a route to a fixed node carries it")]
    UnknownMethod,
    /// A field that decides is absent or empty.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field that decides is not what it should be, or has more than [`MAX_SUBJECT`] bytes.
    #[error("{field} cannot be read, or is too long")]
    Unreadable {
        /// The field.
        field: &'static str,
    },
}

/// What a request names, the first of which names the operation. Nothing if its method is about nothing in particular.
///
/// # Errors
/// If its method is about something and the request does not say what.
pub(crate) fn of_request(method: Method, request: &[Field<'_>]) -> Result<Vec<Subject>, BadRequest> {
    let (Some(key), Some(RequestField { name: field, number, .. })) =
        (method.volume_key(), method.volume_field())
    else {
        return Ok(Vec::new());
    };
    let make = named_by(key).ok_or(BadRequest::UnknownMethod)?;
    let several = key == VolumeKey::SourceVolumeIds;
    let subjects = named(request, number, several, make).ok_or(BadRequest::Unreadable { field })?;
    if subjects.is_empty() || subjects.iter().any(|subject| subject.id().is_empty()) {
        return Err(BadRequest::Missing { field });
    }
    if subjects.iter().any(|subject| subject.id().len() > MAX_SUBJECT) {
        return Err(BadRequest::Unreadable { field });
    }
    Ok(subjects)
}

fn named_by(key: VolumeKey) -> Option<fn(Box<str>) -> Subject> {
    Some(match key {
        VolumeKey::Name => Subject::VolumeName,
        VolumeKey::VolumeId | VolumeKey::SourceVolumeId | VolumeKey::SourceVolumeIds => Subject::Volume,
        VolumeKey::SnapshotId | VolumeKey::TargetSnapshotId => Subject::Snapshot,
        VolumeKey::GroupSnapshotId => Subject::GroupSnapshot,
        _ => return None,
    })
}

/// All that an operation is about; of a request that does not say so, what has the empty name or id. `None` if it names more than the bounds
/// allow, or is not readable.
pub(super) fn of_operation(method: Method, request: &[Field<'_>]) -> Option<Vec<Subject>> {
    let mut subjects = match of_request(method, request) {
        // The driver is to refuse it, and a copy of it has to be known as one until then.
        Err(BadRequest::Missing { .. }) => vec![named_by(method.volume_key()?)?(Box::default())],
        subjects => subjects.ok()?,
    };
    if method == Method::DeleteVolumeGroupSnapshot {
        subjects.extend(named(request, SNAPSHOT_IDS, true, Subject::Snapshot).unwrap_or_default());
    }
    let usable = |subject: &Subject| subject.id().len() <= MAX_SUBJECT;
    (subjects.len() <= MAX_SUBJECTS && subjects.iter().all(usable)).then_some(subjects)
}

/// What a field names; `None` if it is no text.
fn named(
    fields: &[Field<'_>],
    number: u32,
    several: bool,
    make: fn(Box<str>) -> Subject,
) -> Option<Vec<Subject>> {
    let mut found = fields.iter().filter(|field| field.number == number);
    let name = |field: &Field<'_>| field.value.text().map(|id| make(id.into()));
    match several {
        true => found.map(name).collect(),
        // As when it is decoded, the last one counts.
        false => found.next_back().map(name).into_iter().collect(),
    }
}

/// Whether the method makes something whose id only its answer tells.
pub(super) fn is_making(method: Method) -> bool {
    matches!(method, Method::CreateVolume | Method::CreateSnapshot | Method::CreateVolumeGroupSnapshot)
}

/// What a successful answer says that the operation was about, beside what the request named: the ids of what it made.
pub(super) fn of_answer(method: Method, answer: &[u8]) -> Vec<Subject> {
    let made = last_field(answer, MADE).and_then(Value::bytes).and_then(fields).unwrap_or_default();
    let one = |id, make| named(&made, id, false, make).unwrap_or_default();
    let mut subjects = match method {
        Method::CreateVolume => one(VOLUME_ID, Subject::Volume),
        Method::CreateSnapshot => one(SNAPSHOT_ID, Subject::Snapshot),
        Method::CreateVolumeGroupSnapshot => {
            let snapshots = made.iter().filter(|field| field.number == SNAPSHOTS);
            let snapshots = snapshots.filter_map(|field| fields(field.value.bytes()?)).take(MAX_SUBJECTS);
            let ids = snapshots.filter_map(|fields| named(&fields, SNAPSHOT_ID, false, Subject::Snapshot));
            one(GROUP_SNAPSHOT_ID, Subject::GroupSnapshot).into_iter().chain(ids.flatten()).collect()
        }
        _ => Vec::new(),
    };
    subjects.retain(|subject| !subject.id().is_empty() && subject.id().len() <= MAX_SUBJECT);
    subjects
}
