//! The memory of a process over the ten parts of a run.

use std::time::Duration;

/// The number of equal parts of a run.
pub const PARTS: usize = 10;

/// Samples of one process's memory during a run.
#[derive(Debug, Clone)]
pub struct MemorySamples {
    length: Duration,
    /// The samples of each part, in KiB.
    seen: [Vec<u64>; PARTS],
}

impl MemorySamples {
    /// Creates an empty set of samples, for a run of this length.
    #[must_use]
    pub const fn over(length: Duration) -> Self {
        Self { length, seen: [const { Vec::new() }; PARTS] }
    }

    /// Adds a sample, taken this long after the start. Samples after the run belong to its last part.
    pub fn note(&mut self, after: Duration, kib: u64) {
        let part = PARTS as f64 * after.as_secs_f64() / self.length.as_secs_f64();
        self.seen[(part as usize).min(PARTS - 1)].push(kib);
    }

    /// Returns the first sample of each part, in KiB; `None` for a part without a sample.
    #[must_use]
    pub fn starts(&self) -> [Option<u64>; PARTS] {
        std::array::from_fn(|part| self.seen[part].first().copied())
    }

    /// Returns by how much the median of the last part exceeds the median of the sixth part, in KiB, and 0 if it does
    /// not. Medians ignore the memory of a single open call. `None` if one of the two parts has no sample.
    #[must_use]
    pub fn growth(&self) -> Option<u64> {
        let [from, to] = [PARTS / 2, PARTS - 1].map(|part| median(&self.seen[part]));
        Some(to?.saturating_sub(from?))
    }
}

fn median(seen: &[u64]) -> Option<u64> {
    let mut sorted = seen.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(100);

    fn samples_of(kib_at: impl Fn(u64) -> u64) -> MemorySamples {
        let mut samples = MemorySamples::over(LENGTH);
        (0..=LENGTH.as_secs()).for_each(|second| samples.note(Duration::from_secs(second), kib_at(second)));
        samples
    }

    #[test]
    fn only_the_second_half_counts_as_growth() {
        assert_eq!(samples_of(|second| 100 + second.min(50)).growth(), Some(0));
        assert_eq!(samples_of(|second| 100 + second).growth(), Some(40));
        assert_eq!(samples_of(|second| 500 - second).growth(), Some(0), "shrinking is not growth");
    }

    #[test]
    fn one_high_sample_is_not_growth() {
        assert_eq!(samples_of(|second| if second % 7 == 6 { 9000 } else { 100 }).growth(), Some(0));
    }

    #[test]
    fn reports_parts_without_samples() {
        let mut samples = MemorySamples::over(LENGTH);
        samples.note(Duration::from_secs(15), 7);
        assert_eq!(samples.growth(), None);
        assert_eq!(samples.starts()[..3], [None, Some(7), None]);
    }
}
