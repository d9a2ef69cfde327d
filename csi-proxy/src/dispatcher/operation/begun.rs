//! The calls that have begun, by id: a bus may deliver a copy of a call at any time, and only few calls have a number.

use std::collections::VecDeque;
use std::time::Instant;

use super::limits::REPLAYED_FOR;
use crate::call::{CallId, HashMap};

/// The maximum number of ended calls that are remembered per driver, about 1.5 MiB: 273 calls a second. Above this rate
/// the call that ended first is forgotten first. A call with a number is still refused by its fence.
const MAX_ENDED: usize = 16 * 1024;

/// The ids of calls that have begun, from their begin to [`REPLAYED_FOR`] after their end. Operations are entered when
/// they end: while one runs, a copy of its calls joins it.
///
/// Holds ids and times only, never a part of a request or an answer.
#[derive(Debug, Default)]
pub(super) struct BegunCalls {
    /// When each call is forgotten; `None` while it runs.
    calls: HashMap<CallId, Option<Instant>>,
    /// The ended calls in the order of their ends. A call that ended again has an outdated entry too.
    ended: VecDeque<(Instant, CallId)>,
}

impl BegunCalls {
    pub(super) fn contains(&self, call: &CallId) -> bool {
        !self.calls.is_empty() && self.calls.contains_key(call)
    }

    /// Marks a call as running. Returns whether it had not begun before.
    pub(super) fn begin(&mut self, call: CallId) -> bool {
        let begins = !self.contains(&call);
        if begins {
            self.calls.insert(call, None);
        }
        begins
    }

    /// Marks a call as ended now, whether or not it was marked as running.
    pub(super) fn end(&mut self, now: Instant, call: CallId) {
        let until = now + REPLAYED_FOR;
        self.calls.insert(call, Some(until));
        self.ended.push_back((until, call));
        if self.ended.len() > MAX_ENDED {
            self.forget_first();
        }
    }

    /// Unmarks a running call that has provably not reached the driver.
    pub(super) fn retract(&mut self, call: &CallId) {
        self.calls.remove(call);
    }

    pub(super) fn evict_expired(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((until, call)) = self.ended.pop_front()
            && self.calls.get(&call) == Some(&Some(until))
        {
            self.calls.remove(&call);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(call: usize) -> CallId {
        CallId::from_bytes((call as u128).to_be_bytes())
    }

    #[test]
    fn a_call_is_remembered_for_60_s_after_its_last_end() {
        let (mut begun, start) = (BegunCalls::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(begun.begin(id(1)) && !begun.begin(id(1)));
        begun.evict_expired(at(3600));
        assert!(begun.contains(&id(1)), "it runs");
        begun.end(at(3600), id(1));
        begun.end(at(3630), id(1));
        begun.evict_expired(at(3689));
        assert!(begun.contains(&id(1)));
        begun.evict_expired(at(3690));
        assert!(begun.begin(id(1)));
        begun.retract(&id(1));
        assert!(begun.calls.is_empty() && begun.ended.is_empty());
    }

    #[test]
    fn the_number_of_remembered_calls_is_bounded() {
        let (mut begun, now) = (BegunCalls::default(), Instant::now());
        (0..=MAX_ENDED).for_each(|call| begun.end(now, id(call)));
        assert_eq!((begun.calls.len(), begun.ended.len()), (MAX_ENDED, MAX_ENDED));
        assert!(!begun.contains(&id(0)) && begun.contains(&id(1)) && begun.contains(&id(MAX_ENDED)));
    }
}
