//! `edge-csi-driver decommission NODE`, `recommission NODE` and `repair NAME`: commands to the proxy that runs with a
//! state directory.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, Subcommand};
use csi_proto::DriverName;
use csi_proxy::{
    DecommissionError, Decommissioned, InvalidNodeId, NodeId, NodeSocketError, RepairError, StoreError,
    TopologyRouter,
};
use edge_transport::advanced::BoundSocket;
use tokio::sync::{mpsc, oneshot, watch};

use edge_csi_common::process::{self, Fatal};
use edge_csi_common::state_socket;

/// The control socket in the state directory. A command is one line: a verb, and a node, a name or both.
pub(super) const SOCKET: &str = "control.sock";

/// A command to a running proxy.
#[derive(Debug, Clone, Subcommand)]
pub enum ControlCommand {
    /// Declare a node lost, with all volumes on it: its placements are released, so that the names of its volumes
    /// may be used on other nodes, and its volumes can be deleted. If the node reconnects it gets no calls until
    /// it is recommissioned. Refused while the node is connected
    Decommission(Target),
    /// Revert `decommission`: the node gets calls again, and its volumes are found on demand. Check for
    /// duplicate volume names
    Recommission(Target),
    /// Replace the damaged placement of a volume's name, for which CreateVolume returns UNAVAILABLE, by what is true
    Repair(Repair),
}

/// The arguments of a command: the node, and the state directory of the proxy.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Name of the node, as in `edge-agent --nodeid`
    #[arg(value_name = "NODE")]
    pub node: NodeId,

    /// The --state-dir of the running edge-csi-driver
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
}

/// The arguments of `repair`.
#[derive(Debug, Clone, Args)]
pub struct Repair {
    /// Name of the volume, as in the log and on the status page
    #[arg(value_name = "NAME", value_parser = volume_name)]
    pub name: String,

    /// The node that has the volume, or may have it: requests for the name go there
    #[arg(long, value_name = "NODE", required_unless_present = "absent", conflicts_with = "absent")]
    pub node: Option<NodeId>,

    /// No node has the volume: the name is free. If a node does have it, it may be created twice
    #[arg(long)]
    pub absent: bool,

    /// The --state-dir of the running edge-csi-driver
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
}

/// Parses the name of a volume, which is the rest of a line on the control socket.
fn volume_name(text: &str) -> Result<String, InvalidAction> {
    match text.is_empty() || text.contains(['\n', '\r']) {
        true => Err(InvalidAction::Name),
        false => Ok(text.to_owned()),
    }
}

/// The action that a command requests of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Decommission(NodeId),
    Recommission(NodeId),
    /// The volume of the name is on this node; on none for `None`.
    Repair(String, Option<NodeId>),
}

/// The error of a line that is not a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidAction {
    #[error("expected `decommission`, `recommission` or `repair`; the proxy may be of another version")]
    Verb,
    #[error("expected the name of a volume, in one line")]
    Name,
    #[error(transparent)]
    Node(#[from] InvalidNodeId),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decommission(node) => write!(f, "decommission {node}"),
            Self::Recommission(node) => write!(f, "recommission {node}"),
            Self::Repair(name, Some(node)) => write!(f, "repair {node} {name}"),
            Self::Repair(name, None) => write!(f, "repair - {name}"),
        }
    }
}

impl FromStr for Action {
    type Err = InvalidAction;

    fn from_str(line: &str) -> Result<Self, InvalidAction> {
        match line.split_once(' ') {
            Some(("decommission", node)) => Ok(Self::Decommission(NodeId::new(node)?)),
            Some(("recommission", node)) => Ok(Self::Recommission(NodeId::new(node)?)),
            Some(("repair", rest)) => {
                let (node, name) = rest.split_once(' ').ok_or(InvalidAction::Name)?;
                let node = (node != "-").then(|| NodeId::new(node)).transpose()?;
                Ok(Self::Repair(volume_name(name)?, node))
            }
            _ => Err(InvalidAction::Verb),
        }
    }
}

/// An action with the channel for its one-line answer.
#[derive(Debug)]
pub(super) struct PendingAction {
    pub(super) action: Action,
    pub(super) answer: oneshot::Sender<Result<String, CommandError>>,
}

/// The error of a failed action.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Node(#[from] DecommissionError),
    #[error(transparent)]
    Repair(#[from] RepairError),
    #[error(
        "the proxy of driver {driver} has a socket for each node and stores no placements; there is nothing to repair"
    )]
    NoPlacements { driver: DriverName },
    #[error(
        "the proxy of driver {driver} sends all calls to node {node} and stores no placements, so there is nothing to release; stop this proxy if its node is lost"
    )]
    FixedRoute { driver: DriverName, node: NodeId },
    #[error("node {node}: not durable, repeat the command: {source}")]
    NotDurable { node: NodeId, source: StoreError },
    #[error("the node is recommissioned, but has no socket: {0}")]
    NoSocket(#[from] NodeSocketError),
}

