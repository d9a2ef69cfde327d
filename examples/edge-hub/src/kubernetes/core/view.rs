//! The objects of one node, with the revisions at which they changed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use prost::Message;

use super::store::{NodeObject, ObjectSet};
use edge_csi_common::kubernetes::message::{ObjectKey, Update};

/// What has changed for a node.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) changed: Vec<NodeObject>,
    pub(super) removed: Vec<ObjectKey>,
}

/// A node's set, with the revision of the last change of each object.
#[derive(Debug)]
pub(super) struct View {
    objects: BTreeMap<ObjectKey, (NodeObject, u64)>,
    removed: BTreeMap<ObjectKey, u64>,
    pub(super) revision: u64,
    /// The oldest revision from which a node can resume.
    floor: u64,
    /// Whether the set may have changed since the last refresh.
    pub(super) outdated: bool,
    pub(super) generation: u64,
    /// The number of the disconnection; `None` while the node is connected.
    left: Option<u64>,
}

impl View {
    /// Creates an empty set of this revision.
    pub(super) const fn new(revision: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            removed: BTreeMap::new(),
            revision,
            floor: revision,
            outdated: true,
            generation: 0,
            left: None,
        }
    }

    /// Connects a subscription, and returns the number of the last disconnection, if any.
    pub(super) const fn enter(&mut self, generation: u64) -> Option<u64> {
        self.generation = generation;
        self.left.take()
    }

    /// Disconnects the subscription.
    pub(super) const fn leave(&mut self, number: u64) {
        self.generation = 0;
        self.left = Some(number);
    }

    pub(super) const fn is_present(&self) -> bool {
        self.left.is_none()
    }

    /// Returns true if a node with this revision can resume.
    pub(super) const fn remembers(&self, revision: u64) -> bool {
        self.floor <= revision && revision <= self.revision
    }

    /// Replaces the set. Returns true if the set has changed; the changes then have this revision.
    pub(super) fn refresh(&mut self, set: ObjectSet, revision: u64, remembered: usize) -> bool {
        self.outdated = false;
        let mut changed = false;
        self.objects.retain(|key, _| {
            let stays = set.contains_key(key);
            if !stays {
                self.removed.insert(key.clone(), revision);
                changed = true;
            }
            stays
        });
        for (key, object) in set {
            match self.objects.entry(key) {
                Entry::Vacant(place) => {
                    self.removed.remove(place.key());
                    place.insert((object, revision));
                    changed = true;
                }
                Entry::Occupied(mut place) if place.get().0 != object => {
                    place.insert((object, revision));
                    changed = true;
                }
                Entry::Occupied(_) => {}
            }
        }
        if changed {
            self.revision = revision;
            self.drop_removals(remembered);
        }
        changed
    }

    /// Drops the oldest removals beyond `remembered`; a node with an older revision can no longer resume.
    fn drop_removals(&mut self, remembered: usize) {
        if self.removed.len() <= remembered {
            return;
        }
        let mut removals: Vec<u64> = self.removed.values().copied().collect();
        removals.sort_unstable();
        // The newest removal beyond the bound, together with the other removals of its revision.
        self.floor = removals[removals.len() - remembered - 1];
        self.removed.retain(|_, revision| *revision > self.floor);
    }

    /// Returns the changes after a remembered revision, or all objects if `sent` is `None`.
    pub(super) fn since(&self, sent: Option<u64>) -> Change {
        let after = |revision: &u64| sent.is_none_or(|sent| *revision > sent);
        let changed = self.objects.values().filter(|(_, revision)| after(revision));
        let removed = self.removed.iter().filter(|(_, revision)| sent.is_some() && after(revision));
        Change {
            changed: changed.map(|(object, _)| object.clone()).collect(),
            removed: removed.map(|(key, _)| key.clone()).collect(),
        }
    }
}

/// Bytes of an update without its objects.
const UPDATE_OVERHEAD: usize = 64;

/// Bytes of an object in an update beyond its own encoding.
const OBJECT_OVERHEAD: usize = 16;

/// Splits a change into updates of about `most` bytes, and marks the last one as complete. Returns at least one
/// update.
pub(super) fn split(source: u64, revision: u64, snapshot: bool, change: Change, most: usize) -> Vec<Update> {
    let empty = || Update { source, revision, snapshot, ..Update::default() };
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (empty(), UPDATE_OVERHEAD);
    let mut room = |part: &mut Update, parts: &mut Vec<Update>, more: usize| {
        if bytes > UPDATE_OVERHEAD && bytes + more > most {
            parts.push(std::mem::replace(part, empty()));
            bytes = UPDATE_OVERHEAD;
        }
        bytes += more;
    };
    for object in change.changed {
        let object = object.into_message();
        room(&mut part, &mut parts, object.encoded_len() + OBJECT_OVERHEAD);
        part.changed.push(object);
    }
    for key in change.removed {
        room(&mut part, &mut parts, key.encoded_len() + OBJECT_OVERHEAD);
        part.removed.push(key);
    }
    part.complete = true;
    parts.push(part);
    parts
}
