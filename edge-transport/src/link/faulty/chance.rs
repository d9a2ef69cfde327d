//! Chance that can be repeated.

use crate::chance;

/// A sequence of numbers that its seed alone decides.
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence, decided by this one's seed.
    pub(super) fn fork(&self) -> Self {
        let mut own = self.clone();
        Self(own.number())
    }

    fn number(&mut self) -> u64 {
        chance::next(&mut self.0)
    }

    /// A number below `bound`, which must not be zero.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.number() % bound).unwrap_or(0)
    }

    /// True in so many of a thousand cases.
    pub(super) fn happens(&mut self, thousandths: u16) -> bool {
        thousandths > 0 && self.number() % 1000 < u64::from(thousandths)
    }
}
