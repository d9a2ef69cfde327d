//! The manifests, and the guide's commands, on API servers and as pods. The scripts know nothing of each other, since each has a network
//! of its own.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use edge_csi_tests::process::Process;
use libtest_mimic::Failed;

use super::Place;
use super::component::Part;
use super::table::{self, Fact};

/// They take two minutes side by side.
const BOUND: Duration = Duration::from_secs(900);

/// What is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// The overlay `topology` on an API server.
    Topology,
    /// The overlay `sockets` on an API server.
    Sockets,
    /// The overlay `topology` as pods.
    Pods,
}

impl Deployment {
    pub(crate) const ALL: [Self; 3] = [Self::Topology, Self::Sockets, Self::Pods];

    /// Runs its script.
    pub(crate) fn run(self, place: &Place) -> Result<(), Failed> {
        let components = place.components()?;
        components.build(Part::Sidecars)?;
        components.build(Part::Kubernetes)?;
        let started = Instant::now();
        let (_, logs) = place.folders(&self.to_string())?;
        let scripts = place.root.join("tests/e2e/deploy");
        let sidecars = components.kubernetes.parent().unwrap_or(&place.root);
        let mut definitions = components.snapshot_definitions()?.into_os_string();
        let mut command = match self {
            Self::Topology | Self::Sockets => {
                definitions.push(":");
                definitions.push(components.certificate_definitions()?);
                let overlay = if self == Self::Topology { "topology" } else { "sockets" };
                on_api_server(&scripts, sidecars, overlay)
            }
            Self::Pods => Command::new(scripts.join("pods.sh")),
        };
        command
            .current_dir(&place.root)
            .env("CRDS", definitions)
            .env("SIDECARS", sidecars)
            .env("PROGRAMS", components.hub.parent().unwrap_or(&place.root));
        let mut script = Process::spawn(&logs, "script", &mut command)?;
        let right = script.finish(BOUND)?;
        let words = if right { "the script found nothing wrong".to_owned() } else { script.tail() };
        table::found(&self.to_string(), vec![Fact { words, right }], started.elapsed())
    }
}

/// The checks, and then the guide, in a network of their own.
fn on_api_server(scripts: &Path, sidecars: &Path, overlay: &str) -> Command {
    let script = |name: &str| scripts.join(name);
    let mut command = Command::new("unshare");
    command
        .args(["--net", "bash", "-c", r#"ip link set lo up && "$0" "$1" bash -c '"$0" && "$1"' "$2" "$3""#])
        .arg(script("plane.sh"))
        .arg(sidecars)
        .arg(script("check.sh"))
        .arg(script("live.sh"))
        .env("OVERLAY", overlay);
    command
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topology => "deploy-topology",
            Self::Sockets => "deploy-sockets",
            Self::Pods => "deploy-pods",
        })
    }
}
