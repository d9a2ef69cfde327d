//! Which numbers of calls were used on a link.

use std::collections::BTreeSet;

/// Numbers that are remembered one by one. Requests on lanes of their own may overtake each other by as many.
const MAX_ABOVE: usize = 4096;

/// The used numbers of one link: those that a request has opened, and those that a cancel has named before their request.
///
/// Numbers rise by one from request to request, so that most of the time all of them are one range.
#[derive(Debug, Default)]
pub(crate) struct UsedNumbers {
    /// Every number up to this one counts as used.
    up_to: u64,
    /// Used numbers above it.
    above: BTreeSet<u64>,
}

impl UsedNumbers {
    /// Uses a number. Whether it was not used before; one that came [`MAX_ABOVE`] numbers too late counts as used.
    pub(crate) fn take(&mut self, number: u64) -> bool {
        if number <= self.up_to || !self.above.insert(number) {
            return false;
        }
        if self.above.len() > MAX_ABOVE
            && let Some(lowest) = self.above.pop_first()
        {
            self.up_to = lowest;
        }
        while self.above.remove(&self.up_to.saturating_add(1)) {
            self.up_to += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_once_in_any_order() {
        let mut used = UsedNumbers::default();
        for number in [3, 1, 2, 7, 5, u64::MAX] {
            assert!(used.take(number), "{number}");
            assert!(!used.take(number), "{number} again");
        }
        assert_eq!((used.up_to, used.above.len()), (3, 3));
    }

    #[test]
    fn memory_is_bounded_and_a_gap_is_given_up_in_the_end() {
        let mut used = UsedNumbers::default();
        for number in 2..=MAX_ABOVE as u64 + 1 {
            assert!(used.take(number));
        }
        assert_eq!(used.above.len(), MAX_ABOVE, "1 may still come");
        assert!(used.take(MAX_ABOVE as u64 + 2));
        assert_eq!((used.up_to, used.above.len()), (MAX_ABOVE as u64 + 2, 0));
        assert!(!used.take(1), "too late");
        for number in 0..3 * MAX_ABOVE as u64 {
            used.take(MAX_ABOVE as u64 + 10 + 2 * number);
        }
        assert_eq!(used.above.len(), MAX_ABOVE);
    }
}
