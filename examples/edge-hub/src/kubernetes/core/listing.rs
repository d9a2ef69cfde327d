//! The progress of the lists of a kind.

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
    /// Whether a list has been completed.
    complete: bool,
    /// The keys seen by the list in progress.
    in_progress: Option<BTreeSet<ObjectKey>>,
}

impl Listing {
    /// Starts a list; an unfinished one is discarded.
    pub(super) fn begin(&mut self) {
        self.in_progress = Some(BTreeSet::new());
    }

    /// Records an object.
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

    /// Returns the progress.
    pub(super) const fn phase(&self) -> Phase {
        match (self.complete, &self.in_progress) {
            (false, _) => Phase::Unlisted,
            (true, None) => Phase::Current,
            (true, Some(_)) => Phase::Relisting,
        }
    }
}
