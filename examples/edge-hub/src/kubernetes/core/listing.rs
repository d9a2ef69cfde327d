//! How far the list of a kind is.

use std::collections::BTreeSet;

use edge_csi_common::kubernetes::message::ObjectKey;

/// How far a list is, to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Phase {
    /// It was never whole.
    Unlisted,
    /// It is whole, and changes follow.
    Current,
    /// It was whole, and is being made anew.
    Relisting,
}

/// The list of a kind.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Whether there was a whole list.
    complete: bool,
    /// The keys seen by the list in progress.
    in_progress: Option<BTreeSet<ObjectKey>>,
}

impl Listing {
    /// Starts a list; an unfinished one is discarded.
    pub(super) fn begin(&mut self) {
        self.in_progress = Some(BTreeSet::new());
    }

    /// An object is there.
    pub(super) fn seen(&mut self, key: &ObjectKey) {
        if let Some(seen) = &mut self.in_progress {
            seen.insert(key.clone());
        }
    }

    /// Records a deletion.
    pub(super) fn removed(&mut self, key: &ObjectKey) {
        if let Some(seen) = &mut self.in_progress {
            seen.remove(key);
        }
    }

    /// Ends the list in progress and returns its keys. `None` if no list is in progress.
    pub(super) fn end(&mut self) -> Option<BTreeSet<ObjectKey>> {
        let seen = self.in_progress.take()?;
        self.complete = true;
        Some(seen)
    }

    /// To be shown.
    pub(super) const fn phase(&self) -> Phase {
        match (self.complete, &self.in_progress) {
            (false, _) => Phase::Unlisted,
            (true, None) => Phase::Current,
            (true, Some(_)) => Phase::Relisting,
        }
    }
}
