//! Opens and starts the volumes of the node.

use std::pin::Pin;
use std::sync::Arc;

use csi_proxy::SocketAddress;
use edge_transport::advanced::BoundSocket;
use prost::Message as _;
use volume_manager::driver::Secrets;
use volume_manager::mounts::linux::{self, LinuxMounts, ProbeCommand};
use volume_manager::node::{Parts, VolumeSettings, Volumes};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::{BootId, Store};

use super::super::essential::Essential;
use super::super::seed_of;
use super::super::store::Document;
use super::desired;
use super::secrets::NodeSecrets;
use super::service::SOCKET;
use super::{NodeVolumes, VolumesOptions};
use edge_csi_common::process::Fatal;
use edge_csi_common::state::{self, StateDirectory};
use edge_csi_common::state_socket;
use edge_csi_common::values::DriverAt;

/// The opened volumes; [`start`](Self::start) runs them.
pub(in super::super) struct OpenedVolumes {
    volumes: NodeVolumes,
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    socket: BoundSocket,
}

/// Opens the recorded volumes. Returns `None` without `--staging-dir` or a store. Peers send the desired sets,
/// unless the agent computes them itself: `fallback_secrets` then provides the secrets without files.
pub(in super::super) async fn open(
    options: &VolumesOptions,
    probe: ProbeCommand,
    saved: Option<(&StateDirectory, Store, Document)>,
    nodeid: &str,
    fallback_secrets: Option<Arc<dyn Secrets>>,
) -> Result<Option<OpenedVolumes>, Fatal> {
    let (Some(root), Some((state, store, document))) = (&options.staging_dir, saved) else { return Ok(None) };
    let root = state::directory("--staging-dir", root)?;
    let mut targets = Vec::new();
    for target in &options.allowed_target_dir {
        let absolute = std::path::absolute(target);
        targets.push(absolute.map_err(|error| {
            Fatal::Input(format!("--allowed-target-dir: {} cannot be used: {error}", target.display()))
        })?);
    }
    if let Some(directory) = &options.secrets_dir
        && !directory.is_dir()
    {
        return Err(Fatal::Input(format!("--secrets-dir: {} is not a directory", directory.display())));
    }
    let socket = state_socket::bind(&state.path().join(SOCKET))?;
    let mounts = LinuxMounts::open(probe, linux::MountSettings::default());
    let mounts = mounts.await.map_err(Fatal::runtime)?;
    let read = document.clone();
    let desired = tokio::task::spawn_blocking(move || desired::load(&read)).await.map_err(Fatal::runtime)?;
    let desired = desired.map_err(Fatal::runtime)?;
    let accepts_peer_sets = fallback_secrets.is_none();
    let secrets = NodeSecrets { directory: options.secrets_dir.clone(), fallback: fallback_secrets };
    // Salvaged records may be outdated; the mount table and the next desired set correct them.
    let mut parts = Parts::new(store, mounts, secrets).release_salvaged();
    if let Some(file) = &options.boot_id_file {
        parts = parts.boot_id(BootId::read(file).map_err(Fatal::input)?);
    }
    let mut settings =
        VolumeSettings::new(root).jitter_seed(seed_of(nodeid)).caller_applies_fs_group(!accepts_peer_sets);
    if let Some(interval) = options.republish_interval {
        settings = settings.republish_interval(interval);
    }
    let (volumes, run) = Volumes::open(parts, settings).await.map_err(Fatal::runtime)?;
    let revision = desired.as_ref().map_or(0, |set| set.revision);
    let handle = volumes.clone();
    tracing::info!(revision, "managing the volumes of this node");
    let volumes = NodeVolumes::new(handle, document, targets, desired, accepts_peer_sets);
    Ok(Some(OpenedVolumes { volumes, run: Box::pin(run), socket }))
}

impl OpenedVolumes {
    /// Returns the handle, which is usable once the volumes run.
    pub(in super::super) fn handle(&self) -> NodeVolumes {
        self.volumes.clone()
    }

    /// Runs the volumes, with the drivers that are named on the command line.
    pub(in super::super) async fn start(
        self,
        drivers: &[DriverAt],
        tasks: &mut Essential,
    ) -> Result<(), Fatal> {
        let Self { volumes, run, socket } = self;
        tasks.spawn("the volume manager", run);
        for driver in drivers {
            let endpoint = endpoint(&driver.socket)?;
            volumes.driver_registered(driver.name.clone(), endpoint).await;
        }
        tasks.spawn("the retries of the desired set", volumes.clone().keep_reconciled());
        let answer = move |line: String| {
            let volumes = volumes.clone();
            async move { volumes.answer_line(&line).await.encode_length_delimited_to_vec() }
        };
        tasks.spawn("the server of the volumes' socket", state_socket::serve(socket, answer));
        Ok(())
    }
}

fn endpoint(socket: &SocketAddress) -> Result<DriverEndpoint, Fatal> {
    DriverEndpoint::from_path(socket.path())
        .map_err(|error| Fatal::Input(format!("--driver {socket}: {error}")))
}
