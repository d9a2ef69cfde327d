//! The command line of `hostpath-driver`.

use std::path::PathBuf;

use clap::Parser;
use csi_proto::DriverName;
use csi_proxy::{NodeId, SocketAddress};

use super::config::Config;
use edge_csi_common::process::Fatal;
use edge_csi_common::values::bytes;

/// Serves volumes from the disk of this node over CSI: Identity, Controller, GroupController and Node on one socket.
///
/// Volumes are directories of the host, or sparse files behind loop devices if an fs_type (ext4, xfs) or a block
/// device is requested; the parameter `kind` (directory, loop) of a storage class chooses. Mounting needs root, or
/// a user namespace for directories; the controller part works without.
#[derive(Debug, Clone, Parser)]
#[command(name = "hostpath-driver", version)]
pub struct HostpathOptions {
    /// Name of the driver, as in storage classes
    #[arg(long, env = "CSI_DRIVERNAME", value_name = "NAME", default_value = "hostpath.csi.edge")]
    pub drivername: DriverName,

    /// Socket to listen on (mode 0600; a stale one is replaced, a live one is an error)
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL")]
    pub endpoint: SocketAddress,

    /// Id of this node, and its topology value (1 to 63 letters, digits, '-', '_' or '.')
    #[arg(long, env = "KUBE_NODE_NAME", value_name = "NAME")]
    pub nodeid: NodeId,

    /// Directory for records and data, used by this process alone
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,

    /// Topology key of this node [default: topology.DRIVERNAME/node]
    #[arg(long, value_name = "PREFIX/NAME")]
    pub topology_key: Option<String>,

    /// Space for all volumes and snapshots together (B, KiB, MiB, GiB, TiB) [default: size of the disk with --state-dir]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub capacity: Option<u64>,

    /// Maximum number of volumes attached to this node; 0: unlimited
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub attach_limit: u32,

    /// Parameters that ControllerModifyVolume accepts, separated by commas, as in `iops`; without any, its
    /// capability is not announced
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    pub mutable_parameters: Vec<String>,

    /// Report with each snapshot that it stays on this node (alpha in spec 1.13; csi-sanity 5.6.0 cannot compare the answer)
    #[arg(long)]
    pub snapshot_topology: bool,
}

impl HostpathOptions {
    /// Converts the options to settings.
    ///
    /// # Errors
    /// Returns an error if the node id or the topology key is invalid.
    pub fn config(&self) -> Result<Config, Fatal> {
        let (name, node) = (self.drivername.clone(), self.nodeid.clone());
        let mut config = Config::new(name, node, &self.state_dir, self.topology_key.as_deref())
            .map_err(|error| Fatal::Input(format!("--nodeid, --topology-key: {error}")))?;
        config.capacity = self.capacity;
        config.snapshot_topology = self.snapshot_topology;
        config.attach_limit = self.attach_limit;
        config.mutable_parameters =
            self.mutable_parameters.iter().filter(|key| !key.is_empty()).cloned().collect();
        Ok(config)
    }
}
