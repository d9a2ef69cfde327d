//! A proxy from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use csi_proxy::{Drained, NodeWatch, Reachability, RetryRelay, SessionRelay};
use edge_csi_common::process::Fatal;
use edge_csi_common::state::StateDirectory;
use edge_csi_common::state_socket;
use edge_csi_common::uplink::{self, LinkFiles};
use edge_transport::link::Dialer;
use edge_transport::{HubSet, Peer};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::active::Active;
use super::decommission::{self, DecommissionedNodes};
use super::follow::{self, Follower};
use super::front::{Front, Open};
use super::name::{self, HubName};
use super::options::CsiDriverOptions;
use super::route::{Destination, RouteKind};
use super::status::CsiDriverStatus;

/// A proxy whose sockets are open.
#[derive(Debug)]
pub(super) struct Running {
    /// The state directory stays locked.
    _state: Option<StateDirectory>,
    pub(super) active: Active,
    hubs: HubSet,
    relay: RetryRelay<SessionRelay>,
    serving: Open,
    /// Notified when a hub is connected, or the node of a fixed route is lost for longer than its grace.
    connected: Arc<Notify>,
    /// Notified when the node of a fixed route is connected.
    online: Arc<Notify>,
    /// They end with the drain.
    tasks: JoinSet<()>,
    /// It logs until the peers are closed.
    log: JoinSet<()>,
}

impl Running {
    /// Starts the proxy, and opens its sockets.
    pub(super) async fn start(
        options: CsiDriverOptions,
        name: HubName,
        dialers: Vec<Box<dyn Dialer>>,
        files: LinkFiles,
        state: Option<StateDirectory>,
        mut active: Active,
    ) -> Result<Self, Fatal> {
        let destination = Destination::open(&options, state.as_ref(), &active).await?;
        let name = Arc::new(name);
        let peers = Peer::builder(name.current()).drain_timeout(options.drain_timeout);
        let hubs =
            peers.dialers(name::dialers(dialers, &name)).start_at_each_hub().map_err(Fatal::runtime)?;
        tracing::info!(name = %name.current(), driver = %options.drivername, node = %destination, "starting; the driver's calls go to the node");
        let (connected, online) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (mut tasks, mut log) = (JoinSet::new(), JoinSet::new());
        log.spawn(uplink::log_connections(hubs.clone(), Arc::clone(&connected)));

        let reachability = Reachability::new(options.reconnect_grace);
        let nodes = NodeWatch::new(hubs.clone(), &options.drivername, reachability.clone());
        let mut nodes = nodes.map_err(Fatal::runtime)?;
        if let RouteKind::Fixed(node) = &destination.kind {
            nodes = nodes.only(node);
        }
        let terms = active.terms(destination.store.as_ref());
        let relay = RetryRelay::start(nodes.relay(), reachability.clone(), terms).await;
        let mut relay = relay.map_err(Fatal::runtime)?;
        if let RouteKind::Fixed(_) = destination.kind {
            relay = relay.for_one_node();
        }
        let mut front = Front::new(&options, &destination, relay.clone())?;
        let follower = front.follower(&options, &destination, &online, &connected).await?;
        let (commands, pending) = mpsc::channel(1);
        if let Some(state) = &state {
            let socket = state_socket::bind(&state.path().join(decommission::SOCKET))?;
            tasks.spawn(decommission::serve(socket, commands));
        }
        let decommissioned_nodes =
            follower.as_ref().map_or(DecommissionedNodes::Unsupported, Follower::decommissioned_nodes);
        let status = CsiDriverStatus {
            hubs: hubs.clone(),
            reachability: reachability.clone(),
            relay: relay.clone(),
            name,
            files: files.clone(),
            driver: options.drivername.clone(),
            destination,
            shown: front.shown(),
            decommissioned_nodes,
        };
        // Steps that may fail come first: a socket that is removed after a moment would break sidecars that connected
        // to it.
        active.show(&options, status).await?;
        files.spawn_reload();
        let serving = front.open(&mut active).await?;
        if let Some(follower) = follower {
            let driver = options.drivername.clone();
            tasks.spawn(follow::follow(nodes, driver, reachability, follower, pending));
        }
        Ok(Self { _state: state, active, hubs, relay, serving, connected, online, tasks, log })
    }

    /// Serves until another proxy of the driver has replaced this one.
    pub(super) async fn ended(&self) -> Fatal {
        loop {
            tokio::select! {
                replaced = self.relay.replaced() => return Fatal::runtime(replaced),
                lost = self.active.lost() => return lost,
                // The driver info is refreshed ahead of its schedule when a hub is connected, or the node is lost.
                () = self.connected.notified() => self.serving.refresh(),
                () = self.online.notified() => self.serving.online(),
            }
        }
    }

    /// Accepts no more calls, waits for open ones up to `bound`, and closes the sessions.
    pub(super) async fn drain(self, bound: Duration) {
        drop(self.tasks);
        tokio::select! {
            drained = self.serving.shutdown(bound) => if drained != Drained::All {
                tracing::warn!("calls still open after the drain timeout; their operations continue at the node");
            },
            lost = self.active.lost() => tracing::warn!(%lost, "not waiting for open calls"),
        }
        self.hubs.close().await;
        self.active.release().await;
        drop(self.log);
    }
}
