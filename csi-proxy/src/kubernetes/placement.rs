//! The custom resource `Placement`: a row of the table of placements.
//!
//! The driver, kind and id are the key of the row, and the name of the object is their hash. Everything is in the spec: a create
//! writes the phase too, which an API server would drop from a status subresource, and tools for backups restore no status.
//!
//! There is no checksum, so that an operator can repair an object. The schema in `deploy/base/crd` refuses most mistakes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use csi_proto::DriverName;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::object::{Kind, Object, hashed_name, hex};
use crate::call::{Digest, NodeId, Subject};
use crate::routing::{Defect, Placement, Row, Status};

/// The resource of placements.
#[derive(Debug, Clone)]
pub(super) struct Placements;

impl Kind for Placements {
    const KIND: &'static str = "Placement";
    const PLURAL: &'static str = "placements";
}

/// The object of a row.
pub(super) fn encode(driver: &DriverName, key: &Subject, placement: &Placement) -> Object<Placements> {
    let (phase, deleted_at) = match &placement.status {
        Status::Pending => ("Pending", None),
        Status::Created { .. } => ("Created", None),
        Status::Deleted { at, .. } => ("Deleted", Some(*at)),
        Status::Lost { .. } => ("Lost", None),
    };
    let mut spec = json!({
        "driver": driver.as_str(),
        "kind": kind(key),
        "id": key.id(),
        "node": placement.node.as_str(),
        "phase": phase,
    });
    if let Some(handle) = placement.status.volume_id() {
        spec["handle"] = handle.into();
    }
    if placement.digest != UNKNOWN_DIGEST {
        spec["digest"] = hex(placement.digest.as_bytes()).into();
    }
    if let Some(at) = deleted_at {
        spec["deletedAt"] = text_of(at).into();
    }
    Object::new(driver, name(driver, key), spec)
}

/// The row of an object with this key.
pub(super) fn row(driver: &DriverName, key: Subject, object: &Object<Placements>) -> Row {
    let placement = match key_of(driver, object) {
        Ok(found) if found == key => decode(&object.spec),
        Ok(_) => Err(field("id")),
        Err(defect) => Err(defect),
    };
    Row { key, revision: object.version().into(), placement }
}

/// The key of the row in an object.
///
/// # Errors
/// If the object is no row of this driver.
pub(super) fn key_of(driver: &DriverName, object: &Object<Placements>) -> Result<Subject, Defect> {
    if text(&object.spec, "driver")? != driver.as_str() {
        return Err(field("driver"));
    }
    let id: Box<str> = text(&object.spec, "id")?.into();
    let key = match text(&object.spec, "kind")? {
        "VolumeName" => Subject::VolumeName(id),
        "Volume" => Subject::Volume(id),
        "Snapshot" => Subject::Snapshot(id),
        "GroupSnapshot" => Subject::GroupSnapshot(id),
        _ => return Err(field("kind")),
    };
    // A copy under another name is not the row that a write would change.
    if name(driver, &key) == object.name() { Ok(key) } else { Err(Defect::Field { field: "metadata.name" }) }
}

/// The name of the object of a row.
pub(super) fn name(driver: &DriverName, key: &Subject) -> String {
    hashed_name([driver.as_str(), kind(key), key.id()])
}

/// The digest of a row with several requests, or unknown ones. It is not written.
const UNKNOWN_DIGEST: Digest = Digest::from_bytes([0; 32]);

fn kind(key: &Subject) -> &'static str {
    match key {
        Subject::VolumeName(_) => "VolumeName",
        Subject::Volume(_) => "Volume",
        Subject::Snapshot(_) => "Snapshot",
        Subject::GroupSnapshot(_) => "GroupSnapshot",
    }
}

fn decode(spec: &Value) -> Result<Placement, Defect> {
    let node = NodeId::new(text(spec, "node")?).map_err(|_| field("node"))?;
    let digest = match &spec["digest"] {
        Value::Null => UNKNOWN_DIGEST,
        digest => digest.as_str().and_then(digest_of).ok_or_else(|| field("digest"))?,
    };
    let handle = || text(spec, "handle").map(Box::from);
    let status = match text(spec, "phase")? {
        "Pending" => Status::Pending,
        "Created" => Status::Created { id: handle()? },
        "Deleted" => Status::Deleted {
            id: handle()?,
            at: time_of(text(spec, "deletedAt")?).ok_or_else(|| field("deletedAt"))?,
        },
        "Lost" => Status::Lost { id: handle()? },
        _ => return Err(field("phase")),
    };
    Ok(Placement { node, digest, status })
}

