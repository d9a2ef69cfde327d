//! The manifests, and the guide's commands, on API servers and as pods. The scripts know nothing of each other, since each has a network
//! of its own.

mod check;
mod rights;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use edge_csi_tests::process::Process;
use libtest_mimic::Failed;

use super::Place;
use super::component::Part;
use super::error::RealError;
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
            Self::Topology | Self::Sockets | Self::Pods => vec![self.script(setup, &place.root)?],
        };
        table::found(&self.to_string(), facts, started.elapsed())
    }

    /// Runs its script.
    fn script(self, setup: Setup<'_>, root: &Path) -> Result<Fact, RealError> {
        let components = setup.components;
        let scripts = root.join("tests/e2e/deploy");
        let sidecars = components.kubernetes.parent().unwrap_or(root);
        let mut command = match self {
            Self::Sockets => on_api_server(&scripts, sidecars, "sockets"),
            Self::Pods => Command::new(scripts.join("pods.sh")),
            Self::Check | Self::Topology => on_api_server(&scripts, sidecars, "topology"),
        };
        command
            .current_dir(root)
            .env("CRDS", components.snapshot_definitions()?)
            .env("SIDECARS", sidecars)
            .env("PROGRAMS", components.hub.parent().unwrap_or(root));
        let mut script = Process::spawn(setup.logs, "script", &mut command)?;
        let right = script.finish(BOUND)?;
        let words = if right { "the script found nothing wrong".to_owned() } else { script.tail() };
        Ok(Fact { words, right })
    }
}

/// The guide in a network of its own.
fn on_api_server(scripts: &Path, sidecars: &Path, overlay: &str) -> Command {
    let script = |name: &str| scripts.join(name);
    let mut command = Command::new("unshare");
    command
        .args(["--net", "bash", "-c", r#"ip link set lo up && "$0" "$1" "$2""#])
        .arg(script("plane.sh"))
        .arg(sidecars)
        .arg(script("live.sh"))
        .env("OVERLAY", overlay);
    command
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
