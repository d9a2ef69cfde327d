//! The node's objects as the hub sends them, and how an update is assembled from its parts. No I/O.

use std::collections::BTreeMap;

use prost::Message;

use edge_csi_common::kubernetes::ObjectKind;
use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{
    Attachment, Claim, Driver, Object, ObjectKey, PersistentVolume, Pod, Update, Watch,
};

/// The maximum number of objects of a node.
pub(super) const MAX_OBJECTS: usize = 16_384;

/// The maximum size of all objects of a node in bytes.
pub(super) const MAX_BYTES: usize = 16 << 20;

/// The maximum size of an encoded object in bytes, besides its kind.
const OVERHEAD: usize = 16;

/// Why a change cannot be applied. The objects stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChangeError {
    /// Too many objects.
    #[error("the node would have {found} objects; expected at most {MAX_OBJECTS}: move pods to other nodes")]
    TooMany { found: usize },
    /// Too many bytes.
    #[error(
        "the node's objects would have {found} bytes; expected at most {MAX_BYTES}: move pods to other nodes"
    )]
    TooLarge { found: usize },
    /// Parts of two changes are mixed.
    #[error("a part of revision {found} arrived within revision {expected}; requesting a snapshot")]
    Mixed {
        /// The revision of the first part.
        expected: u64,
        /// The revision of the received part.
        found: u64,
    },
    /// The change does not follow the current revision.
    #[error(
        "revision {found} of hub {found_source:x} does not follow revision {expected} of hub {expected_source:x}; requesting a snapshot"
    )]
    NotNext {
        /// The current revision.
        expected: u64,
        /// The hub's instance that sent the current revision.
        expected_source: u64,
        /// The revision of the change.
        found: u64,
        /// The hub's instance that sent the change.
        found_source: u64,
    },
    /// The change cannot be saved. If it were accepted, the next start would lose it and unmount its volumes.
    #[error("--state-dir: cannot write the node's objects, requesting them again: {reason}")]
    NotSaved {
        /// The error of the store.
        reason: String,
    },
}

impl ChangeError {
    /// Whether a snapshot of the hub resolves the error.
    pub(super) fn needs_snapshot(&self) -> bool {
        matches!(self, Self::Mixed { .. } | Self::NotNext { .. })
    }
}

/// Assembles a change from its parts.
#[derive(Debug, Default)]
pub(super) struct Assembly(Option<Update>);

impl Assembly {
    /// Adds a part. Returns the complete change if this was its last part.
    ///
    /// # Errors
    /// If the part belongs to another change, or the change is too large.
    pub(super) fn add(&mut self, part: Update) -> Result<Option<Update>, ChangeError> {
        let Some(whole) = &mut self.0 else {
            self.0 = Some(part);
            return self.finished();
        };
        if (part.source, part.revision, part.snapshot) != (whole.source, whole.revision, whole.snapshot) {
            return Err(ChangeError::Mixed { expected: whole.revision, found: part.revision });
        }
        whole.complete = part.complete;
        whole.changed.extend(part.changed);
        whole.removed.extend(part.removed);
        self.finished()
    }

    fn finished(&mut self) -> Result<Option<Update>, ChangeError> {
        let Some(change) = &self.0 else { return Ok(None) };
        // A change that replaces all objects is twice as large as the objects.
        within_bounds(change.changed.len() + change.removed.len(), change.encoded_len(), 2)?;
        Ok(if change.complete { self.0.take() } else { None })
    }
}

fn within_bounds(objects: usize, bytes: usize, times: usize) -> Result<(), ChangeError> {
    if objects > times * MAX_OBJECTS {
        return Err(ChangeError::TooMany { found: objects });
    }
    if bytes > times * MAX_BYTES {
        return Err(ChangeError::TooLarge { found: bytes });
    }
    Ok(())
}

/// The objects of a node at one revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Metadata {
    source: u64,
    revision: u64,
    objects: BTreeMap<ObjectKey, Kind>,
}

impl Metadata {
    /// Returns the objects after a change.
    ///
    /// # Errors
    /// If the change does not follow the current revision, or the result exceeds a bound.
    pub(super) fn after(&self, change: Update) -> Result<Self, ChangeError> {
        let is_empty = change.changed.is_empty() && change.removed.is_empty();
        // A hub that resumes a watch first sends an empty change.
        let is_resumption = is_empty && change.revision == self.revision;
        let follows = change.source == self.source && (change.revision > self.revision || is_resumption);
        if !change.snapshot && !follows {
            return Err(ChangeError::NotNext {
                expected: self.revision,
                expected_source: self.source,
                found: change.revision,
                found_source: change.source,
            });
        }
        let mut objects = if change.snapshot { BTreeMap::new() } else { self.objects.clone() };
        for key in &change.removed {
            objects.remove(key);
        }
        // Objects of unknown kinds are dropped.
        for kind in change.changed.into_iter().filter_map(|object| object.object) {
            objects.insert(kind.key(), kind);
        }
        let bytes = objects.values().map(|kind| kind.encoded_len() + OVERHEAD).sum();
        within_bounds(objects.len(), bytes, 1)?;
        Ok(Self { source: change.source, revision: change.revision, objects })
    }

    /// Returns a snapshot of all objects.
    pub(super) fn to_update(&self) -> Update {
        Update {
            source: self.source,
            revision: self.revision,
            snapshot: true,
            complete: true,
            changed: self.objects.values().map(|kind| Object { object: Some(kind.clone()) }).collect(),
            removed: Vec::new(),
        }
    }

    /// Returns the position for a watch of later changes.
    pub(super) fn position(&self) -> Watch {
        Watch { source: self.source, revision: self.revision }
    }

