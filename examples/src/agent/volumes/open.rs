//! From options to volumes that run.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use csi_proxy::SocketAddress;
use volume_manager::driver::Secrets;
use volume_manager::mounts::linux::{self, LinuxMounts, ProbeCommand};
use volume_manager::node::{Parts, Settings, Volumes};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::BootId;
use volume_manager::store::redb::RedbStore;

use super::super::essential::Essential;
use super::super::seed::seed_of;
use super::super::store::Document;
use super::desired;
use super::secrets::{DirectorySecrets, NodeSecrets};
use super::socket::{self, Listener};
use super::{NodeVolumes, VolumesOptions};
use crate::process::Fatal;
use crate::state::StateDirectory;
use crate::values::DriverAt;

/// Volumes that are open, and are not run yet.
pub(in super::super) struct OpenedVolumes {
    volumes: NodeVolumes,
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    listener: Listener,
}

/// Who says which volumes the node shall have.
#[cfg_attr(not(feature = "kubernetes-node"), allow(dead_code, reason = "nobody else says it then"))]
pub(in super::super) enum Decides {
    /// Peers, by sets that they send to the service.
    Peers,
    /// This agent itself; secrets that the node has no files of are asked for here.
    Agent(Arc<dyn Secrets>),
}

/// Opens what is recorded in the state directory, if the options ask for volumes.
pub(in super::super) async fn open(
    options: &VolumesOptions,
    kept: Option<(&StateDirectory, RedbStore, Document)>,
    nodeid: &str,
    decides: Decides,
) -> Result<Option<OpenedVolumes>, Fatal> {
    let (Some(root), Some((state, store, document))) = (&options.volumes, kept) else { return Ok(None) };
    let root = made(root)?;
    let mut targets = Vec::new();
    for target in &options.volume_targets {
        let absolute = std::path::absolute(target);
        targets.push(absolute.map_err(|error| unusable("--volume-targets", target, &error))?);
    }
    if let Some(directory) = &options.secrets_dir
        && !directory.is_dir()
    {
        return Err(Fatal::Input(format!("--secrets-dir: {} is no directory", directory.display())));
    }
    let listener = socket::bind(state.path()).map_err(|error| Fatal::Input(error.to_string()))?;
    let mounts = LinuxMounts::open(ProbeCommand::own(), linux::Settings::default());
    let mounts = mounts.await.map_err(Fatal::runtime)?;
    let read = document.clone();
    let desired = tokio::task::spawn_blocking(move || desired::load(&read)).await.map_err(Fatal::runtime)?;
    let desired = desired.map_err(Fatal::runtime)?;
    let directory = DirectorySecrets(options.secrets_dir.clone());
    let (peers_decide, beyond) = match decides {
        Decides::Peers => (true, None),
        Decides::Agent(secrets) => (false, Some(secrets)),
    };
    let secrets = NodeSecrets { directory, beyond };
    // What is out of date is put right by the mount table and the next desired set, which are compared with it.
    let mut parts = Parts::new(store, mounts, secrets).take_back_salvaged();
    if let Some(file) = &options.boot_id_file {
        parts = parts.boot_id(BootId::read(file).map_err(Fatal::input)?);
    }
    let mut settings = Settings::new(root).jitter_seed(seed_of(nodeid)).groups_given_by_caller(!peers_decide);
    if let Some(interval) = options.republish_interval {
        settings = settings.republish_interval(interval.duration());
    }
    let (volumes, run) = Volumes::open(parts, settings).await.map_err(Fatal::runtime)?;
    let revision = desired.as_ref().map_or(0, |set| set.revision);
    let known = volumes.clone();
    tracing::info!(revision, "the volumes of this node are looked after");
    let volumes = NodeVolumes::new(known, document, targets, desired, peers_decide);
    Ok(Some(OpenedVolumes { volumes, run: Box::pin(run), listener }))
}

impl OpenedVolumes {
    /// The handle, which answers once the volumes run.
    pub(in super::super) fn handle(&self) -> NodeVolumes {
        self.volumes.clone()
    }

    /// Runs the volumes, with the drivers that are named on the command line.
    pub(in super::super) async fn start(
        self,
        drivers: &[DriverAt],
        tasks: &mut Essential,
    ) -> Result<(), Fatal> {
        let Self { volumes, run, listener } = self;
        tasks.spawn("what looks after the volumes", run);
        for driver in drivers {
            let endpoint = endpoint(&driver.socket)?;
            volumes.driver_registered(driver.name.clone(), endpoint).await;
        }
        tasks.spawn("what tells drivers of the wanted volumes", volumes.clone().keep_settled());
        tasks.spawn("what answers on the socket of the volumes", listener.serve(volumes));
        Ok(())
    }
}

fn endpoint(socket: &SocketAddress) -> Result<DriverEndpoint, Fatal> {
    DriverEndpoint::from_path(socket.path())
        .map_err(|error| Fatal::Input(format!("--driver {socket}: {error}")))
}

/// The directory under the name that the mount table has for it, made if it is missing.
fn made(root: &Path) -> Result<PathBuf, Fatal> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(root)
        .and_then(|()| fs::canonicalize(root))
        .map_err(|error| unusable("--volumes", root, &error))
}

fn unusable(option: &str, path: &Path, error: &std::io::Error) -> Fatal {
    Fatal::Input(format!("{option}: {} cannot be used: {error}", path.display()))
}
