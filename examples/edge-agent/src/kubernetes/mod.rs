//! The volume plugin of a node without kubelet.
//!
//! The hub sends the pods that are bound to the node, with their claims, volumes, attachments and drivers. They are saved on
//! disk; a pure function computes a set of volumes, and volume-manager mounts it. This needs no hub afterwards: after a
//! reboot the known pods get their volumes, and later updates of the hub are applied to the saved objects.
//!
//! # The operations of kubelet's plugin for CSI
//!
//! | Operation | Here |
//! |---|---|
//! | wait for attach | [`plan`]: a driver that attaches has [`Attach::Awaited`], until its VolumeAttachment is attached |
//! | mark in use | [`in_use`]: an attached volume waits until the hub has written it to `status.volumesInUse` |
//! | mount device | volume-manager: NodeStageVolume, once for a volume |
//! | set up | volume-manager: NodePublishVolume at the pod's target path, see [`layout`] |
//! | apply fsGroup | [`fs_group`]: a walk over the files after NodePublishVolume, if the driver does not apply it |
//! | tear down | volume-manager: NodeUnpublishVolume, when the pod has ended or was removed |
//! | unmount device | volume-manager: NodeUnstageVolume, after the last pod |
//! | map and unmap of block volumes | the same calls, with the path of the block device |
//! | expand | [`expansions`]: NodeExpandVolume, after the controller's part, as the claim reports it |
//! | detach | not by the agent: `status.volumesInUse` prevents it while a volume is mounted |
//!
//! # When a pod releases its volumes
//!
//! A pod releases its volumes when it has ended (phase Succeeded or Failed) or was removed. Containers of a pod
//! that is being deleted may still run: the container runtime removes the pod after they have ended, and until
//! then its volumes stay. A missing object, such as a claim or a volume, unmounts nothing.
//!
//! [`Attach::Awaited`]: volume_manager::driver::Attach::Awaited

mod csi_node;
mod expansions;
mod follow;
mod fs_group;
mod hub;
mod in_use;
mod layout;
mod metadata;
mod objects;
mod order;
mod plan;
mod plugin;
mod removed_pods;
mod retries;
mod secrets;
mod status;
mod status_reporter;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_proxy::NodeSegment;
use edge_transport::Peer;
use tokio::sync::{mpsc, watch};
use volume_manager::driver::Secrets;
use volume_manager::store::BootId;

pub(super) use self::csi_node::{CsiNodeReport, NodeDrivers};
use self::fs_group::{DoneGroups, Groups};
use self::hub::Hub;
use self::layout::KubeletDirectory;
use self::order::StatusOrder;
use self::plugin::{Plugin, SavedState};
use self::secrets::HubSecrets;
pub(super) use self::view::PluginView;
use super::essential::Essential;
use super::seed_of;
use super::store::AgentStore;
use super::volumes::{NodeVolumes, VolumesOptions};
use edge_csi_common::process::Fatal;

/// The opened plugin; [`start`](Self::start) runs it.
pub(super) struct NodePlugin {
    hub: Hub,
    directory: KubeletDirectory,
    saved: SavedState,
    order: StatusOrder,
    view: PluginView,
}

impl NodePlugin {
    /// Opens the plugin with its saved state. Returns `None` without `--kubelet-dir` or a store.
    pub(super) fn open(
        options: &KubernetesOptions,
        volumes: &VolumesOptions,
        store: Option<&AgentStore>,
    ) -> Result<Option<Self>, Fatal> {
        let (Some(directory), Some(store)) = (&options.kubelet_dir, store) else { return Ok(None) };
        let directory = edge_csi_common::state::directory("--kubelet-dir", directory)?;
        let targets = &volumes.allowed_target_dir;
        let is_target = |target: &PathBuf| {
            let target = fs::canonicalize(target).unwrap_or_else(|_| target.clone());
            directory.join("pods").starts_with(target)
        };
        if !targets.is_empty() && !targets.iter().any(is_target) {
            let text =
                "is not below --allowed-target-dir; omit that option, or repeat it with this directory";
            return Err(Fatal::Input(format!("--kubelet-dir: {} {text}", directory.display())));
        }
        let objects = store.objects.clone();
        let metadata = objects::load(&objects).map_err(Fatal::runtime)?;
        let order = StatusOrder::open(store.starts.clone()).map_err(Fatal::runtime)?;
        let boot = volumes.boot_id_file.as_deref().unwrap_or_else(|| Path::new(BootId::PATH));
        let boot = BootId::read(boot).map_err(Fatal::input)?;
        let groups = Groups::new(DoneGroups::new(store.groups.clone(), boot));
        let hub = Hub::new().map_err(Fatal::runtime)?;
        let view = PluginView::new(metadata.len());
        let directory = KubeletDirectory::new(directory);
        Ok(Some(Self { hub, directory, saved: SavedState { objects, metadata, groups }, order, view }))
    }

    /// Returns the secrets that the hub can fetch.
    pub(super) fn secrets(&self) -> Arc<dyn Secrets> {
        Arc::new(HubSecrets(self.hub.clone()))
    }

    /// Returns the view of the plugin's state.
    pub(super) fn view(&self) -> PluginView {
        self.view.clone()
    }

    /// Starts the tasks of the plugin.
    pub(super) fn start(
        self,
        peer: Peer,
        volumes: NodeVolumes,
        segment: Option<NodeSegment>,
        tasks: &mut Essential,
    ) {
        let seed = seed_of(peer.name().as_str());
        self.hub.set_peer(peer);
        let (status, latest) = watch::channel(None);
        let (changes, received) = mpsc::channel(1);
        let (report_written, written) = watch::channel(0);
        let (position, objects) = (self.saved.metadata.position(), self.saved.metadata.len());
        tracing::info!(objects, "managing the volumes of this node's pods");
        let (view, following) = (self.view.clone(), self.view);
        let plugin = Plugin::new(volumes, self.saved, self.directory, segment, status, view, seed);
        let follow = follow::follow(self.hub.clone(), position, changes, following, seed);
        tasks.spawn("the volume plugin for pods", plugin.run(received, written));
        tasks.spawn("the watch of the node's objects", follow);
        tasks.spawn(
            "the status reporter",
            status_reporter::run(self.hub, self.order, latest, report_written, seed),
        );
    }
}

/// The options of the volume plugin for pods.
#[derive(Debug, Clone, clap::Args)]
pub struct KubernetesOptions {
    /// Act as the volume plugin of a node without kubelet: a hub with --kubeconfig sends the pods of this node,
    /// and their volumes are mounted below this directory as kubelet does (e.g. /var/lib/kubelet). The pods are
    /// recorded in --state-dir. Sets of volumes from peers are refused
    #[arg(long, value_name = "DIR", requires = "staging_dir")]
    pub kubelet_dir: Option<PathBuf>,

    /// Report the drivers of this node to a hub with --kubeconfig, which writes them to the CSINode: for a kubelet that keeps its
    /// CSINode to itself, as KubeEdge's edged does. The hub refuses where a kubelet writes the CSINode
    #[arg(long, requires_all = ["kubelet_socket_dir", "state_dir"], conflicts_with = "kubelet_dir")]
    pub csi_node: bool,
}
