//! The random numbers of a run. The seed alone decides all of them.

use std::time::Duration;

/// A sequence of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns another sequence. Draws from it do not change the numbers of this one.
    pub(crate) const fn fork(&mut self) -> Self {
        Self(self.number())
    }

    pub(crate) const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        let number = self.number();
        if bound == 0 { 0 } else { (number % bound as u64) as usize }
    }

    /// Returns true with this probability in thousandths.
    pub(crate) const fn happens(&mut self, thousandths: u64) -> bool {
        self.number() % 1000 < thousandths
    }

    /// Returns a time from `low` to `high`.
    pub(crate) fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).as_micros() as u64;
        low + Duration::from_micros(self.number() % (span + 1))
    }

    /// Returns a time from `low` to `high` milliseconds.
    pub(crate) fn millis(&mut self, low: u64, high: u64) -> Duration {
        self.time(Duration::from_millis(low), Duration::from_millis(high))
    }
}
