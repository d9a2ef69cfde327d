//! The part of a call that prevents a stale copy of it from beginning.
//!
//! Each start of a proxy has a [`Term`] for its driver, and each of its calls a [`CallNumber`] for its driver and
//! node. Every copy of a call carries both, and the state of the proxy when it sent that copy: the lowest open number,
//! and the numbers above it that were given up. The node begins no call of an older term, none below the lowest open
//! number, and none that was given up.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The maximum number of ranges in a [`GivenUp`].
pub const MAX_GIVEN_UP: usize = 1024;

/// The numbers are not a valid fence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFence {
    /// A term or a number is 0 or missing.
    #[error("invalid fence: {what} is 0; expected 1 or more")]
    Zero {
        /// The field.
        what: &'static str,
    },
    /// A term is above [`Term::MAX`].
    #[error("invalid fence: {what} is {found}; expected at most {}", Term::MAX)]
    TermTooHigh {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// The call itself is closed.
    #[error("invalid fence: call {number} is below the lowest open number {lowest_open}, or was given up")]
    Closed {
        /// The call's number.
        number: CallNumber,
        /// The lowest open number.
        lowest_open: CallNumber,
    },
    /// There are more ranges than [`MAX_GIVEN_UP`].
    #[error("invalid fence: {found} ranges of given-up calls; expected at most {MAX_GIVEN_UP}")]
    TooMany {
        /// The number of ranges.
        found: usize,
    },
    /// The ranges are not in order, overlap, or do not lie above the lowest open number.
    #[error(
        "invalid fence: the ranges of given-up calls are not ascending and disjoint above the lowest open number"
    )]
    Unordered,
}

/// The number of a proxy's start for a driver, from 1 to [`Self::MAX`]. Of two proxies of one driver the one with the
/// higher term is valid.
///
/// A term follows the clock or the previous term ([`next_term`](crate::next_term)). A node accepts every term up to
/// [`Self::CLOCK_MAX`], and a higher one only if it is at most 1024 above the recorded term. So no caller can exhaust
/// the terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(NonZeroU64);

/// The number of a call at its proxy, for its driver and node, from 1 in each term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNumber(NonZeroU64);

