//! Divides a limited amount fairly among owners that may be hostile.

use std::collections::HashMap;
use std::hash::Hash;

/// Whether an owner that holds `held` may have this much more, when all owners have used `used` of `max`: together at most as
/// much as is then unused.
pub(crate) const fn has_room(held: usize, amount: usize, used: usize, max: usize) -> bool {
    held.saturating_add(amount) <= max.saturating_sub(used)
}

/// A limited amount that several owners share. An owner may have at most as much as is then unused: the first gets half,
/// the next half of the rest, so that few owners do not use it up.
#[derive(Debug)]
pub(crate) struct FairShare<K> {
    max: usize,
    used: usize,
    /// What each owner has; owners that have nothing have no entry.
    by_owner: HashMap<K, usize, foldhash::fast::RandomState>,
}

impl<K: Eq + Hash + Clone> FairShare<K> {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, used: 0, by_owner: HashMap::default() }
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn held_by(&self, owner: &K) -> usize {
        self.by_owner.get(owner).copied().unwrap_or(0)
    }

    /// Whether an owner may have this much more.
    pub(crate) fn has_room(&self, owner: &K, amount: usize) -> bool {
        has_room(self.held_by(owner), amount, self.used, self.max)
    }

    /// Takes an amount, also beyond the owner's share.
    pub(crate) fn take(&mut self, owner: &K, amount: usize) {
        if amount > 0 {
            self.used += amount;
            *self.by_owner.entry(owner.clone()).or_default() += amount;
        }
    }

    pub(crate) fn give_back(&mut self, owner: &K, amount: usize) {
        self.used = self.used.saturating_sub(amount);
        if let Some(held) = self.by_owner.get_mut(owner) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.by_owner.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_may_have_what_is_unused() {
        let mut shared = FairShare::new(64);
        for (owner, expected) in
            [("a", 32), ("b", 16), ("c", 8), ("d", 4), ("e", 2), ("f", 1), ("g", 1), ("h", 0)]
        {
            while shared.has_room(&owner, 1) {
                shared.take(&owner, 1);
            }
            assert_eq!(shared.held_by(&owner), expected, "{owner}");
        }
        shared.give_back(&"a", 32);
        assert!(shared.has_room(&"h", 32) && !shared.has_room(&"h", 33));
        assert!(shared.has_room(&"b", 16) && !shared.has_room(&"b", 17));
        for (owner, amount) in [("b", 16), ("c", 8), ("d", 4), ("e", 2), ("f", 1), ("g", 1)] {
            shared.give_back(&owner, amount);
        }
        assert_eq!((shared.used(), shared.by_owner.len()), (0, 0));
    }
}
