//! Selects the node that a call is sent to.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use csi_proto::DriverName;
use csi_proxy::advanced::routing::{ClaimConflict, PlacementStore};
use csi_proxy::{DriverInfoStore, NodeId, OfflinePolicy, OpenStoreError, RedbStore, Router, TopologyRouter};

use super::active::Active;
use super::options::{CsiDriverOptions, Route};
use edge_csi_common::process::Fatal;
use edge_csi_common::state::StateDirectory;

/// The maximum number of damaged files that are set aside; at this number the process ends instead.
const MAX_SET_ASIDE: u32 = 10;

/// The options of the routes to several nodes.
#[derive(Debug, Clone, Default, Args)]
pub struct TopologyOptions {
    /// With --route topology or sockets: node with the driver, by its name at the hub (`edge-agent --nodeid`). May
    /// be repeated, or separated by commas [default: all nodes that the hub reports]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub node: Vec<NodeId>,

    /// With --route topology: placement of new volumes while their node is offline
    #[arg(long, value_enum, value_name = "POLICY", default_value_t)]
    pub offline_policy: OfflinePolicyOption,

    /// With --route topology or sockets: topology key for drivers without a topology; its value is the node's name. Must be a
    /// label of the Node, such as kubernetes.io/hostname, or one that its kubelet is configured to set [default: none]
    #[arg(long, value_name = "PREFIX/NAME")]
    pub topology_key: Option<String>,

    /// With --route topology: topology key whose segments several nodes may have, such as topology.kubernetes.io/zone. May be
    /// repeated, or separated by commas. A segment under any other key belongs to the first node that reported it; another node
    /// that reports it is quarantined [default: none]
    #[arg(long, value_name = "PREFIX/NAME", value_delimiter = ',')]
    pub shared_topology_key: Vec<String>,
}

/// Placement of new volumes while their node is offline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OfflinePolicyOption {
    /// Wait for the node
    #[default]
    Wait,
    /// Select another node of its topology, or have the scheduler select one; never after the volume may have reached a node
    Reschedule,
}

/// The route of the proxy's calls, with its store.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) kind: RouteKind,
    /// The store in the state directory, if there is one.
    pub(super) store: Option<RedbStore>,
}

/// The way in which the node of a call is selected.
#[derive(Debug, Clone)]
pub(super) enum RouteKind {
    Fixed(NodeId),
    Topology(Arc<TopologyRouter>),
    /// One socket for each node.
    Sockets,
}

impl Destination {
    /// Opens the destination of the options, with its store.
    pub(super) async fn open(
        options: &CsiDriverOptions,
        state: Option<&StateDirectory>,
        active: &Active,
    ) -> Result<Self, Fatal> {
        let TopologyOptions { node, topology_key, shared_topology_key, .. } = &options.topology;
        if !shared_topology_key.is_empty() && options.route != Some(Route::Topology) {
            return Err(Fatal::Input(
                "--shared-topology-key is for a route by topology: give --route topology too".to_owned(),
            ));
        }
        if options.endpoint_dir.is_some() && options.route != Some(Route::Sockets) {
            return Err(Fatal::Input(
                "--endpoint-dir is for several sockets: give --route sockets too".to_owned(),
            ));
        }
        let store = || {
            let path = state.map(|state| state.path().join(file_name(&options.drivername)));
            path.map(|path| open_store(&path, options)).transpose()
        };
        if let Some(store) = active.store() {
            let kind = Self::topology(options, store).await?;
            return Ok(Self { kind, store: None });
        }
        match (options.route, &options.nodeid) {
            (Some(Route::Topology), _) => {
                let Some(store) = store()? else {
                    return Err(Fatal::Input(
                        "--route topology: --state-dir is missing; placements must survive a restart".to_owned(),
                    ));
                };
                Ok(Self { kind: Self::topology(options, store.clone()).await?, store: Some(store) })
            }
            (Some(Route::Sockets), _) => Self::sockets(options, store()?),
            _ if !node.is_empty() || topology_key.is_some() => Err(Fatal::Input(
                "--node and --topology-key are for several nodes: give --route topology or --route sockets too"
                    .to_owned(),
            )),
            (None, Some(node)) => Ok(Self { kind: RouteKind::Fixed(node.clone()), store: store()? }),
            (None, None) => Err(Fatal::Input(
                "--nodeid is missing: name the node of the driver (or set KUBE_NODE_NAME), or give --route topology"
                    .to_owned(),
            )),
        }
    }