macro_rules! number {
    ($name:ident, $max:expr) => {
        impl $name {
            /// The lowest value: 1.
            pub const FIRST: Self = Self(NonZeroU64::MIN);

            /// The highest value.
            pub const MAX: Self = Self(NonZeroU64::new($max).expect("not zero"));

            /// Converts a number; `None` for 0 and for numbers above [`Self::MAX`].
            #[must_use]
            pub const fn new(number: u64) -> Option<Self> {
                match NonZeroU64::new(number) {
                    Some(number) if number.get() <= Self::MAX.get() => Some(Self(number)),
                    _ => None,
                }
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0.get()
            }

            /// The next number; saturates at the maximum.
            #[must_use]
            pub const fn next(self) -> Self {
                if self.0.get() < Self::MAX.get() { Self(self.0.saturating_add(1)) } else { Self::MAX }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(Term, 1 << 48);
number!(CallNumber, u64::MAX);

/// How far a term above [`Term::CLOCK_MAX`] may be above the recorded one.
#[cfg(feature = "runtime")]
const MAX_TERM_STEP: u64 = 1024;

impl Term {
    /// The highest term that follows the clock, in milliseconds since 1970: a time in the year 2109.
    pub const CLOCK_MAX: Self = Self(NonZeroU64::new(1 << 42).expect("not zero"));
}

#[cfg(feature = "runtime")]
impl Term {
    /// Whether a node with this recorded term accepts the term. Above the clock the steps are so small that not even
    /// one rise a second reaches [`Self::MAX`] within a thousand years.
    pub(crate) fn may_follow(self, recorded: Option<Self>) -> bool {
        let base = recorded.map_or(Self::CLOCK_MAX, |recorded| recorded.max(Self::CLOCK_MAX));
        self.get() <= base.get() + MAX_TERM_STEP
    }

    /// A term above `above` and this one, unless none is left. Two proxies that started at different times get
    /// different terms, with few exceptions.
    pub(crate) fn raised_above(self, above: Self) -> Option<Self> {
        let spread = self.get() % (MAX_TERM_STEP / 2);
        Self::new(above.max(self).get() + 1 + spread)
    }
}

/// The numbers of calls that ended at the proxy without an answer of the driver: sorted, disjoint ranges, at most
/// [`MAX_GIVEN_UP`]. Cheap to clone.
///
/// A range may include numbers that were closed otherwise, since no closed number begins again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenUp(Arc<[(CallNumber, CallNumber)]>);

impl GivenUp {
    /// Creates the set from ranges of numbers, both ends included.
    ///
    /// # Errors
    /// If there are more than [`MAX_GIVEN_UP`] ranges, or the ranges are not ascending and disjoint.
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<CallNumber>>) -> Result<Self, InvalidFence> {
        let ranges: Vec<_> = ranges.into_iter().map(RangeInclusive::into_inner).collect();
        if ranges.len() > MAX_GIVEN_UP {
            return Err(InvalidFence::TooMany { found: ranges.len() });
        }
        let ends = ranges.iter().flat_map(|(first, last)| [first, last]);
        let ordered = ends.is_sorted() && ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0);
        if ordered { Ok(Self(ranges.into())) } else { Err(InvalidFence::Unordered) }
    }

    /// Whether the ranges contain this number.
    #[must_use]
    pub fn contains(&self, number: CallNumber) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < number);
        self.0.get(at).is_some_and(|(first, _)| *first <= number)
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = RangeInclusive<CallNumber>> + '_ {
        self.0.iter().map(|(first, last)| *first..=*last)
    }
}

/// The term and number of a call, and which other calls of its proxy for the same driver and node are closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    term: Term,
    number: CallNumber,
    lowest_open: CallNumber,
    given_up: GivenUp,
}

impl Fence {
    /// The fence of an open call.
    ///
    /// # Errors
    /// If `number` is below `lowest_open` or given up, or a given-up range does not lie above `lowest_open`.
    pub fn new(
        term: Term,
        number: CallNumber,
        lowest_open: CallNumber,
        given_up: GivenUp,
    ) -> Result<Self, InvalidFence> {
        if number < lowest_open || given_up.contains(number) {
            return Err(InvalidFence::Closed { number, lowest_open });
        }
        if given_up.0.first().is_some_and(|(first, _)| *first <= lowest_open) {
            return Err(InvalidFence::Unordered);
        }
        Ok(Self { term, number, lowest_open, given_up })
    }

    /// The term of the proxy that sends the call.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// The call's number.
    #[must_use]
    pub const fn number(&self) -> CallNumber {
        self.number
    }

    /// The lowest number that is open at the proxy: all lower numbers are closed.
    #[must_use]
    pub const fn lowest_open(&self) -> CallNumber {
        self.lowest_open
    }

    /// The numbers above [`Self::lowest_open`] that were given up.
    #[must_use]
    pub const fn given_up(&self) -> &GivenUp {
        &self.given_up
    }
}

/// The session of a node that a call is addressed to: the instance of the agent, and the session number.
///
/// Used by the underlying relay; not encoded in the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "two numbers of the transport, nothing to add")]
pub struct NodeSession {
    /// The random id of one run of the node's agent.
    pub instance: u64,
    /// The session number, which increases with every session of the instance.
    pub number: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use super::*;

    fn n(number: u64) -> CallNumber {
        CallNumber::new(number).unwrap()
    }

    fn given_up(ranges: &[(u64, u64)]) -> Result<GivenUp, InvalidFence> {
        GivenUp::new(ranges.iter().map(|(first, last)| n(*first)..=n(*last)))
    }

