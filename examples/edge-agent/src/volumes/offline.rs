//! Reports of the recorded volumes while no agent runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use volume_manager::advanced::message::{Quarantined, VolumeReport, VolumeReports};
use volume_manager::advanced::node::Node;
use volume_manager::mounts::linux::read_table;
use volume_manager::node::VolumeSettings;
use volume_manager::store::BootId;

use super::super::store::AgentStore;
use super::{desired, matches_id};
use edge_csi_common::process::Fatal;

/// Returns the reports of the recorded volumes that match `id`, or of all. The caller has locked the state
/// directory.
pub(in super::super) fn recorded_reports(directory: &Path, id: Option<&str>) -> Result<VolumeReports, Fatal> {
    let mut store = AgentStore::open_intact(directory).map_err(Fatal::runtime)?;
    let loaded = store.volumes.load().map_err(Fatal::runtime)?;
    let boot = BootId::read(BootId::PATH).map_err(Fatal::runtime)?;
    let table = Arc::new(read_table().map_err(Fatal::runtime)?);
    // The root does not matter, since the node's actions are not executed.
    let (node, _) = Node::open(VolumeSettings::new("/"), boot, loaded, table);
    let mut reports = VolumeReports::default();
    for key in node.keys().filter(|key| id.is_none_or(|id| matches_id(key, id))) {
        reports.volumes.extend(node.explain(key, Duration::ZERO).as_ref().map(VolumeReport::from));
    }
    reports.quarantined = node
        .quarantined()
        .iter()
        .map(|(record, reason)| Quarantined { record: record.clone(), reason: reason.clone() })
        .collect();
    if let Ok(Some(set)) = desired::read(&store.desired) {
        reports.revision = set.revision;
    }
    Ok(reports)
}
