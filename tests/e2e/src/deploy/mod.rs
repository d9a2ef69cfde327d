//! The manifests, and the guide's commands, on API servers and as pods.

mod check;
mod rights;

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use edge_csi_tests::process::Process;
use libtest_mimic::Failed;

use super::Place;
use super::component::Part;
use super::error::RealError;
use super::kubernetes::Plane;
use super::setup::Setup;
use super::table::{self, Fact};

/// They take two minutes side by side.
const BOUND: Duration = Duration::from_secs(900);

/// What is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// All manifests are held against an API server.
    Check,
    /// The overlay `topology` on an API server.
    Topology,
    /// The overlay `sockets` on an API server.
    Sockets,
    /// The overlay `topology` as pods.
    Pods,
}

impl Deployment {
    pub(crate) const ALL: [Self; 4] = [Self::Check, Self::Topology, Self::Sockets, Self::Pods];

    pub(crate) fn run(self, place: &Place) -> Result<(), Failed> {
        let components = place.components()?;
        components.build(Part::Sidecars)?;
        components.build(Part::Kubernetes)?;
        let started = Instant::now();
        let (scratch, logs) = place.folders(&self.to_string())?;
        let setup = Setup { components, certificates: &place.certificates, scratch: &scratch, logs: &logs };
        let facts = match self {
            Self::Check => {
                let definitions = [components.snapshot_definitions()?, components.certificate_definitions()?];
                check::run(setup, &place.root, &definitions)?
            }
            Self::Topology => vec![Self::live(setup, &place.root, "topology")?],
            Self::Sockets => vec![Self::live(setup, &place.root, "sockets")?],
            Self::Pods => vec![Self::pods(setup, &place.root)?],
        };
        table::found(&self.to_string(), facts, started.elapsed())
    }

    /// The guide on an API server.
    fn live(setup: Setup<'_>, root: &Path, overlay: &str) -> Result<Fact, RealError> {
        let plane = Plane::start(&setup)?;
        // By this name the program is kubectl, which the guide's commands look for.
        let programs = setup.folder("bin")?;
        let kubectl = programs.join("kubectl");
        symlink(&setup.components.kubernetes, &kubectl)
            .map_err(|cause| RealError::File { path: kubectl.clone(), cause })?;
        let mut path = programs.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(root.join("tests/e2e/deploy/live.sh"));
        command.env("KUBECONFIG", &plane.kubeconfig).env("KUBECTL", &kubectl).env("PATH", path);
        script(setup, root, command.env("OVERLAY", overlay))
    }

    /// The guide on nodes that run pods.
    fn pods(setup: Setup<'_>, root: &Path) -> Result<Fact, RealError> {
        let mut command = Command::new(root.join("tests/e2e/deploy/pods.sh"));
        script(setup, root, command.env("CRDS", setup.components.snapshot_definitions()?))
    }
}

/// Runs a script.
fn script(setup: Setup<'_>, root: &Path, command: &mut Command) -> Result<Fact, RealError> {
    let components = setup.components;
    command
        .current_dir(root)
        .env("SIDECARS", components.kubernetes.parent().unwrap_or(root))
        .env("PROGRAMS", components.hub.parent().unwrap_or(root));
    let mut script = Process::spawn(setup.logs, "script", command)?;
    let right = script.finish(BOUND)?;
    let words = if right { "the script found nothing wrong".to_owned() } else { script.tail() };
    Ok(Fact { words, right })
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "deploy-check",
            Self::Topology => "deploy-topology",
            Self::Sockets => "deploy-sockets",
            Self::Pods => "deploy-pods",
        })
    }
}
