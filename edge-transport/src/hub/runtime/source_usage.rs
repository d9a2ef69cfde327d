//! How many of a limited number of places each source uses.

use std::collections::HashMap;

use crate::link::Source;

/// The part of the places that one source may use while they are scarce: an eighth, at least one. Several sources are then
/// needed to use all, and a carrier's address translator with many peers behind it still has 32 of 256.
const SHARE: usize = 8;

/// The places that are in use, by source.
#[derive(Debug)]
pub(super) struct SourceUsage {
    max: usize,
    total: usize,
    by_source: HashMap<Source, usize>,
}

impl SourceUsage {
    pub(super) fn new(max: usize) -> Self {
        Self { max, total: 0, by_source: HashMap::new() }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.total >= self.max
    }

    /// Whether a source may use one more place. Places are scarce once half of them are in use.
    pub(super) fn has_room(&self, source: Source) -> bool {
        let is_scarce = self.total >= self.max.div_ceil(2);
        let share = (self.max / SHARE).max(1);
        !self.is_full() && (!is_scarce || source == Source::Unknown || self.of(source) < share)
    }

    /// The number of places that a source uses.
    pub(super) fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    /// The largest number of places that any source uses.
    pub(super) fn most(&self) -> usize {
        self.by_source.values().copied().max().unwrap_or(0)
    }

    pub(super) fn add(&mut self, source: Source) {
        self.total += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    pub(super) fn remove(&mut self, source: Source) {
        self.total = self.total.saturating_sub(1);
        if let Some(used) = self.by_source.get_mut(&source) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                self.by_source.remove(&source);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.total == 0 && self.by_source.is_empty()
    }
}