/// Executes an action on a route by topology.
pub(super) async fn execute_by_topology(
    route: &TopologyRouter,
    action: Action,
) -> Result<String, CommandError> {
    Ok(match action {
        Action::Decommission(node) => {
            let Decommissioned { rows, before, .. } = route.decommission(&node).await?;
            let already = if before { " already" } else { "" };
            format!(
                "node {node} is{already} decommissioned: {rows} rows released; it gets no calls until it is recommissioned"
            )
        }
        Action::Recommission(node) => match route.recommission(&node).await? {
            true => {
                format!("node {node} is recommissioned: it gets calls again")
            }
            false => format!("node {node} was not decommissioned"),
        },
        Action::Repair(name, node) => {
            route.repair(&name, node.as_ref()).await?;
            match node {
                Some(node) => format!("requests for volume {name:?} go to node {node}"),
                None => format!("volume {name:?} may be created on any node"),
            }
        }
    })
}

/// The decommissioned nodes, and whether each is connected, for the status page.
#[derive(Debug)]
pub(super) enum DecommissionedNodes {
    Unsupported,
    Topology(Arc<TopologyRouter>),
    Sockets(watch::Receiver<Vec<(NodeId, bool)>>),
}

impl DecommissionedNodes {
    pub(super) fn nodes(&self) -> Vec<(NodeId, bool)> {
        match self {
            Self::Unsupported => Vec::new(),
            Self::Topology(route) => route.decommissioned(),
            Self::Sockets(nodes) => nodes.borrow().clone(),
        }
    }
}

/// Sends a command to the proxy, and prints the answer.
pub(super) fn run(command: ControlCommand) -> Result<(), Fatal> {
    let (action, directory) = match command {
        ControlCommand::Decommission(Target { node, state_dir }) => (Action::Decommission(node), state_dir),
        ControlCommand::Recommission(Target { node, state_dir }) => (Action::Recommission(node), state_dir),
        ControlCommand::Repair(Repair { name, node, state_dir, .. }) => {
            (Action::Repair(name, node), state_dir)
        }
    };
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(Fatal::Input(format!("--state-dir: no directory {shown}")));
    }
    let path = directory.join(SOCKET);
    let answer = state_socket::command(&path, &action.to_string(), "the proxy")?;
    let text = answer.ok_or_else(|| {
        let hint = "no edge-csi-driver runs with this --state-dir; start it, then repeat the command";
        Fatal::Runtime(format!("{}: {hint}", path.display()))
    })?;
    process::print_line(text);
    Ok(())
}

/// Serves commands until the future is dropped.
pub(super) async fn serve(socket: BoundSocket, commands: mpsc::Sender<PendingAction>) {
    let execute = move |line: String| {
        let commands = commands.clone();
        async move { execute_line(&line, &commands).await }
    };
    state_socket::serve_commands(socket, execute).await;
}

/// Executes a line, and returns the text of the answer.
async fn execute_line(line: &str, commands: &mpsc::Sender<PendingAction>) -> Result<String, String> {
    let action: Action = line.parse().map_err(|error| format!("{error}"))?;
    let (answer, answered) = oneshot::channel();
    let ending = "the proxy is ending; repeat the command when it runs again";
    commands.send(PendingAction { action, answer }).await.map_err(|_| ending.to_owned())?;
    let done = answered.await.map_err(|_| ending.to_owned())?;
    done.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream as Blocking;

    use super::*;

    #[test]
    fn action_round_trips_and_other_lines_are_refused() {
        let node = || NodeId::new("edge-2").unwrap();
        let name = || "pvc-1 of ünit".to_owned();
        for action in [
            Action::Decommission(node()),
            Action::Recommission(node()),
            Action::Repair(name(), Some(node())),
            Action::Repair(name(), None),
        ] {
            assert_eq!(action.to_string().parse::<Action>().unwrap(), action);
        }
        for line in [
            "",
            "decommission",
            "decommission ",
            "decommission ../x",
            "decommission a b",
            "forget edge-2",
            "repair",
            "repair -",
            "repair - ",
            "repair ../x pvc-1",
        ] {
            assert!(line.parse::<Action>().is_err(), "{line:?}");
        }
    }

    /// Answers each line, in a directory of its own.
    async fn answers(lines: &[&str]) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SOCKET);
        let socket = state_socket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (commands, mut pending) = mpsc::channel::<PendingAction>(1);
        let serving = tokio::spawn(serve(socket, commands));
        let executing = tokio::spawn(async move {
            while let Some(PendingAction { action, answer }) = pending.recv().await {
                let _ = answer.send(Ok(format!("done: {action}")));
            }
        });
        let mut answers = Vec::new();
        for line in lines {
            let (line, path) = ((*line).to_owned(), path.clone());
            let ask = move || {
                let mut stream = Blocking::connect(path).unwrap();
                stream.write_all(line.as_bytes()).unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                answer
            };
            answers.push(tokio::task::spawn_blocking(ask).await.unwrap());
        }
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled() && !path.exists());
        executing.await.unwrap();
        answers
    }

    #[tokio::test]
    async fn commands_are_single_bounded_lines() {
        let node = NodeId::new("edge-2").unwrap();
        let (long, good) = ("x".repeat(600), format!("decommission {node}\n"));
        let found =
            answers(&["forget edge-2\n", "decommission ../x\n", &long, "decommission edge-2", &good]).await;
        assert!(found[0].starts_with("error expected") && found[1].starts_with("error "), "{found:?}");
        assert_eq!(found[2..], ["", "", "ok done: decommission edge-2\n"]);
    }
}
