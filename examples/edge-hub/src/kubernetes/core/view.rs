//! What one node has been told, and when.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use prost::Message;

use super::store::Told;
use edge_csi_common::kubernetes::message::{ObjectKey, Update};

/// What has changed for a node.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) changed: Vec<Told>,
    pub(super) gone: Vec<ObjectKey>,
}

/// A node's set, with the revision at which each of its objects became what it is.
#[derive(Debug)]
pub(super) struct View {
    objects: BTreeMap<ObjectKey, (Told, u64)>,
    gone: BTreeMap<ObjectKey, u64>,
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
            gone: BTreeMap::new(),
            revision,
            floor: revision,
            outdated: true,
            generation: 0,
            left: None,
        }
    }

    /// Somebody listens; tells when the last one left.
    pub(super) const fn enter(&mut self, generation: u64) -> Option<u64> {
        self.generation = generation;
        self.left.take()
    }

    /// Nobody listens any more.
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
    pub(super) fn refresh(
        &mut self,
        set: BTreeMap<ObjectKey, Told>,
        revision: u64,
        remembered: usize,
    ) -> bool {
        self.outdated = false;
        let mut news = false;
        self.objects.retain(|key, _| {
            let stays = set.contains_key(key);
            if !stays {
                self.gone.insert(key.clone(), revision);
                news = true;
            }
            stays
        });
        for (key, told) in set {
            match self.objects.entry(key) {
                Entry::Vacant(place) => {
                    self.gone.remove(place.key());
                    place.insert((told, revision));
                    news = true;
                }
                Entry::Occupied(mut place) if place.get().0 != told => {
                    place.insert((told, revision));
                    news = true;
                }
                Entry::Occupied(_) => {}
            }
        }
        if news {
            self.revision = revision;
            self.forget(remembered);
        }
        news
    }

    /// Forgets the oldest ends, and with them what it was like before.
    fn forget(&mut self, remembered: usize) {
        if self.gone.len() <= remembered {
            return;
        }
        let mut ends: Vec<u64> = self.gone.values().copied().collect();
        ends.sort_unstable();
        // The youngest end that is too many, and with it all that ended in the same change.
        self.floor = ends[ends.len() - remembered - 1];
        self.gone.retain(|_, revision| *revision > self.floor);
    }

    /// What has happened after a revision that is remembered, or everything.
    pub(super) fn since(&self, told: Option<u64>) -> Change {
        let after = |revision: &u64| told.is_none_or(|told| *revision > told);
        let changed = self.objects.values().filter(|(_, revision)| after(revision));
        let gone = self.gone.iter().filter(|(_, revision)| told.is_some() && after(revision));
        Change {
            changed: changed.map(|(told, _)| told.clone()).collect(),
            gone: gone.map(|(key, _)| key.clone()).collect(),
        }
    }
}

/// What the fields of an update need beside its objects, and an object beside its own bytes.
const OVERHEAD: usize = 64;
const EACH: usize = 16;

/// One change as updates of about `most` bytes at most; the last is the complete one. There is always one.
pub(super) fn split(source: u64, revision: u64, whole: bool, change: Change, most: usize) -> Vec<Update> {
    let empty = || Update { source, revision, whole, complete: false, changed: Vec::new(), gone: Vec::new() };
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (empty(), OVERHEAD);
    let mut room = |part: &mut Update, parts: &mut Vec<Update>, more: usize| {
        if bytes > OVERHEAD && bytes + more > most {
            parts.push(std::mem::replace(part, empty()));
            bytes = OVERHEAD;
        }
        bytes += more;
    };
    for told in change.changed {
        let object = told.object();
        room(&mut part, &mut parts, object.encoded_len() + EACH);
        part.changed.push(object);
    }
    for key in change.gone {
        room(&mut part, &mut parts, key.encoded_len() + EACH);
        part.gone.push(key);
    }
    part.complete = true;
    parts.push(part);
    parts
}