    fn sockets(options: &CsiDriverOptions, store: Option<RedbStore>) -> Result<Self, Fatal> {
        let input = |text: &str| Fatal::Input(format!("--route sockets: {text}"));
        if options.endpoint_dir.as_ref().is_none_or(|directory| !directory.is_absolute()) {
            return Err(input(
                "--endpoint-dir is missing or not an absolute path: name the directory of the sockets",
            ));
        }
        if options.nodeid.is_some() {
            return Err(input("--nodeid is for a route with one socket; use --node"));
        }
        Ok(Self { kind: RouteKind::Sockets, store })
    }

    async fn topology(
        options: &CsiDriverOptions,
        store: impl PlacementStore + DriverInfoStore + 'static,
    ) -> Result<RouteKind, Fatal> {
        let TopologyOptions { node, offline_policy, topology_key, shared_topology_key } = &options.topology;
        let mut route = TopologyRouter::builder(options.drivername.clone(), node.clone())
            .with_shared_topology_keys(shared_topology_key)
            .with_offline_policy(match offline_policy {
                OfflinePolicyOption::Wait => OfflinePolicy::Wait,
                OfflinePolicyOption::Reschedule => OfflinePolicy::Move,
            });
        if let Some(node) = &options.nodeid {
            route = route.with_default_node(node.clone());
        }
        if let Some(key) = topology_key {
            route = route.with_topology_key(key);
        }
        // Without a list, every node that the hub reports.
        if node.is_empty() {
            route = route.with_discovery();
        }
        let route = route.open(store).await.map_err(Fatal::input)?;
        Ok(RouteKind::Topology(Arc::new(route)))
    }

    /// Returns the nodes that are quarantined because they report what belongs to another node, and why.
    pub(super) fn claim_conflicts(&self) -> Vec<(NodeId, ClaimConflict)> {
        match &self.kind {
            RouteKind::Topology(route) => route.claim_conflicts(),
            RouteKind::Fixed(_) | RouteKind::Sockets => Vec::new(),
        }
    }

    /// Returns the nodes that list ids recorded for other nodes, and how many.
    pub(super) fn disputed_ids(&self) -> Vec<(NodeId, usize)> {
        match &self.kind {
            RouteKind::Topology(route) => route.disputed_ids(),
            RouteKind::Fixed(_) | RouteKind::Sockets => Vec::new(),
        }
    }

    /// Returns the names of volumes whose placement is damaged.
    pub(super) fn damaged_names(&self) -> BTreeSet<Box<str>> {
        match &self.kind {
            RouteKind::Topology(route) => route.damaged_names(),
            RouteKind::Fixed(_) | RouteKind::Sockets => BTreeSet::new(),
        }
    }

    /// Returns the router, if the route has only one socket.
    pub(super) fn router(&self) -> Option<Router> {
        match &self.kind {
            RouteKind::Fixed(node) => Some(Router::fixed(node.clone())),
            RouteKind::Topology(route) => Some(Router::topology(Arc::clone(route))),
            RouteKind::Sockets => None,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RouteKind::Fixed(node) => fmt::Display::fmt(node, f),
            RouteKind::Sockets => f.write_str("by socket, one for each node"),
            RouteKind::Topology(route) => {
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

/// Opens the store. With a route by topology a damaged file is an error: without its placements a volume could be
/// created a second time on another node. Other routes set a damaged file aside, since their state is learned
/// again.
fn open_store(path: &Path, options: &CsiDriverOptions) -> Result<RedbStore, Fatal> {
    match RedbStore::open(path, &options.drivername) {
        Err(error @ OpenStoreError::Damaged { .. }) if options.route != Some(Route::Topology) => {
            let aside = unused_name(path).ok_or_else(|| Fatal::runtime(&error))?;
            fs::rename(path, &aside).map_err(Fatal::runtime)?;
            tracing::warn!(%error, ?aside, "the stored state cannot be used and was set aside; the proxy learns it again, except for decommissioned nodes: decommission lost nodes again");
            RedbStore::open(path, &options.drivername).map_err(Fatal::runtime)
        }
        other => other.map_err(Fatal::runtime),
    }
}

/// A name for a damaged file that no earlier damaged file has. `None` if there are too many.
fn unused_name(path: &Path) -> Option<PathBuf> {
    let names = (1..MAX_SET_ASIDE).map(|number| path.with_extension(format!("redb.damaged.{number}")));
    let mut names = std::iter::once(path.with_extension("redb.damaged")).chain(names);
    names.find(|name| fs::symlink_metadata(name).is_err())
}

/// The store's file in the state directory.
fn file_name(driver: &DriverName) -> String {
    format!("placements-{driver}.redb")
}
