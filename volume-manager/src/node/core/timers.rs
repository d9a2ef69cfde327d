//! Timers of the volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Slot;
use crate::lifecycle::Call;

/// A timer of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Alarm {
    /// The back-off of a failed call has elapsed.
    Resume(Call),
    /// Published targets are due for a republish, which the driver requires periodically.
    Republish,
    /// A mount whose server can die unnoticed is due for an inspection.
    Inspect,
    /// Repeatedly lost mounts may be mounted again.
    Remount,
    /// An excluded record is due for another commit.
    Record,
}

/// Deadlines, at most one for each volume and alarm, which bounds their number.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(Duration, Slot, Alarm)>,
    deadlines: BTreeMap<(Slot, Alarm), Duration>,
}

impl Timers {
    /// Sets the alarm, replacing an earlier one.
    pub(super) fn set(&mut self, slot: Slot, alarm: Alarm, at: Duration) {
        if let Some(before) = self.deadlines.insert((slot, alarm.clone()), at) {
            self.by_time.remove(&(before, slot, alarm.clone()));
        }
        self.by_time.insert((at, slot, alarm));
    }

    /// Cancels all matching alarms of a volume.
    pub(super) fn clear(&mut self, slot: Slot, fits: impl Fn(&Alarm) -> bool) {
        let of_slot = self.deadlines.range((slot, Alarm::Resume(Call::of_volume(FIRST_RPC)))..);
        let cleared: Vec<_> = of_slot
            .take_while(|((of, _), _)| *of == slot)
            .filter(|((_, alarm), _)| fits(alarm))
            .map(|((_, alarm), at)| (*at, slot, alarm.clone()))
            .collect();
        for due in cleared {
            self.by_time.remove(&due);
            self.deadlines.remove(&(due.1, due.2));
        }
    }

    /// Returns the time at which the back-off of a call ends.
    pub(super) fn resumes_at(&self, slot: Slot, call: &Call) -> Option<Duration> {
        self.deadlines.get(&(slot, Alarm::Resume(call.clone()))).copied()
    }

    /// Returns whether the alarm is set.
    pub(super) fn is_set(&self, slot: Slot, alarm: Alarm) -> bool {
        self.deadlines.contains_key(&(slot, alarm))
    }

    /// Returns the time of the next alarm.
    pub(super) fn next(&self) -> Option<Duration> {
        self.by_time.first().map(|(at, ..)| *at)
    }

    /// Takes the first alarm that is due at `now`.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<(Slot, Alarm)> {
        if self.by_time.first()?.0 > now {
            return None;
        }
        let (_, slot, alarm) = self.by_time.pop_first()?;
        self.deadlines.remove(&(slot, alarm.clone()));
        Some((slot, alarm))
    }
}

/// The RPC that sorts before all others, as the start of a range of alarms.
const FIRST_RPC: crate::lifecycle::Rpc = crate::lifecycle::Rpc::ALL[0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Rpc;

    #[test]
    fn fires_alarms_in_order_and_a_replaced_alarm_once() {
        let [first, second] = [Slot(1), Slot(2)];
        let at = Duration::from_secs;
        let resume = || Alarm::Resume(Call::of_volume(Rpc::NodeStageVolume));
        let mut timers = Timers::default();
        timers.set(first, resume(), at(5));
        timers.set(second, resume(), at(3));
        timers.set(first, resume(), at(1));
        timers.set(first, Alarm::Republish, at(4));
        let call = Call::of_volume(Rpc::NodeStageVolume);
        assert_eq!((timers.next(), timers.resumes_at(first, &call)), (Some(at(1)), Some(at(1))));
        assert_eq!(timers.take_due(at(0)), None);
        assert_eq!(timers.take_due(at(9)), Some((first, resume())));
        assert_eq!(timers.take_due(at(9)), Some((second, resume())));
        assert!(timers.is_set(first, Alarm::Republish) && timers.resumes_at(first, &call).is_none());
        timers.clear(first, |alarm| *alarm == Alarm::Republish);
        assert_eq!((timers.take_due(at(9)), timers.next()), (None, None));
    }
}
