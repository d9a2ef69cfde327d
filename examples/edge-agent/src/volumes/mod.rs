//! The volumes of this node, as peers at the hub request them.
//!
//! A peer calls the service `volumes` of this node with the messages of `edge_csi.volumes.v1` (see
//! [`volume_manager::advanced::message`]). An accepted set is on disk twice: as it was received, and as a record for each volume.
//! Afterwards only the drivers of this node are needed: after a crash, a reboot or a week without the hub, the volumes
//! match the latest set.
//!
//! # Authorization
//!
//! `--allow` of `edge-hub`, or its policy, decides which peers may call the service. Such a peer can make any
//! driver of this node mount any of its volumes at any path that `--allowed-target-dir` permits. Secrets are never
//! sent.
//!
//! # Relayed calls
//!
//! The agent also relays CSI calls to the same drivers. Each side of a volume has one manager: its controller calls
//! are made by the sidecars in the cloud (attach `AWAITED` or `NOT_REQUIRED`) or by the agent (`HERE`), and its node calls
//! by the agent only. Do not let a kubelet or another peer stage and publish the same volumes.

mod desired;
mod offline;
mod open;
mod planned;
mod reconcile;
mod secrets;
mod service;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use volume_manager::VolumeKey;
use volume_manager::advanced::message::{DesiredSet, Quarantined, Refused, VolumeReport, VolumeReports};
use volume_manager::node::{Closed, Counts, Volumes};
use volume_manager::registry::DriverEndpoint;

use super::store::Document;
use edge_csi_common::values::duration;

pub(super) use self::offline::recorded_reports;
pub(super) use self::open::{OpenedVolumes, open};
pub(super) use self::service::SOCKET;

/// The volumes of this node. Clones share the state.
#[derive(Debug, Clone)]
pub(super) struct NodeVolumes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    volumes: Volumes,
    /// The latest set, on the disk.
    document: Document,
    /// The directories below which target paths are allowed; if empty, any path is.
    targets: Vec<PathBuf>,
    /// Whether desired sets of peers are accepted.
    accepts_peer_sets: bool,
    /// Locked while a set is applied, so that sets do not interleave.
    state: tokio::sync::Mutex<State>,
    summary: Mutex<Summary>,
}

/// The desired set, and the values passed to the volumes.
#[derive(Debug, Default)]
struct State {
    desired: Option<Arc<DesiredSet>>,
    /// Whether a part of the set is not applied yet and is retried.
    incomplete: bool,
    /// The attachments last passed to the volumes, for volumes that others attach.
    attached: BTreeMap<VolumeKey, Option<BTreeMap<String, String>>>,
    drivers: BTreeMap<DriverName, DriverEndpoint>,
}

/// The state that is readable while a set is applied.
#[derive(Debug, Clone, Default)]
pub(super) struct Summary {
    /// The revision of the latest set; 0 if there is none.
    pub(super) revision: u64,
    /// The consumers of the set that are refused for now.
    pub(super) refused: Arc<Vec<Refused>>,
    /// The number of volumes in each state.
    pub(super) counts: Counts,
}

impl NodeVolumes {
    fn new(
        volumes: Volumes,
        document: Document,
        targets: Vec<PathBuf>,
        desired: Option<DesiredSet>,
        accepts_peer_sets: bool,
    ) -> Self {
        let summary =
            Summary { revision: desired.as_ref().map_or(0, |set| set.revision), ..Summary::default() };
        let state = State { desired: desired.map(Arc::new), incomplete: true, ..State::default() };
        let (state, summary) = (tokio::sync::Mutex::new(state), Mutex::new(summary));
        Self(Arc::new(Shared { volumes, document, targets, accepts_peer_sets, state, summary }))
    }

    fn summary_mut(&self) -> MutexGuard<'_, Summary> {
        // A panic leaves no partial change.
        self.0.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the summary, without waiting for a set that is being applied.
    pub(super) fn summary(&self) -> Summary {
        self.summary_mut().clone()
    }

    /// Registers a driver, with its policy of the desired set.
    pub(super) async fn driver_registered(&self, name: DriverName, endpoint: DriverEndpoint) {
        let mut state = self.0.state.lock().await;
        let policy = state.desired.as_ref().map(|set| set.policy(&name)).unwrap_or_default();
        state.drivers.insert(name.clone(), endpoint.clone());
        if let Err(error) = self.0.volumes.driver_registered(name, endpoint, policy).await {
            tracing::error!("{error}");
        }
    }

    /// Deregisters a driver.
    pub(super) async fn driver_deregistered(&self, name: DriverName) {
        self.0.state.lock().await.drivers.remove(&name);
        if let Err(error) = self.0.volumes.driver_deregistered(name).await {
            tracing::error!("{error}");
        }
    }

    /// Returns the reports of the volumes that match `id`, or of all.
    pub(super) async fn reports(&self, id: Option<&str>) -> Result<VolumeReports, Closed> {
        let volumes = &self.0.volumes;
        let mut reports = VolumeReports::default();
        for key in volumes.list().await? {
            if id.is_none_or(|id| matches_id(&key, id))
                && let Some(explanation) = volumes.explain(&key).await?
            {
                reports.volumes.push(VolumeReport::from(&explanation));
            }
        }
        for (record, reason) in volumes.quarantined().await? {
            reports.quarantined.push(Quarantined { record, reason });
        }
        let Summary { revision, refused, .. } = self.summary();
        reports.revision = revision;
        reports.refused =
            refused.iter().filter(|one| id.is_none_or(|id| refused_matches_id(one, id))).cloned().collect();
        Ok(reports)
    }
}

/// Whether `id` names this volume: its id, or `DRIVER/ID`.
fn matches_id(key: &VolumeKey, id: &str) -> bool {
    key.id.as_str() == id || key.to_string() == id
}

fn refused_matches_id(refused: &Refused, id: &str) -> bool {
    refused.volume_id == id || format!("{}/{}", refused.driver, refused.volume_id) == id
}

fn below_any(target: &Path, directories: &[PathBuf]) -> bool {
    directories.is_empty() || directories.iter().any(|directory| target.starts_with(directory))
}

/// The options of the volume manager.
#[derive(Debug, Clone, clap::Args)]
pub struct VolumesOptions {
    /// Manage this node's volumes: stage them below this directory, and publish them. Peers that may call the service `volumes`
    /// of this node send the set of volumes (see --allow of edge-hub). Needs root
    #[arg(long, value_name = "DIR", requires = "state_dir")]
    pub staging_dir: Option<PathBuf>,

    /// Directory with secrets for the volumes of --staging-dir, as files NAMESPACE/NAME/KEY with mode 0600 or 0400. Without it,
    /// volumes with secrets are not mounted
    #[arg(long, value_name = "DIR", requires = "staging_dir")]
    pub secrets_dir: Option<PathBuf>,

    /// Directory below which volumes may be published; may be repeated. Any path is allowed if not given
    #[arg(long, value_name = "DIR", requires = "staging_dir")]
    pub allowed_target_dir: Vec<PathBuf>,

    /// File with the id of this boot, to test reboots
    #[arg(long, value_name = "FILE", requires = "staging_dir", hide = true)]
    pub boot_id_file: Option<PathBuf>,

    /// Time between two NodePublishVolume calls for drivers with requiresRepublish, to test them
    #[arg(long, value_name = "TIME", requires = "staging_dir", hide = true, value_parser = duration)]
    pub republish_interval: Option<Duration>,
}
