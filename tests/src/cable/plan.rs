//! The faults of a cable, and the times of its cuts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::random::Random;

/// The faults of a cable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a test writes it down")]
pub struct Plan {
    /// Time from the start to the first cut, and from one cut to the next. `None`: no planned cuts.
    pub cut_every: Option<Duration>,
    /// The most by which a cut begins earlier or later than planned, at most a quarter of `cut_every`. Without jitter,
    /// a client that retries at a multiple of `cut_every` and was hit by one cut is hit by every cut.
    pub cut_jitter: Duration,
    /// Duration of a cut, at most `cut_every - 2 * cut_jitter`.
    pub cut_for: Duration,
    /// Delay of all data, in each direction.
    pub delay: Duration,
    /// Lost datagrams per million. A lost TCP segment is resent, so for TCP this many reads per million, and the data
    /// behind them, are delayed by [`Plan::resent_after`] in addition.
    pub loss_per_million: u32,
    /// The seed of loss and jitter.
    pub seed: u64,
}

impl Plan {
    /// Returns the time after which TCP resends a lost segment: one round trip, and at least 200 ms.
    #[must_use]
    pub fn resent_after(&self) -> Duration {
        (2 * self.delay).max(Duration::from_millis(200))
    }

    /// Returns whether the cable is cut at this time after its start, and the time of the next change. `None` without
    /// cuts.
    #[must_use]
    fn at(&self, since_start: Duration) -> Option<(bool, Duration)> {
        let every = self.cut_every.filter(|every| !every.is_zero())?;
        // A cut is over before the next one may begin.
        let lasts = self.cut_for.min(every - self.jitter(every) * 2);
        let next =
            u32::try_from(since_start.as_nanos() / every.as_nanos()).unwrap_or(u32::MAX).saturating_add(1);
        // The last cut that has begun. Jitter may have brought the next cut forward, or delayed this one.
        let begun = (0..=next).rev().take(3).find(|number| self.cut(every, *number) <= since_start)?;
        let ends = self.cut(every, begun) + lasts;
        let is_cut = begun > 0 && since_start < ends;
        Some(if is_cut { (true, ends) } else { (false, self.cut(every, begun.saturating_add(1))) })
    }

    fn jitter(&self, every: Duration) -> Duration {
        self.cut_jitter.min(every / 4)
    }

    /// Returns the time at which the cut of this number begins. Cuts count from 1; number 0 is the start of the cable.
    fn cut(&self, every: Duration, number: u32) -> Duration {
        let jitter = self.jitter(every);
        if number == 0 || jitter.is_zero() {
            return every.saturating_mul(number);
        }
        let spread = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX / 2).saturating_mul(2);
        let drawn = Random::new(self.seed ^ u64::from(number)).below(spread.saturating_add(1));
        every.saturating_mul(number) + Duration::from_nanos(drawn) - jitter
    }
}

/// The present state of a cable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CableState {
    is_cut: bool,
    cuts: u64,
}

impl CableState {
    /// Returns whether the cable is cut now.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the number of cuts so far, including the present one.
    #[must_use]
    pub const fn cuts(&self) -> u64 {
        self.cuts
    }

    pub(super) const fn cut(&mut self) {
        if !self.is_cut {
            self.cuts += 1;
        }
        self.is_cut = true;
    }

    pub(super) const fn restore(&mut self) {
        self.is_cut = false;
    }
}

/// Cuts and restores the cable as planned.
pub(super) async fn follow(plan: Plan, state: Arc<watch::Sender<CableState>>) {
    let start = Instant::now();
    while let Some((is_cut, until)) = plan.at(start.elapsed()) {
        state.send_modify(if is_cut { CableState::cut } else { CableState::restore });
        tokio::time::sleep_until(start + until).await;
    }
}

/// Waits until there are more than `known` cuts, and returns their number.
pub(super) async fn next_cut(state: &mut watch::Receiver<CableState>, known: u64) -> u64 {
    match state.wait_for(|state| state.cuts > known).await {
        Ok(state) => state.cuts,
        // The cable was dropped, which is a permanent cut.
        Err(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cuts_without_jitter_begin_and_end_at_the_planned_times() {
        let plan = Plan {
            cut_every: Some(Duration::from_secs(2)),
            cut_for: Duration::from_millis(300),
            ..Plan::default()
        };
        let at = |milliseconds| plan.at(Duration::from_millis(milliseconds)).unwrap_or_default();
        let until = Duration::from_millis;
        assert_eq!(at(0), (false, until(2000)));
        assert_eq!(at(1999), (false, until(2000)));
        assert_eq!(at(2000), (true, until(2300)));
        assert_eq!(at(2300), (false, until(4000)));
        assert_eq!(at(4299), (true, until(4300)));
        assert_eq!(Plan::default().at(until(5)), None);
    }

    #[test]
    fn cuts_with_jitter_keep_their_rate_and_length() {
        for seed in 0..20 {
            let (every, lasts) = (Duration::from_secs(2), Duration::from_millis(300));
            let jitter = Duration::from_millis(300);
            let plan =
                Plan { cut_every: Some(every), cut_for: lasts, cut_jitter: jitter, seed, ..Plan::default() };
            let (mut now, mut begun) = (Duration::ZERO, Vec::new());
            while begun.len() < 500 {
                let (is_cut, until) = plan.at(now).unwrap_or_default();
                assert!(until > now, "seed {seed}: nothing changes after {now:?}");
                if is_cut {
                    assert_eq!(until - now, lasts, "seed {seed}");
                    begun.push(now);
                }
                now = until;
            }
            for (number, at) in (1..).zip(&begun) {
                assert!(at.abs_diff(every * number) <= jitter, "seed {seed}: cut {number} at {at:?}");
            }
            let times: BTreeSet<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(times.len() > 400, "seed {seed}: {} different times", times.len());
        }
    }
}
