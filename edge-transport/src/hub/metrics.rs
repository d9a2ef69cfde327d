//! The hub's counters through the `metrics` facade.

use super::HubStats;

impl HubStats {
    /// Sets the gauges and counters of the installed recorder to the values of these statistics. Call this
    /// function before each scrape.
    pub fn publish(&self) {
        metrics::gauge!("edge_transport_hub_peers").set(self.peers as f64);
        metrics::gauge!("edge_transport_hub_open_calls").set(self.open_calls as f64);
        metrics::gauge!("edge_transport_hub_local_calls").set(self.local_calls as f64);
        metrics::gauge!("edge_transport_hub_queued_bytes").set(self.queued_bytes as f64);
        metrics::gauge!("edge_transport_hub_receiving_bytes").set(self.receiving_bytes as f64);
        metrics::counter!("edge_transport_hub_receive_waits_total").absolute(self.receive_waits);
        metrics::counter!("edge_transport_hub_calls_total").absolute(self.calls);
        metrics::counter!("edge_transport_hub_withdrawn_total").absolute(self.withdrawn);
        metrics::counter!("edge_transport_hub_frames_total").absolute(self.frames);
        metrics::counter!("edge_transport_hub_body_bytes_total").absolute(self.body_bytes);
        for (reason, count) in [
            ("offline", self.offline),
            ("link_lost", self.link_lost),
            ("wrong_session", self.wrong_session),
            ("overloaded", self.overloaded),
            ("too_large", self.too_large),
            ("forbidden", self.forbidden),
            ("draining", self.draining),
            ("expired", self.expired),
        ] {
            metrics::counter!("edge_transport_hub_failures_total", "reason" => reason).absolute(count);
        }
        for (cause, count) in [
            ("spoofed", self.spoofed),
            ("unknown_call", self.unknown_calls),
            ("duplicate", self.duplicates),
            ("malformed", self.malformed),
            ("unknown_kind", self.unknown_kinds),
        ] {
            metrics::counter!("edge_transport_hub_refused_frames_total", "cause" => cause).absolute(count);
        }
        for (cause, count) in [
            ("unauthenticated", self.unauthenticated),
            ("fenced", self.fenced),
            ("busy", self.rejected),
            ("silent", self.silent),
            ("handshake", self.failed_handshakes),
        ] {
            metrics::counter!("edge_transport_hub_refused_links_total", "cause" => cause).absolute(count);
        }
    }
}
