//! The call numbers that were used on a link.

use std::collections::BTreeMap;

/// Maximum number of runs of used numbers that are stored. Requests on separate lanes may overtake each other and
/// leave gaps between runs.
const MAX_RUNS: usize = 1024;

/// The used numbers of one link: those of received requests, and those of cancels that arrived before their request.
///
/// Numbers increase by one from request to request, so usually all of them form one run.
#[derive(Debug, Default)]
pub(crate) struct UsedNumbers {
    /// The last number of each run, by its first.
    runs: BTreeMap<u64, u64>,
}

impl UsedNumbers {
    /// Marks a number as used. Returns whether it was unused before. With too many gaps, the numbers in the lowest gap count as
    /// used.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let below = self.runs.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if below.is_some_and(|(_, last)| last >= number) {
            return false;
        }
        let joined = below.filter(|(_, last)| *last == number - 1);
        let first = joined.map_or(number, |(first, _)| first);
        let above = number.checked_add(1).and_then(|next| self.runs.remove(&next));
        self.runs.insert(first, above.unwrap_or(number));
        if self.runs.len() > MAX_RUNS
            && let (Some((first, _)), Some((_, last))) = (self.runs.pop_first(), self.runs.pop_first())
        {
            self.runs.insert(first, last);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_each_number_once_in_any_order() {
        let mut used = UsedNumbers::default();
        for number in [5003, 5001, 5002, 0, 7, 5, 6, u64::MAX] {
            assert!(used.insert(number), "{number}");
            assert!(!used.insert(number), "{number} again");
        }
        let runs: Vec<_> = used.runs.into_iter().collect();
        assert_eq!(runs, [(0, 0), (5, 7), (5001, 5003), (u64::MAX, u64::MAX)]);
    }

    #[test]
    fn bounds_memory_by_closing_the_lowest_gap() {
        let mut used = UsedNumbers::default();
        let numbers = (1..=MAX_RUNS as u64).map(|run| 2 * run);
        assert!(numbers.clone().all(|number| used.insert(number)));
        assert!(used.insert(3), "it may still arrive");
        assert!(used.insert(1_000_000) && used.insert(2_000_000));
        assert!(!used.insert(5), "too late");
        assert!(used.insert(7));
        assert!(numbers.into_iter().all(|number| !used.insert(number)));
        assert!((0..5000).all(|number| used.insert(3_000_000 + 2 * number)));
        assert_eq!(used.runs.len(), MAX_RUNS);
    }
}
