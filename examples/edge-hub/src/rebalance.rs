//! `edge-hub rebalance`: moves a share of the nodes to other hubs, for a hub that has more of them than the others.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use edge_csi_common::process::{self, Fatal};
use edge_csi_common::state_socket;
use edge_csi_common::uplink::DEFAULT_HUB;
use edge_csi_common::values::{ListenUrl, SocketAddress};
use edge_transport::advanced::{BoundSocket, bind_socket};
use edge_transport::hub::Hub;

/// The request, before the percentage.
const VERB: &str = "rebalance ";

/// A command to a running hub.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Ask a share of the connected nodes to connect to another hub, as after an update of all hubs, whose last one has no nodes.
    /// A node leaves once it has connected; one that reaches no other hub stays. Needs a hub that listens on a unix socket
    Rebalance(Rebalance),
}

/// The arguments of `rebalance`.
#[derive(Debug, Clone, Args)]
pub struct Rebalance {
    /// Share of the nodes, chosen at random
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: u8,

    /// The unix socket that the running hub listens on
    #[arg(long, value_name = "URL", default_value = DEFAULT_HUB)]
    pub hub: SocketAddress,
}

/// The control socket beside a socket of the hub.
fn control(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".control");
    path.into()
}

/// Creates the control socket of the first unix socket that the hub listens on, with mode 0600; `None` if there is none.
pub(super) fn bind(listen: &[ListenUrl]) -> Result<Option<BoundSocket>, Fatal> {
    let socket = listen.iter().find_map(|url| match url {
        ListenUrl::Unix(socket) => Some(socket.path()),
        _ => None,
    });
    let Some(socket) = socket else { return Ok(None) };
    let bound = bind_socket(control(socket));
    bound.map(Some).map_err(|error| Fatal::Input(format!("--listen unix://{}: {error}", socket.display())))
}

/// Serves requests until the future is dropped.
pub(super) async fn serve(socket: BoundSocket, hub: Hub) {
    let execute = move |line: String| {
        let hub = hub.clone();
        async move { execute(&hub, &line).await }
    };
    state_socket::serve_commands(socket, execute).await;
}

async fn execute(hub: &Hub, line: &str) -> Result<String, &'static str> {
    let percent = line.strip_prefix(VERB).and_then(|percent| percent.parse::<u8>().ok());
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    let percent = percent
        .ok_or("expected `rebalance` with a percentage from 1 to 100; the hub may be of another version")?;
    let asked = hub.rebalance(f64::from(percent) / 100.0, "an operator rebalances the hubs").await;
    tracing::warn!(percent, asked, "asked nodes to connect to another hub");
    Ok(format!("nodes that were asked to connect to another hub: {asked}"))
}

/// Sends the request to the hub, and prints the answer.
pub(super) fn run(Rebalance { percent, hub }: &Rebalance) -> Result<(), Fatal> {
    let path = control(hub.path());
    let answer = state_socket::command(&path, &format!("{VERB}{percent}"), "the hub")?;
    let text = answer.ok_or_else(|| {
        Fatal::Runtime(format!("{}: no hub listens on this socket; name it with --hub", path.display()))
    })?;
    process::print_line(text);
    Ok(())
}
