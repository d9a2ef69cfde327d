//! What KubeEdge's own connection costs while nothing happens, with KubeEdge's defaults, for the README's table of links.

use std::process::Command;
use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::json;

use super::cloudcore::PORT;
use super::cluster::KubeEdge;
use super::network::ADDRESS;
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings};
use crate::kubernetes::image;
use crate::setup::Setup;

/// Time for edged to send what it sends once after a start.
const SETTLED: Duration = Duration::from_secs(30);

/// Time for which the connection is measured.
const MEASURED: Duration = Duration::from_secs(120);

/// The headers of IP and TCP for each segment, with timestamps.
const HEADERS: u64 = 52;

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    kubeedge.edgecore.restart_with(setup, |config| {
        config["modules"]["edgeHub"]["heartbeat"] = json!(15);
        let kubelet = &mut config["modules"]["edged"]["tailoredKubeletConfig"];
        kubelet["syncFrequency"] = json!("1m");
        kubelet["nodeStatusUpdateFrequency"] = json!("10s");
        kubelet["volumeStatsAggPeriod"] = json!("1m");
    })?;
    wait::poll(SETTLED, || None::<()>);
    let before = passed();
    wait::poll(MEASURED, || None::<()>);
    let bytes = passed().saturating_sub(before);
    let kib = kubeedge.edgecore.resident_kib().unwrap_or_default();
    kubeedge.edgecore.restart(setup)?;
    let seconds = MEASURED.as_secs_f64();
    let megabytes = bytes as f64 * 86_400.0 / seconds / 1e6;
    findings.note(
        before > 0 && bytes > 0,
        format!("edgecore's idle connection: {bytes} IP bytes in {seconds} s, {megabytes:.1} MB a day"),
    );
    findings.note(kib > 0, format!("edgecore has {} MiB resident", kib >> 10));
    Ok(())
}

/// Returns the IP bytes that edgecore's connection has sent and received.
pub(super) fn passed() -> u64 {
    let destination = format!("{ADDRESS}:{PORT}");
    let bytes = || {
        let text =
            image::run(Command::new("ss").args(["-tinH", "state", "established", "dst", &destination]));
        text.map(|text| figures(&text)).ok().filter(|bytes| *bytes > 0)
    };
    wait::poll(BOUND, bytes).unwrap_or_default()
}

/// Reads the bytes of both directions, with those of the headers, in the output of `ss -ti`.
fn figures(text: &str) -> u64 {
    let figure = |name: &str| -> u64 {
        let values = text.split_whitespace().filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
        values.sum()
    };
    let segments = figure("segs_out:") + figure("segs_in:");
    figure("bytes_sent:") + figure("bytes_received:") + segments * HEADERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_segments_of_both_directions_are_added() {
        let text = "0 0 10.99.0.1:5 10.99.0.1:10000\n\t cubic bytes_sent:30 bytes_acked:30 bytes_received:4 \
                    segs_out:3 segs_in:2 data_segs_out:1\n";
        assert_eq!(figures(text), 34 + 5 * HEADERS);
        assert_eq!(figures(""), 0);
    }
}
