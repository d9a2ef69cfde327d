//! What the agent and the proxy do with several addresses of the hub.

use clap::Args;
use edge_transport::PeerSettings;

use crate::values::TimeSpan;

/// How the addresses of the hub are used.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct RoadOptions {
    /// While an address of the hub is used that is not the first, how often those before it are tried; open calls go on over
    /// a better one that answers (ms, s, m, h; 0s: never)
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub better_road_every: TimeSpan,
}

impl RoadOptions {
    /// These settings with what the options say.
    #[must_use]
    pub fn settings(&self, mut settings: PeerSettings) -> PeerSettings {
        settings.better_road_every = self.better_road_every.duration();
        settings
    }
}
