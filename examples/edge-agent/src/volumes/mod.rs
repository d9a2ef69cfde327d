//! The volumes of this node, as peers at the hub request them.
//!
//! A peer calls the service `volumes` of this node with the messages of `edge_csi.volumes.v1` (see
//! [`volume_manager::message`]). An accepted set is on disk twice: as it was received, and as a record for each volume.
//! Afterwards only the drivers of this node are needed: after a crash, a reboot or a week without the hub, the volumes
//! match the latest set.
//!
//! # Authorization
//!
//! The peers that `--allow` of `edge-hub`, or its policy, permits to call the service. Such a peer can make any driver of this
//! node mount any of its volumes at any path that `--allowed-target-dir` permits. Secrets are never sent.
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
mod secrets;
mod service;
mod settling;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use volume_manager::VolumeKey;
use volume_manager::message::{DesiredSet, Quarantined, Refused, VolumeReport, VolumeReports};
use volume_manager::node::core::Counts;
use volume_manager::node::{Closed, Volumes};
use volume_manager::registry::DriverEndpoint;

use super::store::Document;
use edge_csi_common::values::duration;

pub(super) use self::offline::from_store;
pub(super) use self::open::{OpenedVolumes, open};
pub(super) use self::service::SOCKET;

/// The volumes of this node. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct NodeVolumes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    volumes: Volumes,
    /// The latest set, on the disk.
    document: Document,
    /// Below which directories targets may be; none: anywhere.
    targets: Vec<PathBuf>,
    /// Whether sets of peers are taken.
    peers_decide: bool,
    /// One set at a time.
    state: tokio::sync::Mutex<State>,
    shown: Mutex<Shown>,
}

/// The desired set, and the values passed to the volumes.
#[derive(Debug, Default)]
struct State {
    desired: Option<Arc<DesiredSet>>,
    /// Whether something of the set is not recorded as wanted, and is to be tried again.
    unsettled: bool,
    /// The attachments last passed to the volumes, for volumes that others attach.
    attached: BTreeMap<VolumeKey, Option<BTreeMap<String, String>>>,
    drivers: BTreeMap<DriverName, DriverEndpoint>,
}

/// What others see without waiting for a set that is being taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown {
    /// The revision of the latest set; 0 if there is none.
    pub(super) revision: u64,
    /// What of it cannot be had for now.
    pub(super) refused: Arc<Vec<Refused>>,
    /// How many volumes are in which state.
    pub(super) counts: Counts,
}

impl NodeVolumes {
    fn new(
        volumes: Volumes,
        document: Document,
        targets: Vec<PathBuf>,
        desired: Option<DesiredSet>,
        peers_decide: bool,
    ) -> Self {
        let shown = Shown { revision: desired.as_ref().map_or(0, |set| set.revision), ..Shown::default() };
        let state = State { desired: desired.map(Arc::new), unsettled: true, ..State::default() };
        let (state, shown) = (tokio::sync::Mutex::new(state), Mutex::new(shown));
        Self(Arc::new(Shared { volumes, document, targets, peers_decide, state, shown }))
    }

    fn shown_mut(&self) -> MutexGuard<'_, Shown> {
        // Nothing is half written here.
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known without asking.
    pub(super) fn shown(&self) -> Shown {
        self.shown_mut().clone()
    }

    /// A driver is there.
    pub(super) async fn driver_registered(&self, name: DriverName, endpoint: DriverEndpoint) {
        let mut state = self.0.state.lock().await;
        let policy = state.desired.as_ref().map(|set| set.policy(&name)).unwrap_or_default();
        state.drivers.insert(name.clone(), endpoint.clone());
        if let Err(error) = self.0.volumes.driver_registered(name, endpoint, policy).await {
            tracing::error!("{error}");
        }
    }

    /// A driver was deregistered.
    pub(super) async fn driver_deregistered(&self, name: DriverName) {
        self.0.state.lock().await.drivers.remove(&name);
        if let Err(error) = self.0.volumes.driver_deregistered(name).await {
            tracing::error!("{error}");
        }
    }

    /// The reports of the volumes that match `id`, or of all.
    pub(super) async fn reports(&self, id: Option<&str>) -> Result<VolumeReports, Closed> {
        let volumes = &self.0.volumes;
        let mut reports = VolumeReports::default();
        for key in volumes.list().await? {
            if id.is_none_or(|id| is_called(&key, id))
                && let Some(explanation) = volumes.explain(&key).await?
            {
                reports.volumes.push(VolumeReport::from(&explanation));
            }
        }
        for (record, reason) in volumes.quarantined().await? {
            reports.quarantined.push(Quarantined { record, reason });
        }
        let Shown { revision, refused, .. } = self.shown();
        reports.revision = revision;
        reports.refused =
            refused.iter().filter(|one| id.is_none_or(|id| refused_is_called(one, id))).cloned().collect();
        Ok(reports)
    }
}

/// Whether `id` names this volume: its id, or `DRIVER/ID`.
fn is_called(key: &VolumeKey, id: &str) -> bool {
    key.id.as_str() == id || key.to_string() == id
}

fn refused_is_called(refused: &Refused, id: &str) -> bool {
    refused.volume_id == id || format!("{}/{}", refused.driver, refused.volume_id) == id
}

fn below_any(target: &Path, directories: &[PathBuf]) -> bool {
    directories.is_empty() || directories.iter().any(|directory| target.starts_with(directory))
}

/// The options about volumes.
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
