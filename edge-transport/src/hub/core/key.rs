//! The names of sessions inside the hub.

use crate::counted::ByCount;

/// A peer's session at this hub. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

impl SessionKey {
    /// The session that is admitted after `admitted` others.
    pub(super) const fn after(admitted: u64) -> Self {
        Self(admitted)
    }
}

/// A map by session.
pub(in crate::hub) type BySession<V> = ByCount<SessionKey, V>;
