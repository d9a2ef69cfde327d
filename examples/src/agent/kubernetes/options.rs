//! The options of the volume plugin.

use std::path::PathBuf;

/// The options about pods.
#[derive(Debug, Clone, clap::Args)]
pub struct KubernetesOptions {
    /// Be the volume plugin of this node, which has no kubelet: the hub, which has --kubeconfig, tells which pods are bound to
    /// the node, and their volumes are mounted below this directory as kubelet would (e.g. /var/lib/kubelet). What is known is
    /// kept in --state-dir. Peers may not send sets of volumes then
    #[arg(long, value_name = "DIR", requires = "volumes")]
    pub kubelet_dir: Option<PathBuf>,
}
