//! When the cable is cut, and what else it does to what passes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// What a cable does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a test writes it down")]
pub struct Plan {
    /// Time from one cut to the next; the first cut comes after it. None: no cuts but those by hand.
    pub cut_every: Option<Duration>,
    /// How long a cut lasts; no longer than `cut_every`.
    pub cut_for: Duration,
    /// How long everything takes, in each direction.
    pub delay: Duration,
    /// How many datagrams of a million are lost. A TCP segment that is lost comes late, so for TCP this many reads of a
    /// million, and what is behind them, come later by [`Plan::resent_after`].
    pub loss_per_million: u32,
    /// What loss is drawn from.
    pub seed: u64,
}

impl Plan {
    /// When the sender of a lost TCP segment would send it again: after one round trip, and not before 200 ms.
    #[must_use]
    pub fn resent_after(&self) -> Duration {
        (2 * self.delay).max(Duration::from_millis(200))
    }

    /// Whether the cable is cut so long after its start, and when that changes. None if there are no cuts.
    #[must_use]
    fn at(&self, since_start: Duration) -> Option<(bool, Duration)> {
        let every = self.cut_every.filter(|every| !every.is_zero())?;
        let lasts = self.cut_for.min(every);
        let round = u32::try_from(since_start.as_nanos() / every.as_nanos()).unwrap_or(u32::MAX);
        let begun = every.saturating_mul(round);
        let is_cut = round > 0 && since_start < begun + lasts;
        Some(if is_cut { (true, begun + lasts) } else { (false, begun + every) })
    }
}

/// Whether the cable is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sky {
    is_cut: bool,
    cuts: u64,
}

impl Sky {
    /// Whether nothing passes now.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// How many cuts there were, the present one included.
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

    pub(super) const fn mend(&mut self) {
        self.is_cut = false;
    }
}

/// Cuts and mends as planned.
pub(super) async fn follow(plan: Plan, sky: Arc<watch::Sender<Sky>>) {
    let start = Instant::now();
    while let Some((is_cut, until)) = plan.at(start.elapsed()) {
        sky.send_modify(if is_cut { Sky::cut } else { Sky::mend });
        tokio::time::sleep_until(start + until).await;
    }
}

/// Waits for the next cut.
pub(super) async fn next_cut(sky: &mut watch::Receiver<Sky>, known: u64) -> u64 {
    match sky.wait_for(|sky| sky.cuts > known).await {
        Ok(sky) => sky.cuts,
        // The cable is gone, which cuts everything for good.
        Err(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_comes_every_so_often_and_ends_in_time() {
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
}
