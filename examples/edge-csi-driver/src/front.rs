//! The sockets for the sidecars: one socket, or one for each node.

use std::sync::Arc;
use std::time::Duration;

use csi_proxy::{Drained, Endpoint, NodeId, NodeSockets, Relay, Serving, SocketAddress, StartupView};
use tokio::sync::Notify;

use super::active::Active;
use super::follow::{BySocket, Follower};
use super::options::CsiDriverOptions;
use super::roster::Roster;
use super::route::{Destination, RouteKind};
use edge_csi_common::process::Fatal;

/// The sockets, before they are opened.
#[derive(Debug)]
pub(super) enum Front {
    One {
        endpoint: Box<Endpoint>,
        address: SocketAddress,
        startup: StartupView,
    },
    /// One socket for each node; those of `nodes` are opened at the start.
    Each {
        sockets: NodeSockets,
        nodes: Vec<NodeId>,
    },
}

impl Front {
    /// Creates the sockets of the options, without opening them.
    pub(super) fn new(
        options: &CsiDriverOptions,
        destination: &Destination,
        relay: impl Relay + 'static,
    ) -> Result<Self, Fatal> {
        let driver = options.drivername.clone();
        let Some(router) = destination.router() else {
            let directory = options.endpoint_dir.clone().unwrap_or_default();
            let mut sockets = NodeSockets::new(directory, driver, relay);
            if let Some(store) = destination.store.clone() {
                sockets = sockets.with_driver_info(store);
            }
            if let Some(key) = &options.topology.topology_key {
                sockets = sockets.with_topology_key(key);
            }
            return Ok(Self::Each { sockets, nodes: Vec::new() });
        };
        let mut endpoint = Endpoint::new(driver, router, relay);
        // The stored driver info answers after a restart while the edge is offline.
        if let Some(store) = destination.store.clone() {
            endpoint = endpoint.with_driver_info(store);
        }
        let (address, startup) = (options.endpoint.clone(), endpoint.startup());
        Ok(Self::One { endpoint: Box::new(endpoint), address, startup })
    }

    /// Returns the part that the status page shows.
    pub(super) fn shown(&self) -> Shown {
        match self {
            Self::One { address, startup, .. } => Shown::One(address.clone(), startup.clone()),
            Self::Each { sockets, .. } => Shown::Each(sockets.clone()),
        }
    }

    /// Returns the receiver of node changes, if there is one. `online` is notified when the node of a fixed route
    /// connects, `away` when it is lost for longer than its grace.
    pub(super) async fn follower(
        &mut self,
        options: &CsiDriverOptions,
        destination: &Destination,
        online: &Arc<Notify>,
        away: &Arc<Notify>,
    ) -> Result<Option<Follower>, Fatal> {
        Ok(match (self, &destination.kind) {
            (Self::Each { sockets, nodes }, _) => {
                let mut roster = Roster::open(destination.store.clone()).await?;
                roster.add(options.topology.node.iter().cloned());
                let (sockets, only) = (sockets.clone(), options.topology.node.clone());
                let may = |node: &&NodeId| only.is_empty() || only.contains(node);
                *nodes = roster.nodes.iter().filter(may).cloned().collect();
                let driver = options.drivername.clone();
                Some(Follower::Sockets(BySocket::new(driver, sockets, roster, only)))
            }
            (Self::One { .. }, RouteKind::Topology(route)) => Some(Follower::Topology(Arc::clone(route))),
            (Self::One { .. }, RouteKind::Fixed(node)) => {
                let (online, away) = (Arc::clone(online), Arc::clone(away));
                Some(Follower::Fixed { node: node.clone(), connected: false, online, away })
            }
            (Self::One { .. }, RouteKind::Sockets) => None,
        })
    }

    /// Opens the sockets.
    pub(super) async fn open(self, active: &mut Active) -> Result<Open, Fatal> {
        match self {
            Self::One { endpoint, address, .. } => Ok(Open::One(active.serve(*endpoint, address).await?)),
            Self::Each { sockets, nodes } => {
                // Every invalid name is reported before the first socket opens.
                for node in &nodes {
                    sockets
                        .address(node)
                        .map_err(|error| Fatal::Input(format!("--endpoint-dir: {error}")))?;
                }
                for node in &nodes {
                    sockets.serve(node).await.map_err(Fatal::runtime)?;
                }
                Ok(Open::Each(sockets))
            }
        }
    }
}

/// The sockets, for the status page.
#[derive(Debug)]
pub(super) enum Shown {
    One(SocketAddress, StartupView),
    Each(NodeSockets),
}

/// The open sockets.
#[derive(Debug)]
pub(super) enum Open {
    One(Serving),
    Each(NodeSockets),
}

impl Open {
    /// Refreshes the driver info of all sockets now.
    pub(super) fn refresh(&self) {
        match self {
            Self::One(serving) => serving.refresh(),
            Self::Each(sockets) => sockets.refresh(),
        }
    }

    /// Notifies the one socket that its node is connected, so that a driver that was not ready is called again.
    pub(super) fn online(&self) {
        if let Self::One(serving) = self {
            serving.online();
        }
    }

    /// Stops accepting calls, and waits up to `bound` for open ones.
    pub(super) async fn shutdown(self, bound: Duration) -> Drained {
        match self {
            Self::One(serving) => serving.shutdown(bound).await,
            Self::Each(sockets) => sockets.shutdown(bound).await,
        }
    }
}
