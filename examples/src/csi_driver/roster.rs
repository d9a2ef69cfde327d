//! The nodes that had a socket, kept over a restart: their sidecars must find it again while the hub is off. And those that are
//! decommissioned.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use csi_proto::DriverName;
use csi_proxy::{DEFAULT_MAX_SOCKETS, NodeId};

use crate::durable_file;
use crate::process::Fatal;
use crate::state::StateDirectory;

/// What is before the name of a decommissioned node. No name has a space.
const DECOMMISSIONED: &str = "decommissioned ";

/// Nodes by name, a file of lines in the state directory, if there is one.
#[derive(Debug)]
pub(super) struct Roster {
    nodes: BTreeSet<NodeId>,
    decommissioned: BTreeSet<NodeId>,
    place: Option<(PathBuf, String)>,
}

impl Roster {
    /// The nodes that were kept. Without a directory there are none.
    pub(super) fn open(driver: &DriverName, state: Option<&StateDirectory>) -> Result<Self, Fatal> {
        let place = state.map(|state| (state.path().to_owned(), format!("nodes-{driver}")));
        let (mut nodes, mut decommissioned) = (BTreeSet::new(), BTreeSet::new());
        if let Some((directory, file)) = &place {
            let path = directory.join(file);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    // A line that is no name has no socket.
                    nodes.extend(text.lines().filter_map(|line| NodeId::new(line).ok()));
                    let lost = text.lines().filter_map(|line| line.strip_prefix(DECOMMISSIONED));
                    decommissioned.extend(lost.filter_map(|name| NodeId::new(name).ok()));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Fatal::Runtime(format!("--state-dir: cannot read {path:?}: {error}")));
                }
            }
        }
        Ok(Self { nodes, decommissioned, place })
    }

    /// The nodes, by name.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.nodes.iter()
    }

    /// Whether a node has a socket, or had one.
    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.nodes.contains(node)
    }

    /// The decommissioned nodes, by name.
    pub(super) fn decommissioned(&self) -> &BTreeSet<NodeId> {
        &self.decommissioned
    }

    /// Decommissions a node, on the disk when it returns.
    ///
    /// # Errors
    /// If it cannot be written. Then nothing is changed.
    pub(super) fn decommission(&mut self, node: &NodeId) -> io::Result<()> {
        let (mut nodes, mut decommissioned) = (self.nodes.clone(), self.decommissioned.clone());
        nodes.remove(node);
        decommissioned.insert(node.clone());
        self.replace(nodes, decommissioned)
    }

    /// Recommissions a node, on the disk when it returns. It has a socket again.
    ///
    /// # Errors
    /// If it cannot be written. Then nothing is changed.
    pub(super) fn recommission(&mut self, node: &NodeId) -> io::Result<()> {
        let (mut nodes, mut decommissioned) = (self.nodes.clone(), self.decommissioned.clone());
        decommissioned.remove(node);
        nodes.insert(node.clone());
        self.replace(nodes, decommissioned)
    }

    fn replace(&mut self, nodes: BTreeSet<NodeId>, decommissioned: BTreeSet<NodeId>) -> io::Result<()> {
        self.write(&nodes, &decommissioned)?;
        (self.nodes, self.decommissioned) = (nodes, decommissioned);
        Ok(())
    }

    /// Adds nodes, but for decommissioned ones. If they cannot be written that is logged: they are added again when they connect.
    pub(super) fn add(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        let before = self.nodes.len();
        let room = DEFAULT_MAX_SOCKETS.saturating_sub(before);
        let is_new = |node: &NodeId| !self.nodes.contains(node) && !self.decommissioned.contains(node);
        let new: Vec<_> = nodes.into_iter().filter(is_new).take(room).collect();
        self.nodes.extend(new);
        if self.nodes.len() != before
            && let Err(error) = self.write(&self.nodes, &self.decommissioned)
        {
            tracing::warn!(%error, "the list of nodes that have a socket could not be kept for the next start");
        }
    }

    fn write(&self, nodes: &BTreeSet<NodeId>, decommissioned: &BTreeSet<NodeId>) -> io::Result<()> {
        let Some((directory, file)) = &self.place else { return Ok(()) };
        let mut text: String = nodes.iter().map(|node| format!("{node}\n")).collect();
        text.extend(decommissioned.iter().map(|node| format!("{DECOMMISSIONED}{node}\n")));
        durable_file::replace(directory, file, &[text.as_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_there_after_a_restart_until_they_are_decommissioned() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(directory.path()).unwrap();
        let open = || Roster::open(&DriverName::new("a.b").unwrap(), Some(&state)).unwrap();
        let names = |roster: &Roster| roster.nodes().map(ToString::to_string).collect::<Vec<_>>();
        let node = |name: &str| NodeId::new(name).unwrap();
        let mut roster = open();
        roster.add(["edge-2", "edge-1"].map(node));
        roster.add([node("edge-1")]);
        assert_eq!(names(&open()), ["edge-1", "edge-2"]);
        roster.decommission(&node("edge-1")).unwrap();
        let mut roster = open();
        roster.add(["edge-1"].map(node));
        assert_eq!(
            (names(&roster), roster.decommissioned()),
            (vec!["edge-2".to_owned()], &[node("edge-1")].into())
        );
        fs::create_dir(directory.path().join("nodes-a.b.new")).unwrap();
        assert!(
            roster.decommission(&node("edge-2")).is_err() && roster.recommission(&node("edge-1")).is_err()
        );
        assert_eq!((roster.contains(&node("edge-2")), roster.decommissioned().len()), (true, 1));
        fs::remove_dir(directory.path().join("nodes-a.b.new")).unwrap();
        roster.recommission(&node("edge-1")).unwrap();
        assert_eq!((names(&open()), open().decommissioned().len()), (names(&roster), 0));
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
