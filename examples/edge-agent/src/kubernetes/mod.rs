//! The volume plugin of a node without kubelet.
//!
//! The hub tells which pods are bound to the node, with their claims, volumes, attachments and drivers. They are kept on the
//! disk; a pure function makes a set of volumes of them, and volume-manager mounts that. From then on nobody is asked: after a
//! reboot the pods that were there have their volumes, and what the hub tells later is compared with the whole.
//!
//! # The operations of kubelet's plugin for CSI
//!
//! | Operation | Here |
//! |---|---|
//! | wait for attach | [`plan`]: a driver that attaches has [`Attach::Awaited`], until the VolumeAttachment says so |
//! | mark in use | [`in_use`]: such a volume waits until the hub has written it to `status.volumesInUse` |
//! | mount device | volume-manager: NodeStageVolume, once for a volume |
//! | set up | volume-manager: NodePublishVolume at the pod's place, see [`layout`] |
//! | files to a group | [`groups`]: a walk over them after NodePublishVolume, if the driver does not do it |
//! | tear down | volume-manager: NodeUnpublishVolume, when the pod has ended or is gone |
//! | unmount device | volume-manager: NodeUnstageVolume, after the last pod |
//! | map and unmap of block volumes | the same two calls and their opposites, at the place of a device |
//! | expand | [`expansions`]: NodeExpandVolume, when the claim says that the controller has done its part |
//! | detach | nobody here: `status.volumesInUse` keeps the controller from it while something is mounted |
//!
//! # When a pod gives its volumes up
//!
//! When it has ended for good (phase Succeeded or Failed), or is gone. While it is being deleted its containers may run: who
//! runs them removes the pod when they have ended, and until then its volumes stay. That something cannot be found, such as a
//! claim or a volume, unmounts nothing.
//!
//! [`Attach::Awaited`]: volume_manager::driver::Attach::Awaited

mod expansions;
mod follow;
mod fs_group;
mod hub;
mod in_use;
mod layout;
mod metadata;
mod objects;
mod plan;
mod plugin;
mod retries;
mod secrets;
mod status;
mod status_reporter;
mod vacated;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_proxy::NodeSegment;
use edge_transport::Peer;
use tokio::sync::{mpsc, watch};
use volume_manager::driver::Secrets;
use volume_manager::store::BootId;

use self::fs_group::{DoneGroups, Groups};
use self::hub::Hub;
use self::layout::KubeletDirectory;
use self::plugin::{Kept, Plugin};
use self::secrets::HubSecrets;
pub(super) use self::view::PluginView;
use super::essential::Essential;
use super::seed_of;
use super::store::AgentStore;
use super::volumes::{NodeVolumes, VolumesOptions};
use edge_csi_common::process::Fatal;

/// The plugin before it runs.
pub(super) struct NodePlugin {
    hub: Hub,
    directory: KubeletDirectory,
    kept: Kept,
    view: PluginView,
}

impl NodePlugin {
    /// The plugin, if the options ask for it, with what is known from before.
    pub(super) fn open(
        options: &KubernetesOptions,
        volumes: &VolumesOptions,
        store: Option<&AgentStore>,
    ) -> Result<Option<Self>, Fatal> {
        let (Some(directory), Some(store)) = (&options.kubelet_dir, store) else { return Ok(None) };
        let directory = edge_csi_common::state::directory("--kubelet-dir", directory)?;
        let targets = &volumes.volume_targets;
        let is_target = |target: &PathBuf| {
            let target = fs::canonicalize(target).unwrap_or_else(|_| target.clone());
            directory.join("pods").starts_with(target)
        };
        if !targets.is_empty() && !targets.iter().any(is_target) {
            let text = "is not below --volume-targets; leave that out, or name this one too";
            return Err(Fatal::Input(format!("--kubelet-dir: {} {text}", directory.display())));
        }
        let objects = store.objects.clone();
        let metadata = objects::load(&objects).map_err(Fatal::runtime)?;
        let boot = volumes.boot_id_file.as_deref().unwrap_or_else(|| Path::new(BootId::PATH));
        let boot = BootId::read(boot).map_err(Fatal::input)?;
        let groups = Groups::new(DoneGroups::new(store.groups.clone(), boot));
        let hub = Hub::new().map_err(Fatal::runtime)?;
        let view = PluginView::new(metadata.len());
        let directory = KubeletDirectory::new(directory);
        Ok(Some(Self { hub, directory, kept: Kept { objects, metadata, groups }, view }))
    }

    /// The secrets that the hub can fetch.
    pub(super) fn secrets(&self) -> Arc<dyn Secrets> {
        Arc::new(HubSecrets(self.hub.clone()))
    }

    /// What others see of it.
    pub(super) fn view(&self) -> PluginView {
        self.view.clone()
    }

    /// Runs it, with volumes that run.
    pub(super) fn start(
        self,
        peer: Peer,
        volumes: NodeVolumes,
        segment: Option<NodeSegment>,
        tasks: &mut Essential,
    ) {
        let seed = seed_of(peer.name().as_str());
        self.hub.connect(peer);
        let (news, latest) = watch::channel(None);
        let (changes, taken) = mpsc::channel(1);
        let (tell_written, written) = watch::channel(0);
        let (position, objects) = (self.kept.metadata.watch(), self.kept.metadata.len());
        tracing::info!(objects, "the pods of this node have their volumes from here");
        let (view, following) = (self.view.clone(), self.view);
        let plugin = Plugin::new(volumes, self.kept, self.directory, segment, news, view, seed);
        let follow = follow::follow(self.hub.clone(), position, changes, following, seed);
        tasks.spawn("the plugin for the volumes of pods", plugin.run(taken, written));
        tasks.spawn("what follows the node's objects", follow);
        tasks.spawn(
            "what tells the hub how the node is",
            status_reporter::tell(self.hub, latest, tell_written, seed),
        );
    }
}

/// The options about pods.
#[derive(Debug, Clone, clap::Args)]
pub struct KubernetesOptions {
    /// Be the volume plugin of this node, which has no kubelet: the hub, which has --kubeconfig, tells which pods are bound to
    /// the node, and their volumes are mounted below this directory as kubelet would (e.g. /var/lib/kubelet). What is known is
    /// kept in --state-dir. Peers may not send sets of volumes then
    #[arg(long, value_name = "DIR", requires = "volumes")]
    pub kubelet_dir: Option<PathBuf>,
}
