//! The figures of a round.

use std::time::Duration;

/// The first line of the table.
pub(super) const HEAD: &str = "          claims first call at driver at once repeated volumes   bound deleted | CPU s: relay provisioner \
                               control plane | relay MiB";

/// The figures of a round. Times begin at the start of the provisioner.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    pub(super) claims: usize,
    /// When the first CreateVolume reached the driver.
    pub(super) first: Duration,
    /// From there until the last CreateVolume ended at the driver.
    pub(super) at_driver: Duration,
    /// The maximum number of concurrent CreateVolumes at the driver.
    pub(super) at_once: u64,
    /// How often the provisioner tried a claim again.
    pub(super) repeated: usize,
    /// When all PersistentVolumes existed.
    pub(super) volumes: Duration,
    /// When all claims were bound.
    pub(super) bound: Duration,
    /// From the deletion of all claims until no PersistentVolume was left.
    pub(super) deleted: Duration,
    /// Processor time until all claims were bound: of the relay's three processes,
    pub(super) relay: Duration,
    /// of the provisioner,
    pub(super) provisioner: Duration,
    /// and of etcd, the API server and its controllers.
    pub(super) plane: Duration,
    /// The peaks of the memory of the relay's processes together, in KiB.
    pub(super) relay_kib: u64,
}

impl Figures {
    /// Returns the line of the table.
    pub(super) fn line(&self, name: &str) -> String {
        let seconds = |time: Duration| format!("{:.2}", time.as_secs_f64());
        format!(
            "{name:<9} {:>6} {:>10} {:>9} {:>7} {:>8} {:>7} {:>7} {:>7} | {:>12} {:>11} {:>13} | {:>9.1}",
            self.claims,
            seconds(self.first),
            seconds(self.at_driver),
            self.at_once,
            self.repeated,
            seconds(self.volumes),
            seconds(self.bound),
            seconds(self.deleted),
            seconds(self.relay),
            seconds(self.provisioner),
            seconds(self.plane),
            self.relay_kib as f64 / 1024.0
        )
    }
}

/// Returns the ratios of the medians of two ways, in words.
pub(super) fn ratios(of: &[&Figures], to: &[&Figures]) -> String {
    let ratio = |figure: fn(&Figures) -> Duration| {
        let median = |all: &[&Figures]| {
            let mut times: Vec<Duration> = all.iter().map(|figures| figure(figures)).collect();
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64()
        };
        median(of) / median(to)
    };
    format!(
        "times direct: {:.2} at the driver, {:.2} all volumes, {:.2} all bound, {:.2} all deleted",
        ratio(|figures| figures.at_driver),
        ratio(|figures| figures.volumes),
        ratio(|figures| figures.bound),
        ratio(|figures| figures.deleted)
    )
}
