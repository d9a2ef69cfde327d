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
    /// All that has happened after this revision is known.
    floor: u64,
    /// Something that concerns the node may have changed.
    pub(super) outdated: bool,
    pub(super) generation: u64,
    /// When it left, if it has.
    left: Option<u64>,
}

impl View {
    /// An empty set, of this revision.
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

    /// Connects a subscription; returns when the last one left.
    pub(super) const fn enter(&mut self, generation: u64) -> Option<u64> {
        self.generation = generation;
        self.left.take()
    }

    /// Disconnects the subscription.
    pub(super) const fn leave(&mut self, when: u64) {
        self.generation = 0;
        self.left = Some(when);
    }

    pub(super) const fn is_present(&self) -> bool {
        self.left.is_none()
    }

    /// Whether all that has happened since this revision is known.
    pub(super) const fn remembers(&self, revision: u64) -> bool {
        self.floor <= revision && revision <= self.revision
    }

    /// Takes what the node's set is now; whether that is something new, which then has this revision.
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
            self.forget(remembered);
        }
        changed
    }

    /// Forgets the oldest ends, and with them what it was like before.
    fn forget(&mut self, remembered: usize) {
        if self.removed.len() <= remembered {
            return;
        }
        let mut ends: Vec<u64> = self.removed.values().copied().collect();
        ends.sort_unstable();
        // The youngest end that is too many, and with it all that ended in the same change.
        self.floor = ends[ends.len() - remembered - 1];
        self.removed.retain(|_, revision| *revision > self.floor);
    }

    /// What has happened after a revision that is remembered, or everything.
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

/// What the fields of an update need beside its objects, and an object beside its own bytes.
const OVERHEAD: usize = 64;
const EACH: usize = 16;

/// One change as updates of about `most` bytes at most; the last is the complete one. There is always one.
pub(super) fn split(source: u64, revision: u64, snapshot: bool, change: Change, most: usize) -> Vec<Update> {
    let empty = || Update { source, revision, snapshot, ..Update::default() };
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (empty(), OVERHEAD);
    let mut room = |part: &mut Update, parts: &mut Vec<Update>, more: usize| {
        if bytes > OVERHEAD && bytes + more > most {
            parts.push(std::mem::replace(part, empty()));
            bytes = OVERHEAD;
        }
        bytes += more;
    };
    for object in change.changed {
        let object = object.into_message();
        room(&mut part, &mut parts, object.encoded_len() + EACH);
        part.changed.push(object);
    }
    for key in change.removed {
        room(&mut part, &mut parts, key.encoded_len() + EACH);
        part.removed.push(key);
    }
    part.complete = true;
    parts.push(part);
    parts
}