    #[test]
    fn numbers_start_at_1_and_saturate() {
        assert_eq!((CallNumber::new(0), CallNumber::new(1)), (None, Some(CallNumber::FIRST)));
        assert_eq!((Term::FIRST.next().get(), CallNumber::MAX.next()), (2, CallNumber::MAX));
        assert_eq!((Term::new(u64::MAX), Term::new(Term::MAX.get() + 1)), (None, None));
        assert_eq!(Term::MAX.next(), Term::MAX);
    }

    /// One call of a hostile caller cannot use up the terms of a driver.
    #[test]
    fn term_follows_the_clock_or_the_recorded_term() {
        let clock = Term::CLOCK_MAX.get();
        let follows = |term, recorded: Option<u64>| {
            let recorded = recorded.map(|recorded| Term::new(recorded).unwrap());
            Term::new(term).unwrap().may_follow(recorded)
        };
        assert!(follows(clock, None) && follows(clock, Some(1)) && follows(clock + 1024, Some(7)));
        assert!(!follows(clock + 1025, None) && !follows(clock + 1025, Some(7)));
        assert!(follows(clock + 2048, Some(clock + 1024)) && !follows(clock + 2049, Some(clock + 1024)));
        assert!(!follows(Term::MAX.get(), Some(clock)));
        assert!(follows(Term::MAX.get(), Some(Term::MAX.get())));
        let seconds = (Term::MAX.get() - clock) / MAX_TERM_STEP;
        assert!(seconds / (365 * 24 * 60 * 60) > 1000, "{seconds} rises, at most one a second");
    }

    #[test]
    fn raised_term_is_accepted_by_the_node_that_refused() {
        for (first, above) in [(7, 9), (1_700_000_000_511, Term::CLOCK_MAX.get() + 5), (9, 9), (9, 3)] {
            let (first, above) = (Term::new(first).unwrap(), Term::new(above).unwrap());
            let raised = first.raised_above(above).unwrap();
            assert!(raised > first && raised > above && raised.may_follow(Some(above)));
        }
        assert_eq!(Term::FIRST.raised_above(Term::MAX), None);
    }

    #[test]
    fn given_up_ranges_are_ordered_disjoint_and_bounded() {
        for valid in [&[][..], &[(2, 2)], &[(2, 3), (4, 4), (6, 9)]] {
            assert!(given_up(valid).is_ok(), "{valid:?}");
        }
        for bad in [&[(3, 2)][..], &[(4, 5), (2, 3)], &[(2, 4), (4, 5)], &[(2, 9), (4, 5)], &[(2, 2), (2, 2)]]
        {
            assert_eq!(given_up(bad), Err(InvalidFence::Unordered), "{bad:?}");
        }
        let many = |count: u64| given_up(&(1..=count).map(|at| (2 * at, 2 * at)).collect::<Vec<_>>());
        assert!(many(1024).is_ok());
        assert_eq!(many(1025), Err(InvalidFence::TooMany { found: 1025 }));
    }

    #[test]
    fn ranges_include_both_ends() {
        let ranges = given_up(&[(2, 3), (6, 8)]).unwrap();
        let found: Vec<_> = (1..10).filter(|number| ranges.contains(n(*number))).collect();
        assert_eq!(found, [2, 3, 6, 7, 8]);
    }

    #[test]
    fn rejects_fence_of_a_closed_call() {
        let fence = |number, lowest, ranges: &[(u64, u64)]| {
            Fence::new(Term::FIRST, n(number), n(lowest), given_up(ranges).unwrap())
        };
        assert!(fence(5, 3, &[(4, 4), (6, 7)]).is_ok());
        assert!(fence(3, 3, &[]).is_ok());
        let closed = |number| Err(InvalidFence::Closed { number: n(number), lowest_open: n(3) });
        assert_eq!(fence(2, 3, &[]), closed(2));
        assert_eq!(fence(5, 3, &[(4, 5)]), closed(5));
        assert_eq!(fence(5, 3, &[(3, 4)]), Err(InvalidFence::Unordered));
    }
}
