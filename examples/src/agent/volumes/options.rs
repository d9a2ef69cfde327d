//! The options of the volumes of a node.

use std::path::PathBuf;
use std::time::Duration;

use crate::values::duration;

/// The options about volumes.
#[derive(Debug, Clone, clap::Args)]
pub struct VolumesOptions {
    /// Look after this node's volumes as told over the hub: stage them below this directory, and publish them. Peers that the
    /// hub lets call the service `volumes` of this node decide which (see --callers of edge-hub). Needs root
    #[arg(long, value_name = "DIR", requires = "state_dir")]
    pub volumes: Option<PathBuf>,

    /// Directory with the secrets of --volumes, as files NAMESPACE/NAME/KEY that only their owner may read. Without it,
    /// volumes that need secrets are not mounted
    #[arg(long, value_name = "DIR", requires = "volumes")]
    pub secrets_dir: Option<PathBuf>,

    /// Publish volumes only below this directory. May be given again; anywhere if not given
    #[arg(long, value_name = "DIR", requires = "volumes")]
    pub volume_targets: Vec<PathBuf>,

    /// File to read the id of this boot from, to try what a reboot does
    #[arg(long, value_name = "FILE", requires = "volumes", hide = true)]
    pub boot_id_file: Option<PathBuf>,

    /// Time between two calls of NodePublishVolume where a driver wants it again and again, to try what that does
    #[arg(long, value_name = "TIME", requires = "volumes", hide = true, value_parser = duration)]
    pub republish_interval: Option<Duration>,
}