fn field(field: &'static str) -> Defect {
    Defect::Field { field }
}

fn text<'a>(spec: &'a Value, name: &'static str) -> Result<&'a str, Defect> {
    spec[name].as_str().ok_or_else(|| field(name))
}

fn digest_of(text: &str) -> Option<Digest> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(Digest::from_bytes(bytes))
}

/// A time as in RFC 3339, in whole seconds.
fn text_of(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

fn time_of(text: &str) -> Option<SystemTime> {
    let seconds = text.parse::<Timestamp>().ok()?.as_second();
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn driver() -> DriverName {
        DriverName::new("csi-hostpath").unwrap()
    }

    fn placement(status: Status) -> Placement {
        Placement { node: NodeId::new("Edge_1").unwrap(), digest: Digest::from_bytes([0xa7; 32]), status }
    }

    fn statuses() -> [Status; 4] {
        let (id, at): (Box<str>, _) = ("vol-1\u{0}ä".into(), UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        [
            Status::Pending,
            Status::Created { id: id.clone() },
            Status::Deleted { id: id.clone(), at },
            Status::Lost { id },
        ]
    }

    #[test]
    fn row_round_trips() {
        let id: Box<str> = "pvc-1/ä\n\u{0}".into();
        for key in [
            Subject::VolumeName(id.clone()),
            Subject::Volume(id.clone()),
            Subject::Snapshot(id.clone()),
            Subject::GroupSnapshot(id.clone()),
        ] {
            for status in statuses() {
                for digest in [UNKNOWN_DIGEST, Digest::from_bytes([0xa7; 32])] {
                    let placement = Placement { digest, ..placement(status.clone()) };
                    let object = encode(&driver(), &key, &placement);
                    // As the API server returns it.
                    let object: Object<Placements> =
                        serde_json::from_str(&serde_json::to_string(&object).unwrap()).unwrap();
                    assert_eq!(key_of(&driver(), &object), Ok(key.clone()));
                    assert_eq!(row(&driver(), key.clone(), &object).placement, Ok(placement));
                }
            }
        }
        let deleted = encode(&driver(), &Subject::Volume(id), &placement(statuses()[2].clone()));
        assert_eq!(deleted.spec["deletedAt"], "2027-01-15T08:00:00Z");
    }

    /// Nothing that a spec may contain instead of a field is read as another placement.
    #[test]
    fn invalid_fields_are_defects() {
        let key = Subject::VolumeName("pvc-1".into());
        let other = DriverName::new("other").unwrap();
        for status in statuses() {
            let object = encode(&driver(), &key, &placement(status));
            let fields: Vec<String> = object.spec.as_object().unwrap().keys().cloned().collect();
            for name in fields {
                for bad in [json!(7), json!({}), json!("?\n")] {
                    let mut changed = object.clone();
                    changed.spec[&name] = bad.clone();
                    let found = row(&driver(), key.clone(), &changed).placement;
                    let is_text = bad.is_string() && name == "handle";
                    assert!(found.is_err() || is_text, "{name} = {bad}: {found:?}");
                }
                let mut changed = object.clone();
                changed.spec.as_object_mut().unwrap().remove(&name);
                let found = row(&driver(), key.clone(), &changed).placement;
                assert!(found.is_err() || name == "digest", "without {name}: {found:?}");
            }
            assert_eq!(key_of(&other, &object), Err(field("driver")));
            let wrong_key = Subject::VolumeName("pvc-2".into());
            assert_eq!(row(&driver(), wrong_key, &object).placement, Err(field("id")));
            let mut moved = object.clone();
            moved.spec["id"] = "pvc-2".into();
            assert_eq!(key_of(&driver(), &moved), Err(field("metadata.name")));
            moved.spec = Value::Null;
            assert_eq!(row(&driver(), key.clone(), &moved).placement, Err(field("driver")));
        }
    }
}
