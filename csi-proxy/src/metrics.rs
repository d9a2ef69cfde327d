//! Metrics in the form of the sidecars' own, through the `metrics` facade.
//!
//! - histogram `csi_plugin_operations_seconds` with `driver_name`, `method_name`, `grpc_status_code`, as in
//!   `csi_sidecar_operations_seconds` of csi-lib-utils, and `stage`: where the call was measured. Methods unknown to
//!   CSI are `other`, so that a caller cannot create label values;
//! - counter `csi_plugin_relay_faults_total` with `driver_name`, `kind`, `stage`;
//! - counter `csi_plugin_refused_calls_total` with `cause`: calls of other peers that the node refused, as `method` (it
//!   must not come from another host) or `driver` (another one than the policies have checked);
//! - counter `csi_plugin_wrong_answers_total` with `driver_name`: answers of nodes that name another id than the request;
//! - gauges `csi_plugin_operations_running` and `csi_plugin_operations_cached` (results for retries); counter
//!   `csi_plugin_operations_total` with `driver_name` and `outcome`: `run`, `coalesced`, `replayed`, `aborted`,
//!   `uncertain`;
//! - gauge `csi_plugin_startup_age_seconds` with `driver_name`: time since the driver last confirmed the start-up
//!   answers; updated with each refresh;
//! - counter `csi_plugin_startup_stale_answers_total` with `driver_name`: start-up calls answered from the cache while
//!   the driver was unreachable;
//! - counter `csi_plugin_orchestrator_violations_total` with `driver_name` and `rule`: calls that broke a rule of the
//!   spec; gauges `csi_plugin_monitor_volumes` and `csi_plugin_monitor_dropped` (not monitored or evicted because of a
//!   limit).

use std::sync::Arc;
use std::time::Duration;

use csi_proto::{DriverName, Method};

use crate::call::{MethodPath, Outcome};
use csi_proto::Code;

pub(crate) fn record(
    stage: &'static str,
    driver: &DriverName,
    method: &MethodPath,
    outcome: &Outcome,
    taken: Duration,
) {
    let method = Method::from_path(method.as_str()).map_or("other", Method::path);
    let code = go_name(outcome.code);
    metrics::histogram!(
        "csi_plugin_operations_seconds", "driver_name" => label(driver), "method_name" => method, "grpc_status_code" => code, "stage" => stage
    )
    .record(taken);
    if let Some(fault) = outcome.fault() {
        metrics::counter!("csi_plugin_relay_faults_total", "driver_name" => label(driver), "kind" => fault.kind(), "stage" => stage)
            .increment(1);
    }
}

/// Counts a call of another peer that was refused.
pub(crate) fn refused(cause: &'static str) {
    metrics::counter!("csi_plugin_refused_calls_total", "cause" => cause).increment(1);
}

/// Counts the outcome of an operation, or of a call that requested it.
pub(crate) fn operation(driver: &DriverName, outcome: &'static str) {
    metrics::counter!("csi_plugin_operations_total", "driver_name" => label(driver), "outcome" => outcome)
        .increment(1);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub(crate) fn operations(counts: &crate::dispatcher::operation::Counts) {
    metrics::gauge!("csi_plugin_operations_running").set(counts.running as f64);
    metrics::gauge!("csi_plugin_operations_cached").set(counts.kept as f64);
}

pub(crate) fn wrong_answer(driver: &DriverName) {
    metrics::counter!("csi_plugin_wrong_answers_total", "driver_name" => label(driver)).increment(1);
}

pub(crate) fn startup_age(driver: &DriverName, age: Duration) {
    metrics::gauge!("csi_plugin_startup_age_seconds", "driver_name" => label(driver)).set(age.as_secs_f64());
}

pub(crate) fn stale_answer(driver: &DriverName) {
    metrics::counter!("csi_plugin_startup_stale_answers_total", "driver_name" => label(driver)).increment(1);
}

fn label(driver: &DriverName) -> Arc<str> {
    driver.clone().into()
}

pub(crate) fn violation(driver: &DriverName, rule: crate::monitor::rule::Rule) {
    metrics::counter!(
        "csi_plugin_orchestrator_violations_total", "driver_name" => driver.to_string(), "rule" => rule.name()
    )
    .increment(1);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub(crate) fn monitor(counts: &crate::monitor::Counts) {
    metrics::gauge!("csi_plugin_monitor_volumes").set(counts.volumes as f64);
    metrics::gauge!("csi_plugin_monitor_dropped").set(counts.dropped as f64);
}

/// The name of the code in grpc-go, which dashboards for the sidecars use.
fn go_name(code: Code) -> String {
    match (code, code.name()) {
        (Code::OK, _) => "OK".to_owned(),
        (Code::CANCELLED, _) => "Canceled".to_owned(),
        (_, None) => "other".to_owned(),
        (_, Some(name)) => {
            let words = name.split('_').filter_map(|word| word.split_at_checked(1));
            words.map(|(first, rest)| first.to_owned() + &rest.to_ascii_lowercase()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
        Unit,
    };

    use super::*;
    use crate::call::Fault;

    /// Collects every record as text.
    #[derive(Default)]
    struct Records(Arc<Mutex<Vec<String>>>);

    struct Record(String, Arc<Mutex<Vec<String>>>);

    impl HistogramFn for Record {
        fn record(&self, value: f64) {
            self.1.lock().unwrap().push(format!("{} {value}", self.0));
        }
    }

    impl CounterFn for Record {
        fn increment(&self, value: u64) {
            self.1.lock().unwrap().push(format!("{} {value}", self.0));
        }
        fn absolute(&self, _: u64) {}
    }

    impl Records {
        fn of(&self, key: &Key) -> Arc<Record> {
            let labels: Vec<_> =
                key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            Arc::new(Record(format!("{} {}", key.name(), labels.join(" ")), Arc::clone(&self.0)))
        }
    }

    impl Recorder for Records {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.of(key))
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.of(key))
        }
    }

    #[test]
    fn codes_have_the_names_of_grpc_go() {
        let names = [0, 1, 2, 4, 11, 16, 17].map(|number| go_name(Code::new(number)));
        let expected =
            ["OK", "Canceled", "Unknown", "DeadlineExceeded", "OutOfRange", "Unauthenticated", "other"];
        assert_eq!(names, expected);
    }

    #[test]
    fn calls_have_the_labels_of_the_sidecars() {
        let records = Records::default();
        let driver = DriverName::new("vendor").unwrap();
        let taken = Duration::from_millis(250);
        metrics::with_local_recorder(&records, || {
            let method = |path| MethodPath::new(path).unwrap();
            record("endpoint", &driver, &method("/csi.v1.Controller/CreateVolume"), &Outcome::ok(), taken);
            record("endpoint", &driver, &method("/made.up/ByTheCaller"), &Fault::Cancelled.into(), taken);
        });
        let expected = [
            "csi_plugin_operations_seconds driver_name=vendor method_name=/csi.v1.Controller/CreateVolume grpc_status_code=OK stage=endpoint 0.25",
            "csi_plugin_operations_seconds driver_name=vendor method_name=other grpc_status_code=Canceled stage=endpoint 0.25",
            "csi_plugin_relay_faults_total driver_name=vendor kind=cancelled stage=endpoint 1",
        ];
        assert_eq!(*records.0.lock().unwrap(), expected);
    }
}
