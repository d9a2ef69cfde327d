//! `edge-csi-driver`: a CSI socket in the cloud for a driver on a node at the edge.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

mod active;
mod decommission;
mod follow;
mod front;
mod name;
mod options;
mod roster;
mod route;
mod status;
#[cfg(feature = "kubernetes")]
mod sweep;

use std::process::ExitCode;
use std::sync::Arc;

use csi_proxy::{Drained, NodeWatch, Reachability, RetryRelay};
use edge_transport::Peer;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use self::active::Active;
use self::decommission::DecommissionedNodes;
pub use self::decommission::{ControlCommand, Repair, Target};
use self::front::Front;
use self::name::HubName;
pub use self::options::{Command, CommandLine, CsiDriverOptions, PlacementsOption, Route};
use self::route::{Destination, RouteKind};
pub use self::route::{OfflinePolicyOption, TopologyOptions};
use self::status::CsiDriverStatus;
#[cfg(feature = "kubernetes")]
pub use self::sweep::Sweep;
use edge_csi_common::process::{self, Fatal, Signals};
use edge_csi_common::state_socket;
use edge_csi_common::uplink::{self, LinkFiles};

/// The binary.
pub fn main() -> ExitCode {
    process::run(async |line: CommandLine, signals| match (line.command, line.options) {
        (Some(Command::Control(command)), _) => decommission::run(command),
        #[cfg(feature = "kubernetes")]
        (Some(Command::Sweep(command)), _) => sweep::run(command).await,
        (None, Some(options)) => serve(options, signals).await,
        (None, None) => Err(Fatal::Input("--drivername is missing".to_owned())),
    })
}

async fn serve(options: CsiDriverOptions, mut signals: Signals) -> Result<(), Fatal> {
    // The socket does not depend on the certificate: a file that cannot be used keeps only the link down.
    let files = LinkFiles::open(&options.security)?;
    let dialers = uplink::dialers("--hub", &options.hub, &options.security, &files, false)?;
    let state = uplink::state_directory(options.state_dir.as_deref())?;
    let Some(mut active) = Active::wait(&options, &mut signals).await? else { return Ok(()) };
    let destination = Destination::open(&options, state.as_ref(), &active).await?;
    let drain_timeout = options.drain_timeout;
    let name = Arc::new(HubName::new(&options.drivername, files.tls.clone())?);
    let peers = Peer::builder(name.current()).drain_timeout(drain_timeout);
    let hubs = peers.dialers(name::dialers(dialers, &name)).start_at_each_hub().map_err(Fatal::runtime)?;
    tracing::info!(name = %name.current(), driver = %options.drivername, node = %destination, "starting; the driver's calls go to the node");
    let connected = Arc::new(Notify::new());
    let connections = tokio::spawn(uplink::log_connections(hubs.clone(), Arc::clone(&connected)));

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
    let online = Arc::new(Notify::new());
    let follower = front.follower(&options, &destination, &online, &connected).await?;
    let (commands, pending) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    if let Some(state) = &state {
        let socket = state_socket::bind(&state.path().join(decommission::SOCKET))?;
        tasks.spawn(decommission::serve(socket, commands));
    }
    let decommissioned_nodes =
        follower.as_ref().map_or(DecommissionedNodes::Unsupported, follow::Follower::decommissioned_nodes);
    let (driver, shown) = (options.drivername.clone(), front.shown());
    let status = CsiDriverStatus {
        hubs: hubs.clone(),
        reachability: reachability.clone(),
        relay: relay.clone(),
        name,
        files: files.clone(),
        driver,
        destination,
        shown,
        decommissioned_nodes,
    };
    // Steps that may fail come first: a socket that is removed after a moment would break sidecars that connected
    // to it.
    active.show(&options, status).await?;
    files.spawn_reload();
    let serving = front.open(&mut active).await?;
    if let Some(follower) = follower {
        tasks.spawn(follow::follow(nodes, options.drivername, reachability, follower, pending));
    }
    let signal = loop {
        tokio::select! {
            signal = signals.next() => break signal,
            // Without a drain: the newer proxy serves the remaining calls.
            replaced = relay.replaced() => return Err(Fatal::runtime(replaced)),
            lost = active.lost() => return Err(lost),
            // The driver info is refreshed ahead of its schedule when a hub is connected, or the node is lost.
            () = connected.notified() => serving.refresh(),
            () = online.notified() => serving.online(),
        }
    };
    drop(tasks);
    let drain = async {
        tokio::select! {
            drained = serving.shutdown(drain_timeout) => if drained != Drained::All {
                tracing::warn!("calls still open after the drain timeout; their operations continue at the node");
            },
            lost = active.lost() => tracing::warn!(%lost, "not waiting for open calls"),
        }
        hubs.close().await;
        active.release().await;
    };
    signals.drain(signal, drain).await;
    connections.abort();
    Ok(())
}
