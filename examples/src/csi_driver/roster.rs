//! The nodes that had a socket, kept over a restart: their sidecars must find it again while the hub is off.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use csi_proto::DriverName;
use csi_proxy::{DEFAULT_MAX_SOCKETS, NodeId};

use crate::durable_file;
use crate::process::Fatal;
use crate::state::StateDirectory;

/// Nodes by name, a file of lines in the state directory, if there is one.
#[derive(Debug)]
pub(super) struct Roster {
    nodes: BTreeSet<NodeId>,
    place: Option<(PathBuf, String)>,
}

impl Roster {
    /// The nodes that were kept. Without a directory there are none.
    pub(super) fn open(driver: &DriverName, state: Option<&StateDirectory>) -> Result<Self, Fatal> {
        let place = state.map(|state| (state.path().to_owned(), format!("nodes-{driver}")));
        let mut nodes = BTreeSet::new();
        if let Some((directory, file)) = &place {
            let path = directory.join(file);
            match fs::read_to_string(&path) {
                // A line that is no name has no socket.
                Ok(text) => nodes.extend(text.lines().filter_map(|line| NodeId::new(line).ok())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Fatal::Runtime(format!("--state-dir: cannot read {path:?}: {error}")));
                }
            }
        }
        Ok(Self { nodes, place })
    }

    /// The nodes, by name.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.nodes.iter()
    }

    /// Adds nodes. Whether they are kept is only told: without that, they come back when the hub tells of them.
    pub(super) fn add(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        let before = self.nodes.len();
        let room = DEFAULT_MAX_SOCKETS.saturating_sub(before);
        let new: Vec<_> = nodes.into_iter().filter(|node| !self.nodes.contains(node)).take(room).collect();
        self.nodes.extend(new);
        if self.nodes.len() != before {
            self.keep();
        }
    }

    fn keep(&self) {
        let Some((directory, file)) = &self.place else { return };
        let text: String = self.nodes.iter().map(|node| format!("{node}\n")).collect();
        if let Err(error) = durable_file::replace(directory, file, &[text.as_bytes()]) {
            tracing::warn!(%error, file, "the list of nodes that have a socket could not be kept for the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(directory.path()).unwrap();
        let open = || Roster::open(&DriverName::new("a.b").unwrap(), Some(&state)).unwrap();
        let names = |roster: &Roster| roster.nodes().map(ToString::to_string).collect::<Vec<_>>();
        let node = |name: &str| NodeId::new(name).unwrap();
        let mut roster = open();
        roster.add(["edge-2", "edge-1"].map(node));
        roster.add([node("edge-1")]);
        assert_eq!(names(&open()), ["edge-1", "edge-2"]);
        fs::write(directory.path().join("nodes-a.b"), "edge-3\n../x\n").unwrap();
        assert_eq!(names(&open()), ["edge-3"]);
    }

    #[test]
    fn no_more_nodes_are_kept_than_there_may_be_sockets() {
        let mut roster = Roster::open(&DriverName::new("a.b").unwrap(), None).unwrap();
        roster.add((0..2000).map(|number| NodeId::new(format!("n{number}")).unwrap()));
        assert_eq!(roster.nodes().count(), DEFAULT_MAX_SOCKETS);
    }
}
