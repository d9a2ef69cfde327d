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
    Again,
}

/// The list of a kind.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Whether there was a whole list.
    complete: bool,
    /// The keys that the list under way has shown.
    under_way: Option<BTreeSet<ObjectKey>>,
}

impl Listing {
    /// A list begins; one that was under way counts no more.
    pub(super) fn begin(&mut self) {
        self.under_way = Some(BTreeSet::new());
    }

    /// An object is there.
    pub(super) fn saw(&mut self, key: &ObjectKey) {
        if let Some(seen) = &mut self.under_way {
            seen.insert(key.clone());
        }
    }

    /// An object is no more.
    pub(super) fn lost(&mut self, key: &ObjectKey) {
        if let Some(seen) = &mut self.under_way {
            seen.remove(key);
        }
    }

    /// The list under way was whole; what it has shown. `None` if none is under way.
    pub(super) fn end(&mut self) -> Option<BTreeSet<ObjectKey>> {
        let seen = self.under_way.take()?;
        self.complete = true;
        Some(seen)
    }

    /// To be shown.
    pub(super) const fn phase(&self) -> Phase {
        match (self.complete, &self.under_way) {
            (false, _) => Phase::Unlisted,
            (true, None) => Phase::Current,
            (true, Some(_)) => Phase::Again,
        }
    }
}
