//! `edge-hub node-gone NODE`: tells the running hub of this host that a node is gone for good, with its volumes, or takes that back.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::{Parser, Subcommand};
use csi_proxy::{NodeId, SocketAddress};
use edge_transport::link::{Address, DialOptions};
use edge_transport::{Peer, PeerId, ReplyEvent, Request, ServiceName};

use super::operator;
use super::options::DEFAULT_UDS;
use crate::logging::LogOptions;
use crate::process::{Fatal, Options, Signals};
use crate::state::wall_clock_epoch;

/// The first argument that is this command.
pub(super) const COMMAND: &str = "node-gone";

/// How long the hub may take to take the connection.
const CONNECT: Duration = Duration::from_secs(5);

/// How long it may take altogether: more than it gives the proxies.
const BOUND: Duration = Duration::from_secs(20);

/// Tells the running hub of this host what it cannot know.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-hub", version)]
#[non_exhaustive]
pub struct OperatorOptions {
    /// What to tell.
    #[command(subcommand)]
    pub what: Tell,

    /// Logs.
    #[command(flatten)]
    pub log: LogOptions,
}

/// What can be told.
#[derive(Debug, Clone, Subcommand)]
#[non_exhaustive]
pub enum Tell {
    /// Say that a node is gone for good, with all volumes on it: every proxy forgets what the node had, so that the names of its
    /// volumes may be used on other nodes and what belonged to it can be deleted. Refused while the node is connected
    NodeGone {
        /// Name of the node, as `edge-agent --nodeid` had it
        #[arg(value_name = "NODE")]
        node: NodeId,

        /// Say that you know it: should the node come back after all, volumes of one name may exist twice
        #[arg(long, required_unless_present = "undo")]
        volumes_are_lost: bool,

        /// Take it back: no other proxy is told. What proxies have forgotten stays forgotten until the node comes
        #[arg(long, conflicts_with = "volumes_are_lost")]
        undo: bool,

        /// Unix socket of the hub
        #[arg(long, value_name = "URL", default_value = DEFAULT_UDS)]
        uds: SocketAddress,
    },
}

impl Options for OperatorOptions {
    const LOG_LEVEL: &'static str = "error";

    fn logging(&self) -> &LogOptions {
        &self.log
    }
}

/// Tells it, and prints what the proxies say.
pub(super) async fn run(options: OperatorOptions, _: Signals) -> Result<(), Fatal> {
    let Tell::NodeGone { node, uds, undo, .. } = options.what;
    let address: Address = uds.to_string().parse().map_err(Fatal::input)?;
    let dialer = address.dialer(&DialOptions::default()).map_err(Fatal::input)?;
    let epoch = wall_clock_epoch(SystemTime::now());
    let name = format!("{}/{}-{epoch}", operator::NAME, std::process::id());
    let peer = Peer::builder(PeerId::new(name).map_err(Fatal::runtime)?).epoch(epoch).dialer(dialer);
    let peer = peer.start().map_err(Fatal::runtime)?;
    let told = tokio::time::timeout(BOUND, tell(&peer, &node, undo, &uds)).await;
    peer.close().await;
    match told.map_err(|_| Fatal::Runtime(format!("the hub at {uds} has not answered")))?? {
        Told::All => Ok(()),
        Told::Nobody => Err(Fatal::Runtime(format!(
            "nobody was told, and this hub forgets it when it ends: say it again when the proxies are connected, or give the hub --state-dir, or start the proxies with --forget {node}"
        ))),
        Told::NotAll => Err(Fatal::Runtime(format!(
            "not every proxy has released what {node} had; say it again when they are connected, or start them with --forget {node}"
        ))),
    }
}

/// How it went.
enum Told {
    All,
    Nobody,
    NotAll,
}

/// Says it, and prints what the hub says.
async fn tell(peer: &Peer, node: &NodeId, undo: bool, uds: &SocketAddress) -> Result<Told, Fatal> {
    // How it went, the next line knows.
    let _ = tokio::time::timeout(CONNECT, peer.connected()).await;
    let hub = peer.hub().map_err(|cause| Fatal::Runtime(format!("--uds {uds}: {cause}")))?;
    let service = ServiceName::new(operator::SERVICE).map_err(Fatal::runtime)?;
    let request = Request::new(hub, service, format!("{}{node}", if undo { operator::UNDO } else { "" }));
    let mut answer = peer.call(request).await.map_err(Fatal::runtime)?;
    loop {
        match answer.next().await {
            Some(Ok(ReplyEvent::Message(line))) => {
                // Whoever closed stdout does not want to know.
                let _ = writeln!(io::stdout(), "{}", String::from_utf8_lossy(&line));
            }
            Some(Ok(ReplyEvent::Finished(closing))) => {
                return Ok(match &*closing {
                    operator::ALL => Told::All,
                    operator::NOBODY => Told::Nobody,
                    _ => Told::NotAll,
                });
            }
            Some(Err(failure)) => return Err(Fatal::Runtime(failure.detail().to_owned())),
            Some(Ok(_)) | None => return Err(Fatal::Runtime("the hub has ended".to_owned())),
        }
    }
}
