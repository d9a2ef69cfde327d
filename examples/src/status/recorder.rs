//! The process's metrics: the `metrics` facade of the libraries, rendered for Prometheus.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::StatusError;

/// Histogram of CSI calls; the name and the labels are those of the Kubernetes sidecars with `plugin` for `sidecar`.
const CALL_SECONDS: &str = "csi_plugin_operations_seconds";

/// Upper bounds in seconds: those of the sidecars' own histogram, and finer ones below, where a relayed call lies.
const CALL_SECONDS_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0,
    300.0, 600.0,
];

/// Installs the recorder of this process.
pub(super) fn install() -> Result<PrometheusHandle, StatusError> {
    let calls = Matcher::Full(CALL_SECONDS.to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(calls, CALL_SECONDS_BUCKETS)?;
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    Ok(handle)
}
