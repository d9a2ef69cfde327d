//! The progress of the lists of a kind, and how new its objects are.
//!
//! A `resourceVersion` is compared as a number, within one kind. One that is not a number counts as 0, which is older than all.

use std::collections::BTreeSet;

use edge_csi_common::kubernetes::message::ObjectKey;

/// The progress of the lists of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Phase {
    /// No list has been completed.
    Unlisted,
    /// The last list is complete, and changes follow.
    Current,
    /// A list has been completed, and another one is in progress.
    Relisting,
}

/// The state of the lists of a kind.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The number of lists that have begun.
    begun: u64,
    /// The number of the last complete list; 0 if none is.
    complete: u64,
    in_progress: Option<InProgress>,
    /// The highest `resourceVersion` of an object or a deletion.
    changed: u64,
    /// The objects are at least as new as this `resourceVersion`.
    reached: u64,
    /// The `resourceVersion` of the API server before the next list.
    server: u64,
}

/// A list in progress. What it shows counts at its end: until then, deletions are missing.
#[derive(Debug)]
struct InProgress {
    keys: BTreeSet<ObjectKey>,
    changed: u64,
    server: u64,
}

/// What a node needs of a kind before it gets a set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    /// Objects at least as new as this `resourceVersion`,
    version: u64,
    /// or a list after this one: it began when the node had asked.
    after_list: u64,
}

impl Listing {
    /// Starts a list; an unfinished one is discarded.
    pub(super) fn begin(&mut self) {
        self.begun += 1;
        self.in_progress = Some(InProgress { keys: BTreeSet::new(), changed: 0, server: self.server });
    }

    /// Records an object.
    pub(super) fn seen(&mut self, key: &ObjectKey) {
        if let Some(list) = &mut self.in_progress {
            list.keys.insert(key.clone());
        }
    }

    /// Records a deletion.
    pub(super) fn removed(&mut self, key: &ObjectKey) {
        if let Some(list) = &mut self.in_progress {
            list.keys.remove(key);
        }
    }

    /// Records the `resourceVersion` of the object or deletion that was recorded last.
    pub(super) fn changed(&mut self, version: u64) {
        match &mut self.in_progress {
            Some(list) => list.changed = list.changed.max(version),
            None => self.advance(version, version),
        }
    }

    /// Records the `resourceVersion` of the API server: lists that start later are at least as new.
    pub(super) const fn server_at(&mut self, version: u64) {
        self.server = version;
    }

    /// Ends the list in progress and returns its keys. `None` if no list is in progress.
    pub(super) fn end(&mut self) -> Option<BTreeSet<ObjectKey>> {
        let list = self.in_progress.take()?;
        self.complete = self.begun;
        self.advance(list.changed, list.changed.max(list.server));
        Some(list.keys)
    }

    fn advance(&mut self, changed: u64, reached: u64) {
        self.changed = self.changed.max(changed);
        self.reached = self.reached.max(reached);
    }

    /// Returns the progress.
    pub(super) const fn phase(&self) -> Phase {
        match (self.complete, &self.in_progress) {
            (0, _) => Phase::Unlisted,
            (_, None) => Phase::Current,
            (_, Some(_)) => Phase::Relisting,
        }
    }

    /// The highest `resourceVersion` in the objects; 0 if none has a number.
    pub(super) const fn version(&self) -> u64 {
        self.changed
    }

    /// What a node with objects of this version needs, if it asks now.
    pub(super) const fn needed(&self, version: u64) -> Needed {
        Needed { version, after_list: self.begun }
    }

    /// Whether the objects are as new as needed. A list that began after the request always is: the API server answers it with
    /// its latest state.
    pub(super) const fn satisfies(&self, needed: Needed) -> bool {
        self.reached >= needed.version || self.complete > needed.after_list
    }

    /// Whether a list is in progress that will be as new as needed.
    pub(super) const fn will_satisfy(&self, needed: Needed) -> bool {
        self.in_progress.is_some() && self.begun > needed.after_list
    }
}
