//! `edge-csi-driver decommission NODE` and `recommission NODE`: commands to the proxy that runs with a state directory.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use csi_proto::DriverName;
use csi_proxy::call::InvalidNodeId;
use csi_proxy::route::store::StoreError;
use csi_proxy::route::{DecommissionError, Decommissioned};
use csi_proxy::{NodeId, NodeSocketError, TopologyRouter};
use tokio::sync::{oneshot, watch};

use super::control::SOCKET;
use crate::logging::LogOptions;
use crate::process::Fatal;

/// How long a proxy may take: it writes to its disk, and waits for calls on a socket that it removes.
const BOUND: Duration = Duration::from_secs(30);

/// Most bytes of an answer.
const MAX_ANSWER: u64 = 4096;

/// What is before the text of an answer, by how the command ended.
pub(super) const DONE: &str = "ok ";
pub(super) const REFUSED: &str = "error ";

/// A command to a running proxy.
#[derive(Debug, Clone, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Declare a node lost, with all volumes on it: its placements are released, so that the names of its volumes may be used on
    /// other nodes, and its volumes can be deleted. If it returns it gets no calls until it is recommissioned. Refused while it is
    /// connected
    Decommission(Target),
    /// Undo `decommission`: the node gets calls again, and its volumes are found when they are asked for. Look for names that exist twice
    Recommission(Target),
}

/// Which node, and which proxy.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct Target {
    /// Name of the node, as `edge-agent --nodeid` has it
    #[arg(value_name = "NODE")]
    pub node: NodeId,

    /// The --state-dir of the running edge-csi-driver
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,

    /// Logs.
    #[command(flatten)]
    pub log: LogOptions,
}

impl Command {
    pub(super) const fn target(&self) -> &Target {
        let (Self::Decommission(target) | Self::Recommission(target)) = self;
        target
    }

    fn order(&self) -> Order {
        match self {
            Self::Decommission(target) => Order::Decommission(target.node.clone()),
            Self::Recommission(target) => Order::Recommission(target.node.clone()),
        }
    }
}

/// What a proxy is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    Decommission(NodeId),
    Recommission(NodeId),
}

/// A line that is no order.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidOrder {
    #[error("expected `decommission NODE` or `recommission NODE`; the proxy may be of another version")]
    Verb,
    #[error(transparent)]
    Node(#[from] InvalidNodeId),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decommission(node) => write!(f, "decommission {node}"),
            Self::Recommission(node) => write!(f, "recommission {node}"),
        }
    }
}

impl FromStr for Order {
    type Err = InvalidOrder;

    fn from_str(line: &str) -> Result<Self, InvalidOrder> {
        match line.split_once(' ') {
            Some(("decommission", node)) => Ok(Self::Decommission(NodeId::new(node)?)),
            Some(("recommission", node)) => Ok(Self::Recommission(NodeId::new(node)?)),
            _ => Err(InvalidOrder::Verb),
        }
    }
}

/// An order, and who waits for the answer: one line.
#[derive(Debug)]
pub(super) struct Commanded {
    pub(super) order: Order,
    pub(super) answer: oneshot::Sender<Result<String, CommandError>>,
}

/// An order is not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Node(#[from] DecommissionError),
    #[error(
        "the proxy of driver {driver} sends all calls to node {node} and keeps nothing of nodes, so there is nothing to release; stop this proxy if its node is lost"
    )]
    FixedRoute { driver: DriverName, node: NodeId },
    #[error("node {node}: not durable, repeat the command: {source}")]
    NotDurable { node: NodeId, source: StoreError },
    #[error("the node is recommissioned, but has no socket: {0}")]
    NoSocket(#[from] NodeSocketError),
}

/// Carries out an order for a route by topology.
pub(super) async fn by_topology(route: &TopologyRouter, order: Order) -> Result<String, CommandError> {
    Ok(match order {
        Order::Decommission(node) => {
            let Decommissioned { rows, before, .. } = route.decommission(&node).await?;
            let already = if before { " already" } else { "" };
            format!(
                "node {node} is{already} decommissioned: {rows} rows released; it gets no calls until it is recommissioned"
            )
        }
        Order::Recommission(node) => match route.recommission(&node).await? {
            true => {
                format!("node {node} is recommissioned: it gets calls again")
            }
            false => format!("node {node} was not decommissioned"),
        },
    })
}

/// The decommissioned nodes, and whether each is connected, for the status page.
#[derive(Debug)]
pub(super) enum Quarantined {
    Nowhere,
    Topology(Arc<TopologyRouter>),
    Sockets(watch::Receiver<Vec<(NodeId, bool)>>),
}

impl Quarantined {
    pub(super) fn nodes(&self) -> Vec<(NodeId, bool)> {
        match self {
            Self::Nowhere => Vec::new(),
            Self::Topology(route) => route.decommissioned(),
            Self::Sockets(nodes) => nodes.borrow().clone(),
        }
    }
}

/// Sends a command to the proxy, and prints its answer.
pub(super) fn run(command: &Command) -> Result<(), Fatal> {
    let directory = &command.target().state_dir;
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(Fatal::Input(format!("--state-dir: there is no directory {shown}")));
    }
    let path = directory.join(SOCKET);
    let stream = UnixStream::connect(&path).map_err(|error| unreachable_proxy(&path, &error))?;
    let answer = talk(stream, &command.order()).map_err(|error| {
        Fatal::Runtime(format!("{}: no answer, repeat the command: {error}", path.display()))
    })?;
    let line = answer.strip_suffix('\n').unwrap_or_default();
    if let Some(text) = line.strip_prefix(DONE) {
        // Nothing is left to do if stdout is closed.
        let _ = writeln!(io::stdout(), "{text}");
        return Ok(());
    }
    Err(Fatal::Runtime(match line.strip_prefix(REFUSED) {
        Some(text) => text.to_owned(),
        None => format!("{}: the proxy ended before it answered; repeat the command", path.display()),
    }))
}

fn unreachable_proxy(path: &Path, error: &io::Error) -> Fatal {
    let (path, hint) = (
        path.display(),
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "no edge-csi-driver runs with this --state-dir; start it, then repeat the command"
            }
            io::ErrorKind::PermissionDenied => "only root and the user of the proxy may use it",
            _ => "cannot connect",
        },
    );
    Fatal::Runtime(format!("{path}: {hint}: {error}"))
}

fn talk(mut stream: UnixStream, order: &Order) -> io::Result<String> {
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    stream.write_all(format!("{order}\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written_and_nothing_else_is_one() {
        let node = || NodeId::new("edge-2").unwrap();
        for order in [Order::Decommission(node()), Order::Recommission(node())] {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        for line in
            ["", "decommission", "decommission ", "decommission ../x", "decommission a b", "forget edge-2"]
        {
            assert!(line.parse::<Order>().is_err(), "{line:?}");
        }
    }
}
