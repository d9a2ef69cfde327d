//! A set of numbers stored as ranges.

use std::collections::BTreeMap;

/// Ranges that neither overlap nor touch: first to last, both included.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| *last >= number)
    }

    /// The number of ranges.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, mut first: u64, mut last: u64) {
        // Merges overlapping and adjacent ranges.
        while let Some((&start, &end)) = self.0.range(..=last.saturating_add(1)).next_back()
            && end.saturating_add(1) >= first
        {
            self.0.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.0.insert(first, last);
    }

    pub(super) fn remove(&mut self, number: u64) {
        let holds = self.0.range(..=number).next_back().map(|(first, last)| (*first, *last));
        let Some((first, last)) = holds.filter(|(_, last)| *last >= number) else { return };
        self.0.remove(&first);
        if first < number {
            self.0.insert(first, number - 1);
        }
        if number < last {
            self.0.insert(number + 1, last);
        }
    }

    /// Includes the numbers between the lowest ranges, until there are at most `max` ranges.
    pub(super) fn merge_lowest(&mut self, max: usize) {
        while self.0.len() > max
            && let (Some((first, _)), Some((_, last))) = (self.0.pop_first(), self.0.pop_first())
        {
            self.0.insert(first, last);
        }
    }

    pub(super) fn remove_below(&mut self, number: u64) {
        while let Some(range) = self.0.first_entry()
            && *range.key() < number
        {
            let last = range.remove();
            if last >= number {
                self.0.insert(number, last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_behave_as_a_set(changes in proptest::collection::vec((0..6u8, 0..60u64, 0..6u64), 0..60)) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (change, number, more) in changes {
                match change {
                    0 => {
                        ranges.remove_below(number);
                        set.retain(|known| *known >= number);
                    }
                    1 => {
                        ranges.remove(number);
                        set.remove(&number);
                    }
                    _ => {
                        ranges.insert(number, number + more);
                        set.extend(number..=number + more);
                    }
                }
                for number in 0..70 {
                    prop_assert_eq!(ranges.contains(number), set.contains(&number), "{}", number);
                }
                let runs = set.iter().filter(|number| **number == 0 || !set.contains(&(**number - 1))).count();
                prop_assert_eq!(ranges.len(), runs);
            }
        }
    }

    #[test]
    fn supports_the_maximum_number() {
        let mut ranges = Ranges::default();
        ranges.insert(u64::MAX, u64::MAX);
        ranges.insert(u64::MAX - 1, u64::MAX - 1);
        ranges.remove_below(u64::MAX);
        assert!(ranges.contains(u64::MAX) && !ranges.contains(u64::MAX - 1) && ranges.len() == 1);
        ranges.remove(u64::MAX);
        assert!(ranges.len() == 0);
    }

    #[test]
    fn the_lowest_ranges_are_merged() {
        let mut ranges = Ranges::default();
        [2, 4, 7, 9].into_iter().for_each(|number| ranges.insert(number, number));
        ranges.merge_lowest(4);
        assert_eq!(ranges.len(), 4);
        ranges.merge_lowest(2);
        let found = (0..12).filter(|number| ranges.contains(*number));
        assert!(ranges.len() == 2 && found.eq([2, 3, 4, 5, 6, 7, 9]));
    }
}
