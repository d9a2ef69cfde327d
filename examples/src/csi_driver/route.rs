//! Which node the proxy's calls go to.

use std::fmt;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use csi_proto::DriverName;
use csi_proxy::operation::journal::redb::RedbJournal;
use csi_proxy::route::OfflinePolicy;
use csi_proxy::{NodeId, Router, TopologyRouter, TopologySettings};

use super::options::{CsiDriverOptions, Route};
use crate::process::Fatal;
use crate::state::StateDirectory;

/// How `--route topology` chooses.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct TopologyOptions {
    /// With --route topology: node that has the driver, by its name at the hub (`edge-agent --nodeid`). May be given again, or
    /// hold several separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub node: Vec<NodeId>,

    /// With --route topology: what becomes of a new volume whose node is offline
    #[arg(long, value_enum, value_name = "POLICY", default_value_t)]
    pub offline: Offline,

    /// With --route topology: topology key of nodes whose driver names none; the node's name is its value. Has to be what the
    /// node's kubelet is told too
    #[arg(long, value_name = "PREFIX/NAME")]
    pub topology_key: Option<String>,

    /// With --route topology: node that is gone for good, with its volumes. What it had is forgotten at the start; their names
    /// may be used on other nodes. May be given again, or hold several separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub forget: Vec<NodeId>,
}

/// What becomes of a new volume whose node is offline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[non_exhaustive]
pub enum Offline {
    /// It waits for the node
    #[default]
    Wait,
    /// It goes to another node where it may be, or the scheduler is told to choose one; never once a node may have heard of it
    Move,
}

/// Where calls go, as long as the process runs.
#[derive(Debug, Clone)]
pub(super) enum Destination {
    Fixed(NodeId),
    Topology(Arc<TopologyRouter>),
}

impl Destination {
    /// The destination that the options mean.
    pub(super) async fn open(
        options: &CsiDriverOptions,
        state: Option<&StateDirectory>,
    ) -> Result<Self, Fatal> {
        let TopologyOptions { node, forget, topology_key, .. } = &options.topology;
        match (options.route, &options.nodeid) {
            (Some(Route::Topology), _) => Self::topology(options, state).await,
            _ if !node.is_empty() || !forget.is_empty() || topology_key.is_some() => Err(Fatal::Input(
                "--node, --forget and --topology-key choose among several nodes: give --route topology too"
                    .to_owned(),
            )),
            (None, Some(node)) => Ok(Self::Fixed(node.clone())),
            (None, None) => Err(Fatal::Input(
                "--nodeid is missing: name the node of the driver (or set KUBE_NODE_NAME), or give --route topology"
                    .to_owned(),
            )),
        }
    }

    async fn topology(options: &CsiDriverOptions, state: Option<&StateDirectory>) -> Result<Self, Fatal> {
        let TopologyOptions { node, offline, topology_key, forget } = &options.topology;
        let input = |text: &str| Fatal::Input(format!("--route topology: {text}"));
        if node.is_empty() {
            return Err(input("name the nodes that have the driver with --node"));
        }
        let Some(state) = state else {
            return Err(input("--state-dir is missing; where volumes are must outlive this process"));
        };
        if let Some(kept) = forget.iter().find(|gone| node.contains(gone)) {
            return Err(input(&format!("node {kept} is given with --node and with --forget")));
        }
        let mut settings = TopologySettings::default();
        settings.default_node = options.nodeid.clone();
        settings.topology_key.clone_from(topology_key);
        settings.offline = match offline {
            Offline::Wait => OfflinePolicy::Wait,
            Offline::Move => OfflinePolicy::Move,
        };
        // A damaged one is not set aside: a volume that was being made could be made a second time on another node.
        let journal = RedbJournal::open(state.path().join(file_name(&options.drivername)));
        let journal = journal.map_err(Fatal::runtime)?;
        let route = TopologyRouter::open(options.drivername.clone(), node.clone(), journal, settings);
        let route = route.map_err(Fatal::input)?;
        for gone in forget {
            let forgotten = route.forget(gone).await;
            forgotten.map_err(|refusal| Fatal::Runtime(refusal.outcome(&options.drivername).message))?;
            tracing::warn!(node = %gone, "what this node had is forgotten");
        }
        Ok(Self::Topology(Arc::new(route)))
    }

    pub(super) fn router(&self) -> Router {
        match self {
            Self::Fixed(node) => Router::fixed(node.clone()),
            Self::Topology(route) => Router::topology(Arc::clone(route)),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(node) => fmt::Display::fmt(node, f),
            Self::Topology(route) => {
                let (all, online) = route.node_counts();
                write!(
                    f,
                    "by topology: {all} nodes, {online} online, {} rows in the table of placements",
                    route.rows()
                )
            }
        }
    }
}

/// The table's file in the state directory.
fn file_name(driver: &DriverName) -> String {
    format!("placements-{driver}.redb")
}
