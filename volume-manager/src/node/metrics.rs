//! Figures through the `metrics` facade, as the table of the module above has them. Without the feature `metrics` these
//! functions do nothing.

use std::time::Duration;

use super::core::Counts;
use crate::lifecycle::VolumeState;

#[cfg(feature = "metrics")]
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
mod facade {
    use super::{Counts, Duration, VolumeState};

    pub(in super::super) fn describe() {
        use metrics::{Unit, describe_gauge, describe_histogram};
        describe_gauge!("volume_manager_volumes", "volumes in a state");
        describe_gauge!("volume_manager_uncertain_volumes", "volumes with a call whose end is not known");
        describe_gauge!("volume_manager_quarantined_records", "records that cannot be read");
        describe_gauge!("volume_manager_calls_in_flight", "calls that run");
        describe_histogram!("volume_manager_dwell_seconds", Unit::Seconds, "time in a state that was left");
        describe_histogram!("volume_manager_rpc_seconds", Unit::Seconds, "time of a call to a driver");
        describe_histogram!("volume_manager_commit_seconds", Unit::Seconds, "time of a commit with its sync");
        describe_histogram!("volume_manager_commit_records", "records in one commit");
    }

    pub(in super::super) fn counts(counts: &Counts) {
        for state in VolumeState::ALL {
            let found = counts.states.get(&state).copied().unwrap_or_default();
            metrics::gauge!("volume_manager_volumes", "state" => state.to_string()).set(found as f64);
        }
        metrics::gauge!("volume_manager_uncertain_volumes").set(counts.uncertain as f64);
        metrics::gauge!("volume_manager_quarantined_records").set(counts.quarantined as f64);
        metrics::gauge!("volume_manager_calls_in_flight").set(counts.calls as f64);
    }

    pub(in super::super) fn dwelt(state: VolumeState, time: Duration) {
        metrics::histogram!("volume_manager_dwell_seconds", "state" => state.to_string()).record(time);
    }

    pub(in super::super) fn call(driver: &str, rpc: &'static str, code: String, took: Duration) {
        let driver = driver.to_owned();
        metrics::histogram!("volume_manager_rpc_seconds", "driver" => driver, "rpc" => rpc, "code" => code)
            .record(took);
    }

    pub(in super::super) fn commit(records: usize) {
        metrics::histogram!("volume_manager_commit_records").record(records as f64);
    }

    pub(in super::super) fn committed(good: bool, took: Duration) {
        let outcome = if good { "ok" } else { "failed" };
        metrics::histogram!("volume_manager_commit_seconds", "outcome" => outcome).record(took);
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use super::{Counts, Duration, VolumeState};

    pub(in super::super) fn describe() {}
    pub(in super::super) fn counts(_: &Counts) {}
    pub(in super::super) fn dwelt(_: VolumeState, _: Duration) {}
    pub(in super::super) fn call(_: &str, _: &'static str, _: String, _: Duration) {}
    pub(in super::super) fn commit(_: usize) {}
    pub(in super::super) fn committed(_: bool, _: Duration) {}
}

pub(super) use facade::{call, commit, committed, counts, describe, dwelt};