    /// Returns the number of objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns the pods, ordered by namespace and name.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.objects.values().filter_map(|kind| match kind {
            Kind::Pod(pod) => Some(pod),
            _ => None,
        })
    }

    /// Returns the CSIDrivers, ordered by name.
    pub(super) fn drivers(&self) -> impl Iterator<Item = &Driver> {
        self.objects.values().filter_map(|kind| match kind {
            Kind::Driver(driver) => Some(driver),
            _ => None,
        })
    }

    /// Returns the VolumeAttachments.
    pub(super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.objects.values().filter_map(|kind| match kind {
            Kind::Attachment(attachment) => Some(attachment),
            _ => None,
        })
    }

    /// Finds a claim.
    pub(super) fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        match self.objects.get(&ObjectKind::Claim.key(namespace, name))? {
            Kind::Claim(claim) => Some(claim),
            _ => None,
        }
    }

    /// Finds a PersistentVolume.
    pub(super) fn persistent_volume(&self, name: &str) -> Option<&PersistentVolume> {
        match self.objects.get(&ObjectKind::PersistentVolume.key("", name))? {
            Kind::PersistentVolume(volume) => Some(volume),
            _ => None,
        }
    }

    /// Finds the CSIDriver of a driver.
    pub(super) fn driver(&self, name: &str) -> Option<&Driver> {
        match self.objects.get(&ObjectKind::Driver.key("", name))? {
            Kind::Driver(driver) => Some(driver),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Kind {
        Kind::Pod(Pod { namespace: "ns".into(), name: name.into(), uid: name.into(), ..Default::default() })
    }

    fn change(source: u64, revision: u64, snapshot: bool, changed: &[&str], removed: &[&str]) -> Update {
        Update {
            source,
            revision,
            snapshot,
            complete: true,
            changed: changed.iter().map(|name| Object { object: Some(pod(name)) }).collect(),
            removed: removed.iter().map(|name| ObjectKind::Pod.key("ns", name)).collect(),
        }
    }

    fn names(metadata: &Metadata) -> Vec<&str> {
        metadata.pods().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn parts_apply_together_with_the_last_one() {
        let mut assembly = Assembly::default();
        let part = |name, complete| Update { complete, ..change(7, 3, true, &[name], &[]) };
        assert_eq!(assembly.add(part("a", false)), Ok(None));
        assert_eq!(assembly.add(part("b", false)), Ok(None));
        let whole = assembly.add(part("c", true)).unwrap().unwrap();
        assert_eq!(names(&Metadata::default().after(whole).unwrap()), ["a", "b", "c"]);
        // The next change starts without the parts of this one.
        assert_eq!(assembly.add(change(7, 4, false, &[], &["a"])).unwrap().unwrap().changed, []);
        assert_eq!(assembly.add(part("a", false)), Ok(None));
        let mixed = assembly.add(change(7, 4, true, &["b"], &[])).unwrap_err();
        assert_eq!(mixed, ChangeError::Mixed { expected: 3, found: 4 });
    }

    #[test]
    fn applies_changes_in_order_and_replaces_by_snapshots() {
        let first = Metadata::default().after(change(7, 3, true, &["a", "b"], &[])).unwrap();
        let second = first.after(change(7, 5, false, &["c"], &["a", "x"])).unwrap();
        assert_eq!(names(&second), ["b", "c"]);
        assert_eq!(second.position(), Watch { source: 7, revision: 5 });
        assert_eq!(second.after(change(7, 5, false, &[], &[])).unwrap(), second);
        assert!(second.after(change(8, 5, false, &[], &[])).is_err());
        for (source, revision) in [(7, 5), (7, 4), (8, 6)] {
            let error = second.after(change(source, revision, false, &["d"], &[])).unwrap_err();
            assert!(error.needs_snapshot() && error.to_string().contains("does not follow"), "{error}");
        }
        let other = second.after(change(8, 1, true, &["d"], &[])).unwrap();
        assert_eq!((names(&other), other.position()), (vec!["d"], Watch { source: 8, revision: 1 }));
        assert_eq!(Metadata::default().after(other.to_update()).unwrap(), other);
    }

    #[test]
    fn drops_objects_of_unknown_kinds() {
        let mut update = change(7, 1, true, &["a"], &[]);
        update.changed.push(Object { object: None });
        assert_eq!(Metadata::default().after(update).unwrap().len(), 1);
    }

    #[test]
    fn bounds_objects_and_bytes() {
        let named: Vec<String> = (0..=MAX_OBJECTS).map(|number| format!("p{number}")).collect();
        let names: Vec<&str> = named.iter().map(String::as_str).collect();
        let most = Metadata::default().after(change(7, 1, true, &names[1..], &[])).unwrap();
        let error = most.after(change(7, 2, false, &names[..1], &[])).unwrap_err();
        assert_eq!(error, ChangeError::TooMany { found: MAX_OBJECTS + 1 });
        assert!(!error.needs_snapshot() && error.to_string().contains("16384"), "{error}");
        let long = "n".repeat(MAX_BYTES);
        let error = Metadata::default().after(change(7, 1, true, &[&long], &[])).unwrap_err();
        assert!(matches!(error, ChangeError::TooLarge { .. }) && error.to_string().contains("16777216"));
        let mut assembly = Assembly::default();
        let part = Update { complete: false, ..change(7, 1, true, &[&long], &[]) };
        let error = assembly.add(part.clone()).and_then(|_| assembly.add(part)).unwrap_err();
        assert!(matches!(error, ChangeError::TooLarge { .. }));
    }
}
