//! What a process has of memory over a run, in tenths of it.

use std::time::Duration;

/// Into how many parts a run is cut.
pub const PARTS: usize = 10;

/// The memory of one process during a whole run.
#[derive(Debug, Clone)]
pub struct Course {
    length: Duration,
    /// What it had in each part, in KiB.
    seen: [Vec<u64>; PARTS],
}

impl Course {
    /// One over a run of this length.
    #[must_use]
    pub const fn over(length: Duration) -> Self {
        Self { length, seen: [const { Vec::new() }; PARTS] }
    }

    /// Adds a sample, taken this long after the start. Samples after the run belong to its last part.
    pub fn note(&mut self, after: Duration, kib: u64) {
        let part = PARTS as f64 * after.as_secs_f64() / self.length.as_secs_f64();
        self.seen[(part as usize).min(PARTS - 1)].push(kib);
    }

    /// The memory at the start of each part, in KiB; `None` for a part without a sample.
    #[must_use]
    pub fn starts(&self) -> [Option<u64>; PARTS] {
        std::array::from_fn(|part| self.seen[part].first().copied())
    }

    /// By how much more it had in the last part than in the first of the second half, in KiB: between the middle ones of what
    /// it had in each, so that one open call more or less makes no difference. `None` if one of them has no sample.
    #[must_use]
    pub fn growth(&self) -> Option<u64> {
        let [from, to] = [PARTS / 2, PARTS - 1].map(|part| middle(&self.seen[part]));
        Some(to?.saturating_sub(from?))
    }
}

fn middle(seen: &[u64]) -> Option<u64> {
    let mut sorted = seen.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(100);

    fn course(kib_at: impl Fn(u64) -> u64) -> Course {
        let mut course = Course::over(LENGTH);
        (0..=LENGTH.as_secs()).for_each(|second| course.note(Duration::from_secs(second), kib_at(second)));
        course
    }

    #[test]
    fn growth_counts_in_the_second_half_alone() {
        assert_eq!(course(|second| 100 + second.min(50)).growth(), Some(0));
        assert_eq!(course(|second| 100 + second).growth(), Some(40));
        assert_eq!(course(|second| 500 - second).growth(), Some(0), "shrinking is not growth");
    }

    #[test]
    fn one_high_sample_is_not_growth() {
        assert_eq!(course(|second| if second % 7 == 6 { 9000 } else { 100 }).growth(), Some(0));
    }

    #[test]
    fn reports_parts_without_samples() {
        let mut course = Course::over(LENGTH);
        course.note(Duration::from_secs(15), 7);
        assert_eq!(course.growth(), None);
        assert_eq!(course.starts()[..3], [None, Some(7), None]);
    }
}
