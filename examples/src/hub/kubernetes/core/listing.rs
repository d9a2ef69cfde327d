//! How far the list of a kind is.

use std::collections::BTreeSet;
use std::mem;

use crate::kubernetes::message::ObjectKey;

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

/// The list of a kind, with the keys that the list under way has shown.
#[derive(Debug, Default)]
pub(super) enum Listing {
    #[default]
    Never,
    First(BTreeSet<ObjectKey>),
    Complete,
    Again(BTreeSet<ObjectKey>),
}

impl Listing {
    /// A list begins; one that was under way counts no more.
    pub(super) fn begin(&mut self) {
        *self = match self {
            Self::Never | Self::First(_) => Self::First(BTreeSet::new()),
            Self::Complete | Self::Again(_) => Self::Again(BTreeSet::new()),
        };
    }

    /// An object is there.
    pub(super) fn saw(&mut self, key: &ObjectKey) {
        if let Self::First(seen) | Self::Again(seen) = self {
            seen.insert(key.clone());
        }
    }

    /// An object is no more.
    pub(super) fn lost(&mut self, key: &ObjectKey) {
        if let Self::First(seen) | Self::Again(seen) = self {
            seen.remove(key);
        }
    }

    /// The list under way was whole; what it has shown. `None` if none is under way.
    pub(super) fn end(&mut self) -> Option<BTreeSet<ObjectKey>> {
        match self {
            Self::First(seen) | Self::Again(seen) => {
                let seen = mem::take(seen);
                *self = Self::Complete;
                Some(seen)
            }
            Self::Never | Self::Complete => None,
        }
    }

    /// Whether there was a whole list.
    pub(super) const fn is_complete(&self) -> bool {
        matches!(self, Self::Complete | Self::Again(_))
    }

    /// To be shown.
    pub(super) const fn phase(&self) -> Phase {
        match self {
            Self::Never | Self::First(_) => Phase::Unlisted,
            Self::Complete => Phase::Current,
            Self::Again(_) => Phase::Again,
        }
    }
}
