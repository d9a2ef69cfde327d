//! Metrics through the `metrics` facade, as listed in the docs of the parent module. No-ops without the feature
//! `metrics`.

use std::time::Duration;

use super::core::Counts;
use crate::lifecycle::VolumeState;

#[cfg(feature = "metrics")]
#[allow(clippy::cast_precision_loss, reason = "the precision of a gauge is enough")]
mod facade {
    use super::{Counts, Duration, VolumeState};

    pub(in super::super) fn describe() {
        use metrics::{Unit, describe_gauge, describe_histogram};
        describe_gauge!("volume_manager_volumes", "volumes in a state");
        describe_gauge!("volume_manager_uncertain_volumes", "volumes with a call of unknown outcome");
        describe_gauge!("volume_manager_quarantined_records", "unreadable records");
        describe_gauge!("volume_manager_calls_in_flight", "calls in flight");
        describe_histogram!("volume_manager_state_duration_seconds", Unit::Seconds, "time in a state");
        describe_histogram!("volume_manager_rpc_seconds", Unit::Seconds, "duration of a call to a driver");
        describe_histogram!(
            "volume_manager_commit_seconds",
            Unit::Seconds,
            "duration of a commit, including its sync"
        );
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

    pub(in super::super) fn time_in_state(state: VolumeState, time: Duration) {
        metrics::histogram!("volume_manager_state_duration_seconds", "state" => state.to_string())
            .record(time);
    }

    pub(in super::super) fn call(driver: &str, rpc: &'static str, code: String, took: Duration) {
        let driver = driver.to_owned();
        metrics::histogram!("volume_manager_rpc_seconds", "driver" => driver, "rpc" => rpc, "code" => code)
            .record(took);
    }

    pub(in super::super) fn commit(records: usize) {
        metrics::histogram!("volume_manager_commit_records").record(records as f64);
    }

    pub(in super::super) fn committed(ok: bool, took: Duration) {
        let outcome = if ok { "ok" } else { "failed" };
        metrics::histogram!("volume_manager_commit_seconds", "outcome" => outcome).record(took);
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use super::{Counts, Duration, VolumeState};

    pub(in super::super) fn describe() {}
    pub(in super::super) fn counts(_: &Counts) {}
    pub(in super::super) fn time_in_state(_: VolumeState, _: Duration) {}
    pub(in super::super) fn call(_: &str, _: &'static str, _: String, _: Duration) {}
    pub(in super::super) fn commit(_: usize) {}
    pub(in super::super) fn committed(_: bool, _: Duration) {}
}

pub(super) use facade::{call, commit, committed, counts, describe, time_in_state};
