//! Chance that can be repeated (SplitMix64).

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
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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
