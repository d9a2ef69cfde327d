//! The node's objects as the hub sends them, and how an update is assembled from its parts. No I/O.

use std::collections::BTreeMap;

use edge_csi_common::kubernetes::ObjectKind;
use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{
    Attachment, Claim, Driver, Object, ObjectKey, PersistentVolume, Pod, Update, Watch,
};

/// Why a change cannot be applied. The objects stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChangeError {
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
    /// If the part belongs to another change.
    pub(super) fn add(&mut self, part: Update) -> Result<Option<Update>, ChangeError> {
        let Some(whole) = &mut self.0 else {
            self.0 = Some(part);
            return Ok(self.take_complete());
        };
        if (part.source, part.revision, part.snapshot) != (whole.source, whole.revision, whole.snapshot) {
            return Err(ChangeError::Mixed { expected: whole.revision, found: part.revision });
        }
        whole.complete = part.complete;
        whole.changed.extend(part.changed);
        whole.removed.extend(part.removed);
        whole.versions = part.versions;
        Ok(self.take_complete())
    }

    fn take_complete(&mut self) -> Option<Update> {
        self.0.take_if(|change| change.complete)
    }
}

/// The objects of a node at one revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Metadata {
    source: u64,
    revision: u64,
    /// The highest `resourceVersion` in the hub's objects, by their kind.
    versions: BTreeMap<u32, u64>,
    objects: BTreeMap<ObjectKey, Kind>,
}

impl Metadata {
    /// Returns the objects after a change.
    ///
    /// # Errors
    /// If the change does not follow the current revision.
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
        if is_resumption && !change.snapshot {
            // The versions stay as they are saved: a resumption writes nothing to the disk.
            return Ok(self.clone());
        }
        let mut objects = if change.snapshot { BTreeMap::new() } else { self.objects.clone() };
        for key in &change.removed {
            objects.remove(key);
        }
        // Objects of unknown kinds are dropped.
        for kind in change.changed.into_iter().filter_map(|object| object.object) {
            objects.insert(kind.key(), kind);
        }
        let known = |number: &u32| ObjectKind::ALL.into_iter().any(|kind| kind as u32 == *number);
        let versions = change.versions.into_iter().filter(|(number, _)| known(number)).collect();
        Ok(Self { source: change.source, revision: change.revision, versions, objects })
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
            versions: self.versions.clone(),
        }
    }

    /// The hub's instance that sent the objects; 0 if none has.
    pub(super) const fn source(&self) -> u64 {
        self.source
    }

    /// Returns the position for a watch of later changes.
    pub(super) fn position(&self) -> Watch {
        Watch { source: self.source, revision: self.revision, versions: self.versions.clone() }
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
            // The second kind is of a later hub.
            versions: [(ObjectKind::Pod as u32, revision), (99, 1)].into(),
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
        assert_eq!(second.position(), Watch { source: 7, revision: 5, versions: [(1, 5)].into() });
        let resumed = Update { versions: [(1, 9)].into(), ..change(7, 5, false, &[], &[]) };
        assert_eq!(second.after(resumed).unwrap(), second, "nothing to save");
        assert!(second.after(change(8, 5, false, &[], &[])).is_err());
        for (source, revision) in [(7, 5), (7, 4), (8, 6)] {
            let error = second.after(change(source, revision, false, &["d"], &[])).unwrap_err();
            assert!(error.needs_snapshot() && error.to_string().contains("does not follow"), "{error}");
        }
        let other = second.after(change(8, 1, true, &["d"], &[])).unwrap();
        let expected = Watch { source: 8, revision: 1, versions: [(1, 1)].into() };
        assert_eq!((names(&other), other.position()), (vec!["d"], expected));
        assert_eq!(Metadata::default().after(other.to_update()).unwrap(), other);
    }

    #[test]
    fn drops_objects_of_unknown_kinds() {
        let mut update = change(7, 1, true, &["a"], &[]);
        update.changed.push(Object { object: None });
        assert_eq!(Metadata::default().after(update).unwrap().len(), 1);
    }
}
